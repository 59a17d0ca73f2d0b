"""Tables of which the last rows are a parameter of their own, so that they can learn while the others stay.

A masked gradient would not hold the others, which weight decay moves all the same, and ZeRO-3 cuts a table anywhere.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NEW_ROWS_OF = {"embedding.weight": "new_rows", "head.weight": "new_head_rows"}
"""Tables, and the parameters of their new rows where these learn alone."""


def make_new_rows(rows: int, width: int) -> nn.Parameter | None:
    """A parameter [rows, width], or none for no rows."""
    return nn.Parameter(torch.empty(rows, width)) if rows else None


def looked_up(embedding: nn.Module, new_rows: Tensor | None, tokens: Tensor, old_rows: int) -> Tensor:
    """Rows f32[..., D] of tokens [...], the first `old_rows` of which stand in `embedding`."""
    if new_rows is None:
        return embedding(tokens)
    old = embedding(tokens.clamp(max=old_rows - 1))
    new = F.embedding((tokens - old_rows).clamp(min=0), new_rows)
    return torch.where((tokens >= old_rows)[..., None], new, old)


def with_new_logits(logits: Tensor, hidden: Tensor, new_rows: Tensor | None) -> Tensor:
    """Logits [..., V] of all pieces, given those of the old ones and what the head reads, f32[..., D]."""
    return logits if new_rows is None else torch.cat((logits, F.linear(hidden, new_rows)), dim=-1)


def train_new_rows_alone(network: nn.Module) -> None:
    """Let nothing learn but the new rows."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in NEW_ROWS_OF.values())


def whole_tables(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as a network without rows of their own has them: new rows behind the old ones in one table."""
    joined = {name: tensor for name, tensor in weights.items() if name not in NEW_ROWS_OF.values()}
    for name, new_rows in NEW_ROWS_OF.items():
        if new_rows in weights:
            joined[name] = torch.cat((weights[name], weights[new_rows]))
    return joined
