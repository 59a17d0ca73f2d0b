"""First weights: functions of the seed, a weight's name and an element's place, so that any part can be made alone."""

import statistics

import numpy as np
import pytest
import torch

from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config
from model.data.philox import philox_key
from model.nn.factory import make_network
from model.nn.init import CHUNK, InitialLaw, fill_elements, inverse_normal, uniform_numbers

SIZES = {"vocab_size": 48, "layers": 2, "heads": 2, "width": 16}


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_every_part_of_a_weight_is_drawn_as_within_the_whole(kind) -> None:
    law, whole = InitialLaw(kind, 0.02), torch.empty(2 * CHUNK + 7)
    fill_elements(whole, law, 3, "blocks.0.mlp_in.weight")
    for begin, end in [(0, 1), (1, 2), (3, 9), (CHUNK - 1, CHUNK + 2), (5, 2 * CHUNK + 6), (2 * CHUNK, 2 * CHUNK + 7)]:
        part = torch.empty(end - begin)
        fill_elements(part, law, 3, "blocks.0.mlp_in.weight", begin)
        assert torch.equal(part, whole[begin:end])


def test_numbers_are_those_of_numpys_generator() -> None:
    key = philox_key(3, "weight\x1fhead.weight")
    expected = np.random.Philox(key=key, counter=2**256 - 1).random_raw(9) >> np.uint64(12)
    assert (uniform_numbers(key, 2, 7) == (expected[2:].astype(float) + 0.5) / 2**52).all()


def test_quantiles_are_those_of_the_standard_library() -> None:
    ends = 10.0 ** -np.arange(1, 17)
    p = np.concatenate([np.linspace(0.001, 0.999, 1999), ends, 1 - ends[:-2], [2.0**-53, 1 - 2.0**-53]])
    expected = np.array([statistics.NormalDist().inv_cdf(one) for one in p])
    np.testing.assert_allclose(inverse_normal(p), expected, rtol=3e-15, atol=1e-15)


def test_first_bits_are_the_same_on_every_machine() -> None:
    """Bits of a first computation, which any other must repeat."""
    drawn = torch.empty(4)
    fill_elements(drawn, InitialLaw("normal", 1.0), 1, "a")
    assert drawn.view(torch.int32).tolist() == PINNED


PINNED = [-1119063395, -1084882889, 1046010901, -1106110881]


def test_deviations_and_bounds_are_those_of_the_law() -> None:
    normal, uniform = torch.empty(2, 40_000)
    fill_elements(normal, InitialLaw("normal", 0.5), 1, "a")
    fill_elements(uniform, InitialLaw("uniform", 0.5), 1, "a")
    # Five standard errors of mean and deviation.
    assert abs(float(normal.mean())) < 0.0125
    assert abs(float(normal.std()) - 0.5) < 0.009
    assert 0.499 < float(uniform.abs().max()) < 0.5


@pytest.mark.parametrize(
    "config",
    [
        GPTConfig.model_validate(SIZES | {"tied_head": False}),
        GPTConfig.model_validate(
            SIZES | {"init": "t_fixup", "norm": "none", "embedding_norm": False, "qk_norm": "none"}
        ),
        BERTConfig.model_validate(SIZES),
        T5Config.model_validate(SIZES),
    ],
    ids=["gpt", "t-fixup", "bert", "t5"],
)
def test_each_weight_of_a_network_is_its_own_whatever_the_others_are(config: NetworkConfig) -> None:
    network = make_network(config).initialise(7)
    seen: set[bytes] = set()
    for name, weight in network.named_parameters():
        law, alone = network.initial_law(name, weight.shape), torch.empty(weight.shape)
        fill_elements(alone, law, 7, name)
        assert torch.equal(alone, weight), name
        if law.kind != "constant":
            seen.add(weight.flatten()[:8].detach().numpy().tobytes())
    assert len(seen) == sum(network.initial_law(n, w.shape).kind != "constant" for n, w in network.named_parameters())
    deeper = make_network(config.model_copy(update={"layers": 3})).initialise(7)
    assert torch.equal(deeper.embedding.weight, network.embedding.weight) or config.architecture == "gpt"
