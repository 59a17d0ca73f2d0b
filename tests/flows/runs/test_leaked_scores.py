"""A benchmark that leaked shows in the scores, and no more once it is cut.

    .venv/bin/python -m pytest -m prove -s tests/flows/runs/test_leaked_scores.py

Half of a benchmark's items are in the training text many times, with their answers. Nothing else has the answers:
they are drawn. One run flags leaks and trains on them, the other cuts them out; all else is the same, and stages before
`decontaminate` are built once.
"""

import json
import pydoc_data.topics
import random
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.load import load_recipe
from flows.runs.pipeline import BUILDERS, run_stages
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext

pytestmark = pytest.mark.prove

ITEMS, LEAKED, TIMES = 80, 40, 8
"""Items of the benchmark, those in the training text, and documents that hold each of these."""
AROUND = 150
"""Characters of other text on each side of a leaked item, most of which stay when it is cut."""
CITIES = "Arles Basel Cadiz Delft Ely Ghent Hull Izmir Jena Kyoto Lucca Metz Nara Oslo Pisa Riga Siena Turin Ulm York"
THINGS = "bridge candle chariot clock falcon garden harbour ladder lantern mirror orchard river ship tower well"
NAMES = "Amber Birk Calder Dorn Elm Fenn Garth Holt Iver Joss Kerr Lund Marsh Nash Orr Pell Quill Rook Stone Thorn"
RECIPE = """
name = "leaked-scores"
seed = 3
budget_tokens = "400K"
max_epochs = 16
[[sources]]
name = "topics"
paths = ["{recipe}/topics.jsonl"]
weight = 0.25
[[sources]]
name = "forum"
paths = ["{recipe}/forum.jsonl"]
weight = 0.75
[clean]
preset = "minimal"
[sample]
slack = 20.0
[[benchmarks]]
name = "museum"
path = "{recipe}/museum.jsonl"
primary = "sum"
shots = [0]
[decontaminate]
planted_per_form = 0
window_chars = 20
min_piece_chars = 50
[vocab]
vocab_size = 1024
[train]
batch_rows = 8
micro_batch_rows = 8
threads = 1
checkpoint_steps = 1000
[train.schedule]
peak_lr = 5e-3
end_lr = 5e-4
[train.model]
context = 128
layers = 2
heads = 4
width = 128
[evaluate]
threads = 1
bootstrap_rounds = 100
checked_texts = 4
prompts = ["The catalogue"]
"""


def write_input(folder: Path) -> None:
    """Topics of Python's help, a benchmark of drawn answers, and a forum that quotes half of it."""
    draw = random.Random(7)
    topics = [text for _, text in sorted(pydoc_data.topics.topics.items()) if len(text) > 1000]
    words = [list_.split() for list_ in (CITIES, THINGS, NAMES)]
    places = [(city, thing) for city in words[0] for thing in words[1]]
    museum: list[dict[str, Any]] = []
    for number, (city, thing) in enumerate(draw.sample(places, ITEMS)):
        # Another one for each thing, or two items of a city could share 13 words.
        other = words[1][words[1].index(thing) - 1]
        question = (
            f"In the old {city} museum behind the {other} of {city} one finds a small {thing} of dark {city} wood,"
            f" and the {thing} of {city} was made by master"
        )
        choices = draw.sample(words[2], 4)
        item = {"id": f"museum-{number}", "question": question, "choices": choices, "answer": draw.randrange(4)}
        museum.append({**item, "lang": "en"})
    forum: list[str] = []
    for item in museum[:LEAKED]:
        said = f"{item['question']} {item['choices'][item['answer']]}."
        for _ in range(TIMES):
            before, behind = (_stretch(draw, topics) for _ in range(2))
            forum.append(f"{before}\n\n{said}\n\n{behind}")
    draw.shuffle(forum)
    tables = {"museum": museum, "topics": [{"text": text} for text in topics], "forum": [{"text": t} for t in forum]}
    for name, rows in tables.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def _stretch(draw: random.Random, topics: list[str]) -> str:
    text = draw.choice(topics)
    begin = draw.randrange(len(text) - AROUND)
    return text[begin : begin + AROUND]


def evaluated(folder: Path, root: Path, mode: str) -> Artifact:
    """SCORES of a run in which leaks are flagged, or cut."""
    recipe = load_recipe(folder / "leaked.toml", root, [f"decontaminate.mode={mode}"])
    built: dict[str, Artifact] = {}

    def step(stage: str, *inputs: Any) -> Artifact:
        built[stage] = BUILDERS[stage](RunContext(root, "20260101T000000Z-abcdef"), *inputs)
        return built[stage]

    run_stages(recipe, step)
    assert mode == "flag" or built["dedup"].reused
    return built["evaluate"]


def test_the_gap_of_a_leaked_benchmark_is_flagged_and_gone_once_it_is_cut(tmp_path: Path) -> None:
    folder, root = tmp_path / "input", tmp_path / "root"
    folder.mkdir()
    write_input(folder)
    (folder / "leaked.toml").write_text(RECIPE, encoding="utf-8")
    gaps: dict[str, dict[str, Any]] = {}
    for mode in ("flag", "cut"):
        found = evaluated(folder, root, mode)
        scores = {
            row["subset"]: row
            for row in found.table("scores").to_pylist()
            if (row["task"], row["metric"]) == ("museum", "acc")
        }
        (gaps[mode],) = found.table("gaps").to_pylist()
        reported = [
            f"{subset} {row['value']:.3f} ± {row['stderr']:.3f} (n {row['n']})" for subset, row in scores.items()
        ]
        gap = gaps[mode]
        print(
            f"\n{mode:5s} {', '.join(reported)}; leaked less clean {gap['difference']:+.3f} ± {gap['stderr']:.3f},"
            f" p {gap['p']:.4f}, beyond chance: {gap['beyond_chance']}"
        )
        assert (scores["leaked"]["n"], scores["clean"]["n"]) == (LEAKED, ITEMS - LEAKED)
        assert [row["shots"] for row in found.report.facts["gaps"]] == ([0] if gap["beyond_chance"] else [])
        assert ("beyond chance" in scores["clean"]["note"]) == gap["beyond_chance"]
    assert gaps["flag"]["beyond_chance"]
    assert gaps["flag"]["difference"] > 0.3
    assert not gaps["cut"]["beyond_chance"]
