"""Files of changes: those that ship fit a recipe, and wrong ones are named at once."""

from pathlib import Path

import pytest

from flows.experiments.changes import ABLATIONS, AblationConfig, variants_of
from flows.experiments.studies import read_config
from flows.recipe.load import shipped_file
from model.errors import RecipeError


@pytest.fixture
def write(tmp_path: Path):
    def put(text: str) -> Path:
        path = tmp_path / "changes.toml"
        path.write_text(text)
        return path

    return put


@pytest.mark.parametrize("name", sorted(path.stem for path in ABLATIONS.glob("*.toml")))
def test_every_change_that_ships_fits_a_recipe_and_differs_from_its_base(
    name: str, foundry: Path, tmp_path: Path
) -> None:
    asked = read_config(AblationConfig, shipped_file(name, ABLATIONS, "changes"), seeds=1)
    recipe = tmp_path / "recipe.toml"
    text = (foundry / "foundry.toml").read_text().replace("{recipe}", str(foundry))
    # A grown vocabulary is that of a recipe with a base.
    recipe.write_text(text.replace("vocab_size = 512", 'base = "spiece.model"') if name == "vocabulary" else text)
    setups = variants_of(asked, recipe, tmp_path, (), 1.0)
    params = [setup.recipe.identity_params() for setup in setups.values()]
    assert len(params) == len(asked.changes) + (1 if asked.then is None else 2)
    assert all(params[one] != params[other] for one in range(len(params)) for other in range(one))


def test_seeds_vary_the_training_alone_unless_they_are_to_vary_more(foundry: Path, tmp_path: Path, write) -> None:
    text = '[changes.wide]\n"train.model.width" = 64\n'
    recipe = foundry / "foundry.toml"
    setups = variants_of(read_config(AblationConfig, write(text), seeds=2), recipe, tmp_path, (), 1.0)
    assert list(setups) == [("base", 7), ("wide", 7), ("base", 8), ("wide", 8)]
    first, second = (setups["base", seed].recipe for seed in (7, 8))
    assert (first.train.seed, second.train.seed) == (7, 8)
    assert first.chunk.identity_params() == second.chunk.identity_params()
    whole = variants_of(
        read_config(AblationConfig, write(f'vary = ["seed"]\n{text}'), seeds=2), recipe, tmp_path, (), 1.0
    )
    assert whole["base", 8].recipe.chunk.seed == 8


def test_a_change_may_be_a_list_of_tables(foundry: Path, tmp_path: Path, write) -> None:
    text = '[changes.late]\n"train.phases" = [{ share = 0.5, weights = { notes = 1.0 }, start_lr = 1e-3 }]\n'
    setups = variants_of(read_config(AblationConfig, write(text), seeds=1), foundry / "foundry.toml", tmp_path, (), 1.0)
    (phase,) = setups["late", 7].recipe.train.phases
    assert (phase.share, phase.weights, phase.start_lr) == (0.5, {"notes": 1.0}, 1e-3)


def test_second_runs_are_alike_whatever_the_change_and_second_recipe_from_its_model(
    foundry: Path, tmp_path: Path, write
) -> None:
    """A quarter of 40,000 tokens; the change's own objective is for the first run alone."""
    text = """
[base]
"train.model.architecture" = "t5"
"vocab.sentinels" = 50
[changes.half]
"chunk.noise_density" = 0.5
[then.settings]
"chunk.noise_density" = 0.25
"""
    setups = variants_of(read_config(AblationConfig, write(text), seeds=1), foundry / "foundry.toml", tmp_path, (), 1.0)
    assert list(setups) == [("base", 7), ("half", 7), ("second-run-alone", 7)]
    assert [setup.recipe.chunk.noise_density for setup in setups.values()] == [0.15, 0.5, 0.25]
    assert [setup.recipe.chunk.budget_tokens for setup in setups.values()] == [40_000, 40_000, 10_000]
    alone = setups["second-run-alone", 7]
    assert alone.second_recipe is None
    assert alone.recipe.train.base_model is None
    for change in ("base", "half"):
        second_recipe = setups[change, 7].second_recipe
        assert second_recipe is not None
        second = second_recipe(tmp_path)
        assert second.train.base_model == tmp_path
        assert second.chunk.identity_params() == alone.recipe.chunk.identity_params()


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("[changes.base]\n'train.batch_rows' = 4", "`base` is the name"),
        ("[changes.nothing]", "`nothing` names no setting"),
        ("[changes.second-run-alone]\n'train.batch_rows' = 4", "`second-run-alone` is the name"),
        ("[changes.a]\n'train.batch_rows' = 4\n[then]\ntokens_share = 2.0", "then.tokens_share: Input should be less"),
        ("seeds = 3", "changes: Field required"),
        ("[change.x]\n'a' = 1", "change: Extra inputs"),
        ("[changes", "not valid TOML"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_key(write, text: str, reported: str) -> None:
    with pytest.raises(RecipeError, match=reported):
        read_config(AblationConfig, write(text))


def test_a_change_that_the_recipe_cannot_take_is_refused_before_anything_runs(
    write, foundry: Path, tmp_path: Path
) -> None:
    asked = read_config(AblationConfig, write("[changes.odd]\n'train.model.heads' = 3"), seeds=1)
    with pytest.raises(RecipeError, match="heads"):
        variants_of(asked, foundry / "foundry.toml", tmp_path, (), 1.0)
    # A second run that cannot be is refused as early.
    asked = read_config(
        AblationConfig,
        write("[changes.low]\n'train.batch_rows' = 4\n[then.settings]\n'train.model.heads' = 3"),
        seeds=1,
    )
    with pytest.raises(RecipeError, match="heads"):
        variants_of(asked, foundry / "foundry.toml", tmp_path, (), 1.0)
    with pytest.raises(RecipeError, match=r"no shipped one has this name.*network"):
        shipped_file("netwrok", ABLATIONS, "changes")
