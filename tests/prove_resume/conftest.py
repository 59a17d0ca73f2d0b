"""Cases that are counted, in calls as short as one likes: each is a JSON line, and a later call goes on behind it.

PROVE_FOLDER names the folder of the lines; without it nothing is kept for a later call. PROVE_SECONDS is what a proof
may take in one call. Lines of other code in `model/` do not count. The table at the end counts all that exist.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

from model.code_digest import code_digest
from model.config.network import BERTConfig, GPTConfig, T5Config
from model.config.options import ScheduleConfig
from model.config.train import TrainConfig, TrainerRun
from model.data.row_format import RowFormat
from model.data.schema import ORDER, sequences_schema

_HEADER = ("proof", "cases", "done", "held", "missed", "seconds", "of which")
_CASES = {"exact resume": 15, "kill points within writing": 1000, "flipped bytes": 10_000, "portable layouts": 60}
_FOLDER = pytest.StashKey[Path]()


PAD, CLS, SEP, MASK = 3, 4, 5, 6
TEXT_FROM = 20
VOCABULARY = 256
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "layers": 2, "heads": 2, "width": 32}
NETWORKS = {
    "gpt": (GPTConfig(context=32, **SIZES), "causal_lm", 33),
    "bert": (BERTConfig(context=32, norm_position="pre", **SIZES), "masked_lm", 32),
    "t5": (T5Config(context=32, **SIZES), "span_corruption", 34),
}
"""Each architecture with its objective and the tokens of a row."""


@pytest.fixture
def small_run(tmp_path: Path) -> Callable[..., TrainerRun]:
    """A run of an architecture over random rows; keywords are TrainConfig's, `positions` and `name` the run's."""

    def make(architecture: str, name: str = "out", positions: int = 400, **settings: Any) -> TrainerRun:
        network, objective, length = NETWORKS[architecture]
        draw = np.random.default_rng(5)
        tokens = draw.integers(TEXT_FROM, VOCABULARY, size=(40, length))
        columns: dict[str, Any] = {
            "row": pa.array(range(40), pa.int64()),
            "source": pa.array(["text"] * 40).dictionary_encode(),
            "loss_start": pa.array([0] * 40, pa.int32()),
        }
        if architecture == "bert":
            second = draw.integers(8, 24, size=40)
            tokens[:, 0], tokens[range(40), second - 1], tokens[:, -1] = CLS, SEP, SEP
            columns |= {"second_start": second, "is_next": [row % 2 == 0 for row in range(40)]}
        columns["tokens"] = pa.FixedSizeListArray.from_arrays(pa.array(tokens.astype(np.uint16).ravel()), length)
        row_format = RowFormat(
            objective=objective,
            tokenizer_digest="tokenizer",
            vocab_size=VOCABULARY,
            eos=2,
            pad=PAD,
            cls=CLS,
            sep=SEP,
            mask=MASK,
            sentinels=tuple(range(7, 20)),
            special=(0, 1, 2, PAD, CLS, SEP, MASK, *range(7, 20)),
        )
        schema = sequences_schema(length, VOCABULARY, row_format)
        order = {"row": [7 * at % 40 for at in range(positions)], "epoch": [at // 40 for at in range(positions)]}
        train = {
            "batch_rows": 4,
            "micro_batch_rows": 2,
            "checkpoint_steps": 5,
            "threads": 1,
            "schedule": ScheduleConfig(peak_lr=3e-3),
            **settings,
        }
        return TrainerRun(
            sequences=(_write_arrow(tmp_path / "rows.arrow", pa.table(columns).select(schema.names).cast(schema)),),
            order=_write_arrow(tmp_path / "order.arrow", pa.table(order).cast(ORDER)),
            out=tmp_path / name,
            pad=PAD,
            tokenizer_digest="tokenizer",
            model=network,
            train=TrainConfig.model_validate(train),
        )

    return make


def _write_arrow(path: Path, table: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path


@dataclass
class Proof:
    """The cases of one proof: those done before, and those added now."""

    name: str
    file: Path
    deadline: float
    done: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def cases(self) -> int:
        """How many there are in all."""
        return _CASES[self.name]

    @property
    def out_of_time(self) -> bool:
        """Whether what is left is for another call."""
        return time.monotonic() > self.deadline

    def add(self, case: str, missed: str, seconds: float, kind: str = "", **facts: Any) -> None:
        """Count a case; `missed` says in words why it did not hold, and is empty where it did."""
        line = {"case": case, "missed": missed, "seconds": round(seconds, 6), "kind": kind, **facts}
        self.done[case] = line
        with self.file.open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def verdict(self) -> None:
        """Fail where a case did not hold, skip where some are left."""
        missed = [f"{case}: {line['missed']}" for case, line in self.done.items() if line["missed"]]
        assert not missed, f"{len(missed)} of {len(self.done)} did not hold: {missed[:5]}"
        if len(self.done) < self.cases:
            pytest.skip(f"{len(self.done)} of {self.cases} done; call again with the same PROVE_FOLDER")


@pytest.fixture(scope="session")
def prove_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the lines are: a folder for each state of the code."""
    named = os.environ.get("PROVE_FOLDER")
    folder = (Path(named) if named else tmp_path_factory.mktemp("prove")) / code_digest()
    folder.mkdir(parents=True, exist_ok=True)
    request.config.stash[_FOLDER] = folder
    return folder


@pytest.fixture(scope="session")
def proof(prove_folder: Path) -> Callable[[str], Proof]:
    """A proof by its name."""
    made: dict[str, Proof] = {}

    def make(name: str) -> Proof:
        if name not in made:
            deadline = time.monotonic() + float(os.environ.get("PROVE_SECONDS", "inf"))
            made[name] = Proof(name, _file(prove_folder, name), deadline, _read(prove_folder, name))
        return made[name]

    return make


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(' ', '-')}.jsonl"


def _read(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    file = _file(folder, name)
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return {line["case"]: line for line in lines}


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table of all that was done so far; nothing where no proof ran."""
    folder = config.stash.get(_FOLDER, None)
    if folder is None:
        return
    terminalreporter.section("resume")
    rows = [_HEADER, *_rows(folder)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        terminalreporter.write_line(line.rstrip())
    terminalreporter.write_line(f"lines in {folder}")


def _rows(folder: Path) -> Iterator[tuple[str, ...]]:
    for name, cases in _CASES.items():
        lines = _read(folder, name).values()
        missed = sum(bool(line["missed"]) for line in lines)
        kinds = Counter(line["kind"] for line in lines if line["kind"])
        reported = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items(), key=lambda item: -item[1]))
        counts = (cases, len(lines), len(lines) - missed, missed)
        yield (name, *map(str, counts), f"{sum(line['seconds'] for line in lines):.0f}", reported)
