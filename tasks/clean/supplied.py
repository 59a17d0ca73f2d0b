"""What a recipe brings besides names and limits: a deny-list, lists of words and spellings, functions of the user."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tasks.clean.deny import DenyList
from tasks.clean.spelling import SpellingList
from tasks.clean.word_lists import WordList


class Loaded(Protocol):
    """A function of the user that finds itself again in a worker process (`tasks.extensions.Extension`)."""

    @property
    def function(self) -> Callable[..., Any]:
        """An edit `(text, about) -> text`, a rule `(text, about) -> reason or None`, or a `Rule`."""
        ...


@dataclass(frozen=True)
class Supplied:
    """A deny-list, word lists by name, lists of spellings, and functions of the user by `module:function`."""

    deny: DenyList = field(default_factory=DenyList)
    word_lists: Mapping[str, WordList] = field(default_factory=dict)
    spellings: tuple[SpellingList, ...] = ()
    functions: Mapping[str, Loaded] = field(default_factory=dict)
