"""Ten thousand flipped bits, one at a time, in all files of a checkpoint: each is found, and its file named."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from model.checkpoint.checkpoint import checkpoint_at, checkpoint_steps
from model.errors import IntegrityError
from model.train.trainer import train

pytestmark = pytest.mark.prove_resume

NAME = "flipped bytes"


def flip(path: Path, place: int, bit: int) -> None:
    handle = os.open(path, os.O_RDWR)
    try:
        (byte,) = os.pread(handle, 1, place)
        os.pwrite(handle, bytes([byte ^ 1 << bit]), place)
    finally:
        os.close(handle)


def found(folder: Path, step: int) -> str:
    """What loading says of the checkpoint; nothing where it believes it."""
    try:
        checkpoint_at(folder, step, {})
    except IntegrityError as error:
        return str(error)
    return ""


def test_every_flipped_bit_is_found_and_its_file_named(proof: Callable, small_run: Callable) -> None:
    tally = proof(NAME)
    run = small_run("gpt", positions=64)
    train(run)
    folder = run.out / "checkpoints"
    (*_, step) = checkpoint_steps(folder)
    # A second one would be read too, to be named as whole.
    (path,) = [path for path in folder.iterdir() if path.name.endswith(str(step))]
    files = sorted(path.iterdir())
    for number in range(tally.cases):
        case = f"flip {number:05d}"
        if case in tally.done:
            continue
        if tally.out_of_time:
            break
        began = time.monotonic()
        draw = random.Random(case)
        # As often in a small file as in a large one.
        file = files[number % len(files)]
        place, bit = draw.randrange(file.stat().st_size), draw.randrange(8)
        flip(file, place, bit)
        words = found(folder, step)
        flip(file, place, bit)
        missed = "" if f" {file.name} " in words else f"byte {place}, bit {bit} of {file.name}: {words or 'believed'}"
        tally.add(case, missed, time.monotonic() - began, file.name)
    assert found(folder, step) == ""
    tally.verdict()
