"""Portable numerics: what they refuse, and what they fix themselves."""

import pytest
from pydantic import ValidationError

from model.config.fields import LAYOUT
from model.config.network import GPTConfig
from model.config.rules import check_consistency
from model.config.train import TrainConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "cuda"}, "device is cuda.* Set device to cpu"),
        ({"dtype": "bfloat16"}, "dtype is bfloat16.* Set dtype to float32"),
        ({"engine": "fsdp"}, "engine is fsdp.* Set engine to native"),
        ({"engine": "deepspeed"}, "engine is deepspeed"),
        ({"ranks": 2, "tensor_parallel": 2}, "tensor_parallel is 2.* Set tensor_parallel to 1"),
        ({"ranks": 2, "pipeline_parallel": 2}, "pipeline_parallel is 2"),
        ({"compile": True}, "compile is true.* Set compile to false"),
        ({"recompute": True}, "recompute is true"),
        ({"micro_batch_rows": "auto"}, "micro_batch_rows is auto.* to a number"),
        ({"optimizer": {"kind": "lamb"}}, "optimizer.kind is lamb.* to adamw"),
        ({"guard": {"ladder": [{"optimizer": "lamb"}]}}, "a step of guard.ladder sets optimizer = lamb"),
        ({"guard": {"ladder": [{"dtype": "bfloat16"}]}}, "a step of guard.ladder sets dtype = bfloat16"),
        ({"environment": ["ATEN_CPU_CAPABILITY=avx512"]}, "sets ATEN_CPU_CAPABILITY itself"),
    ],
)
def test_what_has_no_portable_arithmetic_is_refused(settings: dict[str, object], words: str) -> None:
    TrainConfig.model_validate(settings)
    with pytest.raises(ValidationError, match=f"numerics is portable, .*{words}"):
        TrainConfig.model_validate({"numerics": "portable", **settings})


def test_experts_are_refused() -> None:
    check_consistency(GPTConfig(experts=4), TrainConfig())
    with pytest.raises(ValueError, match=r"numerics is portable, and model.experts is 4"):
        check_consistency(GPTConfig(experts=4), TrainConfig(numerics="portable"))


def test_the_trainers_environment_fixes_pytorchs_kernels() -> None:
    given = TrainConfig.model_validate({"numerics": "portable", "environment": ["A=1"]}).given
    assert given == {"A": "1", "ATEN_CPU_CAPABILITY": "avx2"}
    assert TrainConfig().given == {}


def test_the_layout_has_an_effect_on_native_numerics_alone() -> None:
    assert TrainConfig().without_effect == {"deterministic"}
    assert TrainConfig(device="cuda").without_effect == frozenset()
    assert TrainConfig(numerics="portable").without_effect == {"deterministic", *LAYOUT}
