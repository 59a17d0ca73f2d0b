"""The trained model that a run starts from, one of ours or a published one: what it is, and its weights."""

from pathlib import Path

from torch import Tensor

from model.architecture import BERTConfig, GPTConfig, T5Config, read_network_config
from model.config import StartingModel
from model.content import ChangedInput, unchanged
from model.networks import Network
from model.published.files import SETTINGS, is_published, published_digest, weight_files
from model.published.folder import open_published, published_config, read_published
from model.weights import DESCRIPTION, WEIGHTS, describe_model, description_digest, load_model, network_of


def base_config(folder: Path) -> GPTConfig | BERTConfig | T5Config:
    """The network in a folder; InputError where none can be read."""
    if is_published(folder):
        return published_config(folder)[1]
    return read_network_config(describe_model(folder)["config"])


def base_digest(folder: Path) -> str:
    """What stands for its settings and weights, wherever it lies."""
    return published_digest(folder) if is_published(folder) else description_digest(folder)


def base_weights(base: StartingModel) -> tuple[dict[str, Tensor], str]:
    """Its weights by our names, and the digest that stands for them.

    Raises InputError where they are not those of the network that the folder describes, ChangedInput where the model
    is not the one with which the run was planned, or is written to while it is read.
    """
    with unchanged(_files(base.folder)):
        digest = base_digest(base.folder)
        if base.digest is not None and digest != base.digest:
            raise ChangedInput(str(base.folder), f"the model had the digest {base.digest}, and has {digest} now")
        if is_published(base.folder):
            return read_published(open_published(base.folder)), digest
        trained = load_model(base.folder, base.tokenizer_digest)
        return trained.state_dict(), describe_model(base.folder)["weights_digest"]


def _files(folder: Path) -> list[Path]:
    if is_published(folder):
        return [folder / SETTINGS, *weight_files(folder)]
    return [folder / DESCRIPTION, folder / WEIGHTS]


def base_network(folder: Path) -> tuple[Network, str]:
    """The network in a folder with its weights, not training, and the digest that stands for them, as `base_weights`
    tells it; InputError where none can be read."""
    if is_published(folder):
        published = open_published(folder)
        return network_of(published.config, read_published(published)), published_digest(folder)
    return load_model(folder), describe_model(folder)["weights_digest"]
