"""Build the network that a run starts with: random weights, or those of a base model, perhaps with new embeddings.

New tokens of an extended vocabulary start from the mean of the rows with which the base wrote the same bytes (Gee et
al. 2022, "Fast Vocabulary Transfer"; Hewitt 2021, "Initializing New Word Embeddings"). That mean lies among the rows
that the network knows, so that a new row is no unusual input and takes little probability from old tokens as output.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import blake3
import torch
from torch import Tensor

from model.config.fields import NewRows
from model.config.network import BERTConfig, GPTConfig
from model.config.rules import check_compatible_architecture
from model.config.train import StartingModel, TrainerRun
from model.data.dataset import open_table
from model.distributed.messages import BaseWeights
from model.errors import InputError, RecipeError
from model.huggingface.io import base_config, base_weights
from model.nn.factory import Network, make_network, make_shapes
from model.nn.init import EMBEDDING_STD
from model.nn.vocab_layers import NEW_ROWS_OF, freeze_all_but_new_rows

NOISE = 0.1
"""Standard deviation of the noise, in standard deviations of the base's rows, column by column."""


@dataclass(frozen=True)
class InitialNetwork:
    """A network, ready to be trained or to load a checkpoint's weights."""

    network: Network
    base: BaseWeights | None
    """None where the run has no base model or resumes."""
    weights: dict[str, Tensor] | None = None
    """The base model's weights, where the network is on the meta device."""


def initial_network(run: TrainerRun, *, resumes: bool) -> InitialNetwork:
    """Return the network of `run`. With `resumes` its weights are left to a checkpoint.

    Where ranks divide weights it is on the meta device, since no rank has all of them.

    Raises InputError or RecipeError where the base model does not fit the run.
    """
    base = run.base
    is_divided = run.train.divides_weights
    if base is None and is_divided:
        return InitialNetwork(make_shapes(run.model), None)
    if base is None:
        network = make_network(run.model)
        return InitialNetwork(network if resumes else network.initialise(run.train.seed), None)
    old_rows = _base_rows(base, run)
    new_rows = run.model.vocab_size - old_rows
    alone = run.train.trainable == "new_rows"
    network = make_shapes(run.model) if is_divided else make_network(run.model, new_rows if alone else 0)
    if alone:
        freeze_all_but_new_rows(network)
    if resumes:
        return InitialNetwork(network, None)
    weights, base_facts = _base_weights(base, run, old_rows, apart=alone)
    if is_divided:
        return InitialNetwork(network, base_facts, weights)
    network.load_state_dict(weights)
    return InitialNetwork(network, base_facts)


def _base_rows(base: StartingModel, run: TrainerRun) -> int:
    """Return the number of rows of the base model's embedding, after checking that its shape is otherwise the run's."""
    found = base_config(base.folder)
    check_compatible_architecture(base.folder, found, run.model)
    if base.added_pieces is None and found.vocab_size != run.model.vocab_size:
        raise InputError(
            f"the model in {base.folder} has {found.vocab_size} embedding rows, and this run's vocabulary has"
            f" {run.model.vocab_size} tokens, though the two have the same tokenizer; one of them was changed. Use an"
            f" unmodified copy."
        )
    if base.added_pieces is not None and found.vocab_size >= run.model.vocab_size:
        raise InputError(
            f"the model in {base.folder} has {found.vocab_size} embedding rows, and this run's vocabulary, which"
            f" extends its tokenizer, has only {run.model.vocab_size} tokens. Set vocab.embedding_rows to"
            f" {found.vocab_size} and run again from vocab, so that new tokens get new rows."
        )
    if run.train.trainable == "new_rows" and base.added_pieces is None:
        raise RecipeError(
            f"train.trainable is new_rows, but this run's vocabulary is that of the model in {base.folder}, so there"
            f" are no new rows. Extend it with vocab.extend, or leave train.trainable out."
        )
    return found.vocab_size


@torch.no_grad()
def _base_weights(
    base: StartingModel, run: TrainerRun, old_rows: int, *, apart: bool
) -> tuple[dict[str, Tensor], BaseWeights]:
    """Return the base model's weights, extended by new rows, which may be parameters apart, and what they are."""
    weights, digest = base_weights(base)
    base_facts: BaseWeights = {"weights": digest}
    if base.added_pieces is not None:
        base_ids = read_added_pieces(base.added_pieces, old_rows, run.model.vocab_size)
        extensions = {
            name: initial_rows(weights[name], base_ids, run.train.new_rows, run.train.seed, _initial_std(name, run))
            for name in ("embedding.weight", "head.weight")
            if name in weights
        }
        base_facts["new_rows"] = len(base_ids)
        base_facts["start"] = run.train.new_rows
        _, base_facts["without_meaning"] = extensions["embedding.weight"]
        for name, (rows_ND, _) in extensions.items():
            if apart:
                weights[NEW_ROWS_OF[name]] = rows_ND
            else:
                weights[name] = torch.cat((weights[name], rows_ND))
        for name in ("head_bias", "masked_head_bias"):
            if name in weights:
                weights[name] = torch.cat((weights[name], weights[name].new_zeros(len(base_ids))))
    return weights, base_facts


def _initial_std(name: str, run: TrainerRun) -> float:
    """Return the standard deviation of a table's rows in an untrained network."""
    if isinstance(run.model, GPTConfig):
        return run.model.table_std
    if isinstance(run.model, BERTConfig):
        return run.model.init_std
    return EMBEDDING_STD if name == "embedding.weight" else run.model.width**-0.5


def read_added_pieces(path: Path, first: int, last: int) -> list[tuple[int, ...]]:
    """Return the base's ids of each new token, for the ids `first` to `last` - 1; empty where the base has none.

    Raises InputError where the file does not describe exactly these tokens, or names ids that the base does not have.
    """
    table = open_table(path)
    ids = table.column("id").to_pylist()
    if ids != list(range(first, last)):
        described = f"{ids[0]} to {ids[-1]}" if ids else "none"
        raise InputError(
            f"{path} describes the tokens {described} ({len(ids)} rows), and the vocabulary has {first} to {last - 1}"
            f" beyond the {first} rows of the base model. The vocabulary extends another base: set vocab.base to the"
            f" vocabulary that the base model was trained with, and vocab.embedding_rows to {first}."
        )
    base_ids = [tuple(numbers or ()) for numbers in table.column("base_ids").to_pylist()]
    unknown = next((number for numbers in base_ids for number in numbers if not 0 <= number < first), None)
    if unknown is not None:
        raise InputError(f"{path} names {unknown} as an id of the base, which has {first} rows. Build vocab again.")
    return base_ids


def initial_rows(
    table_VD: Tensor, base_ids: list[tuple[int, ...]], start: NewRows, seed: int, init_std: float
) -> tuple[Tensor, int]:
    """Return rows f32[N, D] for tokens that the base writes as `base_ids`, given its table, and how many of these
    identify no text; a function of `seed` and these.

    `start` is `mean` of the base's rows, `mean_noise` (the mean with Gaussian noise added), or `random` as in an
    untrained network. Where the ids identify no text, the row is the mean of all rows with noise: without any ids, or
    with the same ids as another token, as of a base that writes many characters as its unknown token (T5 on Chinese).
    """
    generator = torch.Generator().manual_seed(_seed_of(seed))
    noise_ND = torch.randn(len(base_ids), table_VD.shape[1], generator=generator)
    seen = Counter(base_ids)
    means = torch.tensor([bool(ids) and seen[ids] == 1 for ids in base_ids], dtype=torch.bool)
    without_meaning = int((~means).sum())
    if start == "random":
        return init_std * noise_ND, without_meaning
    rows_ND = table_VD.mean(dim=0).expand(len(base_ids), -1).clone()
    for row in means.nonzero().flatten().tolist():
        rows_ND[row] = table_VD[list(base_ids[row])].mean(dim=0)
    noisy = torch.ones_like(means) if start == "mean_noise" else ~means
    rows_ND[noisy] += NOISE * table_VD.std(dim=0) * noise_ND[noisy]
    return rows_ND, without_meaning


def _seed_of(seed: int) -> int:
    """Return a seed for new rows that is independent of `seed`, from which the network's weights are drawn."""
    return int.from_bytes(blake3.blake3(f"{seed}\x1fnew rows".encode()).digest(length=7), "little")
