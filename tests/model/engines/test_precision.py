"""Products in bfloat16 with weights, norms and sums in float32."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config
from model.config.train import TrainConfig
from model.engines.runtime import autocast, flush_denormals, set_matmul_precision
from model.nn.factory import make_network
from model.objectives.synthetic import random_batch

SIZES: dict[str, Any] = {"vocab_size": 300, "context": 32, "layers": 2, "heads": 2, "width": 32}
SMALL_START = {"init_std": 0.02}
CONFIGS: list[NetworkConfig] = [
    GPTConfig(**SIZES, **SMALL_START, norm="layernorm", activation="gelu", qk_norm="none", biases=True),
    GPTConfig(**SIZES, **SMALL_START, z_loss=1e-4),
    BERTConfig(**SIZES),
    # Not T5's own ReLU: where rounding moves an input of it past zero, a whole gradient appears or is gone in any type.
    # Over eight seeds, errors of float16 and bfloat16 have a ratio of .03 to .76 with ReLU, and .11 to .13 with GELU.
    T5Config(**SIZES, activation="gelu"),
]
CPU = torch.device("cpu")
DIGITS_OF_BFLOAT16 = 2**-8


def gradients(config: NetworkConfig, dtype: Any, pieces: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    network = make_network(config).initialise(1)
    batch = random_batch(config, 4)
    total = torch.zeros(())
    for _ in range(pieces):
        with autocast(dtype, CPU):
            nats = sum(batch.objective.sums(network, batch.rows).nats)
        assert isinstance(nats, torch.Tensor)
        assert nats.dtype == torch.float32
        nats.backward()
        total = total + nats.detach()
    parameters = [p for p in network.parameters() if p.grad is not None]
    assert {p.dtype for p in parameters} == {p.grad.dtype for p in parameters if p.grad is not None} == {torch.float32}
    return total, torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])


@pytest.mark.parametrize("config", CONFIGS, ids=["gpt", "gpt with options", "bert", "t5"])
def test_the_gradient_is_that_of_float32_to_the_digits_of_bfloat16(config: NetworkConfig) -> None:
    exact, gradient = gradients(config, "float32")
    rounded, rounded_gradient = gradients(config, "bfloat16")
    assert float(rounded) == pytest.approx(float(exact), rel=DIGITS_OF_BFLOAT16)
    difference = float((rounded_gradient - gradient).norm() / gradient.norm())
    assert 0 < difference < 4 * DIGITS_OF_BFLOAT16


@pytest.mark.parametrize("config", CONFIGS[:1] + CONFIGS[2:], ids=["gpt", "bert", "t5"])
def test_norms_and_the_residual_stream_stay_in_float32_while_matrices_do_not(config: NetworkConfig) -> None:
    network = make_network(config).initialise(1)
    batch = random_batch(config, 2)
    seen: dict[str, set[torch.dtype]] = {}
    for module in network.modules():
        if not list(module.children()):
            kind = type(module).__name__
            module.register_forward_hook(
                lambda _, inputs, output, kind=kind: seen.setdefault(kind, set()).add(output.dtype)
            )
    with autocast("bfloat16", CPU):
        batch.objective.sums(network, batch.rows)
    assert seen["Linear"] == {torch.bfloat16}
    assert seen.get("LayerNorm", seen.get("RMSNorm")) == {torch.float32}


def test_gradients_of_chunks_add_up_in_float32() -> None:
    """A hundred equal gradients are a hundred times one, which a sum with three digits would miss by a percent."""
    _, once = gradients(CONFIGS[0], "bfloat16")
    _, often = gradients(CONFIGS[0], "bfloat16", pieces=100)
    torch.testing.assert_close(often / 100, once, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("config", CONFIGS, ids=["gpt", "gpt with options", "bert", "t5"])
def test_float16_has_eight_times_the_digits_of_bfloat16(config: NetworkConfig) -> None:
    _, gradient = gradients(config, "float32")
    errors = {}
    for dtype in ("bfloat16", "float16"):
        _, rounded = gradients(config, dtype)
        errors[dtype] = float((rounded - gradient).norm() / gradient.norm())
    assert errors["bfloat16"] / 11 < errors["float16"] < errors["bfloat16"] / 6


def test_tf32_products_are_enabled_where_available() -> None:
    with pytest.raises(ValidationError, match="dtype is tf32, and device is cpu"):
        TrainConfig(dtype="tf32")
    try:
        set_matmul_precision(TrainConfig(dtype="tf32", device="cuda").dtype)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        set_matmul_precision("float32")
    assert torch.get_float32_matmul_precision() == "highest"


IN_TWO_THREADS = """
import os, torch
from model.engines.runtime import flush_denormals

def product():
    print(int((torch.full((1 << 20,), 1e-30) * 1e-9).count_nonzero()), flush=True)

child = os.fork()
torch.set_num_threads(2)
if child == 0:
    with flush_denormals():
        product()
    os._exit(0)
os.wait()
product()
"""


def test_numbers_next_to_zero_are_zero_in_all_threads_of_a_trainer() -> None:
    """In processes whose threads begin with the product, as those of trainers do: they keep what they took over when
    they started."""
    words = [sys.executable, "-c", IN_TWO_THREADS]
    reported = subprocess.run(words, capture_output=True, text=True, check=True)
    assert reported.stdout.split() == ["0", str(1 << 20)]


def test_numbers_next_to_zero_are_what_they_were_behind_the_block() -> None:
    tiny = sys.float_info.min
    with flush_denormals():
        assert tiny / 2 == 0
        with flush_denormals():
            assert tiny / 2 == 0
        assert tiny / 2 == 0
    assert tiny / 2 > 0
    with pytest.raises(ZeroDivisionError), flush_denormals():
        raise ZeroDivisionError
    assert tiny / 2 > 0
