"""The recipe that the documentation shows is a recipe that loads, and its networks are of the size it says."""

import re
import tomllib
from pathlib import Path

import pytest

from flows.recipe.load import load_recipe
from model.config.network import read_network_config
from model.config.presets import expand_preset
from model.nn.factory import parameter_count

DOCS = Path(__file__).parent.parent / "docs"


def test_the_recipe_in_the_documentation_loads(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (DOCS / "recipes.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    recipe = tmp_path / "mine.toml"
    recipe.write_text("\n".join(blocks))
    loaded = load_recipe(recipe, tmp_path)
    assert [source.name for source in loaded.sample.sources] == ["letters", "programs"]
    assert loaded.decontaminate.benchmarks[0].name == "quiz"
    assert loaded.chunk.budget_tokens == 2_000_000
    assert loaded.clean.extensions is not None
    assert loaded.clean.extensions.path == str(tmp_path)


def test_the_networks_in_the_documentation_have_as_many_parameters_as_published() -> None:
    blocks = re.findall(r"    \[train\.model\]\n((?:    .+\n)+)", (DOCS / "networks.md").read_text())
    networks = [expand_preset(tomllib.loads(block)) for block in blocks]
    assert len(networks) == 4
    pieces, millions = (50_257, 50_257, 50_272, 32_000), (124.4, 124.4, 124.5, 6_738)
    for network, vocab_size, published in zip(networks, pieces, millions, strict=True):
        config = read_network_config({**network, "vocab_size": vocab_size})
        assert parameter_count(config) == pytest.approx(published * 1e6, rel=1e-3)
    assert networks[0].items() <= networks[1].items()
