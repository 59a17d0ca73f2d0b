"""What one class of `transformers` is: its settings and its weights, against ours."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from model.published.origin import Origin
from model.published.settings import Settings

NO_COPIES: Mapping[str, str] = {}


@dataclass(frozen=True)
class Family:
    """A class of networks, read from a folder and written into one.

    Configurations are ours, of the family's architecture.
    """

    model_type: str
    """`model_type` of its `config.json`."""
    class_name: str
    """The class that has all its heads."""
    read: Callable[[Settings], Any]
    """Our configuration of its settings; InputError where we have none."""
    write: Callable[[Any], dict[str, Any]]
    """The settings nearest to our configuration: reading them gives it back, but for what the class cannot compute."""
    origins: Callable[[Any], dict[str, Origin]]
    """Where each weight of ours comes from."""
    copies: Callable[[Any], Mapping[str, str]]
    """Published names that may hold again what stands under another."""
    body: str = ""
    """First part of the names of all weights but the heads'; files saved from the body alone lack it."""
    no_weights: str = r"(?!)"
    """Regular expression of published tensors that are computed, or never used."""
