"""A vocabulary whose pieces are shared by ranks: no rank ever has the logits of all.

Shoeybi et al. 2019, section 3: what travels is one number a prediction, and not one for each of V pieces.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.parallel.cuts import bounds
from model.parallel.exchange import added_up_, read_by_all
from model.ranks import Ranks
from model.targets import NO_LOSS


class VocabularyPart:
    """The pieces of this rank, from `begin` on; `model.vocabulary.Vocabulary` says what it is asked."""

    gradient_at_once = False

    def __init__(self, vocab_size: int, ranks: Ranks) -> None:
        self.begin, self.end = bounds(vocab_size, ranks.rank, ranks.size)
        self.ranks = ranks
        self._vocab_size = vocab_size

    def read(self, hidden: Tensor) -> Tensor:
        """Its gradient adds up over the ranks, of which each has other logits."""
        return read_by_all(hidden, self.ranks)

    def nats(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        """The target's logit comes from the rank that has it."""
        counts = targets_N != NO_LOSS
        logits_nV, targets_n = logits_NV[counts].float(), targets_N[counts]
        own = (targets_n >= self.begin) & (targets_n < self.end)
        place = (targets_n - self.begin).clamp(0, self.end - self.begin - 1)
        found = logits_nV.gather(1, place[:, None])[:, 0] * own
        return (self.log_normaliser(logits_nV) - added_up_(found, self.ranks)).sum()

    def log_normaliser(self, logits_NV: Tensor) -> Tensor:
        """Denominators are added up in units of the largest logit of all ranks, so that none is too large."""
        logits_NV = logits_NV.float()
        largest_N = self.ranks.max_(logits_NV.detach().amax(-1))
        return largest_N + added_up_((logits_NV - largest_N[:, None]).exp().sum(-1), self.ranks).log()

    def likeliest(self, logits_NV: Tensor) -> Tensor:
        """The first piece among those that no rank has a larger logit than."""
        own_N, place_N = logits_NV.detach().float().max(-1)
        largest_N = self.ranks.max_(own_N.clone())
        first_N = torch.where(own_N == largest_N, place_N + self.begin, self._vocab_size)
        return -self.ranks.max_(-first_N)


class EmbeddingPart(nn.Embedding):
    """Rows of the table for this rank's pieces; tokens of the others look up zeros, and the sum has all rows."""

    def __init__(self, weight: Tensor, vocabulary: VocabularyPart) -> None:
        rows, width = weight.shape
        super().__init__(rows, width, _weight=weight)
        self._vocabulary = vocabulary

    def forward(self, input: Tensor) -> Tensor:
        """Rows f32[..., D] of tokens i64[...]."""
        begin, end = self._vocabulary.begin, self._vocabulary.end
        own = (input >= begin) & (input < end)
        rows = F.embedding((input - begin).clamp(0, end - begin - 1), self.weight)
        return added_up_(rows * own[..., None], self._vocabulary.ranks)
