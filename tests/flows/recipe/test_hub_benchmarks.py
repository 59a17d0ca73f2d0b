"""Benchmarks by the names people know: fetched where a recipe says so, and never otherwise."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.benchmark_tasks import shipped_tasks
from flows.recipe.hub_benchmarks import BENCHMARKS
from flows.recipe.load import load_recipe
from model.errors import InputError, RecipeError
from tasks.decontaminate.benchmarks import check_first_items

RECIPE = """
name = "mine"
budget_tokens = 1000
[[sources]]
name = "books"
paths = ["{{recipe}}"]
weight = 1.0
[[{table}]]
{key} = "{name}"
{rest}
"""
LABELLED = {"question": "Q?", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": "2"}
ROWS: dict[str, dict[str, Any]] = {
    "arc_challenge": LABELLED,
    "arc_easy": LABELLED,
    "boolq": {"question": "is it", "passage": "It is so.", "answer": True},
    "gsm8k": {"question": "1 + 1?", "answer": "It is 2.\n#### 2"},
    "hellaswag": {"ind": 7, "ctx": "He runs and", "endings": ["falls.", "flies."], "label": "1"},
    "humaneval": {"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    return 1\n"},
    "lambada": {"text": "She looked at the monitor"},
    "mmlu": {"question": "Q?", "choices": ["a", "b"], "answer": 1, "subject": "law"},
    "truthfulqa": {"question": "Q?", "mc1_targets": {"choices": ["a", "b"], "labels": [0, 1]}},
}
"""A row of each data set, as its card describes it."""
ANSWERS = {"boolq": 1, "gsm8k": "It is 2.\n#### 2", "humaneval": "    return 1\n", "lambada": "monitor"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A package `datasets` that answers with one row of each data set; gives what was asked of it."""
    asked: list[tuple[Any, ...]] = []

    def load_dataset(repository: str, configuration: str | None, *, split: str) -> list[dict[str, Any]]:
        asked.append((repository, configuration, split))
        (name,) = (
            name for name, one in BENCHMARKS.items() if (one.repository, one.configuration, one.split) == asked[-1]
        )
        return [ROWS[name]]

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


def recipe(folder: Path, name: str, rest: str, table: str = "benchmarks", key: str = "task") -> Path:
    path = folder / "mine.toml"
    path.write_text(RECIPE.format(table=table, key=key, name=name, rest=rest))
    return path


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_is_fetched_once_and_read_by_the_task_that_ships(
    name: str, tmp_path: Path, hub: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe(tmp_path, name, 'source = "hub"')
    loaded = load_recipe(path, tmp_path / "root")
    assert len(hub) == 1
    assert f"fetching {name} from the hub: {BENCHMARKS[name].repository}" in capsys.readouterr().err
    (benchmark,) = loaded.decontaminate.benchmarks
    check_first_items(benchmark)
    (item,) = map(json.loads, benchmark.path.read_text().splitlines())
    assert item["answer"] == ANSWERS.get(name, 1)
    assert name in loaded.evaluate.benchmarks
    load_recipe(path, tmp_path / "root")
    assert len(hub) == 1
    assert name in shipped_tasks()


def test_a_benchmark_that_is_only_searched_for_is_fetched_by_its_name(tmp_path: Path, hub: list[Any]) -> None:
    path = recipe(tmp_path, "hellaswag", 'source = "hub"', "decontaminate.benchmarks", "name")
    (benchmark,) = load_recipe(path, tmp_path / "root").decontaminate.benchmarks
    assert (benchmark.path.name, len(hub)) == ("hellaswag.jsonl", 1)


def test_nothing_is_fetched_for_a_local_file(tmp_path: Path, hub: list[Any]) -> None:
    load_recipe(recipe(tmp_path, "hellaswag", 'path = "{recipe}/mine.jsonl"'), tmp_path / "root")
    assert hub == []


@pytest.mark.parametrize(
    ("name", "rest", "message"),
    [
        ("hellaswag", 'source = "kaggle"', 'the only one is "hub"'),
        ("hellaswag", 'source = "hub"\npath = "x.jsonl"', "also has a `path`"),
        ("piqa", 'source = "hub"', "`piqa` cannot be fetched (those that can: arc_challenge,"),
    ],
)
def test_wrong_sources_are_errors_of_the_recipe_with_their_line(
    name: str, rest: str, message: str, tmp_path: Path, hub: list[Any]
) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe(tmp_path, name, rest), tmp_path / "root")
    assert message in str(caught.value)
    assert "mine.toml, line 10: benchmarks[0].source" in str(caught.value)
    assert hub == []


def test_without_the_package_or_the_network_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recipe(tmp_path, "hellaswag", 'source = "hub"')
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"needs the package `datasets`: pip install .* Or set `path`"):
        load_recipe(path, tmp_path / "root")

    def refused(*asked: object, **options: object) -> None:
        raise ConnectionError("no route to host")

    module = types.ModuleType("datasets")
    module.load_dataset = refused  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    with pytest.raises(InputError, match=r"could not be fetched from Rowan/hellaswag \(no route to host\)"):
        load_recipe(path, tmp_path / "root")
    assert not (tmp_path / "root").exists()
