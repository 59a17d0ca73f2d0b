"""What a recipe brings besides names and limits: a deny-list, word lists, and functions of the user."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.clean.deny import DenyList
from tasks.clean.word_lists import WordList


@dataclass(frozen=True)
class Supplied:
    """`functions` by name: an edit `(text, about) -> text`, a rule `(text, about) -> reason or None`, or a `Rule`."""

    deny: DenyList = field(default_factory=DenyList)
    word_lists: Mapping[str, WordList] = field(default_factory=dict)
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
