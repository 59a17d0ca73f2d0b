"""Read and write networks in the format of `transformers`: `config.json` and safetensors.

`open_published` and `read_published` read a published network, `export_network` writes one of ours, and the `base_*`
functions read the model that a run starts from, be it ours or a published one.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from model.checkpoint.run_folder import DESCRIPTION, WEIGHTS
from model.checkpoint.weights import describe_model, description_digest, load_model, network_of
from model.config.fields import WeightDtype
from model.config.network import BERTConfig, GPTConfig, T5Config, read_network_config
from model.config.train import StartingModel
from model.errors import InputError, RecipeError
from model.file_content import ChangedInput, require_unchanged
from model.files import sync_file, write_atomically
from model.huggingface.base import Family, WeightMap, by_published_name, export_weights, published_tensor
from model.huggingface.registry import FAMILIES, fitting_family, settings_of
from model.huggingface.settings import Settings
from model.model_files import (
    INDEX,
    ONE_FILE,
    SETTINGS,
    SHARD_BYTES,
    is_published,
    published_digest,
    read_json,
    some,
    weight_files,
)
from model.nn.factory import Network, make_shapes

OF_TENSORFLOW = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
"""Names in some of BERT's files, from its TensorFlow program, and their names in `transformers`."""


@dataclass(frozen=True)
class StoredTensor:
    """File, name and shape of one published tensor."""

    file: Path
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PublishedNetwork:
    """A published network whose weights are not read yet, but checked to be complete and of the right shapes."""

    folder: Path
    family: Family
    config: GPTConfig | BERTConfig | T5Config
    weight_map: WeightMap
    tensors: dict[str, StoredTensor]
    """Tensors by the names of the family's class."""


def open_published(folder: Path) -> PublishedNetwork:
    """Return the network in a folder, checked but without reading its weights.

    Raises InputError for an unsupported network, and for tensors that are missing, unexpected, or of another shape than
    `config.json` says.
    """
    family, config = published_config(folder)
    ours = make_shapes(config).state_dict()
    weight_map = family.weight_map(config, ours)
    published = PublishedNetwork(folder, family, config, weight_map, _named_as(family, _stored(folder), weight_map))
    _check_names(published)
    _check_shapes(published, ours)
    return published


def published_config(folder: Path) -> tuple[Family, GPTConfig | BERTConfig | T5Config]:
    """Return the family and our configuration of a folder's `config.json`; InputError where there is none."""
    path = folder / SETTINGS
    settings = Settings(read_json(path), str(path))
    try:
        family: Family = settings.lookup("model_type", FAMILIES, "none")
        return family, family.read(settings)
    except (AttributeError, ArithmeticError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} has a value of another type than its class takes ({error}). Use an unmodified copy of the model."
        ) from error


def _stored(folder: Path) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  # no mapping: it has keys and no iteration
                    found[name] = StoredTensor(path, name, tuple(file.get_slice(name).get_shape()))
        except SafetensorError as error:
            raise InputError(f"{path} is no safetensors file, or is cut off ({error}). Download it again.") from error
    return found


def _named_as(family: Family, stored: Mapping[str, StoredTensor], weight_map: WeightMap) -> dict[str, StoredTensor]:
    """Return the tensors by the names of the class with all heads; files saved from the body alone lack a prefix."""
    needed = by_published_name(weight_map)
    named: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        for before, now in OF_TENSORFLOW:
            name = name.replace(before, now)
        if name not in needed and family.body + name in needed:
            name = family.body + name
        if re.search(family.no_weights, name) is None:
            named[name] = tensor
    return named


def _check_names(published: PublishedNetwork) -> None:
    """Check that the tensors are complete; where only the alias of a name was saved, use it for both."""
    family, config = published.family, published.config
    aliases = family.aliases(config)
    needed = by_published_name(published.weight_map).keys()
    found = published.tensors
    for alias, original in aliases.items():
        if original not in found and alias in found:
            found[original] = found[alias]
    missing, left_over = sorted(needed - found.keys()), sorted(found.keys() - needed - aliases.keys())
    if missing or left_over:
        tied = f" If its head is its embedding, {SETTINGS} must say tie_word_embeddings = true."
        raise InputError(
            f"{published.folder}: by its {SETTINGS} this is a {family.class_name} of {config.layers} layers, and of its"
            f" tensors {some(missing)} missing, {some(left_over)} unexpected. Use a model with all heads of"
            f" {family.class_name}, with {SETTINGS} and weights from the same source."
            + (tied if missing == ["lm_head.weight"] else "")
        )


def _check_shapes(published: PublishedNetwork, ours: Mapping[str, Tensor]) -> None:
    weight_map = published.weight_map
    assert weight_map.keys() == ours.keys(), "every weight of ours has a source"
    embedding = weight_map["embedding.weight"].name
    for theirs, tensor in export_weights(ours, weight_map).items():
        expected, found = tuple(tensor.shape), published.tensors[theirs].shape
        if found == expected:
            continue
        hint = ""
        if theirs == embedding and found[1:] == expected[1:]:
            hint = f" The table has {found[0]} rows, and vocab_size there is {expected[0]}."
        raise InputError(
            f"{published.folder}: {theirs} has the shape {list(found)}, and by {SETTINGS} it is {list(expected)}."
            f"{hint} Use {SETTINGS} and weights from the same source."
        )


def read_published(published: PublishedNetwork) -> dict[str, Tensor]:
    """Return our weights by name, in float32; InputError where a tensor that should repeat another differs from it."""
    weight_map, aliases = published.weight_map, published.family.aliases(published.config)
    weights: dict[str, Tensor] = {}
    # One published tensor at a time: the largest may be a good part of the memory.
    for name, parts in by_published_name(weight_map).items():
        tensor = _read(published.tensors[name])
        for ours in parts:
            weight_map[ours].add_to(weights, ours, name, tensor)
        for alias, original in aliases.items():
            if original == name and alias in published.tensors:
                _check_alias(published, alias, original, tensor)
    return weights


def _read(stored: StoredTensor) -> Tensor:
    with safe_open(stored.file, framework="pt") as file:
        return file.get_tensor(stored.name).float()


def _check_alias(published: PublishedNetwork, alias: str, original: str, expected: Tensor) -> None:
    stored = published.tensors[alias]
    if stored == published.tensors[original]:
        return
    if stored.shape != tuple(expected.shape) or not torch.equal(_read(stored), expected):
        raise InputError(
            f"{published.folder}: {alias} should repeat {original}, and differs from it. If the head has weights of its"
            f" own, {SETTINGS} must say tie_word_embeddings = false."
        )


def export_network(
    folder: Path,
    config: GPTConfig | BERTConfig | T5Config,
    weights: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    shard_bytes: int = SHARD_BYTES,
    dtype: WeightDtype = "float32",
) -> str:
    """Write the network into an existing folder; return the name of the class that loads it.

    `settings` are further entries of `config.json`, such as `eos_token_id`. Weights are read and written a shard at a
    time: one of at most `shard_bytes`, or a single larger tensor. Raises RecipeError where no class computes such a
    network, or where a weight is beyond the range of `dtype`.
    """
    family = fitting_family(config)
    stored_as: torch.dtype = getattr(torch, dtype)
    ours = make_shapes(config).to(stored_as).state_dict()
    weight_map = family.weight_map(config, ours)
    shapes = export_weights(ours, weight_map)
    shards = split_into_shards({name: tensor.nbytes for name, tensor in shapes.items()}, shard_bytes)
    parts = by_published_name(weight_map)
    for file, names in shards.items():
        shard: dict[str, Tensor] = {}
        for name in names:
            shard[name] = _rounded(name, published_tensor(name, parts[name], weights, weight_map), stored_as)
        # `transformers` reads the tensors' format from this metadata.
        save_file(shard, folder / file, metadata={"format": "pt"})
        # The library makes the file readable for its owner alone.
        (folder / file).chmod(0o644)
        sync_file(folder / file)
    if len(shards) > 1:
        total = {"total_parameters": sum(map(Tensor.numel, shapes.values()))}
        total["total_size"] = sum(tensor.nbytes for tensor in shapes.values())
        index = {"metadata": total, "weight_map": {name: file for file, names in shards.items() for name in names}}
        write_atomically(folder / INDEX, (json.dumps(index, indent=2, sort_keys=True) + "\n").encode())
    written = {**settings_of(config, family), **settings, "dtype": dtype}
    write_atomically(folder / SETTINGS, (json.dumps(written, indent=1, sort_keys=True) + "\n").encode())
    return family.class_name


def _rounded(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    rounded = tensor.to(dtype)
    # float16 ends at 65,504; bfloat16 has the range of float32. A tensor of this type already is returned as it is.
    if rounded is not tensor and not rounded.isfinite().all() and tensor.isfinite().all():
        raise RecipeError(f"export: {name} has weights beyond the range of {dtype}. Export it with --dtype bfloat16.")
    return rounded


def split_into_shards(sizes: Mapping[str, int], most_bytes: int) -> dict[str, list[str]]:
    """Return file -> its tensors, as `save_pretrained` of `transformers` splits them: in their order, up to
    `most_bytes` a file; a larger tensor is alone in its file."""
    shards: list[list[str]] = []
    open_shard: list[str] = []
    used = 0
    for name, size in sizes.items():
        if size > most_bytes:
            shards.append([name])
            continue
        if used + size > most_bytes:
            shards.append(open_shard)
            open_shard, used = [], 0
        open_shard.append(name)
        used += size
    if open_shard:
        shards.append(open_shard)
    if len(shards) == 1:
        return {ONE_FILE: shards[0]}
    return {f"model-{number:05d}-of-{len(shards):05d}.safetensors": names for number, names in enumerate(shards, 1)}


def base_config(folder: Path) -> GPTConfig | BERTConfig | T5Config:
    """Return the configuration of the network in a folder, ours or published; InputError where there is none."""
    if is_published(folder):
        return published_config(folder)[1]
    return read_network_config(describe_model(folder)["config"])


def base_digest(folder: Path) -> str:
    """Return a digest of the settings and weights of the model in a folder, independent of its path."""
    return published_digest(folder) if is_published(folder) else description_digest(folder)


def base_weights(base: StartingModel) -> tuple[dict[str, Tensor], str]:
    """Return the weights of a base model by our names, and their digest.

    Raises InputError where they are not those of the network that the folder describes, ChangedInput where the model
    is not the one with which the run was planned, or changes while it is read.
    """
    with require_unchanged(base_files(base.folder)):
        digest = base_digest(base.folder)
        if base.digest is not None and digest != base.digest:
            raise ChangedInput(str(base.folder), f"the model had the digest {base.digest}, and has {digest} now")
        if is_published(base.folder):
            return read_published(open_published(base.folder)), digest
        trained = load_model(base.folder, base.tokenizer_digest)
        return trained.state_dict(), describe_model(base.folder)["weights_digest"]


def base_files(folder: Path) -> list[Path]:
    """Return the files of settings and weights of the model in a folder, ours or published."""
    if is_published(folder):
        return [folder / SETTINGS, *weight_files(folder)]
    return [folder / DESCRIPTION, folder / WEIGHTS]


def base_network(folder: Path) -> tuple[Network, str]:
    """Return the network in a folder, in evaluation mode, and the digest of its weights as `base_weights` does.

    Raises InputError where the folder holds no model.
    """
    if is_published(folder):
        published = open_published(folder)
        return network_of(published.config, read_published(published)), published_digest(folder)
    return load_model(folder), describe_model(folder)["weights_digest"]
