"""The forgetting gate: bits per byte of a model and of its base model on the same held-out text.

Both read the same tokens: where the vocabulary was extended, the base reads a new token as the tokens with which it
wrote the same bytes. Extension leaves the tokens of text in the old scripts unchanged, so that this is the base's own
tokenization of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model.errors import InputError
from model.huggingface.io import base_network
from model.inference.scoring import text_nats
from model.nn.gpt import GPT
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.results import GateRises, TrainResult
from tasks.artifacts.tables.rows import HELDOUT, ScoreRow
from tasks.common.numeric import seed64
from tasks.evaluate.config import EvaluateConfig, GateConfig
from tasks.evaluate.heldout import EncodedSource
from tasks.evaluate.scores import ratio, score_row
from tasks.tokenizer.base import ADDED_PIECES, Tokenizer

RISE, BASE = "rise_from_base", "base_bits_per_byte"
"""Metrics of SCORES: the share by which bits per byte rose, and those of the base model."""


@dataclass(frozen=True)
class GatedModel:
    """The trained model, and what is known of its base model."""

    network: GPT
    tokenizer: Tokenizer
    base_digest: str
    """Digest of the weights with which training began."""
    base_ids: Mapping[int, Sequence[int]]
    """New token -> the base's ids for the same bytes."""


def gated_model(model: Artifact, vocab: Artifact, network: Any, tokenizer: Tokenizer) -> GatedModel:
    """Return the model for the gate. Raises InputError for a model that is no GPT, or that has no base model."""
    if not isinstance(network, GPT):
        raise InputError(
            f"evaluate.gate compares bits per byte, which a {network.config.architecture} does not have, because it"
            f" does not predict each next token. Leave evaluate.gate out."
        )
    base = TrainResult.of(model.report).base_model
    if base is None:
        raise InputError(
            "evaluate.gate compares with the base model of training, and this model began with random weights."
            " Set train.base_model, or leave evaluate.gate out."
        )
    added = vocab.table(ADDED_PIECES).to_pylist() if vocab.files(ADDED_PIECES) else []
    return GatedModel(network, tokenizer, base["weights"], {row["id"]: row["base_ids"] or () for row in added})


def gate_scores(gated: GatedModel, heldout: Sequence[EncodedSource], config: EvaluateConfig) -> list[ScoreRow]:
    """Return rows of SCORES for each source of the gate: the base's bits per byte, and the share by which they rose.

    Raises InputError where the folder holds another model than the one that training began with, or a source has no
    held-out text.
    """
    gate = config.gate
    assert gate is not None, "gate_scores is called with a gate only"
    assert gate.base_model is not None, "a recipe with a gate has a base model"
    sources = {source.name: source for source in heldout}
    missing = next((source for source in gate.sources if source not in sources), None)
    if missing is not None:
        raise InputError(
            f"evaluate.gate names the source `{missing}`, which has no held-out text (sources that have some:"
            f" {', '.join(sources) or 'none'}). Raise decontaminate.heldout_share, or"
            f" decontaminate.heldout_min_documents for a small source."
        )
    lossy = next((sources[source] for source in gate.sources if sources[source].unknown), None)
    if lossy is not None:
        raise InputError(
            f"evaluate.gate: the held-out text of `{lossy.name}` has {lossy.unknown} unknown tokens, whose text is"
            f" lost, so that it has no bits per byte. Name other sources."
        )
    base = _load_base(gate.base_model, gated)
    rows: list[ScoreRow] = []
    for name in gate.sources:
        source = sources[name]
        ids = [row.tolist() for row in source.ids]
        now, before = (
            np.array(text_nats(network, tokens, gated.tokenizer.opening, batch_tokens=config.batch_tokens))
            / math.log(2)
            for network, tokens in ((gated.network, ids), (base, [_to_base_ids(row, gated.base_ids) for row in ids]))
        )
        draw = seed64(config.seed, "evaluate", "gate", name)
        base_ratio = ratio(before, source.sizes, config.bootstrap_rounds, draw)
        risen = ratio(now, before, config.bootstrap_rounds, draw)
        assert risen.value is not None, "text has bits"
        new = sum(token in gated.base_ids for row in ids for token in row)
        note = f"{source.describe()}, {new} of them new pieces"
        task = f"{HELDOUT}{name}"
        rows.append(score_row(task, BASE, base_ratio, n=len(ids), note=note))
        rows.append(score_row(task, RISE, risen._replace(value=risen.value - 1), n=len(ids), note=note))
    return rows


def gate_rises(gate: GateConfig, scores: Sequence[Mapping[str, Any]]) -> GateRises:
    """Return the rise of each source, by which a run is passed or failed."""
    rises = {row["task"].partition("/")[2]: row["value"] for row in scores if row["metric"] == RISE}
    return {"rises": {source: rises[source] for source in gate.sources}}


def _to_base_ids(tokens: Sequence[int], base_ids: Mapping[int, Sequence[int]]) -> list[int]:
    written: list[int] = []
    for token in tokens:
        found = base_ids.get(token, (token,))
        if not found:
            raise InputError(
                f"evaluate.gate: a text of its sources has the new token {token}, which the base model could not"
                f" encode, so that it has no bits per byte. Name only sources that the base model knew."
            )
        written += found
    return written


def _load_base(folder: Path, gated: GatedModel) -> GPT:
    network, digest = base_network(folder)
    if digest != gated.base_digest:
        raise InputError(
            f"evaluate.gate: training started from weights {gated.base_digest}, and {folder} holds {digest} now."
            f" Restore the model, set evaluate.gate.base_model to its folder, or train again."
        )
    assert isinstance(network, GPT), "the base of a GPT is a GPT"
    # Windows as long as the run's, so that both models predict from equally many tokens.
    network.config = network.config.model_copy(update={"context": gated.network.config.context})
    return network.to(gated.network.embedding.weight.device)
