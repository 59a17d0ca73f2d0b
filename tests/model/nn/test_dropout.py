"""Dropout by streams: which values are dropped, and attention with it."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from model.config.network import GPTConfig
from model.nn.dropout import GAMMA, drop_by_row, dropout, dropped_attention, inner_streams
from model.nn.gpt import GPT

CPU = torch.device("cpu")
WHOLE = 1 << 64


def streams(step: int, first_row: int, rows: int) -> Tensor:
    torch.manual_seed(step)
    network = GPT(GPTConfig(vocab_size=5, context=8, layers=1, heads=1, width=8, dropout=0.1))
    drop_by_row(network, first_row, rows, CPU)
    assert network.streams_B is not None
    return network.streams_B


def test_streams_are_those_of_splitmix64() -> None:
    """The first outputs under the seed 1234567, as other programs compute them."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    # A stream's state is multiplied with the step between two outputs.
    state = 1234567 * pow(GAMMA % WHOLE, -1, WHOLE) % WHOLE
    stream = torch.tensor(state - WHOLE if state >= WHOLE // 2 else state)
    assert [number % WHOLE for number in inner_streams(stream, torch.arange(1, 5)).tolist()] == expected


def test_what_is_dropped_is_a_function_of_step_row_place_and_position() -> None:
    x = torch.ones(4, 300, 5)

    def dropped(step: int, first: int, last: int, place: int = 3) -> Tensor:
        return dropout(x[first:last], 0.25, True, streams(step, first, last - first), place)

    whole = dropped(1, 0, 4)
    for first, last in ((0, 2), (2, 4), (3, 4)):
        assert torch.equal(dropped(1, first, last), whole[first:last])
    assert set(whole.unique().tolist()) == {0.0, torch.tensor(4 / 3).item()}
    # 6,000 values: a share of a quarter has a standard deviation of .0056.
    assert abs((whole == 0).float().mean() - 0.25) < 0.03
    different = [dropped(1, 0, 4, place=4), dropped(1, 0, 4, place=-1), dropped(2, 0, 4), whole.roll(1, 0)]
    different += [whole.roll(1, 1), whole.roll(1, 2)]
    assert all(0.3 < (whole != other).float().mean() < 0.45 for other in different)
    assert dropout(x, 0.25, False, streams(1, 0, 4), 3) is x


@pytest.mark.parametrize("kind", ["causal", "bool", "float", "none", "grouped"])
def test_attention_is_pytorchs_where_nothing_is_dropped(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    heads, queries = 2 if kind == "grouped" else 4, 10 if kind == "causal" else 12
    query, key, value = draw(2, 4, queries, 8), draw(2, heads, 10, 8), draw(2, heads, 10, 8)
    mask = {"bool": draw(2, 1, 1, 10) > -1, "float": draw(1, 4, 12, 10)}.get(kind)
    causal = kind == "causal"
    of_heads = inner_streams(streams(1, 0, 2)[:, None], torch.arange(4))
    # Of 65,536 numbers none is below half of one.
    found = dropped_attention(query, key, value, mask, 1e-6, of_heads, causal=causal, scale=None)
    expected = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=kind == "grouped"
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_weights_of_attention_are_dropped_by_head() -> None:
    query, key = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)
    value = torch.eye(6).expand(2, 4, 6, 6)  # So that the weights come out.
    of_heads = inner_streams(streams(1, 0, 2)[:, None], torch.arange(4))
    whole = dropped_attention(query, key, value, None, 0.5, of_heads, causal=False, scale=None)
    weights = (query @ key.mT / 8**0.5).softmax(-1)
    torch.testing.assert_close(whole[whole != 0], 2 * weights[whole != 0])
    assert 0.3 < (whole == 0).float().mean() < 0.7
    query, key, value = query[:, 2:], key[:, 2:], value[:, 2:]
    upper = dropped_attention(query, key, value, None, 0.5, of_heads[:, 2:], causal=False, scale=None)
    assert torch.equal(upper, whole[:, 2:])
    assert not torch.equal(whole[:, 0] == 0, whole[:, 1] == 0)
