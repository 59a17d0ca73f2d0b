"""The network that a run starts with: random, or a trained one, perhaps with new rows for an extended vocabulary."""

from dataclasses import dataclass
from typing import Any

import torch

from model.architecture import BERTConfig, T5Config, read_network_config
from model.bert import BERT
from model.config import StartingModel, TrainerRun
from model.errors import InputError, RecipeError
from model.initialisation import EMBEDDING_STD
from model.networks import Network, make_network
from model.new_rows import read_added_pieces, starting_rows
from model.same_shape import check_same_shape
from model.transformer import GPT
from model.weights import describe_model, load_model


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
        assert isinstance(network, GPT), "the run was checked"
        network.train_new_rows_alone()
    return Start(network, {} if resumes else _take_over(network, base, run, old_rows))


def _rows_of(base: StartingModel, run: TrainerRun) -> int:
    """Rows of the trained model's embedding; all else of its shape is the run's."""
    found = read_network_config(describe_model(base.folder)["config"])
    check_same_shape(base.folder, found, run.model)
    if base.added_pieces is not None and not isinstance(found, BERTConfig) and not found.tied_head:
        raise InputError(
            f"the model in {base.folder} has a head of its own (tied_head = false), and this run's vocabulary was"
            f" extended: how new rows of a head start is not provided for. Take a model whose head is its embedding, or"
            f" the model's own vocabulary."
        )
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
    trained = load_model(base.folder, base.tokenizer_digest)
    weights = trained.state_dict()
    table_VD = weights["embedding.weight"]
    facts: dict[str, Any] = {"weights": describe_model(base.folder)["weights_digest"]}
    if base.added_pieces is not None:
        base_ids = read_added_pieces(base.added_pieces, old_rows, run.model.vocab_size)
        std = EMBEDDING_STD if isinstance(run.model, T5Config) else run.model.init_std
        start = starting_rows(table_VD, base_ids, run.train.new_rows, run.train.seed, std)
        facts |= {
            "new_rows": len(base_ids),
            "start": run.train.new_rows,
            "without_meaning": start.without_meaning,
        }
        if not isinstance(network, GPT) or network.new_rows is None:
            weights["embedding.weight"] = torch.cat((table_VD, start.rows_ND))
        else:
            weights["new_rows"] = start.rows_ND
        if isinstance(network, BERT):
            bias_V = weights["masked_head_bias"]
            weights["masked_head_bias"] = torch.cat((bias_V, bias_V.new_zeros(len(base_ids))))
    network.load_state_dict(weights)
    return facts


def whole_table(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights as a network without rows of their own has them: new rows behind the old ones in one table."""
    if "new_rows" not in weights:
        return weights
    joined = {name: tensor for name, tensor in weights.items() if name != "new_rows"}
    joined["embedding.weight"] = torch.cat((weights["embedding.weight"], weights["new_rows"]))
    return joined
