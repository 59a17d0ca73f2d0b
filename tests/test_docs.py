"""The documentation's recipe loads, its networks have the size it says, and its links lead to pages and headings."""

import re
import tomllib
from pathlib import Path

import pytest

from flows.recipe.load import load_recipe
from model.config.network import read_network_config
from model.config.presets import expand_preset
from model.nn.factory import parameter_count

DOCS = Path(__file__).parent.parent / "docs"
GENERATED = "reference.md"
SUFFIXES = (".py", ".toml", ".yaml", ".service", ".sh")


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
    assert len(networks) == 3
    pieces, millions = (50_257, 50_257, 151_936), (124.4, 124.4, 596.0)
    for network, vocab_size, published in zip(networks, pieces, millions, strict=True):
        config = read_network_config({**network, "vocab_size": vocab_size})
        assert parameter_count(config) == pytest.approx(published * 1e6, rel=1e-3)
    assert networks[0].items() <= networks[1].items()


def test_every_page_is_in_the_list_of_pages() -> None:
    listed = set(re.findall(r"\]\((\w+\.md)\)", (DOCS / "README.md").read_text(encoding="utf-8")))
    assert {path.name for path in DOCS.glob("*.md")} - {"README.md", GENERATED} == listed


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_every_anchor_leads_to_a_heading() -> None:
    links = [
        (page, page.parent / file if file else page, anchor)
        for page in (*sorted(DOCS.glob("*.md")), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md")
        for file, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert len(links) > 5
    assert [f"{page.name}: {to.name}#{anchor}" for page, to, anchor in links if anchor not in anchors(to)] == []


def test_the_reference_is_generated_and_not_kept() -> None:
    assert f"docs/{GENERATED}" in (DOCS.parent / ".gitignore").read_text(encoding="utf-8").split()


def test_pages_that_code_names_exist() -> None:
    folders = ("flows", "tasks", "model", "deployments", "benchmarks")
    files = [path for folder in folders for path in (DOCS.parent / folder).rglob("*") if path.suffix in SUFFIXES]
    named = {name for path in files for name in re.findall(r"docs/(\w+\.md)", path.read_text(encoding="utf-8"))}
    assert len(named) > 5
    assert sorted(name for name in named - {GENERATED} if not (DOCS / name).exists()) == []
