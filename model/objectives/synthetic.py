"""Batches of random tokens, to measure what a step costs before there is data."""

from dataclasses import dataclass
from typing import Any

import torch

from model.config.network import BERTConfig, GPTConfig, NetworkConfig
from model.data.loader import CausalBatch, MaskedBatch, PrefixBatch, SpanBatch
from model.data.span_lengths import corrupted_lengths, raw_length
from model.nn.factory import MASKED_SHARE
from model.objectives.base import Objective
from model.objectives.causal import CausalObjective, PrefixObjective
from model.objectives.masked import MaskedObjective
from model.objectives.spans import SpanObjective

EOS = 0


@dataclass(frozen=True)
class RandomBatch:
    """Random rows and their objective."""

    objective: Objective
    rows: Any
    tokens: int
    """Tokens as training counts them."""


def random_batch(config: NetworkConfig, rows: int, seed: int = 0) -> RandomBatch:
    """Return full rows without padding, with as many targets as in training."""
    generator = torch.Generator().manual_seed(seed)

    def random_ids(below: int, *shape: int) -> torch.Tensor:
        return torch.randint(below, shape, generator=generator)

    context, vocab = config.context, config.vocab_size
    if isinstance(config, GPTConfig):
        tokens_BL, start_B = random_ids(vocab, rows, context + 1), torch.zeros(rows, dtype=torch.int64)
        if config.attention == "prefix":
            prefix_B = 1 + random_ids(context, rows)
            batch = PrefixBatch(tokens_BL, prefix_B, prefix_B)
            return RandomBatch(PrefixObjective(pad=-1, eos=EOS, seed=seed), batch, rows * context)
        return RandomBatch(CausalObjective(pad=-1, eos=EOS), CausalBatch(tokens_BL, start_B), rows * context)
    if isinstance(config, BERTConfig):
        objective = MaskedObjective(seed, MASKED_SHARE, context)
        hidden = max(1, round(MASKED_SHARE * context))
        pairs = MaskedBatch(
            inputs_BT=random_ids(vocab, rows, context),
            token_types_BT=(torch.arange(context) >= context // 2).long().repeat(rows, 1),
            is_token_BT=torch.ones(rows, context, dtype=torch.bool),
            positions_BM=torch.rand(rows, context, generator=generator).argsort()[:, :hidden].sort().values,
            targets_BM=random_ids(vocab, rows, hidden),
            is_next_B=random_ids(2, rows),
        )
        return RandomBatch(objective, pairs, rows * context)
    raw = raw_length(context)
    lengths = corrupted_lengths(raw)
    spans = SpanBatch(
        inputs_BT=random_ids(vocab, rows, lengths.inputs),
        is_token_BT=torch.ones(rows, lengths.inputs, dtype=torch.bool),
        decoder_inputs_BU=random_ids(vocab, rows, lengths.targets),
        targets_BU=random_ids(vocab, rows, lengths.targets),
    )
    return RandomBatch(SpanObjective(seed), spans, rows * raw)
