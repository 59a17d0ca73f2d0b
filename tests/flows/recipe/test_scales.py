"""Recipes of published models and their shrunk twins: what differs, and that each trains to its page."""

import resource
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.recipe.load import find_recipe, load_recipe
from flows.recipe.scales import FOLDER, SIZES, changed_sizes
from model.errors import InputError, RecipeError
from tests.command import invoke

pytestmark = pytest.mark.usefixtures("shared_server")

PAPERS = ("yalm_100b", "opt_175b", "gpt3", "bert_base", "t5_base")

MOST_SECONDS = 50.0
"""Processor seconds of a twin's run within this process, its trainer included, without Prefect's server."""

DERIVED = frozenset(
    {
        "chunk.row_length",
        "chunk.input_length",
        "sample.budget_tokens",
        "chunk.budget_tokens",
        "sample.sources.tokens",
        "evaluate.device",
    }
)

"""Keys of the resolved settings that follow from sizes."""

SOURCES = "[[sources]]\nname = 's'\npaths = ['x']\nweight = 1.0\ntokens = 5\n"


@pytest.mark.parametrize("name", PAPERS)
def test_a_twin_differs_from_its_recipe_in_sizes_alone(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(find_recipe(name), tmp_path)
    twin = load_recipe(find_recipe(name), tmp_path, ["scale=tiny"])
    changed = changed_sizes(recipe, twin)
    assert changed
    of_sources = {f"sample.sources.{source.name}.tokens" for source in recipe.sample.sources}
    assert set(changed) <= SIZES | DERIVED | of_sources
    assert all(values[1] is None for key, values in changed.items() if key in of_sources)
    given = load_recipe(find_recipe(name), tmp_path, ["scale=tiny", f"variables.data={tmp_path}/mine"])
    assert changed_sizes(recipe, given) == changed
    assert all(path.startswith(f"{tmp_path}/mine/") for source in given.sample.sources for path in source.paths)


@pytest.mark.parametrize("name", PAPERS)
def test_without_text_a_recipe_says_where_it_looked(name: str, tmp_path: Path) -> None:
    asked = ["plan", name, "--root", str(tmp_path), "--set", f"variables.data={tmp_path}/none"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == InputError.exit_code, result.output
    assert "does not exist" in " ".join(result.output.split())


@pytest.mark.parametrize("name", PAPERS)
def test_a_twin_trains_to_its_page_on_a_processor(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.getbasetemp() / "twins"
    before = _processor_seconds()
    invoke("run", name, "--set", "scale=tiny", "--root", root)
    assert _newest(root).stat().st_size > 10_000
    assert _processor_seconds() - before < MOST_SECONDS


def _newest(root: Path) -> Path:
    return max((root / "runs").glob("*/page.html"), key=lambda path: path.stat().st_mtime)


def test_plan_prints_what_differs(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", "t5_base", "--set", "scale=tiny", "--root", str(tmp_path)])
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert ["train.model.width", "768", "32"] in lines
    assert ["train.device", "cuda", "cpu"] in lines
    assert lines[0] == ["size", "recipe", "here"]


def test_other_settings_win_over_a_twins_sizes(tmp_path: Path) -> None:
    twin = load_recipe(find_recipe("t5_base"), tmp_path, ["train.model.layers=3", "scale=tiny"])
    assert (twin.train.model.layers, twin.train.model.width) == (3, 32)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", r"no table \[scales\.tiny\]; it has: none"),
        ("[scales.small]\nbudget_tokens = 500", r"it has: small"),
        ('[scales.tiny]\n"train.model.widths" = 8', r'Did you mean "train\.model\.width"'),
        ('[scales.tiny]\n"train.schedule.peak_lr" = 0.1', r"`train\.schedule\.peak_lr` is no size"),
    ],
)
def test_what_is_no_size_or_is_not_there_is_refused(table: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(f'name = "r"\nbudget_tokens = "100K"\n{SOURCES}{table}')
    with pytest.raises(RecipeError, match=message):
        load_recipe(path, tmp_path, ["scale=tiny"])


@pytest.mark.parametrize(
    "sources", ["sources = 'x'", SOURCES.replace("'s'", "'../../../out'"), "[[sources]]\nname = 3"]
)
def test_what_is_no_name_of_a_source_writes_nothing(sources: str, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(f'name = "r"\nbudget_tokens = "100K"\n{sources}\n[scales.tiny]\nbudget_tokens = 500')
    root = tmp_path / "a" / "b"
    with pytest.raises(RecipeError, match="sources"):
        load_recipe(path, root, ["scale=tiny"])
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
    assert not (root / FOLDER / "r").exists()


def _processor_seconds() -> float:
    return sum(
        getattr(resource.getrusage(who), name)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        for name in ("ru_utime", "ru_stime")
    )
