"""Which values dropout sets to zero: a function of (seed, step, rank), so that no generator's state is to be saved."""

import blake3
import torch


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Set torch's own generator for one step of one rank.

    It is the one that attention's kernels and recomputed activations draw from; nothing else in a trainer does.
    """
    digest = blake3.blake3(f"{seed}\x1fdropout\x1f{step}\x1f{rank}".encode()).digest(length=7)
    torch.manual_seed(int.from_bytes(digest, "little"))
