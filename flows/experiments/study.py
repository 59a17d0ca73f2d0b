"""A study on disk: what is searched, the book of its trials, and which of them trains next.

`searches/NAME/` under the root holds `study.json` (what is searched), `trials.jsonl` (the book), `waiting/` (trials
that people added and no search has taken in yet), and what is written for people: `page.html` and `best.toml`.
"""

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.experiments.samplers import next_promotion, rung_shares, suggest
from flows.experiments.search_config import SearchConfig, Value, check_space, own_settings, rungs_of
from flows.experiments.trial_log import Trial, TrialLog, TrialResult
from flows.experiments.trials import as_setting
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.runs.record import new_run_id
from model.checksummed_json import read_sealed, write_sealed
from model.errors import InputError, RecipeError
from tasks.artifacts.identity import first_difference
from tasks.artifacts.lease import LEASE_SECONDS, build_lease, no_word

SEARCHES = "searches"

STUDY, TRIALS, WAITING = "study.json", "trials.jsonl", "waiting"

STUDY_LOST = "Remove it, and search again: trials that were made are reused."


@dataclass(frozen=True)
class StudyRequest:
    """What all trials of a study have in common."""

    recipe: Path
    settings: tuple[str, ...] = ()
    """As `--set` takes them."""
    limit: float = 1.0


class Study:
    """A study that goes on: its trials, and the next one."""

    def __init__(self, asked: StudyRequest, config: SearchConfig, root: Path) -> None:
        self.asked, self.config, self.root = asked, config, root
        self.base = load_recipe(asked.recipe, root, asked.settings, asked.limit)
        check_space(config, self.recipe_with, self.base)
        self.shares = rung_shares(rungs_of(config, self.recipe_with, self.base), config.eta)
        self.name = config.name or re.sub(r"[^A-Za-z0-9._-]+", "-", self.base.name)
        self.folder = root / SEARCHES / self.name
        self._agree()
        self.book = TrialLog(self.folder / TRIALS)

    @property
    def trials(self) -> list[Trial]:
        """All trials so far."""
        return self.book.trials

    @property
    def best(self) -> Trial | None:
        """Of the trials that came to their end; of equals the earlier. None where none did."""
        ended = [trial for trial in self.trials if trial.state == "complete" and trial.value is not None]
        sign = 1.0 if self.config.objective.direction == "minimize" else -1.0
        return min(ended, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)

    @property
    def falls(self) -> bool:
        """Whether less is better in what all trials have: the loss at a rung, or the objective."""
        return len(self.shares) > 1 or self.config.objective.direction == "minimize"

    def recipe_with(self, settings: dict[str, Value], share: float | None = None, name: str = "") -> Recipe:
        """The recipe under a trial's settings, its training paused at a share."""
        more = [as_setting(key, value) for key, value in settings.items()]
        more += [] if share is None or share >= 1 else [as_setting("train.pause_share", share)]
        recipe = load_recipe(self.asked.recipe, self.root, [*self.asked.settings, *more], self.asked.limit)
        return recipe.model_copy(update={"name": name}) if name else recipe

    @contextmanager
    def held(self, say: Callable[[str], None] = no_word) -> Iterator[None]:
        """Work on the study, which one process at a time may; InputError where another does.

        Of one whose machine went down only its silence tells, and `say` hears of the wait.
        """

        def on_wait(holder: str) -> None:
            say(f"{holder} worked on study {self.name}; whether it still does is known within {LEASE_SECONDS:g} s")

        def refuse(holder: str) -> None:
            raise InputError(
                f"study {self.name}: {holder} works on it. To add a trial of yours to it, use `bessemer search add`"
            )

        with build_lease(self.folder / "lock", on_wait, on_alive=refuse):
            yield

    def note(self, trial: Trial, came: TrialResult) -> None:
        """Write down what came of a trial's stretch."""
        if came.state == "paused":
            self.book.stop(trial, came.stop)
        else:
            self.book.end(trial, came.state, came.stop, came.value, came.stderr, came.cause)

    def next_part(self, busy: Collection[int]) -> tuple[Trial, int] | None:
        """The trial that trains next and the rung that it goes to, noted in the book; None where there is nothing to
        do before one of those that are `busy` comes back.

        What a killed search left goes first, then what people added, then the best of a rung, then new settings.
        """
        self._take_in_waiting()
        part = self._next(busy)
        if part is not None:
            self.book.begin(*part)
        return part

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
            return self._add("recipe", own_settings(self.config.space, self.base, self.asked.recipe)), 0
        if sum(trial.origin != "hand" for trial in self.trials) < self.config.trials:
            return self._add(self.config.sampler, suggest(self.config, self.trials)), 0
        return None if busy else self._last_resort()

    def _last_resort(self) -> tuple[Trial, int] | None:
        """With few trials no rung fills; the best of those that came farthest then goes on to the end."""
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

    def _add(self, origin: Any, settings: dict[str, Value], waited_as: str = "") -> Trial:
        return self.book.add(origin, settings, new_run_id(), waited_as)

    def _take_in_waiting(self) -> None:
        for path in sorted((self.folder / WAITING).glob("*.json")):
            if not self.book.knows(path.name):
                own = own_settings(self.config.space, self.base, self.asked.recipe)
                self._add("hand", {**own, **read_sealed(path, "Remove it, and ask again.")}, path.name)
            path.unlink()

    def _agree(self) -> None:
        """A study's trials are compared with each other, so that all must be of one recipe and one search."""
        asked = {
            "recipe": self.base.identity_params(),
            "search": self.config.identity_params(),
            "limit": self.asked.limit,
        }
        how = {"path": str(self.asked.recipe.resolve()), "settings": list(self.asked.settings)}
        path = self.folder / STUDY
        if path.is_file():
            known = read_sealed(path, STUDY_LOST)["asked"]
            changed = first_difference({"params": known}, {"params": json.loads(json.dumps(asked))})
            if changed is not None:
                told = changed.removeprefix("params.")
                raise RecipeError(
                    f"study {self.name} under {self.folder.parent} began as another: {told}. Its trials could not be"
                    f' compared with these; give this one another name ([search] name = "...")'
                )
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        definition = {"asked": asked, "how": how, "search": self.config.model_dump(mode="json")}
        write_sealed(path, definition)


def reopen(root: Path, name: str) -> Study:
    """The study of a name, to look at or to add to; InputError where there is none."""
    path = root / SEARCHES / name / STUDY
    if not path.is_file():
        known = sorted(found.parent.name for found in (root / SEARCHES).glob(f"*/{STUDY}"))
        there = (
            f"there are {', '.join(known)}" if known else "there is none yet; start one with `bessemer search RECIPE`"
        )
        raise InputError(f"study {name}: not under {root / SEARCHES}; {there}")
    told = read_sealed(path, STUDY_LOST)
    asked = StudyRequest(Path(told["how"]["path"]), tuple(told["how"]["settings"]), told["asked"]["limit"])
    return Study(asked, SearchConfig.model_validate({**told["search"], "name": name}), root)


def add_manual_trial(study: Study, settings: dict[str, Value]) -> Path:
    """Leave a trial for the search to take in, at once where it runs; RecipeError for settings that the recipe cannot
    take or that are not searched."""
    strange = [key for key in settings if key not in study.config.space]
    if strange:
        raise RecipeError(
            f"--set {strange[0]}: study {study.name} searches {', '.join(study.config.space)} alone; what else differs"
            f" would not be seen. Start another study for it"
        )
    if not settings:
        raise RecipeError(f"a trial by hand needs settings: --set KEY=VALUE, of {', '.join(study.config.space)}")
    study.recipe_with(settings)
    folder = study.folder / WAITING
    folder.mkdir(exist_ok=True)
    path = folder / f"{new_run_id()}.json"
    write_sealed(path, settings)
    return path


def parse_setting(setting: str) -> tuple[str, Value]:
    """Key and value of `key.path=value`."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"--set {setting}: write it as key.path=value, for example train.schedule.peak_lr=1e-3")
    try:
        return key.strip(), tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text
