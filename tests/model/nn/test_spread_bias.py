"""A trained bias that is spread over rows: attention and gradients are those of the bias itself."""

import pytest
import torch
from torch.nn import functional as F

from model.nn.block import SpreadMask, spread_bias


@pytest.mark.parametrize("padding", [False, True])
def test_attention_and_gradients_are_those_of_one_bias_for_all_rows(padding: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    query, key, value = torch.randn(3, 5, 2, 7, 4, generator=generator, dtype=torch.float64)
    hidden = (torch.arange(7) >= torch.tensor([7, 3, 7, 5, 1])[:, None])[:, None, None, :] if padding else None
    found = []
    for is_spread in (False, True):
        bias = torch.linspace(-2, 2, 98, dtype=torch.float64).reshape(1, 2, 7, 7).requires_grad_()
        if is_spread:
            mask = SpreadMask.apply(bias, spread_bias(bias, hidden, 5, torch.float64))
        else:
            mask = bias if hidden is None else bias.masked_fill(hidden, -torch.inf)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        attended.square().sum().backward()
        assert bias.grad is not None
        found.append((attended, bias.grad))
    (plain, expected), (spread, gradient) = found
    torch.testing.assert_close(spread, plain, rtol=1e-12, atol=1e-12)
    # The sum over rows is in float32.
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
