"""Blanks filled by a BERT: the surest first, each given the others, only with allowed tokens."""

import pytest
import torch

from model.config.network import BERTConfig
from model.errors import InputError
from model.inference.fill_mask import fill_masks
from model.inference.generate import Sampling
from model.nn.bert import BERT

VOCABULARY, CLS, SEP, MASK = 30, 1, 2, 3
ANY = torch.ones(3, VOCABULARY, dtype=torch.bool)
GREEDY = Sampling(temperature=0.0)
TOKENS = [CLS, 5, MASK, 7, MASK, 9, MASK, SEP]
HOLES = [2, 4, 6]


@pytest.fixture(scope="module")
def network() -> BERT:
    config = BERTConfig(vocab_size=VOCABULARY, context=16, layers=2, heads=2, width=16, init_std=0.5)
    return BERT(config).initialise(3).eval()


def probabilities(network: BERT, tokens: list[int]) -> torch.Tensor:
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        hidden = network.hidden(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool))
        return network.masked_logits(hidden, torch.tensor([HOLES]))[0].double().softmax(-1)


def test_the_surest_hole_is_filled_first_and_the_next_one_sees_it(network: BERT) -> None:
    tokens, left = list(TOKENS), {0, 1, 2}
    expected = {}
    while left:
        found = probabilities(network, tokens)
        blank = max(left, key=lambda blank: float(found[blank].max()))
        token = int(found[blank].argmax())
        expected[blank] = (token, float(found[blank, token]))
        tokens[HOLES[blank]] = token
        left.remove(blank)
    filled = fill_masks(network, TOKENS, HOLES, ANY, GREEDY)
    assert [one.token for one in filled] == [expected[blank][0] for blank in range(3)]
    assert [one.probability for one in filled] == pytest.approx([expected[blank][1] for blank in range(3)])
    for one in filled:
        assert one.likeliest[0] == (one.token, one.probability)
        assert [p for _, p in one.likeliest] == sorted((p for _, p in one.likeliest), reverse=True)


def test_what_is_not_allowed_is_in_no_hole_and_among_no_alternatives(network: BERT) -> None:
    allowed = torch.zeros(3, VOCABULARY, dtype=torch.bool)
    allowed[0, [20, 21]] = allowed[1, [22]] = allowed[2, 23:27] = True
    for sampling in (GREEDY, Sampling(seed=1), Sampling(seed=2)):
        first, second, third = fill_masks(network, TOKENS, HOLES, allowed, sampling)
        assert first.token in (20, 21)
        assert second.token == 22
        assert second.likeliest == ((22, pytest.approx(1.0)),)
        assert {token for token, _ in third.likeliest} == {23, 24, 25, 26}


def test_samples_differ_and_come_again(network: BERT) -> None:
    def tokens(sample: int) -> list[int]:
        return [one.token for one in fill_masks(network, TOKENS, HOLES, ANY, Sampling(seed=5), sample=sample)]

    assert tokens(1) == tokens(1)
    assert len({tuple(tokens(sample)) for sample in range(5)}) > 1


def test_a_text_beyond_the_context_is_refused(network: BERT) -> None:
    with pytest.raises(InputError, match="17 tokens, and the model's context is 16"):
        fill_masks(network, [CLS, *[5] * 15, MASK], [16], ANY[:1], GREEDY)
