"""A tiny training run on disk: twelve steps of two rows, finished by the real trainer in seconds."""

import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
import torch

from model.config.options import ScheduleConfig
from model.config.train import TrainConfig, TrainerRun
from model.data.row_format import RowFormat
from model.data.schema import ORDER, sequences_schema
from model.train.template import FORKS
from tests.model.forked_trainers import fork_trainer
from tests.model.networks import EVERY_KIND
from tests.model.pretended_cuda import pretended_cuda

PROJECT = Path(__file__).resolve().parent.parent.parent
VOCABULARY, CONTEXT = EVERY_KIND.vocab_size, EVERY_KIND.context
PAD = 3


def write_arrow(path: Path, table: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path


REAL = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and `-m cuda`"),
]


@pytest.fixture(params=["pretended", pytest.param("real", marks=REAL)])
def cuda(request: pytest.FixtureRequest) -> Iterator[None]:
    """A CUDA device, which the processor plays unless tests run with `-m cuda`."""
    with pretended_cuda() if request.param == "pretended" else nullcontext():
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    # Matrices of 16 columns are not worth a second thread.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """For first weights of transformers, which come from torch's own generator: among 40 seeds those of T5
    1.1, whose norms compute in float32, gave logits up to 2.6e-5 apart."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _as_found() -> Iterator[None]:
    """Training asks PyTorch for deterministic kernels, and says so to the whole process."""
    before = torch.get_deterministic_debug_mode()
    yield
    torch.set_deterministic_debug_mode(before)


@pytest.fixture(scope="session")
def write_sequences() -> Callable[..., Path]:
    """Writes a SEQUENCES file of the given token rows; `pairs` are `second_start` and `is_next` of masked_lm."""

    def write(
        path: Path,
        tokens: np.ndarray,
        loss_start: list[int] | None = None,
        first_row: int = 0,
        row_format: RowFormat | None = None,
        pairs: tuple[list[int], list[bool | None]] | None = None,
    ) -> Path:
        rows, length = tokens.shape
        columns = {
            "row": pa.array(range(first_row, first_row + rows), pa.int64()),
            "source": pa.array(["text"] * rows).dictionary_encode(),
            "tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens.astype(np.uint16).ravel()), length),
            "loss_start": pa.array(loss_start or [0] * rows, pa.int32()),
        }
        if pairs is not None:
            columns |= {"second_start": pa.array(pairs[0], pa.int32()), "is_next": pa.array(pairs[1], pa.bool_())}
        return write_arrow(path, pa.table(columns).cast(sequences_schema(length, VOCABULARY, row_format)))

    return write


@pytest.fixture(scope="session")
def write_order() -> Callable[..., Path]:
    """Writes an ORDER file that reads the given rows, each in the given epoch (0 where left out)."""

    def write(path: Path, rows: list[int], epochs: list[int] | None = None) -> Path:
        columns = {"row": pa.array(rows, pa.int64()), "epoch": pa.array(epochs or [0] * len(rows), pa.int16())}
        return write_arrow(path, pa.table(columns).cast(ORDER))

    return write


@pytest.fixture
def make_run(tmp_path: Path, build_run) -> Callable[..., TrainerRun]:
    """`build_run` in the test's own folder."""
    return functools.partial(build_run, tmp_path)


@pytest.fixture(scope="session")
def build_run(write_sequences, write_order) -> Callable[..., TrainerRun]:
    """A run over random rows; keywords replace fields of TrainConfig, `positions` and `name` are of the run."""

    def build(home: Path, name: str = "out", positions: int = 24, **settings: object) -> TrainerRun:
        folder = home / "data"
        folder.mkdir(exist_ok=True)
        random = np.random.default_rng(5)
        tokens = random.integers(4, VOCABULARY, size=(10, CONTEXT + 1))
        # Rows that count for less, so that a mean over ranks is not the mean over tokens.
        tokens[2, 5:] = PAD
        parts = (
            write_sequences(folder / "part-00000.arrow", tokens[:6], loss_start=[0, 9, 0, 0, 0, 0]),
            write_sequences(folder / "part-00001.arrow", tokens[6:], first_row=6),
        )
        order = write_order(folder / f"order-{positions}.arrow", [(7 * i) % 10 for i in range(positions)])
        train = {
            "batch_rows": 2,
            "micro_batch_rows": 1,
            "checkpoint_steps": 3,
            "threads": 1,
            "schedule": ScheduleConfig(peak_lr=0.01),
            **settings,
        }
        return TrainerRun(
            sequences=parts,
            order=order,
            out=home / name,
            pad=PAD,
            tokenizer_digest="tokenizer",
            model=EVERY_KIND,
            train=TrainConfig.model_validate(train),
        )

    return build


@pytest.fixture(scope="session")
def launch() -> Callable[..., subprocess.Popen[str]]:
    """Starts `python -m model.train` on a run; further arguments follow the file.

    On Linux it is a fork of this process that calls `before` first, unless it computes with several threads: those of
    OpenMP that this process may have started do not survive a fork.
    """

    def start(run: TrainerRun, *arguments: str, before: Callable[[], object] = lambda: None) -> subprocess.Popen[str]:
        path = run.out.with_suffix(".json")
        path.write_text(run.model_dump_json())
        if FORKS and run.train.threads == 1:
            return fork_trainer(run.train, [str(path), *arguments], before)
        return subprocess.Popen(
            [sys.executable, "-m", "model.train", str(path), *arguments],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture(scope="session")
def p_value() -> Callable[[float, int], float]:
    """The upper tail of the chi-square distribution, Q(degrees / 2, statistic / 2)."""

    def tail(statistic: float, degrees: int) -> float:
        halves = (torch.tensor(x / 2, dtype=torch.float64) for x in (degrees, statistic))
        return float(torch.special.gammaincc(*halves))

    return tail


@pytest.fixture(scope="session")
def p_of_counts(p_value) -> Callable[[np.ndarray, np.ndarray], float]:
    """Pearson's test: how likely counts deviate so much or more from the shares that a law gives them."""

    def p(counts: np.ndarray, shares: np.ndarray) -> float:
        expected = shares * counts.sum()
        assert expected.min() > 5, "too few expected for the test to hold"
        return p_value(float(((counts - expected) ** 2 / expected).sum()), len(counts) - 1)

    return p
