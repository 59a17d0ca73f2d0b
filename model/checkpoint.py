"""Checkpoints that are all there or not there: digests, fsync, rename, and a COMPLETE marker written last.

A checkpoint folder holds weights and optimizer moments (safetensors), the journal so far, `state.json` with
everything else, and `COMPLETE`: the BLAKE3-128 of every file. Loading believes only digests that agree.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from model.durable import digest_file, sync_directory, sync_file, write_atomically
from model.errors import InputError
from model.journal import Journal
from model.transformer import GPT

COMPLETE = "COMPLETE"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Damage:
    """A checkpoint that was not believed, and why."""

    name: str
    reason: str


def checkpoint_folder(folder: Path, step: int) -> Path:
    """The folder of the checkpoint after `step` steps; names sort by step."""
    return folder / f"step-{step:09d}"


def save_checkpoint(
    folder: Path,
    step: int,
    network: GPT,
    optimizer: torch.optim.AdamW,
    journal: Journal,
    state: dict[str, Any],
    keep: int,
) -> Path:
    """Write the checkpoint after `step` steps and remove all but the newest `keep`, and the damaged ones.

    The journal that is saved here names the damaged ones, so they are not forgotten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left_over in folder.glob("tmp-*"):
        shutil.rmtree(left_over)
    temporary = folder / f"tmp-{step:09d}"
    temporary.mkdir()
    save_file({name: p.detach() for name, p in network.named_parameters()}, temporary / "weights.safetensors")
    save_file(_moments(network, optimizer), temporary / "optimizer.safetensors")
    (temporary / "state.json").write_text(json.dumps({**state, "step": step}, sort_keys=True))
    journal.write(temporary)
    digests = {}
    for path in sorted(temporary.iterdir()):
        sync_file(path)
        digests[path.name] = digest_file(path)
    write_atomically(temporary / COMPLETE, json.dumps(digests, sort_keys=True).encode())
    target = checkpoint_folder(folder, step)
    if target.exists():
        _remove(target)
    os.rename(temporary, target)
    sync_directory(folder)
    for old in [*sorted(folder.glob("step-*"))[:-keep], *folder.glob("damaged-*")]:
        _remove(old)
    return target


def _remove(path: Path) -> None:
    """Delete a checkpoint, under another name first: one that a kill left half deleted is not a damaged one."""
    doomed = path.with_name(f"tmp-{path.name}")
    os.rename(path, doomed)
    shutil.rmtree(doomed)


def load_newest(
    folder: Path, network: GPT, optimizer: torch.optim.AdamW, expected: dict[str, Any]
) -> tuple[dict[str, Any] | None, Journal, list[Damage]]:
    """Restore the newest whole checkpoint into `network` and `optimizer`.

    Returns its state (None when there is none), its journal, and the damaged checkpoints that were passed over.
    `expected` are entries of the state that must agree; a contradiction is an InputError, never a silent win.
    """
    damaged: list[Damage] = []
    for path in sorted(folder.glob("step-*"), reverse=True):
        if _damage(path) is not None:
            # Out of the way, lest it count among the newest that are kept.
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(path, aside)
    for path in sorted(folder.glob("damaged-*"), reverse=True):
        damaged.append(Damage(path.name.removeprefix("damaged-"), _damage(path) or "was damaged when last read"))
    for path in sorted(folder.glob("step-*"), reverse=True):
        state = json.loads((path / "state.json").read_text())
        for key, value in expected.items():
            if state.get(key) != value:
                raise InputError(
                    f"checkpoint {path}: its `{key}` is {state.get(key)}, but this run asks for {value}."
                    f" A checkpoint goes on only under the configuration that made it; remove {folder} to start anew."
                )
        with torch.no_grad():
            for name, tensor in load_file(path / "weights.safetensors").items():
                network.get_parameter(name).copy_(tensor)
        _restore_moments(network, optimizer, load_file(path / "optimizer.safetensors"))
        return state, Journal.read(path), damaged
    return None, Journal(), damaged


def _damage(path: Path) -> str | None:
    """Why a checkpoint cannot be believed; None when every byte agrees with its digest."""
    marker = path / COMPLETE
    if not marker.is_file():
        return f"{COMPLETE} is missing"
    try:
        digests = json.loads(marker.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError):
        return f"{COMPLETE} is unreadable"
    if not isinstance(digests, dict) or set(digests) != {file.name for file in path.iterdir()} - {COMPLETE}:
        return f"{COMPLETE} does not name the files that are there"
    for name, digest in digests.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if digest_file(file) != digest:
            return f"{name} does not agree with its digest"
    return None


def _moments(network: GPT, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    return {
        f"{name}|{moment}": optimizer.state[parameter][moment].detach().contiguous()
        for name, parameter in network.named_parameters()
        for moment in _MOMENTS
        if parameter in optimizer.state
    }


def _restore_moments(network: GPT, optimizer: torch.optim.AdamW, saved: dict[str, torch.Tensor]) -> None:
    """Put the moments back; hyper-parameters stay those of the optimizer that was just made from the config."""
    for name, parameter in network.named_parameters():
        moments = {moment: saved[f"{name}|{moment}"] for moment in _MOMENTS if f"{name}|{moment}" in saved}
        if moments:
            optimizer.state[parameter] = moments
