"""The table [mix], and what a recipe takes from a mixture that was found."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from flows.experiments.mixture import (
    Mixture,
    Proxy,
    _MixtureSearch,
    doubt,
    largest_shares,
    write_mixture,
)
from flows.experiments.mixture_config import MixConfig, read_mix
from flows.experiments.studies import split_settings
from flows.experiments.trials import edited_recipe
from flows.metrics.statistics import IntervalValues
from flows.recipe.load import load_recipe
from flows.recipe.resolve import apply_mixture_weights
from model.errors import InputError, RecipeError
from tasks.chunk.config import ChunkConfig

SOURCES = [{"name": "notes", "paths": ["a"]}, {"name": "code", "paths": ["b"]}]


def test_proxies_may_be_small_and_may_not_read_other_text(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('[mix]\nproxies = 8\n[mix.settings]\n"train.model.width" = 16\n"chunk.budget_tokens" = 1000\n')
    config = read_mix(path, None)
    assert (config.proxies, config.fitted) == (8, 5)
    assert read_mix(path, 40).proxies == 40
    of_mix, others = split_settings(["mix.proxies=12", "train.seed=3", "mix.settings={}"], "mix")
    assert others == ["train.seed=3"]
    assert (read_mix(path, None, of_mix).proxies, read_mix(path, None, of_mix).settings) == (12, {})
    with pytest.raises(RecipeError, match=r"mix\.proxies: .*less than or equal"):
        read_mix(path, None, ["mix.proxies=100_000"])
    path.write_text('[mix.settings]\n"budget_tokens" = 1000\n')
    with pytest.raises(RecipeError, match=r"budget_tokens would give proxies other text.*chunk\.budget_tokens"):
        read_mix(path, None)
    path.write_text("seed = 1\n")
    with pytest.raises(RecipeError, match=r"no table \[mix\].*\n\n\[mix\]\nproxies = 32"):
        read_mix(path, None)
    path.write_text("[mix]\nproxys = 8\n")
    with pytest.raises(RecipeError, match=r"mix\.proxys"):
        read_mix(path, None)


def test_the_recipes_own_shares_follow_its_temperature(foundry: Path, tmp_path: Path) -> None:
    """The square roots of 900,000 and 100,000 are as 3 to 1."""
    path = tmp_path / "recipe.toml"
    text = (foundry / "foundry.toml").read_text().replace("{recipe}", str(foundry))
    path.write_text(f"temperature = 2\n{re.sub('(?m)^weight = .*$', '', text)}\n[mix]\n")
    names = ["code", "notes"]
    search = _MixtureSearch(MixConfig(), load_recipe(path, tmp_path), path, tmp_path, ())
    prior_S, *_ = search._bounds(Proxy({}, {}, {"code": 100_000, "notes": 900_000}), names)
    assert prior_S.tolist() == pytest.approx([0.25, 0.75])
    proxy = search._proxy_recipe("proxy", 1, {"code": 0.4, "notes": 0.6})
    assert proxy.chunk.weights == {"code": 0.4, "notes": 0.6}
    assert "temperature" not in edited_recipe(path, ["temperature=3"], "temperature")


def test_a_fit_without_enough_proxies_for_its_unknowns_is_refused() -> None:
    """Of 6 proxies 3 judge the fit, and 3 are too few for two unknowns and two to spare."""
    with pytest.raises(ValidationError, match="greater than or equal to 6"):
        MixConfig(proxies=4)
    with pytest.raises(RecipeError, match=r"6 proxies, of which 3 judge the fit, leave 3 for 2 unknowns.* Train 7 or"):
        MixConfig(proxies=6).check_enough(2)
    MixConfig(proxies=7).check_enough(2)
    with pytest.raises(RecipeError, match="one source"):
        MixConfig().check_enough(1)


@pytest.mark.parametrize("kept_back", [0.1, 0.25, 0.9])
def test_the_proxies_that_are_proposed_are_enough(kept_back: float) -> None:
    """A share of the additional proxies judges the fit too."""
    with pytest.raises(RecipeError, match=r"Train \d+ or more") as error:
        MixConfig(proxies=32, kept_back=kept_back).check_enough(30)
    proposed = int(str(error.value).partition("Train ")[2].partition(" ")[0])
    MixConfig(proxies=proposed, kept_back=kept_back).check_enough(30)
    with pytest.raises(RecipeError, match="judge the fit"):
        MixConfig(proxies=proposed - 1, kept_back=kept_back).check_enough(30)
    with pytest.raises(RecipeError, match=r"Not even 2048 are enough: keep fewer back \(mix.kept_back\)"):
        MixConfig(kept_back=0.999).check_enough(30)


def test_a_source_fills_no_more_of_the_budget_than_its_text_read_again_does() -> None:
    chunk = ChunkConfig(budget_tokens=1000, max_epochs=4)
    assert largest_shares(np.array([25.0, 100.0, 500.0]), chunk).tolist() == [0.1, 0.4, 1.0]


@pytest.mark.parametrize(
    ("r_squared", "low", "reported"),
    [
        (0.9, 0.01, ""),
        (0.9, 0.0, "The gain may be chance"),
        (0.9, -0.01, "The gain may be chance"),
        (0.2, 0.01, "predicts the mixtures"),
        (None, 0.01, "predicts"),
    ],
)
def test_weights_that_may_be_chance_are_not_recommended(r_squared: float | None, low: float, reported: str) -> None:
    said = doubt({"r_squared": r_squared, "gain": {"low": low, "value": 0.02, "high": 0.03}})
    assert reported in said if reported else said == ""


def test_a_recipe_takes_its_weights_from_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "weights.json").write_text(json.dumps({"weights": {"notes": 0.25, "code": 0.75}}))
    found = apply_mixture_weights(SOURCES, "weights.json", tmp_path, "recipe.toml")
    assert [source["weight"] for source in found] == [0.25, 0.75]
    assert apply_mixture_weights(SOURCES, None, tmp_path, "recipe.toml") is SOURCES
    with pytest.raises(InputError, match="no file of weights"):
        apply_mixture_weights(SOURCES, "gone.json", tmp_path, "recipe.toml")
    with pytest.raises(RecipeError, match="leave one of them out"):
        apply_mixture_weights([{**SOURCES[0], "weight": 1}, SOURCES[1]], "weights.json", tmp_path, "recipe.toml")
    with pytest.raises(RecipeError, match="only for the sources"):
        apply_mixture_weights(SOURCES[:1], "weights.json", tmp_path, "recipe.toml")


def test_what_was_found_is_a_recipe_with_other_weights_that_sum_to_one(foundry: Path, tmp_path: Path) -> None:
    written = write_mixture(_found({"code": 1 / 3, "notes": 2 / 3}), foundry / "foundry.toml", ("seed=9",), tmp_path)
    mixed = load_recipe(Path(written["recipe"]), tmp_path)
    assert mixed.chunk.weights == {"notes": 0.666667, "code": 0.333333}
    assert mixed.seed == 9
    assert mixed.sample.sources[0].paths == (f"{foundry}/notes",)
    assert json.loads(Path(written["file"]).read_text())["weights"] == {"code": 0.333333, "notes": 0.666667}
    assert "rank correlation unknown" in Path(written["markdown"]).read_text()


def test_a_source_may_have_dots_in_its_name(tmp_path: Path) -> None:
    """`sources.wiki.en.weight` would be a key of an entry `wiki`."""
    (tmp_path / "mine.toml").write_text(
        'format = 1\nname = "mine"\nbudget_tokens = "2M"\n'
        '[[sources]]\nname = "wiki.en"\npaths = ["{recipe}"]\nweight = 0.5\n'
        '[[sources]]\nname = "notes"\npaths = ["{recipe}"]\nweight = 0.5\n'
    )
    written = write_mixture(_found({"notes": 0.25, "wiki.en": 0.75}), tmp_path / "mine.toml", (), tmp_path)
    assert load_recipe(Path(written["recipe"]), tmp_path).chunk.weights == {"wiki.en": 0.75, "notes": 0.25}
    settings = ['sources."wiki.en".weight=0.1', "sources.notes.weight=0.9", 'chunk.weights."wiki.en"=0.2']
    assert load_recipe(tmp_path / "mine.toml", tmp_path, settings).chunk.weights["wiki.en"] == 0.2


def _found(shares: dict[str, float]) -> Mixture:
    interval: IntervalValues = {"low": 0.05, "value": 0.1, "high": 0.15}
    return {
        "sources": sorted(shares),
        "prior": shares,
        "weights": shares,
        "most": shares,
        "predicted": 0.1,
        "predicted_prior": 0.1,
        "scatter": 0.1,
        "gain": interval,
        "seeds": interval,
        "metric": "bits_per_byte",
        "mixtures": [],
        "proxies": 8,
        "kept_back": 2,
        "r_squared": 0.9,
        "rank_correlation": None,
    }


@pytest.mark.parametrize("setting", ["temperature=2", "weights_from=weights.json"])
def test_the_recipe_of_a_mixture_loads_where_settings_gave_the_shares(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'format = 1\nname = "mine"\nbudget_tokens = "2M"\n'
        '[[sources]]\nname = "a"\npaths = ["{recipe}"]\n[[sources]]\nname = "b"\npaths = ["{recipe}"]\n'
    )
    (tmp_path / "weights.json").write_text('{"weights": {"a": 0.5, "b": 0.5}}')
    load_recipe(path, tmp_path, [setting])
    written = write_mixture(_found({"a": 0.25, "b": 0.75}), path, [setting], tmp_path)
    assert load_recipe(Path(written["recipe"]), tmp_path).chunk.weights == {"a": 0.25, "b": 0.75}
