"""The recipe as a frozen model: everything that a run needs to know, one field a stage."""

import functools
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from flows.recipe.errors import line_of
from model.config import RUNTIME
from tasks.chunk.config import ChunkConfig
from tasks.clean.config import CleanConfig
from tasks.common.config import StrictConfig
from tasks.common.text import addresses_with_credentials, without_credentials
from tasks.decontaminate.config import DecontaminateConfig
from tasks.dedup.config import DedupConfig
from tasks.evaluate.config import EvaluateConfig
from tasks.sample.config import SampleConfig
from tasks.train.config import TrainStageConfig
from tasks.vocab.config import VocabConfig

RECIPES = Path(__file__).parents[1] / "shipped" / "recipes"
"""Recipes that are run by name."""


@dataclass(frozen=True)
class RecipeSource:
    """The file that a recipe was read from and the settings that override it; never part of an identity."""

    path: Path = field(compare=False)
    text: str = field(compare=False)
    settings: tuple[str, ...] = field(compare=False)


class Recipe(StrictConfig):
    """A whole run: what is read, what each stage does to it, what is trained. One field a stage."""

    format: Literal[1] = 1
    """Version of the recipe format; 1 is the only one."""
    name: Annotated[str, RUNTIME] = Field(min_length=1, max_length=80)
    """Name of the recipe, shown with its runs."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Run seed, from which every stage derives its own."""
    sample: SampleConfig
    clean: CleanConfig
    dedup: DedupConfig
    decontaminate: DecontaminateConfig
    vocab: VocabConfig
    chunk: ChunkConfig
    train: TrainStageConfig
    evaluate: EvaluateConfig
    _warnings: tuple[str, ...] = PrivateAttr(default=())
    _source: RecipeSource | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _addresses_hold_no_credentials(cls, values: Any) -> Any:
        """Refuse credentials in a recipe made in Python; `recipe_from` refuses those of a file, with its name."""
        if problem := credentials_problem(values):
            raise ValueError(problem)
        return values

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences without full stop about settings that may not be intended."""
        return self._warnings

    @property
    def command(self) -> str | None:
        """The words after `bessemer` that run this recipe again; None where no file is known."""
        if self._source is None:
            return None
        path = self._source.path
        named = path.stem if path.parent == RECIPES else shlex.quote(str(path))
        limited = f" --limit {self.sample.limit!r}" if self.sample.limit < 1 else ""
        settings = map(shlex.quote, map(without_credentials, self._source.settings))
        return " --set ".join([f"run {named}{limited}", *settings])

    def place(self, tables: Sequence[str], name: str, key: str) -> str:
        """Return where the recipe sets `key` of the entry `name` in one of the lists `tables`: `recipe.toml, line 12`.

        Returns the line of the entry where the key has its default, and the recipe's name where no file is known.
        """
        if self._source is None:
            return f"recipe `{self.name}`"
        for setting in self._source.settings:
            if setting.partition("=")[0].strip() in {f"{table}.{name}.{key}" for table in tables}:
                return f"--set {setting}"
        raw = tomllib.loads(self._source.text)
        for table in tables:
            *above, last = table.split(".")
            entries = functools.reduce(lambda place, part: place.get(part, {}), above, raw).get(last, [])
            for number, entry in enumerate(entries):
                if isinstance(entry, dict) and entry.get("name", entry.get("task")) == name:
                    there = (*table.split("."), number)
                    text = self._source.text
                    line = line_of(text, (*there, *key.split("."))) or line_of(text, there)
                    return f"{self._source.path}, line {line}"
        return str(self._source.path)


def differing_settings(first: Any, second: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted path and both values of each setting in which two recipes, as JSON values, differ; entries of a
    list of named tables are matched by name."""
    first, second = _by_name(first), _by_name(second)
    if isinstance(first, dict) and isinstance(second, dict):
        for key in sorted({*first, *second}):
            inner = f"{path}.{key}" if path else str(key)
            yield from differing_settings(first.get(key), second.get(key), inner)
    elif first != second:
        yield path, first, second


def _by_name(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
        return {one["name"]: one for one in value}
    return value


def credentials_problem(values: Any) -> str:
    """Return what is wrong with addresses that hold credentials; empty where none does."""
    found = [f"{place} is {masked}" for place, masked in addresses_with_credentials(values)]
    if not found:
        return ""
    return (
        f"{'; '.join(found)}: an address of a recipe holds no password, key or signature, as records, pages and logs"
        f" show it. Give this machine the credentials instead, in the environment (AWS_ACCESS_KEY_ID and"
        f" AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, HF_TOKEN) or in the store's own configuration file."
    )
