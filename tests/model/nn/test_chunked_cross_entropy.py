"""The chunked loss has the gradients of the whole, and keeps no logits for the backward pass."""

import subprocess
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pytest
import torch

from model.config.network import GPTConfig, T5Config
from model.config.train import TrainerRun
from model.data.row_format import NO_LOSS
from model.engines.runtime import autocast
from model.nn.factory import make_network
from model.nn.gpt import GPT
from model.nn.t5 import T5
from model.nn.vocab_layers import Vocabulary, freeze_all_but_new_rows
from model.objectives.cross_entropy import LOGIT_ROWS, chunked_nats, equal_chunks, logit_rows

SIZES: dict[str, Any] = {"vocab_size": 96, "context": 16, "layers": 1, "heads": 2, "width": 16}
NETWORKS = {
    "tied": GPTConfig(**SIZES),
    "a head of its own": GPTConfig(**SIZES, tied_head=False),
    "head bias and z-loss": GPTConfig(**SIZES, head_bias=True, z_loss=0.01),
    "narrow embedding": GPTConfig(**SIZES, embedding_width=8),
    "t5": T5Config(**SIZES),
    "t5 with a head": T5Config(**SIZES, tied_head=False, z_loss=0.01),
}


def drawn(network: GPT | T5, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the head reads, and targets of which a third do not count."""
    generator = torch.Generator().manual_seed(2)
    width = network.config.table_width if isinstance(network.config, GPTConfig) else network.config.width
    hidden = torch.randn(rows, width, generator=generator).requires_grad_()
    targets = torch.randint(0, 96, (rows,), generator=generator)
    targets[::3] = NO_LOSS
    return hidden, targets


def gradients(network: GPT | T5, rows: int, dtype: Any = "float32") -> dict[str, torch.Tensor]:
    """Of the loss over as many predictions as count, times 3, and loss and largest logit besides."""
    network.zero_grad()
    hidden, targets = drawn(network, rows)
    with autocast(dtype, torch.device("cpu")):
        nats, ranges = chunked_nats(network, hidden, targets)
    (3 * nats / rows).backward()
    found = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    assert hidden.grad is not None
    return {**found, "stream": hidden.grad, "loss": nats.detach(), "ranges": ranges.detach()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("new_rows", [0, 6])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_made_at_once_are_those_of_the_backward_pass(name: str, new_rows: int, dtype: str) -> None:
    network = make_network(NETWORKS[name], new_rows).initialise(1)
    assert isinstance(network, GPT | T5)
    at_once = gradients(network, 3 * LOGIT_ROWS + 5, dtype)
    network.vocabulary = Vocabulary(gradient_at_once=False)
    later = gradients(network, 3 * LOGIT_ROWS + 5, dtype)
    assert at_once.keys() == later.keys()
    assert torch.equal(at_once["loss"], later["loss"])
    assert torch.equal(at_once["ranges"], later["ranges"])
    close = {"rtol": 1e-4, "atol": 1e-6} if dtype == "float32" else {"rtol": 0.02, "atol": 1e-3}
    for key in later:
        torch.testing.assert_close(at_once[key], later[key], **close, msg=key)


def test_one_chunk_gives_the_same_bits_as_without_chunks() -> None:
    network = GPT(NETWORKS["tied"]).initialise(1)
    at_once = gradients(network, LOGIT_ROWS)
    network.vocabulary = Vocabulary(gradient_at_once=False)
    later = gradients(network, LOGIT_ROWS)
    assert all(torch.equal(at_once[key], later[key]) for key in later)


def test_what_does_not_learn_gets_no_gradient() -> None:
    network = GPT(NETWORKS["tied"], new_rows=6).initialise(1)
    freeze_all_but_new_rows(network)
    assert gradients(network, 3 * LOGIT_ROWS).keys() == {"new_rows", "stream", "loss", "ranges"}
    hidden, targets = drawn(network, 3 * LOGIT_ROWS)
    with torch.no_grad():
        nats, _ = chunked_nats(network, hidden, targets)
    assert not nats.requires_grad


def test_no_logits_are_kept() -> None:
    network, rows = GPT(NETWORKS["tied"]).initialise(1), 8 * LOGIT_ROWS
    nats, _ = chunked_nats(network, *drawn(network, rows))
    assert nats.grad_fn is not None
    kept = nats.grad_fn.saved_tensors  # pyright: ignore[reportAttributeAccessIssue]
    # The stream's gradient of 16 columns and the head's of 96 rows, instead of 96 logits a prediction.
    assert [tuple(tensor.shape) for tensor in kept] == [(rows, 16), (96, 16)]
    assert not hasattr(nats.grad_fn.next_functions[0][0], "saved_tensors")


LAYOUTS = {
    "zero-1": {"engine": "deepspeed", "zero_stage": 1, "ranks": 2},
    "zero-2": {"engine": "deepspeed", "zero_stage": 2, "ranks": 2},
    "zero-3": {"engine": "deepspeed", "zero_stage": 3, "ranks": 2},
    "tensor": {"tensor_parallel": 2, "ranks": 2},
    "pipeline": {"pipeline_parallel": 2, "ranks": 2},
    "two ranks": {"ranks": 2},
    "recomputed": {"recompute": True},
}


@pytest.mark.prove
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_computes_several_chunks(
    layout: str, make_run: Callable[..., TrainerRun], launch: Callable[..., subprocess.Popen[str]]
) -> None:
    # 40 rows of 16 predictions at once are more than one piece.
    settings = {"batch_rows": 80, "micro_batch_rows": 40, "positions": 400}
    runs = [make_run("alone", **settings), make_run("shared", **settings, **LAYOUTS[layout])]
    losses = []
    for run in runs:
        process = launch(run)
        assert process.wait(500) == 0, process.stderr and process.stderr.read()
        with pa.memory_map(str(run.out / "result" / "metrics.arrow")) as source:
            losses.append(pa.ipc.open_file(source).read_all()["loss"].to_pylist())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_chunks_on_a_processor_have_512_rows_and_on_a_device_are_equal_and_of_a_gibibyte_or_more() -> None:
    network = GPT(GPTConfig(vocab_size=50_304, context=16, layers=1, heads=1, width=8))
    assert logit_rows(network, torch.device("cpu"), 65_536) == 512
    # 2^30 / (4 x 50,304) is 5,336 rows, of which 65,536 are 12.3 chunks.
    assert logit_rows(network, torch.device("cuda"), 65_536) == 5042
    # A sixteenth of 80 GB, rounded down to a power of two, is 4 GiB: 21,345 rows of 50,304 logits.
    assert equal_chunks(5 * 10**9, 50_304, 65_536) == 16_384
    assert equal_chunks(5 * 10**9, 50_304, 20_000) == 20_000
    assert equal_chunks(2**30, 2**18, 4096) == 1024
    assert equal_chunks(2**30, 2**20, 4096) == 512
