"""How the rows of an extended vocabulary start, in a network that was trained without them.

The mean of the rows with which the base wrote the same bytes lies among the rows that the network knows (Gee et al.
2022, "Fast Vocabulary Transfer"; Hewitt 2021, "Initializing New Word Embeddings"), so that it neither surprises the
network as input nor takes much probability from old pieces as output.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import blake3
import torch
from torch import Tensor

from model.config import NewRows
from model.data import open_table
from model.errors import InputError

NOISE = 0.1
"""Standard deviation of the noise, in standard deviations of the base's rows, column by column."""


@dataclass(frozen=True)
class StartingRows:
    """New rows f32[N, D], and how many of them the base's ids say nothing about."""

    rows_ND: Tensor
    without_meaning: int


def read_added_pieces(path: Path, first: int, last: int) -> list[tuple[int, ...]]:
    """The base's ids of each new piece, for the ids `first` to `last` - 1; empty where the base could not write it.

    Raises InputError where the file does not speak of exactly these rows, or names ids that the base does not have.
    """
    table = open_table(path)
    ids = table.column("id").to_pylist()
    if ids != list(range(first, last)):
        told = f"{ids[0]} to {ids[-1]}" if ids else "nothing"
        raise InputError(
            f"{path} speaks of the pieces {told} ({len(ids)} rows), and the vocabulary has {first} to {last - 1} beyond"
            f" the {first} rows of the base model. The vocabulary was grown from another base: set vocab.base to the"
            f" vocabulary that the base model was trained with, and vocab.embedding_rows to {first}."
        )
    base_ids = [tuple(numbers or ()) for numbers in table.column("base_ids").to_pylist()]
    unknown = next((number for numbers in base_ids for number in numbers if not 0 <= number < first), None)
    if unknown is not None:
        raise InputError(f"{path} names {unknown} as an id of the base, which has {first} rows; build vocab anew")
    return base_ids


def starting_rows(
    table_VD: Tensor, base_ids: list[tuple[int, ...]], start: NewRows, seed: int, init_std: float
) -> StartingRows:
    """Rows for pieces that the base writes as `base_ids`, given its table; a function of `seed` and these.

    `mean` of the base's rows, `mean_noise` with Gaussian noise besides, `random` as a network starts. Where the ids say
    nothing, the mean of all rows with noise stands in: no ids at all, or the same ones as for another piece, which is
    what a base gives that writes many characters as its unknown token (T5 on Chinese).
    """
    generator = torch.Generator().manual_seed(_seed_of(seed))
    noise_ND = torch.randn(len(base_ids), table_VD.shape[1], generator=generator)
    seen = Counter(base_ids)
    means = torch.tensor([bool(ids) and seen[ids] == 1 for ids in base_ids], dtype=torch.bool)
    without_meaning = int((~means).sum())
    if start == "random":
        return StartingRows(init_std * noise_ND, without_meaning)
    rows_ND = table_VD.mean(dim=0).expand(len(base_ids), -1).clone()
    for row in means.nonzero().flatten().tolist():
        rows_ND[row] = table_VD[list(base_ids[row])].mean(dim=0)
    noisy = torch.ones_like(means) if start == "mean_noise" else ~means
    rows_ND[noisy] += NOISE * table_VD.std(dim=0) * noise_ND[noisy]
    return StartingRows(rows_ND, without_meaning)


def _seed_of(seed: int) -> int:
    """A seed of its own: the network's first weights are drawn from `seed` itself."""
    return int.from_bytes(blake3.blake3(f"{seed}\x1fnew rows".encode()).digest(length=7), "little")
