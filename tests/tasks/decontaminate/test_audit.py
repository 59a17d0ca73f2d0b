"""Controls: injected items are found, a broken search is visible in recall and precision, and the output has no
trace."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.decontaminate.benchmarks import Item
from tasks.decontaminate.config import Benchmark, DecontaminateConfig
from tasks.decontaminate.leaks import Rarity, matchable_items
from tasks.decontaminate.ngrams import ItemIndex, build_index
from tasks.decontaminate.recall import FORMS, Control, choose_hosts, make_controls, measure_search
from tasks.decontaminate.stage import build_decontaminate

MakeDocuments = Callable[[Sequence[Sequence[tuple[str, str]]]], Artifact]
CONFIG = DecontaminateConfig(planted_per_form=20, heldout_share=0.0)


def prose(seed: int, words: int) -> str:
    generator = random.Random(seed)
    return " ".join("".join(generator.choices("abcdefghijklmnop", k=generator.randrange(4, 9))) for _ in range(words))


def benchmark_items() -> list[Item]:
    """Twenty questions of thirty words with two choices, and twenty of four words with choices of five."""
    items: list[Item] = []
    for number in range(40):
        text = f"{prose(number, 26)} 12 of {number + 100} or" if number % 2 else prose(number, 4)
        choices = (prose(500 + number, 5), prose(600 + number, 5))
        items.append(Item("quiz", str(number), None, text, choices, "0", text, (text,)))
    return items


HOSTS = [prose(1000 + number, 200) for number in range(10)]
NOTHING = Rarity(np.empty(0, np.int64), np.empty(0, np.int64), 10.0)


def audited(items: list[Item], index: ItemIndex | None = None, controls: list[Control] | None = None) -> dict[str, Any]:
    whole = build_index(items, CONFIG)
    made = controls or make_controls(items, whole, matchable_items(whole, CONFIG), HOSTS, CONFIG)
    return measure_search(made, items, index or whole, NOTHING, CONFIG)


def test_all_forms_are_injected_and_found() -> None:
    facts = audited(benchmark_items())
    assert [(form, line["planted"], line["found"]) for form, line in facts["forms"].items()] == [
        (form, 20, 20) for form in FORMS
    ]
    assert (facts["planted"], facts["found"], facts["recall"], facts["near_misses"]) == (240, 240, 1.0, 240)
    assert facts["low"] == pytest.approx(1 / (1 + 1.96**2 / 240), abs=1e-4)
    assert (facts["precision"]["reported"], facts["precision"]["right"]) == (240, 240)


def test_a_search_that_lost_the_seeds_of_half_of_the_items_has_half_the_recall() -> None:
    items = benchmark_items()
    index = build_index(items, CONFIG)
    owner = np.searchsorted(index.part_first[index.item_first], index.places >> 1, side="right") - 1
    lost = index._replace(places=np.where(owner % 4 < 2, ~index.places, index.places))
    facts = audited(items, lost)
    assert 0.2 < facts["forms"]["short"]["recall"] < 0.8
    assert 0.2 < facts["forms"]["inline"]["recall"] < 0.8


def test_a_search_that_reports_an_item_that_is_not_there_loses_precision() -> None:
    items = benchmark_items()
    wrong = Control(f"{HOSTS[0]} {items[1].match_text}", None, "a near miss of other words", 1)
    facts = audited(items, controls=[wrong])
    assert facts["precision"]["reported"] == 1
    assert facts["precision"]["precision"] == 0.0
    assert facts["recall"] is None


def test_hosts_are_ordinary_clean_documents_and_the_same_in_any_order() -> None:
    ids = np.random.default_rng(0).integers(0, 256, (100, 16)).astype(np.uint8)
    sizes = np.where(np.arange(100) % 2, 1000, 100)
    clean = np.arange(100) % 3 > 0
    hosts = choose_hosts(ids, sizes, clean, 10, seed=1)
    assert len(hosts) == 10
    assert all(number % 2 and number % 3 for number in hosts.tolist())
    backwards = choose_hosts(ids[::-1], sizes[::-1], clean[::-1], 10, seed=1)
    assert sorted((99 - backwards).tolist()) == hosts.tolist()


def test_a_run_reports_the_audit_and_puts_out_no_injected_text(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    path = tmp_path / "quiz.jsonl"
    records = [
        {"id": item.item_id, "question": item.context, "choices": item.choices, "answer": 0}
        for item in benchmark_items()
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    documents = make_documents([[("web", host) for host in HOSTS[:5]], [("web", host) for host in HOSTS[5:]]])
    config = CONFIG.model_copy(update={"benchmarks": (Benchmark(name="quiz", path=path),)})
    result = build_decontaminate(context, documents, config)
    assert result.report.facts["planted"]["found"] == 240
    assert result.table("documents").column("text").to_pylist() == HOSTS
    assert result.report.facts["benchmarks"]["quiz"]["leaked"] == 0
    assert not result.report.facts["common_ngrams"]
    without = build_decontaminate(context, documents, config.model_copy(update={"planted_per_form": 0}))
    assert without.report.facts["planted"]["planted"] == 0
    assert without.content == result.content


def test_nothing_is_injected_without_items_or_hosts() -> None:
    assert audited([])["planted"] == 0
    items = benchmark_items()
    assert make_controls(items, build_index(items, CONFIG), np.ones(40, np.bool_), [], CONFIG) == []
