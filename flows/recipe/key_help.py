"""Read the help of recipe keys from the source: the string below each field of a settings class.

pydantic's `use_attribute_docstrings` parses the source of every class when it is imported, a quarter of a second that
only the reference, the form of a deployment and `init --all` need.
"""

import ast
import functools
import inspect
import textwrap

from pydantic import BaseModel
from pydantic.fields import FieldInfo


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
