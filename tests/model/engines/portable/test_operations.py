"""Replaced operations compute what PyTorch's do, and no step calls one that depends on the processor."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config
from model.data.row_format import NO_LOSS
from model.engines.portable.operations import PortableOperations, PortableVocabulary
from model.nn.block import distance_bucket
from model.nn.vocab_layers import WHOLE_VOCABULARY
from model.objectives.synthetic import random_batch
from model.optim.schedules import StepSchedule

SIZE: dict[str, Any] = {"vocab_size": 64, "context": 32, "layers": 2, "heads": 2, "width": 32}
NETWORKS = {
    "gpt": GPTConfig(**SIZE),
    "gpt-2": GPTConfig(
        **SIZE, norm="layernorm", activation="gelu", biases=True, embedding_norm=True, positions="learned"
    ),
    "relative": GPTConfig(
        **SIZE, positions="relative", kv_heads=1, qk_norm="head", window=8, z_loss=1e-4, tied_head=False
    ),
    "prefix": GPTConfig(
        **SIZE, qk_norm="all", embedding_width=16, parallel_residual=True, attention="prefix", activation="gelu_tanh"
    ),
    "padded": GPTConfig(**SIZE, embedding_width=16, embedding_projection="padding", activation="relu"),
    "bert": BERTConfig(**SIZE),
    "t5": T5Config(**SIZE),
}
"""Every kind of operation that networks have."""
ALIKE = """
    __rshift__ _foreach_add_ _foreach_mul_ _foreach_norm _fused_adamw_ _local_scalar_dense _log_softmax
    _log_softmax_backward_data _record_function_enter_new _record_function_exit _softmax _softmax_backward_data
    _to_copy _unsafe_view abs add add_ alias amax amin aminmax arange argmax bitwise_and bitwise_not bitwise_or
    bitwise_xor cat clamp clone constant_pad_nd copy_ detach diag_embed div embedding embedding_dense_backward empty
    empty_strided eq expand full gather ge gelu gelu_backward gt index index_put index_put_ isnan le lift_fresh
    linalg_vector_norm lt masked_fill masked_fill_ maximum mean mul mul_ native_layer_norm
    native_layer_norm_backward ne neg new_empty_strided new_full new_zeros nll_loss_backward nll_loss_forward ones
    ones_like permute pow reciprocal relu rsqrt scalar_tensor scatter_add scatter_add_ select select_backward
    sigmoid sigmoid_backward sign silu silu_backward slice split squeeze stack sub sum t threshold_backward
    transpose tril triu unbind unsqueeze view where zeros zeros_like
"""
"""Kernels of PyTorch's own with equal bits for one instruction set and one thread. Not among them: products, and `exp`,
`log`, `tanh`, `erf` and `sqrt`, which are MKL's."""


@pytest.fixture
def operations() -> PortableOperations:
    return PortableOperations()


class Dispatched(TorchDispatchMode):
    """Collects the names of what is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("optimizer", "dropout"), [("adamw", 0.0), ("sgd", 0.1)])
@pytest.mark.parametrize("network", NETWORKS)
def test_no_operation_of_a_step_depends_on_the_processor(
    portable_engine: Any, network: str, optimizer: str, dropout: float
) -> None:
    config: NetworkConfig = NETWORKS[network].model_copy(update={"dropout": dropout})
    engine = portable_engine(config, batch_rows=4, optimizer={"kind": optimizer, "l1": 0.1, "l2": 0.1})
    batch = random_batch(config, 4).rows
    with Dispatched() as found:
        assert engine.step(batch, StepSchedule(lr=1e-3, max_norm=0.01)).applied
        engine.held_out(batch)
    assert found.names - {*ALIKE.split()} == set()


def test_a_product_that_is_not_replaced_would_be_seen() -> None:
    with Dispatched() as found:
        F.linear(torch.ones(2, 2), torch.ones(2, 2)).exp()
    assert {"mm", "exp"} <= found.names - {*ALIKE.split()}


@pytest.mark.parametrize("kind", ["causal", "bool", "float", "none", "grouped"])
def test_attention_is_pytorchs(operations: PortableOperations, kind: str) -> None:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    heads = 2 if kind == "grouped" else 4
    inputs = [draw(2, 4, 12, 8), draw(2, heads, 10, 8), draw(2, heads, 10, 8)]
    if kind == "causal":
        inputs[0] = inputs[0][:, :, :10]
    masks = {"bool": draw(2, 1, 1, 10) > -1, "float": draw(1, 4, 12, 10)}
    found, expected = [], []
    for gradients, mode in ((found, operations.entered()), (expected, torch.enable_grad())):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        mask = masks.get(kind)
        if kind == "float":
            mask = masks[kind].clone().requires_grad_()
            leaves.append(mask)
        with mode:
            out = F.scaled_dot_product_attention(
                *leaves[:3], attn_mask=mask, is_causal=kind == "causal", enable_gqa=kind == "grouped"
            )
        out.backward(torch.ones_like(out).cumsum(-1))
        gradients += [out.detach(), *(leaf.grad for leaf in leaves)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_causal_attention_has_the_bits_of_attention_with_a_mask(operations: PortableOperations) -> None:
    drawn = [torch.randn(2, 2, 270, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    results = []
    for named in ({"is_causal": True}, {"attn_mask": torch.ones(270, 270, dtype=torch.bool).tril()}):
        leaves = [tensor.clone().requires_grad_() for tensor in drawn]
        with operations.entered():
            out = F.scaled_dot_product_attention(*leaves, **named)
        out.backward(torch.ones_like(out).cumsum(-1))
        results.append([out, *(leaf.grad for leaf in leaves)])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_functions_are_pytorchs_to_the_last_digits(operations: PortableOperations) -> None:
    x = torch.linspace(-9, 9, 1000)
    with operations.entered():
        found = torch.tanh(x), torch.log(x.abs() + 0.01)
    torch.testing.assert_close(found[0], torch.tanh(x), rtol=0, atol=2e-7)
    torch.testing.assert_close(found[1], torch.log(x.abs() + 0.01), rtol=2e-7, atol=2e-7)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_distances_have_the_buckets_that_they_have(operations: PortableOperations, bidirectional: bool) -> None:
    distance = torch.arange(-600, 600)
    with operations.entered():
        found = distance_bucket(distance, bidirectional=bidirectional)
    assert torch.equal(found, distance_bucket(distance, bidirectional=bidirectional))


def test_the_loss_is_the_same() -> None:
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(1)) * 3
    targets = torch.arange(50) % 30
    targets[::7] = NO_LOSS
    results = []
    for vocabulary in (PortableVocabulary(), WHOLE_VOCABULARY):
        leaf = logits.clone().requires_grad_()
        (vocabulary.nats(leaf, targets) + vocabulary.log_normaliser(leaf).square().sum()).backward()
        results.append(leaf.grad)
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
