"""The base of all configuration models."""

import enum
from typing import Any

from pydantic import BaseModel, ConfigDict


class Reach(enum.Enum):
    """Marks a field by what its value reaches outside of the recipe: `base: Annotated[str, Reach.FILE]`. Fields of the
    type `Path` need no mark."""

    FILE = "a file or folder"
    SOURCE = "files, folders and patterns, or addresses"
    CODE = "a folder of Python modules, which are run"
    ENVIRONMENT = "variables of a process, by which libraries are loaded"
    MACHINE = "another machine, which is trusted"
    EARLIER = "an artifact of an earlier run"


class Runtime:
    """Marks a field that cannot change a result: `workers: Annotated[int, RUNTIME] = 2`."""


RUNTIME = Runtime()


def runtime_fields(model: type[BaseModel]) -> dict[str, Any]:
    """The fields of a model that cannot change a result, those of models within it too, as pydantic's `exclude`."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if any(isinstance(mark, Runtime) for mark in field.metadata):
            found[name] = True
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner = runtime_fields(field.annotation)
            found |= {name: inner} if inner else {}
    return found


class BaseConfig(BaseModel):
    """Frozen, and refuses unknown keys; the docstring under each field is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
