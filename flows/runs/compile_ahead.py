"""Compile the kernels of later stages in a process of its own, while a first run prepares itself and is at its first
stages, where one core idles.

The first run after an installation compiles for over a minute of processor time, one kernel after another. The process
runs the data stages over some chapters of a novel, clean last, since the run compiles that meanwhile, and without its
edits. It changes no artifact: both share the cache of machine code alone (`model.kernel_cache`).
`python -m flows.runs.compile_ahead PARENT_PID` is that process.
"""

from __future__ import annotations

import bz2
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.files import user_cache
from model.processes import die_with_parent
from tasks.common.code_cache import project_state
from tasks.common.code_fingerprint import PROJECT

if TYPE_CHECKING:
    from tasks.artifacts.artifact import Artifact

NOVEL = Path(__file__).parents[1] / "shipped" / "texts" / "pride_and_prejudice.jsonl.bz2"

CHAPTERS = 40

NICENESS = 10
"""The run goes first where fewer cores are idle."""

MARKS = "compiled"
"""Folder of the user's cache with an empty file for each state of the code whose kernels are compiled."""

ITEM_WORDS, ITEM_CONTEXT = 28, 20


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Compile within the block, in the background, what later stages need; nothing where that was done before, or on
    one core. Failures are ignored: each stage compiles what it does not find."""
    if (os.cpu_count() or 1) < 2 or _mark().exists():
        yield
        return
    words = [sys.executable, "-m", "flows.runs.compile_ahead", str(os.getpid())]
    path = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, env=environment, process_group=0, **quiet)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _mark() -> Path:
    return user_cache() / MARKS / project_state()


def compile_kernels(folder: Path) -> dict[str, Artifact]:
    """Run the data stages over a small text in `folder`, which compiles their kernels, and return what they made."""
    from flows.recipe.load import recipe_from
    from flows.runs.pipeline import BUILDERS
    from tasks.artifacts.build import RunContext

    recipe = recipe_from(_write_text(folder), origin="text for kernels", folder=folder, root=folder)
    made: dict[str, Artifact] = {}

    def build(stage: str, *inputs: Any) -> Artifact:
        made[stage] = BUILDERS[stage](RunContext(folder, run_id="kernels"), *inputs)
        return made[stage]

    sampled = build("sample", recipe.sample)
    # Each stage reads sampled documents, so that none waits for one whose kernels the run compiles itself.
    unseen = build("decontaminate", sampled, recipe.decontaminate)
    build("chunk", unseen, build("vocab", unseen, recipe.vocab), recipe.chunk)
    build("dedup", sampled, recipe.dedup)
    build("clean", sampled, recipe.clean.model_copy(update={"edits": ()}))
    return made


def _write_text(folder: Path) -> dict[str, Any]:
    """Write chapters, and items of a benchmark that repeat some of them, and return a recipe that reads both."""
    with bz2.open(NOVEL, "rt", encoding="utf-8") as lines:
        chapters = [line for line, _ in zip(lines, range(CHAPTERS), strict=False)]
    (folder / "text.jsonl").write_text("".join(chapters), encoding="utf-8")
    items: list[dict[str, Any]] = []
    for number, chapter in enumerate(chapters[::10]):
        words = json.loads(chapter)["text"].split()[:ITEM_WORDS]
        passage = {"context": " ".join(words[:ITEM_CONTEXT]), "match_text": " ".join(words)}
        choices = [" ".join(words[ITEM_CONTEXT:]), "none of these"]
        items.append({"id": str(number), "choices": choices, "answer": 0, **passage})
    (folder / "items.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in items), encoding="utf-8")
    return {
        "format": 1,
        "name": "kernels",
        "budget_tokens": 100_000,
        "sources": [{"name": "text", "paths": ["{recipe}/text.jsonl"], "weight": 1.0}],
        "decontaminate": {
            "benchmarks": [{"name": "items", "path": "{recipe}/items.jsonl", "fields": {"context": "context"}}]
        },
        "vocab": {"vocab_size": 512},
        "train": {
            "batch_rows": 1,
            "micro_batch_rows": 1,
            "model": {"context": 64, "layers": 1, "heads": 1, "width": 16},
        },
    }


def main() -> None:
    """Compile as the process that `compiling_ahead` starts."""
    die_with_parent(parent=int(sys.argv[1]))
    os.nice(NICENESS)
    mark = _mark()
    with tempfile.TemporaryDirectory(prefix="bessemer-kernels-") as folder:
        compile_kernels(Path(folder))
    with suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


if __name__ == "__main__":
    main()
