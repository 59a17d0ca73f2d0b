"""The base of all configuration models."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Frozen, and refuses unknown keys; the docstring under each field is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
