"""The base of all configuration models, and the marks of their fields."""

import enum
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo


class Reach(enum.Enum):
    """What the value of a field gives access to outside the recipe: `base: Annotated[str, Reach.FILE]`.

    Fields of type `Path` need no mark.
    """

    FILE = "a file or folder"
    SOURCE = "files, folders and patterns, or addresses"
    CODE = "a folder of Python modules, which are run"
    ENVIRONMENT = "variables of a process, by which libraries are loaded"
    MACHINE = "another machine, which is trusted"
    EARLIER = "an artifact of an earlier run"


class Runtime:
    """The mark of a field that cannot change a result: `workers: Annotated[int, RUNTIME] = 2`."""


RUNTIME = Runtime()


class Expert:
    """The mark of a field that few recipes set: `window: Annotated[int, EXPERT] = 128`.

    The reference and the form fold it away, with all fields of its table if it holds one.
    """


EXPERT = Expert()


def is_expert(field: FieldInfo) -> bool:
    """Return whether a field is marked as one that few recipes set."""
    return any(isinstance(mark, Expert) for mark in field.metadata)


def runtime_fields(model: type[BaseModel]) -> dict[str, Any]:
    """Return the fields of a model that cannot change a result, including those of nested models, as pydantic's
    `exclude`."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if any(isinstance(mark, Runtime) for mark in field.metadata):
            found[name] = True
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner = runtime_fields(field.annotation)
            found |= {name: inner} if inner else {}
    return found


class BaseConfig(BaseModel):
    """A frozen model that refuses unknown keys; the docstring of each field is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid")
