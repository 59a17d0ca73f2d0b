"""Which tables a field of a configuration model holds, and its help: errors, form, reference and written recipes ask
here.

The help of a key is the string below its field in the source. pydantic's `use_attribute_docstrings` parses the source
of every class when it is imported, a quarter of a second that only the reference, the form and `init --all` need.
"""

import ast
import functools
import inspect
import textwrap
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Tag
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Table:
    """A table of a recipe: a table itself, an entry of a list of tables, or one of several tables by name."""

    kind: Literal["table", "list", "name"]
    model: type[BaseModel]
    tag: str | None = None
    """What chooses this table among several."""


def tables_of(annotation: Any, tag: str | None = None) -> list[Table]:
    """Return the tables that a field of this type may hold; empty for one that holds plain values."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return tables_of(arguments[0], next((mark.tag for mark in arguments[1:] if isinstance(mark, Tag)), None))
    if origin in (Union, types.UnionType):
        return [found for choice in arguments for found in tables_of(choice)]
    if origin in (tuple, list, dict):
        held = arguments[1:] if origin is dict else arguments[:1]
        return [Table("name" if origin is dict else "list", one.model) for kind in held for one in tables_of(kind)]
    return (
        [Table("table", annotation, tag)] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
    )


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """Return the models of a field that is a table: several where a tag chooses among them, none for a list or dict."""
    return [one.model for one in tables_of(annotation) if one.kind == "table"]


def tagged_models(annotation: Any) -> dict[str, type[BaseModel]]:
    """Return the models by tag of a field that holds one of several; empty for any other field."""
    return {one.tag: one.model for one in tables_of(annotation) if one.tag is not None}


def model_within(annotation: Any) -> Any:
    """Return the first model that a field holds, also within a list or a dict, or None."""
    return next((one.model for one in tables_of(annotation)), None)


@functools.cache
def described_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a settings class, each with its help as `description`."""
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            for name, words in _strings_below_fields(base).items():
                model.model_fields[name].description = words
    return model.model_fields


def _strings_below_fields(model: type[BaseModel]) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = inspect.cleandoc(words)
    return found
