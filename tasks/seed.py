"""Randomness that is a function of names: the same seed for the same purpose on any machine and any worker."""

import blake3

TWO_TO_64 = float(2**64)


def seed64(run_seed: int, stage: str, purpose: str, key: str = "") -> int:
    """A 64-bit seed for one purpose of one stage: BLAKE3-64 of (run seed, stage, purpose, key)."""
    text = "\x1f".join((str(run_seed), stage, purpose, key))
    return int.from_bytes(blake3.blake3(text.encode()).digest(length=8), "little")


def unit_interval(key: bytes, seed: int) -> float:
    """A number in [0, 1) that depends on `key` and `seed` alone, for selections that any sharding repeats.

    A document is selected when its number falls under a rate, so a higher rate only ever adds documents.
    """
    digest = blake3.blake3(seed.to_bytes(8, "little") + key).digest(length=8)
    return int.from_bytes(digest, "little") / TWO_TO_64
