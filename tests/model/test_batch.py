"""What a rank computes of a batch: the ranks' shares are the batch, whatever their number."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from model.batch import share_of
from model.ranks import Ranks
from model.targets import NO_LOSS

PAD = 3
LENGTH = 5


@given(rows=st.integers(1, 12), size=st.integers(1, 5), micro=st.integers(1, 4), data=st.data())
def test_shares_hold_each_row_once_in_order_and_are_equally_long(rows: int, size: int, micro: int, data) -> None:
    tokens = torch.arange(10, 10 + rows * LENGTH).view(rows, LENGTH)
    tokens[data.draw(st.integers(0, rows - 1)), 2:] = PAD
    starts = torch.zeros(rows, dtype=torch.int64)
    shares = [share_of(Ranks(rank, size), tokens, starts, PAD, micro) for rank in range(size)]
    assert {len(share.micro_batches) for share in shares} == {len(shares[0].micro_batches)}
    inputs = torch.cat([inputs for share in shares for inputs, _ in share.micro_batches])
    targets = torch.cat([targets for share in shares for _, targets in share.micro_batches])
    assert torch.equal(inputs[:rows], tokens[:, :-1])
    assert (inputs[rows:] == tokens[-1, :-1]).all()
    assert (targets[rows:] == NO_LOSS).all()
    assert {share.counted for share in shares} == {int((targets != NO_LOSS).sum())}


def test_a_batch_without_any_loss_counts_one_so_that_nothing_is_divided_by_zero() -> None:
    share = share_of(Ranks(), torch.full((2, LENGTH), PAD), torch.zeros(2, dtype=torch.int64), PAD, 2)
    assert share.counted == 1
