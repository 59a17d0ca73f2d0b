"""The recipe that the documentation shows is a recipe that loads."""

import re
from pathlib import Path

from flows.recipe import load_recipe

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
