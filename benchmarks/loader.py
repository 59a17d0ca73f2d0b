"""The loader beside the model that it feeds: tokens a second of each objective, on one core.

    python benchmarks/loader.py [--rows N] [--batch-rows N]

Rows of random tokens are written to a temporary folder and read in random order, twice over, as training reads them.
Beside them is the demo's network (3.3M parameters) in training on the same core; the last column is how many times
faster the loader is. Rates are raw tokens per second of processor time, the best of three turns; the first batch, which
compiles the kernels, is not timed but printed.
"""

import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import torch

from benchmarks.rows import run_without_rows, write_rows
from model.config.network import GPTConfig
from model.config.train import TrainConfig
from model.data.dataset import SequenceReader
from model.data.loader import CausalBatch, CausalLoader, MaskedLoader, PrefixLoader, SpanLoader
from model.data.row_format import RowFormat, WordBorders
from model.data.schema import ORDER
from model.data.span_lengths import Denoising, raw_length
from model.distributed.process_group import SINGLE_PROCESS
from model.engines.native import NativeEngine
from model.nn.gpt import GPT
from model.objectives.base import Loader
from model.optim.schedules import StepSchedule

PIECES = 4096
EOS, PAD, CLS, SEP, MASK = 1, 0, 2, 3, 4
SENTINELS = tuple(range(PIECES - 1, PIECES - 101, -1))
DEMO = GPTConfig(vocab_size=PIECES, context=256, layers=4, heads=4, width=224)
DEMO_ROWS = 8
TURNS = 3
STEPS = 6


WORDS = WordBorders(np.arange(PIECES) % 2 == 1, np.ones(PIECES, dtype=np.bool_)).packed()
"""Every other id goes on with the word before it."""
LOADERS: dict[str, tuple[dict[str, str], int, Callable[[SequenceReader], Loader]]] = {
    "causal_lm, 256": ({"objective": "causal_lm"}, 257, CausalLoader),
    "causal_lm, 1024": ({"objective": "causal_lm"}, 1025, CausalLoader),
    "... behind a prefix": ({"objective": "causal_lm"}, 1025, lambda reader: PrefixLoader(reader, 1, PAD)),
    "masked_lm, 128": ({"objective": "masked_lm"}, 128, lambda reader: MaskedLoader(reader, 1, 20)),
    "masked_lm, 512": ({"objective": "masked_lm"}, 512, lambda reader: MaskedLoader(reader, 1, 77)),
    "... in whole words": (
        {"objective": "masked_lm", "word_borders": WORDS},
        512,
        lambda reader: MaskedLoader(reader, 1, 77),
    ),
    **{
        f"{kind}, 512": (
            {"objective": "span_corruption", "denoising": kind},
            raw_length(512, kind=kind),
            lambda reader: SpanLoader(reader, 1),
        )
        for kind in get_args(Denoising)
    },
}
"""Name -> what the rows say of themselves, tokens of a row, and the loader of its batches."""


def random_rows(folder: Path, said: dict[str, str], length: int, rows: int) -> SequenceReader:
    """Write random rows of an objective; return a reader of each of them twice."""
    random = np.random.default_rng(1)
    tokens = random.integers(5, PIECES - 100, (rows, length))
    columns: dict[str, pa.Array] = {}
    if said["objective"] == "masked_lm":
        half = length // 2
        tokens[:, 0], tokens[:, [half - 1, length - 1]] = CLS, SEP
        columns = {"second_start": pa.array([half] * rows, pa.int32()), "is_next": pa.array([True] * rows)}
    row_format = RowFormat.model_validate(
        {
            "tokenizer_digest": "random",
            "vocab_size": PIECES,
            "eos": EOS,
            "pad": PAD,
            "cls": CLS,
            "sep": SEP,
            "mask": MASK,
            "sentinels": SENTINELS,
            "special": tuple(sorted((EOS, PAD, CLS, SEP, MASK, *SENTINELS))),
            **said,
        }
    )
    sequences, _ = write_rows(folder, tokens, PIECES, row_format=row_format, **columns)
    order = {"row": np.concatenate([random.permutation(rows)] * 2), "epoch": np.repeat([0, 1], rows).astype(np.int16)}
    return SequenceReader([sequences], pa.table(order).cast(ORDER))


def loading(loader: Loader, positions: int, batch_rows: int) -> float:
    """Return the processor seconds that all batches take once."""
    began = time.process_time()
    for begin in range(0, positions, batch_rows):
        loader.batch(begin, min(begin + batch_rows, positions))
    return time.process_time() - began


def training(attend_within_documents: bool) -> float:
    """Return the tokens a second of one core that the demo's network trains on."""
    network = GPT(DEMO.model_copy(update={"attend_within_documents": attend_within_documents})).initialise(1)
    train = TrainConfig(batch_rows=DEMO_ROWS, micro_batch_rows=DEMO_ROWS, threads=1)
    engine = NativeEngine(run_without_rows(network.config, train, PAD, EOS), network, SINGLE_PROCESS)
    tokens = torch.randint(5, PIECES, (DEMO_ROWS, DEMO.context + 1), generator=torch.Generator().manual_seed(1))
    # A document every hundred tokens.
    tokens[:, ::100] = EOS
    starts = torch.zeros(DEMO_ROWS, dtype=torch.int64)
    engine.step(CausalBatch(tokens, starts), StepSchedule(1e-3))
    seconds = []
    for _ in range(STEPS):
        began = time.process_time()
        engine.step(CausalBatch(tokens, starts), StepSchedule(1e-3))
        seconds.append(time.process_time() - began)
    return DEMO_ROWS * DEMO.context / min(seconds)


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192, help="rows of each objective, read twice")
    parser.add_argument("--batch-rows", type=int, default=64, help="rows of a batch")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    across, within = training(False), training(True)
    print(f"{'demo model, training':24}{across:>14,.0f} tokens/s")
    print(f"{'... within documents':24}{within:>14,.0f} tokens/s   x {within / across:.2f}")
    with tempfile.TemporaryDirectory() as folder:
        for name, (said, length, make) in LOADERS.items():
            reader = random_rows(Path(folder) / name, said, length, asked.rows)
            loader = make(reader)
            began = time.perf_counter()
            loader.batch(0, 1)
            first = time.perf_counter() - began
            seconds = min(loading(loader, reader.positions, asked.batch_rows) for _ in range(TURNS))
            rate = reader.positions * length / seconds
            print(f"{name:24}{rate:>14,.0f} tokens/s   x {rate / across:,.0f}   first batch {first:.2f} s")


if __name__ == "__main__":
    main()
