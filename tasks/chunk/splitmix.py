"""The finaliser of SplitMix64 (Steele, Lea and Flood 2014): 64 bits to 64 bits, one to one, near inputs far apart."""

import numpy as np

from tasks.kernels import kernel

STEP = np.uint64(0x9E3779B97F4A7C15)
"""What the generator adds between two numbers: 2^64 over the golden ratio."""


@kernel
def mix(number: np.uint64) -> np.uint64:
    """Every bit of the result depends on every bit of `number`."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
