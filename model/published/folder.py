"""A published network: its settings, where its weights lie, whether they are all there, and what they are here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.architecture import BERTConfig, GPTConfig, T5Config
from model.errors import InputError
from model.networks import make_network
from model.published.families import family_of
from model.published.family import Family
from model.published.files import SETTINGS, read_json, weight_files
from model.published.origin import some, take_over
from model.published.settings import Settings

OF_TENSORFLOW = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
"""Names in BERT's files that come from its first program."""


@dataclass(frozen=True)
class Stored:
    """Where one published tensor lies, and its shape."""

    file: Path
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PublishedNetwork:
    """A published network, its weights not yet read, but found to be all there and of the right shapes."""

    folder: Path
    family: Family
    config: GPTConfig | BERTConfig | T5Config
    tensors: Mapping[str, Stored]
    """By the names of the family's class."""


def published_config(folder: Path) -> tuple[Family, GPTConfig | BERTConfig | T5Config]:
    """What a folder's `config.json` describes; InputError for what has no network here."""
    path = folder / SETTINGS
    settings = Settings(read_json(path), str(path))
    try:
        family = family_of(settings)
        return family, family.read(settings)
    except (AttributeError, ArithmeticError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} has a value of another kind than its class takes ({error}). Take an untouched copy of the model."
        ) from error


def open_published(folder: Path) -> PublishedNetwork:
    """The network in a folder, looked at but not read.

    Raises InputError for a network that has none like it here, and names tensors that are missing, have no place, or
    are of another shape than `config.json` says.
    """
    family, config = published_config(folder)
    tensors = _named_as(family, _stored(folder), family.origins(config))
    published = PublishedNetwork(folder, family, config, tensors)
    _check_names(published)
    _check_shapes(published)
    return published


def read_published(published: PublishedNetwork) -> dict[str, Tensor]:
    """Our weights by name, in float32.

    Raises InputError where a tensor that should repeat another holds something else.
    """
    origins, copies = published.family.origins(published.config), published.family.copies(published.config)
    weights: dict[str, Tensor] = {}
    for ours, origin in origins.items():
        parts = {name: _read(published.tensors[name]) for name in origin.names}
        weights |= take_over(parts, {ours: origin})
        for copy, original in copies.items():
            if original in parts and copy in published.tensors:
                _check_copy(published, copy, original, parts[original])
    return weights


def _read(stored: Stored) -> Tensor:
    with safe_open(stored.file, framework="pt") as file:
        return file.get_tensor(stored.name).float()


def _stored(folder: Path) -> dict[str, Stored]:
    found: dict[str, Stored] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  # no mapping: it has keys and no iteration
                    found[name] = Stored(path, name, tuple(file.get_slice(name).get_shape()))
        except SafetensorError as error:
            raise InputError(
                f"{path} is no safetensors file, or is cut off ({error}). Take it from where it came from again."
            ) from error
    return found


def _named_as(family: Family, stored: Mapping[str, Stored], origins: Mapping[str, Any]) -> dict[str, Stored]:
    """By the names of the family's class with all heads: bodies saved alone lack the first part of theirs."""
    needed = {name for origin in origins.values() for name in origin.names}
    named: dict[str, Stored] = {}
    for name, tensor in stored.items():
        for before, now in OF_TENSORFLOW:
            name = name.replace(before, now)
        if name not in needed and family.body + name in needed:
            name = family.body + name
        if re.search(family.no_weights, name) is None:
            named[name] = tensor
    return named


def _check_names(published: PublishedNetwork) -> None:
    """Complete copies from originals' places: either of the two names may have been written."""
    family, config = published.family, published.config
    copies = family.copies(config)
    needed = {name for origin in family.origins(config).values() for name in origin.names}
    found = published.tensors
    assert isinstance(found, dict), "the names are ours to complete"
    for copy, original in copies.items():
        if original not in found and copy in found:
            found[original] = found[copy]
    missing, left_over = sorted(needed - found.keys()), sorted(found.keys() - needed - copies.keys())
    if missing or left_over:
        raise InputError(
            f"{published.folder}: by its {SETTINGS} this is a {family.class_name} of {config.layers} layers, and of its"
            f" tensors {some(missing)} missing, {some(left_over)} with no place in it. Take a model with all heads of"
            f" {family.class_name}, and {SETTINGS} and weights from one place."
        )


def _check_shapes(published: PublishedNetwork) -> None:
    with torch.device("meta"):
        ours = make_network(published.config).state_dict()
    origins = published.family.origins(published.config)
    assert origins.keys() == ours.keys(), "every weight of ours has an origin"
    for name, origin in origins.items():
        for theirs, expected in zip(origin.names, origin.given_shapes(ours[name]), strict=True):
            found = published.tensors[theirs].shape
            if found == expected:
                continue
            hint = ""
            if name == "embedding.weight" and found[1:] == expected[1:]:
                hint = f" The table has {found[0]} rows, and vocab_size there is {expected[0]}."
            raise InputError(
                f"{published.folder}: {theirs} has the shape {list(found)}, and by {SETTINGS} it is {list(expected)}."
                f"{hint} Take {SETTINGS} and weights from one place."
            )


def _check_copy(published: PublishedNetwork, copy: str, original: str, expected: Tensor) -> None:
    stored = published.tensors[copy]
    if stored == published.tensors[original]:
        return
    if stored.shape != tuple(expected.shape) or not torch.equal(_read(stored), expected):
        raise InputError(
            f"{published.folder}: {copy} should repeat {original}, and is another tensor. If the head has weights of"
            f" its own, {SETTINGS} must say tie_word_embeddings = false."
        )
