"""The parameters of a run as a form: the help, bounds and choices of the configuration models, every field optional.

`Changes` is what `--set` is on the command line: values that overrule the recipe's for one run. Its models are made
from the configuration models, so a new field of a stage appears in the form by itself.

Prefect has two UIs, and a form that nobody touched must change nothing in both. Its classic one submits `false` for a
boolean that nobody touched, so that booleans and all other choices are texts, of which the first leaves the recipe's
value. Both draw an `anyOf` as buttons that choose one of its schemas, the first at first: this is how the settings of a
stage are folded away. A single setting states its one type and no null.
"""

import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import Annotated, Any, Optional, Self, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    create_model,
    model_serializer,
    model_validator,
)

from flows.recipe.errors import tagged_models
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES

AS_IN_THE_RECIPE = "as in the recipe"
"""The choice that changes nothing."""

FOLDED = {"type": "object", "title": AS_IN_THE_RECIPE, "properties": {}, "additionalProperties": False}
"""A section that is not open. The form submits nothing for it; for a null it would submit the null."""

MOST_USED = (
    "clean.preset",
    "dedup.threshold",
    "vocab.vocab_size",
    "train.model.context",
    "train.model.layers",
    "train.model.heads",
    "train.model.width",
    "train.batch_rows",
    "train.schedule.peak_lr",
)
"""Settings that the form shows before the stages, whose others it folds."""

SAID_ONCE = ("seed", "limit", "budget_tokens", "weights", "priorities", "row_length")
"""What a recipe says once for several stages: a form for one stage would tear it apart."""


def _as_shown(schema: dict[str, Any]) -> None:
    """Take the nulls of Python from a section's schema, and let its sections be folded."""
    for field in schema.get("properties", {}).values():
        if field.get("default", "") is None:
            del field["default"]
        if "anyOf" in field:
            (section,) = (choice for choice in field["anyOf"] if "$ref" in choice)
            field["anyOf"] = [FOLDED, section]


class Section(BaseModel):
    """Some values of a recipe, each of them optional."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_as_shown)

    @model_serializer(mode="wrap")
    def _given(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in plain(self).items() if value not in (None, {})}


@dataclass(frozen=True)
class _Setting:
    """A field of a configuration model: its type, its bounds, and how its schema shows it."""

    annotation: Any
    bounds: tuple[Any, ...]
    schema: dict[str, Any]

    def or_else(self, other: "_Setting") -> "_Setting":
        """The same setting of two models of which a run chooses one: the first one's help, the choices of both, and
        bounds only where both have them."""
        choices = [choice for one in (self.schema, other.schema) for choice in one.get("enum", [one.get("const")])]
        merged = {key: value for key, value in self.schema.items() if key not in ("enum", "const")}
        if None not in choices:
            merged["enum"] = list(dict.fromkeys(choices))
        bounds = self.bounds if self.bounds == other.bounds else ()
        return _Setting(self.annotation | other.annotation, bounds, merged)

    def shown(self, title: str) -> tuple[Any, Any]:
        """The form's field for it. What offers choices offers to leave them too."""
        optional: Any = Optional[self.annotation]  # noqa: UP045  # the annotation is a value here
        values = {"on": True, "off": False} if self.schema["type"] == "boolean" else {}
        values = {str(choice): choice for choice in self.schema.get("enum", ())} or values
        if not values:
            return Annotated[optional, *self.bounds, WithJsonSchema(self.schema)], Field(default=None, title=title)
        schema = {**self.schema, "type": "string", "enum": [AS_IN_THE_RECIPE, *values]}
        chosen = BeforeValidator(partial(_chosen, {AS_IN_THE_RECIPE: None, **values}))
        field = Field(default=AS_IN_THE_RECIPE, validate_default=True, title=title)
        return Annotated[optional, *self.bounds, chosen, WithJsonSchema(schema)], field


def _chosen(values: dict[str, Any], given: Any) -> Any:
    return values.get(given, given) if isinstance(given, str) else given


def section_of(title: str, *configs: type[BaseModel]) -> type[Section]:
    """The model of a form's section for a configuration model, or for several of which a run chooses one: their fields
    with their help, none of them required."""
    fields: dict[str, Any] = {}
    settings: dict[str, _Setting] = {}
    for config in configs:
        schema = config.model_json_schema()["properties"]
        for name, field in config.model_fields.items():
            tables = list(tagged_models(field.annotation).values()) or _table(field.annotation)
            if name in SAID_ONCE:
                continue
            if tables:
                fields[name] = _folded(f"{title}.{name}", *tables)
            elif "$ref" not in json.dumps(schema[name]):  # Lists of tables (sources, benchmarks) stay with the recipe.
                found = _Setting(field.annotation, tuple(field.metadata), _plain(schema[name]))
                settings[name] = settings[name].or_else(found) if name in settings else found
                fields[name] = settings[name].shown(name)
    return create_model(title, __base__=Section, **fields)


def _folded(title: str, *configs: type[BaseModel]) -> tuple[Any, Any]:
    """The form's field for a section, with the help of its configuration model."""
    name, told = title.rpartition(".")[2], inspect.getdoc(configs[0])
    return section_of(title, *configs) | None, Field(default=None, title=name, description=told)


def _table(annotation: Any) -> list[type[BaseModel]]:
    """The model that a field holds, or may hold."""
    held = [choice for choice in (get_args(annotation) or (annotation,)) if choice is not type(None)]
    is_table = len(held) == 1 and isinstance(held[0], type) and issubclass(held[0], BaseModel)
    return held if is_table and get_origin(annotation) in (None, Union, UnionType) else []


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A field's schema without null among its types, its default told in words."""
    plain = {key: value for key, value in schema.items() if key not in ("default", "anyOf", "title")}
    kinds = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    plain.update(kinds[0] if len(kinds) == 1 else {"type": "string"} if kinds else {})
    default = schema.get("default")
    if default not in (None, "", [], {}):
        default = ("off", "on")[default] if isinstance(default, bool) else json.dumps(default)
        plain["description"] = f"{plain['description']} ({default} unless the recipe says otherwise)"
    return plain


class Shared(Section):
    """What a recipe says once for all stages."""

    budget_tokens: Annotated[
        str | None,
        WithJsonSchema({"type": "string", "description": "Tokens that training reads, such as 2000000, 2M or 1.5B."}),
    ] = Field(default=None, title="budget_tokens")
    seed: Annotated[
        int | None,
        Field(ge=0, lt=2**63),
        WithJsonSchema({"type": "integer", "minimum": 0, "description": "Seed that every stage's own is made from."}),
    ] = Field(default=None, title="seed")


_STAGES: dict[str, Any] = {
    stage: _folded(stage, Recipe.model_fields[stage].annotation)  # type: ignore[arg-type]
    for stage in STAGES
}


def _setting(path: str) -> tuple[Any, Any]:
    """The field of a section that a path names, to be shown beside the sections."""
    stage, *tables, name = path.split(".")
    section: Any = get_args(_STAGES[stage][0])[0]
    for table in tables:
        section = get_args(section.model_fields[table].annotation)[0]
    field = section.model_fields[name]
    shown = Field(default=field.default, validate_default=True, title=path)
    return Annotated[field.annotation, *field.metadata], shown


_SHOWN: dict[str, Any] = {path: _setting(path) for path in MOST_USED} | _STAGES

_Shown = create_model("_Shown", __base__=Shared, **_SHOWN)


class Changes(_Shown):
    """Values that overrule the recipe's: the most used settings by their paths, and all of a stage under its name."""

    @model_validator(mode="after")
    def _says_nothing_twice(self) -> Self:
        given = list(_leaves(self.model_dump(mode="json")))
        for path, value in given:
            if (other := dict(given)[path]) != value:
                raise ValueError(f"{path} is {value!r} and {other!r} under its stage; leave one of them empty")
        return self


RecipeOrName = Annotated[Recipe | str, WithJsonSchema({"type": "string"})]
"""A recipe from the command, or the name of one from a form."""

FIRST_STAGE, LAST_STAGE = STAGES[0], STAGES[-1]

EVERY_STAGE = "every stage"

# No null in these either: the form sends a default of null along, and the server refuses it as no choice.
FromStage = Annotated[str | None, WithJsonSchema({"type": "string", "enum": list(STAGES)})]

UntilStage = Annotated[str | None, WithJsonSchema({"type": "string", "enum": list(STAGES)})]

OnlyStage = Annotated[str | None, WithJsonSchema({"type": "string", "enum": [EVERY_STAGE, *STAGES]})]

Share = Annotated[float, Field(gt=0, le=1)]


def stage_selection(from_stage: str | None, until: str | None, only: str | None) -> dict[str, str | None]:
    """The parameters of `flows.recipe.load.stages.stretch`: a form's words for everything become None."""
    given = {"from_stage": (from_stage, FIRST_STAGE), "until": (until, LAST_STAGE), "only": (only, EVERY_STAGE)}
    return {name: None if value == everything else value for name, (value, everything) in given.items()}


def as_settings(changes: BaseModel) -> list[str]:
    """The changes as `key.path=value` words, as `--set` and `flows.recipe.load.load.load_recipe` take them."""
    return [f"{path}={json.dumps(value)}" for path, value in _leaves(changes.model_dump(mode="json"))]


def _leaves(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
