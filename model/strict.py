"""The base of all configuration models."""

import enum

from pydantic import BaseModel, ConfigDict


class Reach(enum.Enum):
    """Marks a field by what its value reaches outside of the recipe: `base: Annotated[str, Reach.FILE]`. Fields of the
    type `Path` need no mark."""

    FILE = "a file or folder"
    SOURCE = "files, folders and patterns, or addresses"
    CODE = "a folder of Python modules, which are run"
    MACHINE = "another machine, which is trusted"
    EARLIER = "an artifact of an earlier run"


class Strict(BaseModel):
    """Frozen, and refuses unknown keys; the docstring under each field is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
