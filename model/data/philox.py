"""Counter-based random numbers by NumPy: number i of a stream is a function of the stream's key, without a state.

Philox4x64-10 of Salmon et al. 2011 ("Parallel random numbers: as easy as 1, 2, 3"). A stream is named by a key of 128
bits; it is the same on any machine and in any order. Numbers of rows come from `model.data.rng`, which is compiled:
loading and compiling that takes a second, which a process that only fills weights saves.
"""

import blake3
import numpy as np


def philox_key(seed: int, purpose: str) -> np.ndarray:
    """Return the key for a purpose under a run's seed, u64[2]; streams of two purposes are independent."""
    digest = blake3.blake3(f"{seed}\x1f{purpose}".encode()).digest(length=16)
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def numbers_from(key: np.ndarray, begin: int, count: int) -> np.ndarray:
    """Return the numbers `begin` to `begin` + `count` - 1 of the stream (key, 0, 0, 0), u64[count]."""
    block, skipped = divmod(begin, 4)
    # NumPy counts up before it draws.
    generator = np.random.Philox(key=key, counter=(block - 1) % 2**256)
    return generator.random_raw(skipped + count)[skipped:]
