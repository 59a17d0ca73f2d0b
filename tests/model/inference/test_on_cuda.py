"""Scoring and generation on a CUDA device, beside those of the processor."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from model.config.network import BERTConfig, GPTConfig, T5Config
from model.inference.device import Device, inference_on
from model.inference.generate import Prompt, Sampling, generate_batch
from model.inference.scoring import choice_log_probabilities, target_nats, text_nats
from model.inference.seq2seq import DecoderTokens, write_targets
from model.nn.factory import Network, make_network
from model.objectives.synthetic import random_batch

pytestmark = pytest.mark.usefixtures("cuda")
NETWORKS = {
    "gpt": GPTConfig(vocab_size=97, context=48, layers=2, heads=4, kv_heads=2, width=64, positions="rotary"),
    "learned": GPTConfig(vocab_size=97, context=48, layers=2, heads=4, width=64, activation="gelu"),
    "relative": GPTConfig(vocab_size=97, context=48, layers=2, heads=4, width=64, positions="relative"),
}
TEXTS = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5], [8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6]]


@contextmanager
def on(device: Device, network: Network, dtype: str = "float32") -> Iterator[None]:
    with torch.inference_mode(), inference_on(device, {"train": {"device": device, "dtype": dtype}}, network):
        yield


def make(config: GPTConfig | BERTConfig | T5Config) -> Network:
    return make_network(config).initialise(1).eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_texts_and_choices_score_as_on_the_processor(name: str) -> None:
    found = []
    for device in ("cpu", "cuda"):
        network = make(NETWORKS[name])
        with on(device, network):
            choices = choice_log_probabilities(network, TEXTS[0], [[7, 8], [9], [10, 11, 12]])
            found.append([*text_nats(network, TEXTS, begin=0), *choices])
    assert found[1] == pytest.approx(found[0], rel=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_greedy_texts_are_those_of_the_processor_in_any_batch(name: str) -> None:
    prompts = [Prompt(text, Sampling(temperature=0.0)) for text in TEXTS]
    found = []
    for device in ("cpu", "cuda"):
        network = make(NETWORKS[name])
        with on(device, network):
            found.append(generate_batch(network, prompts, max_new_tokens=12))
            found.append([generate_batch(network, [one], max_new_tokens=12)[0] for one in prompts])
    assert found == [found[0]] * 4


def test_samples_of_a_seed_repeat_in_bfloat16() -> None:
    network = make(NETWORKS["gpt"])
    prompts = [Prompt(text, Sampling(temperature=1.0, top_p=0.9, seed=5)) for text in TEXTS]
    with on("cuda", network, "bfloat16"):
        one, two = (generate_batch(network, prompts, max_new_tokens=12) for _ in range(2))
    assert one == two


def test_a_t5_scores_and_writes_as_on_the_processor() -> None:
    config = T5Config(vocab_size=97, context=48, layers=2, heads=4, width=64)
    batch = random_batch(config, 3).rows
    found, written = [], []
    for device in ("cpu", "cuda"):
        network = make(config)
        with on(device, network):
            found.append(target_nats(network, batch).sum().item())
            tokens = DecoderTokens(start=0, stop=1)
            written.append(write_targets(network, TEXTS, tokens, max_new_tokens=12))
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert written[0] == written[1]


def test_a_bert_scores_as_on_the_processor() -> None:
    found = []
    for device in ("cpu", "cuda"):
        network = make(BERTConfig(vocab_size=97, context=48, layers=2, heads=4, width=64))
        with on(device, network):
            tokens = torch.tensor([[2, *TEXTS[0], 3]], device=network.embedding.weight.device)
            hidden = network.hidden(tokens, torch.zeros_like(tokens), torch.ones_like(tokens, dtype=torch.bool))
            found.append(
                network.masked_logits(hidden, torch.tensor([[2, 5]], device=tokens.device)).log_softmax(-1).cpu()
            )
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
