"""What every stage's configuration has in common: frozen, strict, and split into identity and runtime fields."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from model.config import Runtime


class StrictConfig(BaseModel):
    """A frozen model that refuses unknown keys; the docstring under each field is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def identity_params(self) -> dict[str, Any]:
        """Every field that decides the result, nested, as plain JSON values; runtime fields are left out."""
        return _deciding(self)


def _deciding(model: BaseModel) -> dict[str, Any]:
    return {
        name: _plain(getattr(model, name))
        for name, field in type(model).model_fields.items()
        if not any(isinstance(mark, Runtime) for mark in field.metadata)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _deciding(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
