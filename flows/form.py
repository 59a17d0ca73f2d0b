"""The parameters of a run as a form: the help, bounds and choices of the configuration models, every field optional.

`Changes` is what `--set` is on the command line: values that overrule the recipe's for one run. Its models are made
from the configuration models, so a new field of a stage appears in the form by itself. The schema of a field states
its one type and no null: Prefect's form draws an `anyOf` with null as a choice between schemas, and an absent value
already means "as the recipe says".
"""

import json
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Optional, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, WithJsonSchema, create_model
from pydantic import model_serializer as serializer

from flows.recipe import Recipe
from flows.road import STAGES
from flows.wrong_keys import tagged_models

SAID_ONCE = ("seed", "limit", "budget_tokens", "weights", "priorities", "row_length")
"""What a recipe says once for several stages: a form for one stage would tear it apart."""


def _without_null_defaults(schema: dict[str, Any]) -> None:
    for field in schema.get("properties", {}).values():
        if field.get("default", "") is None:
            del field["default"]


class Section(BaseModel):
    """Some values of a recipe, each of them optional."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_without_null_defaults)

    @serializer(mode="wrap")
    def _given(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in plain(self).items() if value not in (None, {})}


def section_of(config: type[BaseModel], title: str) -> type[Section]:
    """The model of a form's section for a configuration model: its fields with their help, none of them required."""
    schema = config.model_json_schema()["properties"]
    fields: dict[str, Any] = {}
    for name, field in config.model_fields.items():
        if name in SAID_ONCE:
            continue
        several = tagged_models(field.annotation)
        table = _table(field.annotation)
        if several:
            nested = _merged([section_of(model, f"{title}.{name}") for model in several.values()], f"{title}.{name}")
            fields[name] = (nested, Field(default=nested(), title=name))
        elif table is not None:
            nested = section_of(table, f"{title}.{name}")
            fields[name] = (nested, Field(default=nested(), title=name))
        elif "$ref" not in json.dumps(schema[name]):  # Lists of tables (sources, benchmarks) stay with the recipe.
            annotation = Annotated[Optional[field.annotation], *field.metadata, WithJsonSchema(_plain(schema[name]))]  # noqa: UP045  # the annotation is a value here
            fields[name] = (annotation, Field(default=None, title=name))
    return create_model(title, __base__=Section, __doc__=config.__doc__, **fields)


def _merged(sections: list[type[Section]], title: str) -> type[Section]:
    """One section with the fields of several, of which a run chooses one by a field that all have; where they say
    different things of a field, the first one's help stands and all of their choices."""
    fields: dict[str, Any] = {}
    for section in sections:
        for name, field in section.model_fields.items():
            (schema,) = (mark.json_schema or {} for mark in field.metadata if isinstance(mark, WithJsonSchema))
            stands = fields.get(name)
            if stands is None:
                fields[name] = (field.annotation, schema, field.metadata)
                continue
            choices = [choice for one in (stands[1], schema) for choice in one.get("enum", [one.get("const")])]
            merged = {key: value for key, value in stands[1].items() if key not in ("enum", "const")}
            if None not in choices:
                merged["enum"] = list(dict.fromkeys(choices))
            fields[name] = (stands[0] | field.annotation, merged, stands[2] if field.metadata == stands[2] else [])
    made: dict[str, Any] = {
        name: (Annotated[annotation, *_but_schema(metadata), WithJsonSchema(schema)], Field(default=None, title=name))
        for name, (annotation, schema, metadata) in fields.items()
    }
    return create_model(title, __base__=Section, __doc__=sections[0].__doc__, **made)


def _but_schema(metadata: list[Any]) -> list[Any]:
    return [mark for mark in metadata if not isinstance(mark, WithJsonSchema)]


def _table(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, or may hold."""
    held = [choice for choice in (get_args(annotation) or (annotation,)) if choice is not type(None)]
    is_table = len(held) == 1 and isinstance(held[0], type) and issubclass(held[0], BaseModel)
    return held[0] if is_table and get_origin(annotation) in (None, Union, UnionType) else None


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A field's schema without null among its types, its default told in words."""
    plain = {key: value for key, value in schema.items() if key not in ("default", "anyOf", "title")}
    for choice in schema.get("anyOf", ()):
        plain.update(choice if choice != {"type": "null"} else {})
    if schema.get("default") not in (None, "", [], {}):
        plain["description"] = (
            f"{plain['description']} ({json.dumps(schema['default'])} unless the recipe says otherwise)"
        )
    return plain


_SECTIONS: dict[str, Any] = {
    stage: (section, Field(default=section(), title=stage))
    for stage in STAGES
    for section in (section_of(Recipe.model_fields[stage].annotation, stage),)  # type: ignore[arg-type]
}


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


_Stages = create_model("_Stages", __base__=Shared, **_SECTIONS)


class Changes(_Stages):
    """Values that overrule the recipe's; what stays empty is as it says."""


RecipeOrName = Annotated[Recipe | str, WithJsonSchema({"type": "string"})]
"""A recipe from the command, or the name of one from a form."""
WHOLE_ROAD, ROADS_END = STAGES[0], STAGES[-1]
EVERY_STAGE = "every stage"
# No null in these either: the form sends a default of null along, and the server refuses it as no choice.
FromStage = Annotated[str | None, WithJsonSchema({"type": "string", "enum": list(STAGES)})]
UntilStage = Annotated[str | None, WithJsonSchema({"type": "string", "enum": list(STAGES)})]
OnlyStage = Annotated[str | None, WithJsonSchema({"type": "string", "enum": [EVERY_STAGE, *STAGES]})]
Share = Annotated[float, Field(gt=0, le=1)]


def chosen_stretch(from_stage: str | None, until: str | None, only: str | None) -> dict[str, str | None]:
    """The parameters of `flows.road.stretch`: a form's words for everything become None."""
    given = {"from_stage": (from_stage, WHOLE_ROAD), "until": (until, ROADS_END), "only": (only, EVERY_STAGE)}
    return {name: None if value == everything else value for name, (value, everything) in given.items()}


def settings(changes: BaseModel) -> list[str]:
    """The changes as `key.path=value` words, as `--set` and `flows.recipe.load_recipe` take them."""
    return [f"{'.'.join(path)}={json.dumps(value)}" for path, value in _leaves(changes.model_dump(mode="json"))]


def _leaves(values: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value
