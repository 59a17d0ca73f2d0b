"""Weights taken over from a network with other names, and given back."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from model.errors import InputError


@dataclass(frozen=True)
class Origin:
    """The published tensors that one weight of ours is made of: equal parts, one below the other."""

    names: tuple[str, ...]
    transposed: bool = False
    """Whether they are stored with inputs before outputs (GPT-2's Conv1D)."""


Origins = Mapping[str, Origin]


def linear(ours: str, *theirs: str, biases: bool, transposed: bool = False) -> dict[str, Origin]:
    """The origins of a linear layer's weight, and of its bias."""
    origins = {f"{ours}.weight": Origin(tuple(f"{name}.weight" for name in theirs), transposed)}
    if biases:
        origins[f"{ours}.bias"] = Origin(tuple(f"{name}.bias" for name in theirs))
    return origins


def take_over(published: Mapping[str, Tensor], origins: Origins, copies: Set[str] = frozenset()) -> dict[str, Tensor]:
    """Our weights by name, made of the published ones.

    `copies` are published names that hold again what stands elsewhere, such as a tied head. Raises InputError for a
    tensor that is missing or has no place here: a network with another part would compute something else.
    """
    needed = {name for origin in origins.values() for name in origin.names}
    missing, left_over = sorted(needed - published.keys()), sorted(published.keys() - needed - copies)
    if missing or left_over:
        raise InputError(
            f"these weights are not of the network that was asked for: {_some(missing)} missing, {_some(left_over)}"
            f" with no place in it. Compare the two configurations: number of layers, biases, tied head."
        )
    return {
        ours: torch.cat([published[name].T if origin.transposed else published[name] for name in origin.names])
        for ours, origin in origins.items()
    }


def give_back(weights: Mapping[str, Tensor], origins: Origins) -> dict[str, Tensor]:
    """The published weights by name, made of ours: what `take_over` took, without its copies."""
    given: dict[str, Tensor] = {}
    for ours, origin in origins.items():
        for name, part in zip(origin.names, weights[ours].chunk(len(origin.names)), strict=True):
            given[name] = (part.T if origin.transposed else part).contiguous()
    return given


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{len(names)} ({shown}{', ...' if len(names) > 3 else ''})" if names else "none"
