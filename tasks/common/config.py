"""Base of every stage's configuration: frozen, strict, and split into identity and runtime fields; and what several
have in common."""

from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from model.config import Runtime

MOST_EPOCHS = 16.0
"""Here one more epoch adds less than two fifths of what new text would: exp(-15 / 15.39) (Muennighoff et al. 2023,
arXiv 2305.16264)."""


ONE_OR_MORE = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
"""Marks a list of texts of which a single one may be given by itself."""


def check_epochs(max_epochs: float, *, allow_many: bool) -> None:
    """Raise ValueError for more epochs than are worth their time, unless they are meant."""
    if max_epochs > MOST_EPOCHS and not allow_many:
        raise ValueError(
            f"max_epochs = {max_epochs:g} reads the same text more than {MOST_EPOCHS:g} times, where one more epoch"
            f" adds less than two fifths of what new text would; if that is meant, set allow_many_epochs = true"
        )


class StrictConfig(BaseModel):
    """A frozen model that refuses unknown keys; the docstring under each field is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def identity_params(self) -> dict[str, Any]:
        """Return every field that decides the result, nested, as plain JSON values; without runtime fields."""
        return _plain(self)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {
            name: _plain(getattr(value, name))
            for name, field in type(value).model_fields.items()
            if not any(isinstance(mark, Runtime) for mark in field.metadata)
        }
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
