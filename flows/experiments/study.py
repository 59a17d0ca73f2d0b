"""A search study on disk: what is searched, the log of its trials, and which of them trains next.

`searches/NAME/` under the root holds `study.json` (what is searched), `trials.jsonl` (the log), `waiting/` (manually
added trials that no search has taken yet), and the results, `page.html` and `best.toml`.
"""

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flows.experiments.samplers import next_promotion, rung_shares, suggest
from flows.experiments.search_config import TABLE, SearchConfig, own_settings, read_search, recipes_of_space, rungs_of
from flows.experiments.studies import Value, split_settings, study_name
from flows.experiments.trial_log import Sampler, Trial, TrialLog
from flows.recipe.load import as_setting, load_recipe, locate_recipe
from flows.recipe.schema import Recipe
from flows.runs.record import new_run_id
from model.checksummed_json import read_sealed, write_sealed
from model.errors import InputError, RecipeError
from tasks.artifacts.identity import first_difference
from tasks.artifacts.lease import LEASE_SECONDS, build_lease, ignore

SEARCHES = "searches"

STUDY, TRIALS, WAITING = "study.json", "trials.jsonl", "waiting"

STUDY_LOST = "Remove it, and search again: finished trials are reused."


@dataclass(frozen=True)
class StudyRequest:
    """What all trials of a study have in common."""

    recipe: Path
    settings: tuple[str, ...] = ()
    """As `--set` takes them."""
    limit: float = 1.0


class Study:
    """A study: its trials, and which segment of which trial is next."""

    def __init__(self, request: StudyRequest, config: SearchConfig, root: Path) -> None:
        self.request, self.config, self.root = request, config, root
        self.base = load_recipe(request.recipe, root, request.settings, request.limit)
        recipes = recipes_of_space(config.space, self.recipe_with)
        self.shares = rung_shares(rungs_of(config, recipes, self.base), config.eta)
        self.name = config.name or study_name(self.base.name)
        self.folder = root / SEARCHES / self.name
        self._check_definition()
        self.log = TrialLog(self.folder / TRIALS)

    @property
    def trials(self) -> list[Trial]:
        return self.log.trials

    @property
    def best(self) -> Trial | None:
        """The best complete trial, of equal ones the earlier; None where there is none."""
        ended = [trial for trial in self.trials if trial.state == "complete" and trial.value is not None]
        sign = 1.0 if self.config.objective.direction == "minimize" else -1.0
        return min(ended, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)

    @property
    def falls(self) -> bool:
        """Whether less is better in the figure that all trials have: the loss at a rung, or the objective."""
        return len(self.shares) > 1 or self.config.objective.direction == "minimize"

    def recipe_with(self, settings: dict[str, Value], share: float | None = None, name: str = "") -> Recipe:
        """Return the recipe with a trial's settings, its training paused at a share."""
        more = [as_setting(key, value) for key, value in settings.items()]
        more += [] if share is None or share >= 1 else [as_setting("train.pause_share", share)]
        recipe = load_recipe(self.request.recipe, self.root, [*self.request.settings, *more], self.request.limit)
        return recipe.model_copy(update={"name": name}) if name else recipe

    @contextmanager
    def held(self, say: Callable[[str], None] = ignore) -> Iterator[None]:
        """Hold the lock of the study; InputError where another process does.

        A process whose machine died shows only by its silence; `say` is called before this wait.
        """

        def on_wait(holder: str) -> None:
            say(f"{holder} worked on study {self.name}; checking for up to {LEASE_SECONDS:g} s whether it still runs")

        def refuse(holder: str) -> None:
            raise InputError(
                f"study {self.name}: {holder} works on it. To add a trial to it, use `bessemer study search add`"
            )

        with build_lease(self.folder / "lock", on_wait, on_alive=refuse):
            yield

    def next_segment(self, busy: Collection[int]) -> tuple[Trial, int] | None:
        """Return the trial that trains next and the rung to train to, and log it; None where all depends on the `busy`.

        Trials left by a killed search come first, then manually added ones, then the best of a rung, then new settings.
        """
        self._add_waiting()
        segment = self._next(busy)
        if segment is not None:
            self.log.begin(*segment)
        return segment

    def _next(self, busy: Collection[int]) -> tuple[Trial, int] | None:
        for trial in self.trials:
            if trial.state == "running" and trial.number not in busy:
                return trial, trial.rung
        for trial in self.trials:
            if trial.state == "waiting":
                return trial, 0
        promotion = next_promotion(*self._rungs(), self.config.eta)
        if promotion is not None:
            return self.trials[promotion[0]], promotion[1]
        if not self.trials:
            return self._add("recipe", self._own_settings()), 0
        if sum(trial.origin != "hand" for trial in self.trials) < self.config.trials:
            return self._add(self.config.sampler, suggest(self.config, self.trials)), 0
        return None if busy else self._last_resort()

    def _last_resort(self) -> tuple[Trial, int] | None:
        """Return the best paused trial at the highest rung: with few trials no rung fills, and one must complete."""
        if any(trial.state == "complete" for trial in self.trials):
            return None
        paused = [trial for trial in self.trials if trial.state == "paused" and trial.stops[-1].loss is not None]
        if not paused:
            return None
        best = min(paused, key=lambda trial: (-trial.rung, trial.stops[-1].loss, trial.number))
        return best, best.rung + 1

    def _rungs(self) -> tuple[list[dict[int, float]], list[set[int]]]:
        counted = [trial for trial in self.trials if trial.state != "failed"]
        losses = [
            {trial.number: loss for trial in counted if (loss := trial.loss_at(rung)) is not None}
            for rung in range(len(self.shares))
        ]
        began = [{trial.number for trial in self.trials if trial.rung >= rung} for rung in range(len(self.shares))]
        return losses, began

    def _own_settings(self) -> dict[str, Value]:
        return own_settings(self.config.space, self.base, self.request.recipe, self.request.settings)

    def _add(self, origin: Sampler, settings: dict[str, Value], waited_as: str = "") -> Trial:
        return self.log.add(origin, settings, new_run_id(), waited_as)

    def _add_waiting(self) -> None:
        for path in sorted((self.folder / WAITING).glob("*.json")):
            if not self.log.knows(path.name):
                given = read_sealed(path, "Remove it, and add the trial again.")
                self._add("hand", {**self._own_settings(), **given}, path.name)
            path.unlink()

    def _check_definition(self) -> None:
        """Write the definition of a new study; raise RecipeError where an existing one has another, since its trials
        could not be compared."""
        definition = {
            "recipe": self.base.identity_params(),
            "search": self.config.identity_params(),
            "limit": self.request.limit,
        }
        how = {"path": str(self.request.recipe.resolve()), "settings": list(self.request.settings)}
        path = self.folder / STUDY
        if path.is_file():
            known = read_sealed(path, STUDY_LOST)["asked"]
            changed = first_difference({"params": known}, {"params": json.loads(json.dumps(definition))})
            if changed is not None:
                difference = changed.removeprefix("params.")
                raise RecipeError(
                    f"study {self.name} under {self.folder.parent} has another definition: {difference}. Its trials"
                    f' could not be compared with these; give this one another name ([search] name = "...")'
                )
            return
        write_sealed(path, {"asked": definition, "how": how, "search": self.config.model_dump(mode="json")})


def read_study(
    recipe: str,
    root: Path,
    search_file: Path | None,
    trials: int | None,
    parallel: int | None,
    limit: float,
    settings: tuple[str, ...],
) -> Study:
    """Return the study of a recipe with a table [search], new or existing; RecipeError where it is invalid."""
    home = root.resolve()
    path = locate_recipe(recipe, home)
    of_search, others = split_settings(settings, TABLE)
    config = read_search(path, search_file, trials, parallel, of_search)
    return Study(StudyRequest(path, tuple(others), limit), config, home)


def reopen(root: Path, name: str) -> Study:
    """Return the study of a name, to show it or add a trial; InputError where there is none."""
    path = root / SEARCHES / name / STUDY
    if not path.is_file():
        known = sorted(found.parent.name for found in (root / SEARCHES).glob(f"*/{STUDY}"))
        there = (
            f"there are {', '.join(known)}"
            if known
            else "there is none yet; start one with `bessemer study search RECIPE`"
        )
        raise InputError(f"study {name}: not under {root / SEARCHES}; {there}")
    saved = read_sealed(path, STUDY_LOST)
    request = StudyRequest(Path(saved["how"]["path"]), tuple(saved["how"]["settings"]), saved["asked"]["limit"])
    return Study(request, SearchConfig.model_validate({**saved["search"], "name": name}), root)


def add_manual_trial(study: Study, settings: dict[str, Value]) -> Path:
    """Write a trial for the search to take, at once if it runs, and return its file.

    Raises RecipeError for settings that the recipe refuses or that are not searched.
    """
    unknown = [key for key in settings if key not in study.config.space]
    if unknown:
        raise RecipeError(
            f"--set {unknown[0]}: study {study.name} searches only {', '.join(study.config.space)}. Start another study"
            f" for other keys"
        )
    if not settings:
        raise RecipeError(f"a manual trial needs settings: --set KEY=VALUE, of {', '.join(study.config.space)}")
    study.recipe_with(settings)
    path = study.folder / WAITING / f"{new_run_id()}.json"
    write_sealed(path, settings)
    return path
