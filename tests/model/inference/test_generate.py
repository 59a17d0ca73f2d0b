"""Generation: equal seeds give equal text; greedy, nucleus, and a full context."""

import math
import time

import pytest
import torch

from model.config.network import GPTConfig
from model.errors import InputError
from model.inference.generate import Sampling, stream_tokens
from model.nn.block import KeyValueCache
from model.nn.gpt import GPT
from tests.model.inference.reference import generate_tokens, greedy_without_cache


@pytest.fixture(scope="module")
def network() -> GPT:
    return GPT(GPTConfig(vocab_size=30, context=16, layers=2, heads=2, width=16, init_std=0.4)).initialise(3).eval()


def test_greedy_text_with_the_cache_is_the_text_without_it(network: GPT) -> None:
    for first in range(10):
        written = generate_tokens(network, [first, 2, 3], max_new_tokens=13, temperature=0)
        assert written == greedy_without_cache(network, [first, 2, 3], 13)


def test_the_seed_decides_and_the_global_generator_does_not(network: GPT) -> None:
    torch.manual_seed(1)
    first = generate_tokens(network, [1], max_new_tokens=12, seed=5)
    torch.manual_seed(2)
    assert generate_tokens(network, [1], max_new_tokens=12, seed=5) == first
    assert any(generate_tokens(network, [1], max_new_tokens=12, seed=seed) != first for seed in (6, 7))


def test_a_tiny_nucleus_holds_only_the_likeliest_token(network: GPT) -> None:
    greedy = generate_tokens(network, [4, 5], max_new_tokens=10, temperature=0)
    assert generate_tokens(network, [4, 5], max_new_tokens=10, top_p=1e-6, seed=8) == greedy


def test_sampling_follows_the_probabilities(network: GPT) -> None:
    probability = network(torch.tensor([[7]]))[0, -1].detach().softmax(0)
    drawn = [generate_tokens(network, [7], max_new_tokens=1, seed=seed)[0] for seed in range(600)]
    share = torch.bincount(torch.tensor(drawn), minlength=30) / 600
    assert float((share - probability).abs().max()) < 0.08


def test_text_goes_on_past_the_context_and_ends_before_the_stop_token(network: GPT) -> None:
    written = generate_tokens(network, list(range(20)), max_new_tokens=40, temperature=0)
    assert len(written) == 40
    # The context of 16 is full after the first token; the younger eight go on, and fill it again with eight more.
    younger = [*range(13, 20), written[0]]
    assert written[1:10] == generate_tokens(network, younger, max_new_tokens=9, temperature=0)
    stop = written[5]
    ended = generate_tokens(network, list(range(20)), max_new_tokens=40, temperature=0, stop=stop)
    assert ended == written[: written.index(stop)]


@pytest.mark.parametrize(
    "wrong",
    [*({"temperature": value} for value in (-1.0, math.nan, math.inf, 1e-310)), {"top_p": 0.0}, {"top_p": 1.1}],
)
def test_impossible_settings_are_refused(network: GPT, wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="temperature"):
        generate_tokens(network, [1], max_new_tokens=1, **wrong)
    with pytest.raises(InputError, match="at least one token"):
        generate_tokens(network, [], max_new_tokens=1)


@pytest.mark.parametrize("positions", ["rotary", "learned", "relative"])
def test_logits_with_the_cache_are_those_without_it(positions: str) -> None:
    config = GPTConfig.model_validate(
        {"vocab_size": 30, "context": 16, "layers": 2, "heads": 2, "width": 16, "init_std": 0.4, "positions": positions}
    )
    network = GPT(config).initialise(3).eval()
    tokens = torch.randint(0, 30, (3, 12), generator=torch.Generator().manual_seed(2))
    cache = KeyValueCache()
    parts = [network(part, cache=cache) for part in tokens.split([5, 1, 1, 4, 1], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), network(tokens), atol=1e-5, rtol=1e-5)


def test_tokens_come_one_by_one_and_samples_of_a_seed_differ(network: GPT) -> None:
    whole = generate_tokens(network, [1, 2], max_new_tokens=9, top_k=12, seed=5)
    streamed = stream_tokens(network, [1, 2], Sampling(top_k=12, seed=5), max_new_tokens=9)
    assert [next(streamed), next(streamed)] == whole[:2]
    assert list(streamed) == whole[2:]
    second = stream_tokens(network, [1, 2], Sampling(top_k=12, seed=5), max_new_tokens=9, sample=1)
    assert list(second) != whole


def test_the_cache_saves_time() -> None:
    network = GPT(GPTConfig(vocab_size=30, context=256, layers=3, heads=2, width=64)).initialise(1).eval()
    started = time.process_time()
    written = generate_tokens(network, [1], max_new_tokens=250, temperature=0)
    cached = time.process_time() - started
    started = time.process_time()
    with torch.inference_mode():
        assert greedy_without_cache(network, [1], 250) == written
    assert cached < time.process_time() - started
