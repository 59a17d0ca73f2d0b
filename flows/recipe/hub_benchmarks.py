"""Fetch benchmarks from the Hugging Face hub by the names people know, where a recipe asks for it.

    [[benchmarks]]
    task = "hellaswag"
    source = "hub"               # instead of `path`

Nothing is fetched without `source = "hub"`, and nothing twice: the items are kept under the root, as the JSON lines
that the tasks that ship read, and a recipe is the same with `path` set to that file. Needs the package `datasets`.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.errors import InputError, RecipeError
from model.files import write_atomically
from tasks.common.confinement import is_confined

HUB = "hub"

FOLDER = Path("inputs") / "benchmarks"
"""Under the root: a file for each fetched benchmark."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class HubBenchmark:
    """A data set on the hub, and how one of its rows becomes an item of the task that ships."""

    repository: str
    configuration: str | None
    split: str
    item: Callable[[Row], dict[str, Any]]


def _labelled(row: Row) -> dict[str, Any]:
    """Return an item whose answer is the label of a choice."""
    choices = row["choices"]
    return {
        "question": row["question"],
        "choices": list(choices["text"]),
        "answer": list(choices["label"]).index(row["answerKey"]),
    }


def _indexed(question: str, choices: str, answer: str) -> Callable[[Row], dict[str, Any]]:
    """Return how an item is made of fields of these names, of which `answer` has the number of a choice."""
    return lambda row: {"question": row[question], "choices": list(row[choices]), "answer": int(row[answer])}


def _boolq(row: Row) -> dict[str, Any]:
    given = {key: row[key] for key in ("passage", "question")}
    return {**given, "choices": ["no", "yes"], "answer": int(row["answer"])}


def _lambada(row: Row) -> dict[str, Any]:
    prompt, _, answer = row["text"].strip().rpartition(" ")
    return {"prompt": prompt, "choices": None, "answer": answer}


def _free(row: Row) -> dict[str, Any]:
    return {"question": row["question"], "choices": None, "answer": row["answer"]}


def _humaneval(row: Row) -> dict[str, Any]:
    return {"prompt": row["prompt"], "choices": None, "answer": row["canonical_solution"]}


def _truthfulqa(row: Row) -> dict[str, Any]:
    targets = row["mc1_targets"]
    return {
        "question": row["question"],
        "choices": list(targets["choices"]),
        "answer": list(targets["labels"]).index(1),
    }


BENCHMARKS = {
    "arc_challenge": HubBenchmark("allenai/ai2_arc", "ARC-Challenge", "test", _labelled),
    "arc_easy": HubBenchmark("allenai/ai2_arc", "ARC-Easy", "test", _labelled),
    "boolq": HubBenchmark("google/boolq", None, "validation", _boolq),
    "gsm8k": HubBenchmark("openai/gsm8k", "main", "test", _free),
    "hellaswag": HubBenchmark("Rowan/hellaswag", None, "validation", _indexed("ctx", "endings", "label")),
    "humaneval": HubBenchmark("openai/openai_humaneval", None, "test", _humaneval),
    "lambada": HubBenchmark("EleutherAI/lambada_openai", "default", "test", _lambada),
    "mmlu": HubBenchmark("cais/mmlu", "all", "test", _indexed("question", "choices", "answer")),
    "truthfulqa": HubBenchmark("truthfulqa/truthful_qa", "multiple_choice", "validation", _truthfulqa),
}
"""Name of a task that ships -> where its items are."""


def resolve_sources(values: dict[str, Any], root: Path, origin: str) -> None:
    """Replace `source = "hub"` of benchmarks by the `path` of the fetched file, and fetch it where it is missing.

    Raises RecipeError for another source, a benchmark that is not known there, or a recipe that may not reach it;
    InputError where it cannot be fetched.
    """
    decontaminate = values.get("decontaminate", {})
    tables = (
        ("benchmarks", values.get("benchmarks", [])),
        ("decontaminate.benchmarks", decontaminate.get("benchmarks", []) if isinstance(decontaminate, dict) else []),
    )
    for table, entries in tables:
        for number, entry in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(entry, dict) and "source" in entry:
                place = f"{origin}: {table}[{number}].source"
                entry["path"] = str(_file(entry, entry.pop("source"), root, place))


def _file(entry: dict[str, Any], source: Any, root: Path, place: str) -> Path:
    name = str(entry.get("task", entry.get("name")))
    if source != HUB:
        raise RecipeError(f'{place} = {source!r}; the only one is "{HUB}", which fetches the benchmark. Or set `path`.')
    if "path" in entry:
        raise RecipeError(f"{place}: `{name}` also has a `path`; leave one of the two out")
    if name not in BENCHMARKS:
        known = ", ".join(sorted(BENCHMARKS))
        raise RecipeError(f"{place}: `{name}` cannot be fetched (those that can: {known}); set `path` to a local file")
    if is_confined():
        raise RecipeError(f"{place}: an untrusted recipe may not fetch `{name}`; set `path` to a file of its folder")
    path = root.resolve() / FOLDER / f"{name}.jsonl"
    if not path.is_file():
        write_atomically(path, _fetch(name, BENCHMARKS[name], place))
    return path


def _fetch(name: str, benchmark: HubBenchmark, place: str) -> bytes:
    """Return the items of a benchmark as JSON lines."""
    instead = f"Or set `path` to a file of `{name}` on this machine (docs/evaluation.md has its form)."
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"{place}: fetching `{name}` needs the package `datasets`: pip install datasets. {instead}"
        ) from error
    print(f"fetching {name} from the hub: {benchmark.repository}, {benchmark.split}", file=sys.stderr)
    try:
        rows = datasets.load_dataset(benchmark.repository, benchmark.configuration, split=benchmark.split)
        items = [
            {"id": f"{name}/{number}", "lang": "en", **benchmark.item(row)}  # pyright: ignore[reportArgumentType]
            for number, row in enumerate(rows)
        ]
    except Exception as error:  # Libraries below raise many kinds where there is no network.
        why = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise InputError(
            f"{place}: `{name}` could not be fetched from {benchmark.repository} ({why}). Check the network. {instead}"
        ) from error
    return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items).encode()
