"""What becomes of logits: how surprising the targets are, on one rank or on several that share the pieces.

Shapes: N predictions, V pieces, of which a rank may have logits of some only.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from model.targets import NO_LOSS


class Vocabulary(Protocol):
    """All pieces, wherever their logits are."""

    def read(self, hidden: Tensor) -> Tensor:
        """The stream as the head reads it."""
        ...

    def nats(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        """Sum of -ln p over the targets that count, f32[], differentiable."""
        ...

    def log_normaliser(self, logits_NV: Tensor) -> Tensor:
        """Logarithm of the softmax's denominator, f32[N], differentiable."""
        ...

    def likeliest(self, logits_NV: Tensor) -> Tensor:
        """The piece with the largest logit, i64[N]; the first of several."""
        ...


class WholeVocabulary:
    """Logits of all pieces in one place."""

    def read(self, hidden: Tensor) -> Tensor:
        """As it is."""
        return hidden

    def nats(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        """In one fused kernel."""
        return F.cross_entropy(logits_NV.float(), targets_N, ignore_index=NO_LOSS, reduction="sum")

    def log_normaliser(self, logits_NV: Tensor) -> Tensor:
        """As it is defined."""
        return torch.logsumexp(logits_NV.float(), -1)

    def likeliest(self, logits_NV: Tensor) -> Tensor:
        """As it is defined."""
        return logits_NV.argmax(-1)


WHOLE_VOCABULARY = WholeVocabulary()
