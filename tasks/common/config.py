"""Base of every stage's configuration: frozen, strict, and split into identity and runtime fields."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from model.config import Runtime


class StrictConfig(BaseModel):
    """A frozen model that refuses unknown keys; the docstring under each field is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def identity_params(self) -> dict[str, Any]:
        """Return every field that decides the result, nested, as plain JSON values; without runtime fields."""
        return _identity_fields(self)


def _identity_fields(model: BaseModel) -> dict[str, Any]:
    return {
        name: _plain(getattr(model, name))
        for name, field in type(model).model_fields.items()
        if not any(isinstance(mark, Runtime) for mark in field.metadata)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _identity_fields(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
