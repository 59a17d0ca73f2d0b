"""The shares of ranks make up the batch, whatever their number."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from model.data.loader import CausalBatch, MaskedBatch
from model.distributed.process_group import Ranks
from model.objectives.base import concatenate_batches, rank_batch
from model.objectives.causal import CausalObjective
from model.objectives.masked import MaskedObjective

PAD = 3
LENGTH = 5
CAUSAL = CausalObjective(PAD, None)


@given(rows=st.integers(1, 12), size=st.integers(1, 5), micro=st.integers(1, 4), data=st.data())
def test_shares_hold_each_row_once_in_order_and_are_equally_long(rows: int, size: int, micro: int, data) -> None:
    tokens = torch.arange(10, 10 + rows * LENGTH).view(rows, LENGTH)
    tokens[data.draw(st.integers(0, rows - 1)), 2:] = PAD
    batch = CausalBatch(tokens, torch.zeros(rows, dtype=torch.int64))
    shares = [rank_batch(Ranks(rank, size), batch, CAUSAL, micro) for rank in range(size)]
    assert {len(share.micro_batches) for share in shares} == {len(shares[0].micro_batches)}
    whole = concatenate_batches(*[micro_batch for share in shares for micro_batch in share.micro_batches])
    assert torch.equal(whole.tokens_BL[:rows], tokens)
    assert (whole.tokens_BL[rows:] == tokens[-1]).all()
    assert CAUSAL.counts(CausalBatch(whole.tokens_BL[rows:], whole.loss_start_B[rows:])) == (0,)
    assert {share.counted for share in shares} == {CAUSAL.counts(batch)}


def test_a_batch_without_any_loss_counts_one_so_that_nothing_is_divided_by_zero() -> None:
    empty = CausalBatch(torch.full((2, LENGTH), PAD), torch.zeros(2, dtype=torch.int64))
    assert rank_batch(Ranks(), empty, CAUSAL, 2).counted == (1,)


def test_uneven_rows_of_pairs_are_repeated_without_loss() -> None:
    """Three rows on two ranks: the second rank reads the third twice, and counts it once."""
    rows = torch.arange(3)
    batch = MaskedBatch(rows[:, None], rows[:, None], rows[:, None] >= 0, rows[:, None], rows[:, None], rows % 2)
    objective = MaskedObjective(seed=1, share=0.15, context=1)
    shares = [rank_batch(Ranks(rank, 2), batch, objective, 2) for rank in (0, 1)]
    assert [share.counted for share in shares] == [(3, 3), (3, 3)]
    assert [objective.counts(share.micro_batches[0]) for share in shares] == [(2, 2), (1, 1)]
    assert shares[1].micro_batches[0].inputs_BT.flatten().tolist() == [2, 2]
