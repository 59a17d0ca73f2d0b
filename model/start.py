"""The network that a run starts with: random, or a trained one, perhaps with new rows for an extended vocabulary."""

from dataclasses import dataclass
from typing import Any

import torch

from model.architecture import T5Config
from model.base_weights import base_config, base_weights
from model.config import StartingModel, TrainerRun
from model.errors import InputError, RecipeError
from model.initialisation import EMBEDDING_STD
from model.networks import Network, make_network
from model.new_rows import read_added_pieces, starting_rows
from model.same_shape import check_same_shape
from model.split_tables import NEW_ROWS_OF, train_new_rows_alone


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
        train_new_rows_alone(network)
    return Start(network, {} if resumes else _take_over(network, base, run, old_rows))


def _rows_of(base: StartingModel, run: TrainerRun) -> int:
    """Rows of the trained model's embedding; all else of its shape is the run's."""
    found = base_config(base.folder)
    check_same_shape(base.folder, found, run.model)
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
