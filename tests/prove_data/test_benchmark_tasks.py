"""Tasks that ship, on the real files of their benchmarks: every record becomes an item that can be asked."""

from pathlib import Path

import pytest

from flows.recipe.benchmark_tasks import read_task, shipped_tasks
from tasks.decontaminate.benchmarks import Item, items_table, read_items
from tasks.decontaminate.config import Benchmark
from tasks.evaluate.benchmarks.items import items_of

pytestmark = pytest.mark.prove_data

FILES = {"ntrex_ru": "ntrex", "ntrex_zh": "ntrex", "ntrex_it": "ntrex", "xcopa_zh": "xcopa", "xcopa_it": "xcopa"}
FILES |= {f"xquad_{lang}": "xquad" for lang in ("en", "ru", "zh")}
COUNTS = {"blimp": 6700, "gsm8k": 1319, "xcopa_zh": 500, "xquad_ru": 1190, "cmrc2018": 1600, "winograd_wsc": 273}


def items(folder: Path, task: str) -> list[Item]:
    path = folder / f"{FILES.get(task, task)}.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"no file of {task} in {folder}")
    fields = read_task(task).get("fields") or None
    return read_items((Benchmark.model_validate({"name": task, "path": path, "fields": fields}),))


@pytest.mark.parametrize("task", shipped_tasks())
def test_every_record_is_an_item_that_can_be_asked(data: Path, task: str) -> None:
    found = items(data / "benchmarks", task)
    assert len(found) == COUNTS.get(task, len(found))
    asked = items_of(items_table(found), task)
    form = read_task(task)["scoring"]["form"]
    for item in asked:
        if form in ("choice", "pairs"):
            assert len(item.choices) >= 2
        elif form == "partial":
            assert item.ending
            assert all(choice.endswith(item.ending) for choice in item.choices)
        else:
            assert item.free
            assert item.answers[0].strip()
        assert "{" not in item.context or "{" in item.match_text or form == "cloze" or "{" in "".join(item.choices)
    if form in ("choice", "pairs", "partial"):
        share = sum(item.answer == 0 for item in asked) / len(asked)
        fewest = min(len(item.choices) for item in asked)
        most = max(len(item.choices) for item in asked)
        assert 1 / most - 0.1 < share < 1 / fewest + 0.1
