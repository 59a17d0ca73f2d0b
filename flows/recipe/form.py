"""The parameters of a flow as a form of the Prefect UI, with the help, bounds and choices of the configuration models.

`Changes` does what `--set` does on the command line: it overrides values of the recipe for one run. Its models are
generated from the configuration models with every field optional, so a new field of a stage appears in the form.

Prefect has two UIs, and a form submitted without changes must change nothing in both. The classic UI submits `false`
for a boolean that was not touched; booleans and all other choices are therefore texts, the first of which keeps the
recipe's value. Both UIs draw an `anyOf` as buttons that choose one of its schemas, the first by default: so the
settings of a stage are folded away. A single setting states its one type and no null.
"""

import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Optional, Self, get_args

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

from flows.recipe.load import as_setting
from flows.recipe.resolve import MIXTURE_KEYS
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from flows.recipe.tables import described_fields, models_of, tables_of
from model.config import is_expert

AS_IN_THE_RECIPE = "as in the recipe"
"""The choice that keeps the recipe's value."""

FOLDED = {"type": "object", "title": AS_IN_THE_RECIPE, "properties": {}, "additionalProperties": False}
"""A closed section, for which the form submits nothing; it would submit a null."""

SHARED_FIELDS = ("seed", "limit", "budget_tokens", "weights", "priorities", "row_length")
"""Fields that a recipe sets once for several stages, so that the section of one stage must not offer them."""


def _as_shown(schema: dict[str, Any]) -> None:
    """Remove the defaults of null from a section's schema, and make its sections foldable."""
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
    """A field of a configuration model: its type, its bounds and its JSON schema."""

    annotation: Any
    bounds: tuple[Any, ...]
    schema: dict[str, Any]

    def or_else(self, other: "_Setting") -> "_Setting":
        """Merge the same setting of two models of which a run chooses one: help of the first, choices of both, and
        bounds only where both agree."""
        choices = [choice for one in (self.schema, other.schema) for choice in one.get("enum", [one.get("const")])]
        merged = {key: value for key, value in self.schema.items() if key not in ("enum", "const")}
        if None not in choices:
            merged["enum"] = list(dict.fromkeys(choices))
        bounds = self.bounds if self.bounds == other.bounds else ()
        return _Setting(self.annotation | other.annotation, bounds, merged)

    def shown(self, title: str) -> tuple[Any, Any]:
        """Return the form's field for it; a field with choices also offers to keep the recipe's value."""
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
    """Return the section of the form for a configuration model, or for several of which a run chooses one: their fields
    with their help, all optional."""
    fields: dict[str, Any] = {}
    settings: dict[str, _Setting] = {}
    for config in configs:
        schema = _properties(config)
        for name, field in config.model_fields.items():
            if name in SHARED_FIELDS:
                continue
            if tables := models_of(field.annotation):
                fields[name] = _folded(f"{title}.{name}", *tables)
            elif not tables_of(field.annotation):
                found = _Setting(field.annotation, tuple(field.metadata), _plain(schema[name]))
                settings[name] = settings[name].or_else(found) if name in settings else found
                fields[name] = settings[name].shown(name)
    return create_model(title, __base__=Section, **fields)


def _folded(title: str, *configs: type[BaseModel]) -> tuple[Any, Any]:
    """Return the form's field for a section, with the help of its configuration model."""
    name, description = title.rpartition(".")[2], inspect.getdoc(configs[0])
    return section_of(title, *configs) | None, Field(default=None, title=name, description=description)


@cache
def _properties(config: type[BaseModel]) -> dict[str, Any]:
    fields = described_fields(config)
    properties = config.model_json_schema()["properties"]
    return {name: {**schema, "description": fields[name].description} for name, schema in properties.items()}


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a field's schema without null among its types and with its default in the description."""
    plain = {key: value for key, value in schema.items() if key not in ("default", "anyOf", "title")}
    kinds = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    plain.update(kinds[0] if len(kinds) == 1 else {"type": "string"} if kinds else {})
    default = schema.get("default")
    if default not in (None, "", [], {}):
        default = ("off", "on")[default] if isinstance(default, bool) else json.dumps(default)
        plain["description"] = f"{plain['description']} ({default} unless the recipe says otherwise)"
    return plain


class Shared(Section):
    """Values that a recipe sets once for all stages."""

    budget_tokens: Annotated[
        str | None,
        WithJsonSchema({"type": "string", "description": "Tokens that training reads, such as 2000000, 2M or 1.5B."}),
    ] = Field(default=None, title="budget_tokens")
    seed: Annotated[
        int | None,
        Field(ge=0, lt=2**63),
        WithJsonSchema(
            {"type": "integer", "minimum": 0, "description": "Seed from which every stage derives its own."}
        ),
    ] = Field(default=None, title="seed")


_STAGES: dict[str, Any] = {
    stage: _folded(stage, Recipe.model_fields[stage].annotation)  # type: ignore[arg-type]
    for stage in STAGES
}


def _setting(path: str) -> tuple[Any, Any]:
    """Return the field that a path names, to be shown above the sections."""
    stage, *tables, name = path.split(".")
    section: Any = get_args(_STAGES[stage][0])[0]
    for table in tables:
        section = get_args(section.model_fields[table].annotation)[0]
    field = section.model_fields[name]
    shown = Field(default=field.default, validate_default=True, title=path)
    return Annotated[field.annotation, *field.metadata], shown


def _shown_settings(above: str, *configs: type[BaseModel]) -> Iterator[str]:
    """Yield the paths of settings that are not marked as set by few recipes (`model.config.EXPERT`)."""
    for config in configs:
        for name, field in config.model_fields.items():
            if is_expert(field) or name in (*SHARED_FIELDS, *MIXTURE_KEYS):
                continue
            if tables := models_of(field.annotation):
                yield from _shown_settings(f"{above}.{name}", *tables)
            elif not tables_of(field.annotation):
                yield f"{above}.{name}"


SHOWN = tuple(
    dict.fromkeys(
        path
        for stage in STAGES
        for path in _shown_settings(stage, Recipe.model_fields[stage].annotation)  # type: ignore[arg-type]
    )
)
"""Settings that the form shows above the sections of the stages, which are folded."""

_FIELDS: dict[str, Any] = {path: _setting(path) for path in SHOWN} | _STAGES

_Shown = create_model("_Shown", __base__=Shared, **_FIELDS)


class Changes(_Shown):
    """Values that override the recipe's: those that recipes often set by their paths, and all under their stage."""

    @model_validator(mode="before")
    @classmethod
    def _read_json_fields(cls, given: Any) -> Any:
        """Decode fields that the UI draws as JSON. Saving a deployment in the newer UI stores `{"__prefect_kind":
        "json"}` for each of them that was left empty, and its scheduled runs receive that."""
        if not isinstance(given, dict) or not given:
            return given
        # It loads SQLAlchemy, which takes .5 s.
        from prefect.utilities.schema_tools.hydration import HydrationContext, hydrate

        return hydrate(given, HydrationContext())

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        given = list(_leaves(self.model_dump(mode="json")))
        for path, value in given:
            if (other := dict(given)[path]) != value:
                raise ValueError(f"{path} is {value!r} and {other!r} under its stage; leave one of them empty")
        return self


RecipeOrName = Annotated[Recipe | str, WithJsonSchema({"type": "string"})]
"""A recipe from the command line, or the name of one from a form."""

FIRST_STAGE, LAST_STAGE = STAGES[0], STAGES[-1]

EVERY_STAGE = "every stage"

# No null in these either: the form would submit it, and the server would refuse it as no choice.
OneStage = Annotated[str | None, WithJsonSchema({"type": "string", "enum": list(STAGES)})]

OnlyStage = Annotated[str | None, WithJsonSchema({"type": "string", "enum": [EVERY_STAGE, *STAGES]})]

Share = Annotated[float, Field(gt=0, le=1)]


def stage_selection(from_stage: str | None, until: str | None, only: str | None) -> dict[str, str | None]:
    """Return the parameters of `flows.recipe.stages.select_stages`, with None for the form's defaults."""
    given = {"from_stage": (from_stage, FIRST_STAGE), "until": (until, LAST_STAGE), "only": (only, EVERY_STAGE)}
    return {name: None if value == everything else value for name, (value, everything) in given.items()}


def as_settings(changes: BaseModel) -> list[str]:
    """Return the changes as `key.path=value` words, as `--set` and `flows.recipe.load.load_recipe` take them."""
    return [as_setting(path, value) for path, value in _leaves(changes.model_dump(mode="json"))]


def _leaves(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
