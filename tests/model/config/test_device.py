"""What the device decides where nothing else is set."""

import pytest

from model.config.train import TrainConfig


@pytest.mark.parametrize(
    ("given", "dtype", "compiled"),
    [
        ({}, "float32", False),
        ({"device": "cpu"}, "float32", False),
        ({"device": "cuda"}, "bfloat16", True),
        ({"device": "cuda", "dtype": "float16"}, "float16", True),
        ({"device": "cuda", "compile": False}, "bfloat16", False),
        ({"device": "cuda", "dtype": "float32", "compile": False}, "float32", False),
        ({"device": "cuda", "engine": "deepspeed"}, "bfloat16", True),
        ({"device": "cuda", "engine": "fsdp"}, "bfloat16", False),
        ({"device": "cuda", "engine": "deepspeed", "zero_stage": 3}, "bfloat16", False),
    ],
)
def test_the_device_decides_what_is_not_set(given: dict[str, object], dtype: str, compiled: bool) -> None:
    config = TrainConfig.model_validate(given)
    assert (config.dtype, config.compile) == (dtype, compiled)
    assert TrainConfig.model_validate(config.model_dump()) == config


def test_a_device_that_compiles_validates_too() -> None:
    assert TrainConfig.model_validate({"device": "cuda", "validation_steps": 5}).validation_steps == 5
