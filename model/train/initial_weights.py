"""The network that a run starts with: random, or a trained one, perhaps with new rows for an extended vocabulary.

How the rows of an extended vocabulary start, in a network that was trained without them.

The mean of the rows with which the base wrote the same bytes lies among the rows that the network knows (Gee et al.
2022, "Fast Vocabulary Transfer"; Hewitt 2021, "Initializing New Word Embeddings"), so that it neither surprises the
network as input nor takes much probability from old pieces as output.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3
import torch
from torch import Tensor

from model.config.fields import NewRows
from model.config.network import T5Config
from model.config.rules import check_compatible_architecture
from model.config.train import StartingModel, TrainerRun
from model.data.dataset import open_table
from model.errors import InputError, RecipeError
from model.huggingface.io import base_config, base_weights
from model.nn.factory import Network, make_network
from model.nn.init import EMBEDDING_STD
from model.nn.vocab_layers import NEW_ROWS_OF, freeze_all_but_new_rows


@dataclass(frozen=True)
class Start:
    """A network, ready to be trained or to take a checkpoint's weights, and what there is to tell of its beginning."""

    network: Network
    facts: dict[str, Any]


def starting_network(run: TrainerRun, *, resumes: bool) -> Start:
    """The network of `run`; `resumes` leaves the weights to a checkpoint.

    Raises InputError or RecipeError where the trained model does not fit the run.
    """
    base = run.base
    if base is None:
        network = make_network(run.model)
        return Start(network if resumes else network.initialise(run.train.seed), {})
    old_rows = _rows_of(base, run)
    new_rows = run.model.vocab_size - old_rows
    alone = run.train.trainable == "new_rows"
    network = make_network(run.model, new_rows if alone else 0)
    if alone:
        freeze_all_but_new_rows(network)
    return Start(network, {} if resumes else _take_over(network, base, run, old_rows))


def _rows_of(base: StartingModel, run: TrainerRun) -> int:
    """Rows of the trained model's embedding; all else of its shape is the run's."""
    found = base_config(base.folder)
    check_compatible_architecture(base.folder, found, run.model)
    if base.added_pieces is None and found.vocab_size != run.model.vocab_size:
        raise InputError(
            f"the model in {base.folder} has {found.vocab_size} rows, and this run's vocabulary {run.model.vocab_size}"
            f" pieces, though the two have the same tokenizer; one of them was changed. Take an untouched copy."
        )
    if base.added_pieces is not None and found.vocab_size >= run.model.vocab_size:
        raise InputError(
            f"the model in {base.folder} has {found.vocab_size} rows, and this run's vocabulary, which was grown from"
            f" its tokenizer, only {run.model.vocab_size} pieces. Set vocab.embedding_rows to {found.vocab_size} and"
            f" run again from vocab, so that new pieces get new rows."
        )
    if run.train.trainable == "new_rows" and base.added_pieces is None:
        raise RecipeError(
            f"train.trainable is new_rows, and this run's vocabulary is that of the model in {base.folder}: there are"
            f" no new rows. Extend it with vocab.extend, or leave train.trainable out."
        )
    return found.vocab_size


@torch.no_grad()
def _take_over(network: Network, base: StartingModel, run: TrainerRun, old_rows: int) -> dict[str, Any]:
    weights, digest = base_weights(base)
    facts: dict[str, Any] = {"weights": digest}
    if base.added_pieces is not None:
        base_ids = read_added_pieces(base.added_pieces, old_rows, run.model.vocab_size)
        starts = {
            name: starting_rows(weights[name], base_ids, run.train.new_rows, run.train.seed, _std_of(name, run))
            for name in ("embedding.weight", "head.weight")
            if name in weights
        }
        facts |= {
            "new_rows": len(base_ids),
            "start": run.train.new_rows,
            "without_meaning": starts["embedding.weight"].without_meaning,
        }
        for name, start in starts.items():
            if network.new_rows is not None:
                weights[NEW_ROWS_OF[name]] = start.rows_ND
            else:
                weights[name] = torch.cat((weights[name], start.rows_ND))
        for name in ("head_bias", "masked_head_bias"):
            if name in weights:
                weights[name] = torch.cat((weights[name], weights[name].new_zeros(len(base_ids))))
    network.load_state_dict(weights)
    return facts


def _std_of(name: str, run: TrainerRun) -> float:
    """Standard deviation of a table's rows in a network that was never trained."""
    if not isinstance(run.model, T5Config):
        return run.model.init_std
    return EMBEDDING_STD if name == "embedding.weight" else run.model.width**-0.5


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
