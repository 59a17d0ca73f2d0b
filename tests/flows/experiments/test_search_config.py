"""What is wrong with a search is reported before anything runs, in the words of the recipe."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from flows.experiments.search_config import SearchConfig, read_search
from flows.experiments.search_report import _write_best
from flows.experiments.studies import study_name
from flows.experiments.study import Study, StudyRequest, add_manual_trial, reopen
from flows.experiments.trial_log import Trial
from flows.recipe.load import find_recipe, load_recipe, parse_setting
from flows.recipe.schema import Recipe
from model.errors import InputError, RecipeError
from tests.command import invoke

LR = '"train.schedule.peak_lr" = { low = 1e-4, high = 1e-1, log = true }'


@pytest.fixture
def write(foundry: Path, tmp_path: Path) -> Any:
    """The small recipe with a table [search], and what its space holds."""

    def put(space: str = LR, head: str = "trials = 4") -> Path:
        path = tmp_path / "searched.toml"
        text = (foundry / "foundry.toml").read_text().replace("{recipe}", str(foundry))
        path.write_text(f"{text}\n[search]\n{head}\n\n[search.space]\n{space}\n")
        return path

    return put


def study(path: Path, tmp_path: Path, **words: Any) -> Study:
    return Study(StudyRequest(path), read_search(path, None, words.get("trials"), None), tmp_path / "root")


def test_the_first_trial_has_the_recipes_own_value_as_set_gave_it(write, tmp_path: Path) -> None:
    path = write('"budget_tokens" = { low = 10000, high = 90000 }')
    for settings, own in (((), "40K"), (("budget_tokens=20000",), 20_000)):
        root = tmp_path / str(own)
        trial, _ = Study(StudyRequest(path, settings), read_search(path, None, None, None), root).next_segment(()) or ()
        assert (trial.origin, trial.settings) == ("recipe", {"budget_tokens": own})


def test_the_recipes_own_value_of_a_source_whose_name_has_dots_is_found(write, tmp_path: Path) -> None:
    path = write("'sources.\"old.notes\".weight' = { low = 1.0, high = 9.0 }")
    text = path.read_text().replace('name = "notes"', 'name = "old.notes"')
    path.write_text(text.replace("[sample]", "[sample]\nnormalise_weights = true"))
    trial, _ = study(path, tmp_path).next_segment(()) or pytest.fail("nothing to do")
    assert trial.settings == {'sources."old.notes".weight': 0.5}


def test_a_recipe_is_loaded_once_for_each_value_at_the_ends_of_a_space(write, tmp_path, monkeypatch) -> None:
    loaded: list[tuple[str, ...]] = []

    def load(path: Path, root: Path, settings: tuple[str, ...], limit: float) -> Recipe:
        loaded.append(tuple(settings))
        return load_recipe(path, root, settings, limit)

    monkeypatch.setattr("flows.experiments.study.load_recipe", load)
    study(write(), tmp_path)
    assert loaded == [(), ("train.schedule.peak_lr=0.0001",), ("train.schedule.peak_lr=0.1",)]


def test_a_run_does_not_mind_what_is_searched(write, foundry: Path, tmp_path: Path) -> None:
    own = load_recipe(foundry / "foundry.toml", tmp_path).identity_params()
    assert load_recipe(write(), tmp_path).identity_params() == own


def test_a_recipe_without_a_search_is_reported_what_to_write(foundry: Path) -> None:
    with pytest.raises(RecipeError, match=r"no table \[search\]") as error:
        read_search(foundry / "foundry.toml", None, None, None)
    assert "[search.space]" in str(error.value)


@pytest.mark.parametrize(
    ("space", "reported"),
    [
        ('"train.schedule.peak_rate" = { low = 1e-4, high = 1e-1 }', "train.schedule.peak_rate: unknown key"),
        ('"train.schedule.peak_lr" = { low = 0.0, high = 1.0 }', r"train.schedule.peak_lr.*greater than 0"),
        ('"train.micro_batch_rows" = { choices = [8, 3] }', "micro_batch_rows 3 does not divide batch_rows 8"),
        ('"train.checkpoint_steps" = { choices = [10, 20] }', "has no effect on the result"),
        (f'{LR}\n"train.model.dropout" = {{ low = 0.0, high = 0.2 }}', "computed with dropout"),
        ('"vocab.vocab_size" = { choices = [400, 512] }', "other text, or other tokens"),
    ],
)
def test_a_space_that_the_recipe_cannot_take_is_refused_at_once(write, tmp_path, space: str, reported: str) -> None:
    head = "rungs = 3" if "dropout" in space or "vocab" in space else "trials = 4"
    with pytest.raises(RecipeError, match=reported):
        study(write(space, head), tmp_path)


@pytest.mark.parametrize(
    ("space", "reported"),
    [
        ('"a" = { low = 2, high = 1 }', "search.space.a: low 2 is not below high 1"),
        ('"a" = { low = 0, high = 1, log = true }', "has no logarithm"),
        ('"a" = { choices = [1, 1] }', "name a value twice"),
        ('"a" = { lowest = 1 }', "search.space.a"),
    ],
)
def test_a_space_that_is_none_is_refused_with_its_key(write, space: str, reported: str) -> None:
    with pytest.raises(RecipeError, match=reported):
        read_search(write(space), None, None, None)


def test_rungs_are_three_where_training_losses_compare_and_one_where_they_do_not(write, tmp_path: Path) -> None:
    assert study(write(), tmp_path).shares == (1 / 9, 1 / 3, 1.0)
    dropout = '"train.model.dropout" = { low = 0.0, high = 0.2 }'
    assert study(write(dropout, 'name = "other"'), tmp_path).shares == (1.0,)
    shorter = '"train.length_warmup.share" = { low = 0.0, high = 0.5 }'
    assert study(write(shorter, 'name = "shorter"'), tmp_path).shares == (1.0,), "short pieces are harder to predict"


def test_a_study_goes_on_with_more_trials_and_not_with_another_space(write, tmp_path: Path) -> None:
    begun = study(write(), tmp_path)
    assert begun.name == "foundry"
    assert study(write(head="trials = 9\nparallel = 2"), tmp_path).config.trials == 9
    with pytest.raises(RecipeError, match=r"has another definition: .*high.* 0.1 -> 0.2.*another name"):
        study(write(LR.replace("1e-1", "2e-1")), tmp_path)
    with pytest.raises(RecipeError, match=r"has another definition: .*seed"):
        Study(StudyRequest(write(), ("seed=3",)), SearchConfig.model_validate(begun.config), tmp_path / "root")


def test_the_first_trial_is_the_recipe_itself_and_what_a_kill_left_goes_on_first(write, tmp_path: Path) -> None:
    begun = study(write(), tmp_path)
    first, rung = begun.next_segment(()) or pytest.fail("nothing to do")
    assert (first.origin, rung) == ("recipe", 0)
    assert first.settings == {"train.schedule.peak_lr": 2e-3}
    second, _ = begun.next_segment({0}) or pytest.fail("nothing to do")
    assert second.origin == "tpe"
    again = study(write(), tmp_path)
    assert again.next_segment(()) == (first, 0)
    assert again.next_segment({0}) == (second, 0)
    assert again.next_segment({0, 1}) is not None
    assert again.next_segment({0, 1, 2}) is not None
    assert again.next_segment({0, 1, 2, 3}) is None


def test_what_a_person_adds_is_taken_next_with_the_recipes_other_values(write, tmp_path: Path) -> None:
    space = f'{LR}\n"train.schedule.warmup_share" = {{ low = 0.0, high = 0.2 }}'
    begun = study(write(space), tmp_path)
    begun.next_segment(())
    add_manual_trial(reopen(tmp_path / "root", "foundry"), dict([parse_setting("train.schedule.peak_lr=0.5")]))
    mine, rung = begun.next_segment({0}) or pytest.fail("nothing to do")
    assert (mine.origin, rung) == ("hand", 0)
    assert mine.settings == {"train.schedule.peak_lr": 0.5, "train.schedule.warmup_share": 0.05}
    assert list((begun.folder / "waiting").iterdir()) == []


def test_the_command_for_an_added_trial_is_that_of_its_study(write, tmp_path: Path) -> None:
    request, root = StudyRequest(write(), ("seed=3", "name=a b"), 0.5), tmp_path / "my root"
    begun = Study(request, read_search(request.recipe, None, None, None), root)
    said = invoke("study", "search", "add", begun.name, "--set", "train.schedule.peak_lr=0.5", "--root", root).stdout
    words = shlex.split(" ".join(said.partition("start one: ")[2].split()))
    options = ["--limit", "0.5", "--set", "seed=3", "--set", "name=a b", "--root", str(root)]
    assert words == ["bessemer", "study", "search", str(request.recipe), *options]


def test_what_cannot_be_a_trial_is_refused_when_it_is_added(write, tmp_path: Path) -> None:
    begun = study(write(), tmp_path)
    with pytest.raises(RecipeError, match=r"searches only train\.schedule\.peak_lr"):
        add_manual_trial(begun, {"train.batch_rows": 8})
    with pytest.raises(RecipeError, match="greater than 0"):
        add_manual_trial(begun, {"train.schedule.peak_lr": -1.0})
    with pytest.raises(InputError, match="there are foundry"):
        reopen(tmp_path / "root", "foundery")


def test_only_one_process_works_on_a_study(write, tmp_path: Path) -> None:
    begun = study(write(), tmp_path)
    with begun.held(), pytest.raises(InputError, match=r"works on it.*bessemer study search add"), begun.held():
        pytest.fail("it was held twice")


@pytest.mark.parametrize(
    ("parts", "name"),
    [(("web 2", "lr"), "web-2-lr"), (("..",), "study"), (("../x",), "x"), (("配方",), "study"), (("a.b",), "a.b")],
)
def test_a_studys_folder_lies_under_the_root(parts: tuple[str, ...], name: str) -> None:
    assert study_name(*parts) == name


def test_the_best_recipe_of_a_twin_reads_the_text_of_the_twin(tmp_path: Path) -> None:
    config = SearchConfig.model_validate({"space": {"train.schedule.peak_lr": {"low": 1e-4, "high": 1e-1}}})
    request = StudyRequest(find_recipe("gpt3"), ("train.model.layers=3", "scale=tiny"))
    searched = Study(request, config, tmp_path)
    best = Trial(0, "manual", {"train.schedule.peak_lr": 0.01}, "run")
    found, tried = load_recipe(_write_best(searched, best), tmp_path), searched.recipe_with(best.settings)
    assert found.sample.sources[0].paths[0].startswith(str(tmp_path / "inputs" / "scales" / "gpt3"))
    assert (found.train.model.layers, found.identity_params()) == (3, tried.identity_params())
