"""What each device holds besides activations: weights, gradients, AdamW under ZeRO (Rajbhandari et al. 2020).

In half precision a parameter takes 2 bytes of weight, 2 of gradient and 12 of optimizer state (a float32 copy of the
weight and two moments): section 3.1 of the paper. In float32 the weight is its own copy: 4, 4 and 8.
"""

from dataclasses import dataclass

STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class BytesPerParameter:
    """Bytes that one parameter takes in each role."""

    weight: float
    gradient: float
    optimizer: float


BYTES_PER_PARAMETER = {
    "bfloat16": BytesPerParameter(2, 2, 12),
    "float16": BytesPerParameter(2, 2, 12),
    "float32": BytesPerParameter(4, 4, 8),
}


def state_bytes(parameters: float, devices: float, dtype: str, stage: int) -> float:
    """Bytes on each of `devices` under ZeRO stage 0 (none sharded) to 3 (optimizer, gradients, weights)."""
    of = BYTES_PER_PARAMETER[dtype]
    optimizer = of.optimizer / (devices if stage >= 1 else 1)
    gradient = of.gradient / (devices if stage >= 2 else 1)
    weight = of.weight / (devices if stage >= 3 else 1)
    return parameters * (weight + gradient + optimizer)


def state_by_stage(parameters: float, devices: float, dtype: str) -> dict[int, float]:
    """ZeRO stage -> bytes on each device."""
    return {stage: state_bytes(parameters, devices, dtype, stage) for stage in STAGES}
