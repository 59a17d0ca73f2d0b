"""Save and load trained models: weights as safetensors with a description in JSON, never pickles."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from model.checkpoint.run_folder import DESCRIPTION, WEIGHTS
from model.config.network import NetworkConfig, read_network_config
from model.digests import digest_file
from model.errors import InputError, IntegrityError
from model.files import sync_file, write_atomically
from model.model_files import check_header, read_json
from model.nn.factory import Network, make_shapes
from model.nn.gpt import GPT


def save_model(
    folder: Path, config: NetworkConfig, weights: dict[str, Tensor] | None, description: dict[str, Any]
) -> None:
    """Write `model.safetensors`, then `model.json`: the config, the digest of the weights, and `description`.

    Without `weights` the first file is there already (`model.checkpoint.writer.write_parts`).
    """
    if weights is not None:
        save_file({name: tensor.detach().contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)
        sync_file(folder / WEIGHTS)
    known = {
        "config": config.model_dump(mode="json"),
        "weights_digest": digest_file(folder / WEIGHTS),
        **description,
    }
    write_atomically(folder / DESCRIPTION, (json.dumps(known, indent=1, sort_keys=True) + "\n").encode())


def describe_model(folder: Path) -> dict[str, Any]:
    """Return the contents of `model.json`; InputError where the folder holds no model."""
    path = folder / DESCRIPTION
    if not path.is_file() or not (folder / WEIGHTS).is_file():
        raise InputError(
            f"{folder} holds no model: expected {DESCRIPTION} and {WEIGHTS}. Weights in pickles (.bin, .pt) are not"
            f" read, since loading a pickle runs code that it contains; convert them to safetensors."
        )
    return read_json(path)


def description_digest(folder: Path) -> str:
    """Return a digest of the whole model in `folder`: its description names the digest of its weights.

    Raises InputError where the folder holds no model.
    """
    describe_model(folder)
    return digest_file(folder / DESCRIPTION)


class StoredWeights(Mapping[str, Tensor]):
    """The tensors of a safetensors file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._file = safe_open(path, framework="pt")

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._file.keys():  # noqa: SIM118  # no mapping
            raise KeyError(name)
        return self._file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.keys())

    def __len__(self) -> int:
        return len(self._file.keys())


def load_model(folder: Path, tokenizer_digest: str | None = None) -> Network:
    """Return the network in `folder`, in evaluation mode; raises as `open_model`."""
    config, weights = open_model(folder, tokenizer_digest)
    return network_of(config, dict(weights))


def open_model(folder: Path, tokenizer_digest: str | None = None) -> tuple[NetworkConfig, StoredWeights]:
    """Return the configuration of the network in `folder`, and its weights, which are checked but not kept in memory.

    Raises InputError where `tokenizer_digest` is given and the model was trained with another tokenizer,
    IntegrityError where the weights are not the bytes that were saved.
    """
    description = describe_model(folder)
    trained_with = description.get("tokenizer_digest")
    if tokenizer_digest is not None and trained_with != tokenizer_digest:
        raise InputError(
            f"the model in {folder} was trained with the tokenizer {trained_with}, not with {tokenizer_digest};"
            f" its token ids mean different text. Use the tokenizer of the model's own run."
        )
    digest = digest_file(folder / WEIGHTS)
    if digest != description.get("weights_digest"):
        raise IntegrityError(
            f"{folder / WEIGHTS} has the digest {digest}, but {DESCRIPTION} says {description.get('weights_digest')}."
            f" The bytes changed after training; nothing was computed from them. Train again or restore a copy."
        )
    check_header(folder / WEIGHTS)
    return read_network_config(description["config"]), StoredWeights(folder / WEIGHTS)


def network_of(config: NetworkConfig, weights: dict[str, Tensor]) -> Network:
    """Return a network, in evaluation mode, whose weights are these tensors themselves, not copies."""
    network = make_shapes(config)
    network.load_state_dict(weights, assign=True)
    if isinstance(network, GPT):
        network.make_tables()
    return network.eval()


def load_gpt(folder: Path, tokenizer_digest: str | None = None) -> GPT:
    """Load a GPT as `load_model` does; InputError where the network is no GPT."""
    network = load_model(folder, tokenizer_digest)
    if not isinstance(network, GPT):
        raise InputError(
            f"the model in {folder} is a {network.config.architecture}, and this command needs a network that predicts"
            f" next tokens. Choose the model of a run with train.model.architecture = gpt."
        )
    return network
