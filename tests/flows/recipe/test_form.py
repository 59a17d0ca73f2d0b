"""The form of a run: every field of the stages with its help, none required, and what it gives is `--set` words. What
nobody touched changes nothing, in either UI of Prefect."""

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.exceptions import ParameterTypeError
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.hydration import HydrationContext, hydrate
from prefect.utilities.schema_tools.validation import validate
from pydantic import BaseModel

from flows.pretrain import pretrain
from flows.recipe.form import AS_IN_THE_RECIPE, EVERY_STAGE, SHOWN, Changes, as_settings, stage_selection
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES, select_stages
from flows.recipe.tables import model_within, tagged_models
from tasks.dedup.config import DedupConfig

SCHEMA = parameter_schema(pretrain).model_dump()
FILE = Path(__file__).parents[3] / "deployments" / "prefect.yaml"
DEPLOYMENTS = {deployment["name"]: deployment for deployment in yaml.safe_load(FILE.read_text())["deployments"]}


def booleans(config: Any, above: str = "") -> Iterator[str]:
    """The paths of all settings that are on or off."""
    for name, field in config.model_fields.items():
        if field.annotation is bool:
            yield f"{above}{name}"
        for model in tagged_models(field.annotation).values() or [model_within(field.annotation)]:
            if isinstance(model, type) and issubclass(model, BaseModel) and name not in ("sources", "benchmarks"):
                yield from booleans(model, f"{above}{name}.")


BOOLEANS = sorted(set(booleans(Recipe)))


def chosen(choice: str) -> dict[str, Any]:
    """The changes of a form in which every boolean says the same."""
    changes: dict[str, Any] = {}
    for path in BOOLEANS:
        *tables, name = path.split(".")
        place = changes
        for table in tables:
            place = place.setdefault(table, {})
        place[name] = choice
    return changes


def everything() -> list[tuple[str, dict[str, Any]]]:
    models = SCHEMA["definitions"].items()
    return [(f"{model}.{name}", field) for model, found in models for name, field in found["properties"].items()]


def test_every_field_of_a_stage_is_in_the_form_with_its_help_and_bounds():
    fields = SCHEMA["definitions"]["dedup"]["properties"]
    assert set(fields) == set(DedupConfig.model_fields) - {"seed", "priorities"}
    threshold = fields["threshold"]
    assert (threshold["type"], threshold["maximum"], threshold["exclusiveMinimum"]) == ("number", 1.0, 0.0)
    assert threshold["description"].endswith("is removed. (0.8 unless the recipe says otherwise)")


def test_sections_are_folded_no_other_field_offers_null_and_none_is_required():
    for name, field in everything():
        if "anyOf" in field:
            folded, section = field["anyOf"]
            assert (folded["title"], folded["properties"], folded["additionalProperties"]) == (
                AS_IN_THE_RECIPE,
                {},
                False,
            )
            assert set(section) == {"$ref"}, name
            assert "default" not in field
        assert ("$ref" in field, field.get("default", "")) in ((False, ""), (False, AS_IN_THE_RECIPE)), name
    assert [name for name, model in SCHEMA["definitions"].items() if model.get("required")] == []
    assert SCHEMA["required"] == ["recipe"]


def test_settings_that_recipes_often_set_come_first_and_are_those_of_the_stages():
    assert list(SCHEMA["definitions"]["Changes"]["properties"]) == ["budget_tokens", "seed", *SHOWN, *STAGES]
    assert {"clean.preset", "train.model.layers", "train.schedule.peak_lr", "evaluate.gate.max_rise"} < set(SHOWN)
    assert not {"train.clip.max_norm", "train.guard.enabled", "sample.max_epochs"} & set(SHOWN)
    assert 40 <= len(SHOWN) <= 60
    for path in SHOWN:
        *tables, name = path.split(".")
        there = SCHEMA["definitions"][tables[-1]]["properties"][name]
        assert SCHEMA["definitions"]["Changes"]["properties"][path] == {**there, "title": path}


def test_no_setting_is_a_boolean_of_two_values_and_choices_may_be_left():
    assert [name for name, field in everything() if field.get("type") == "boolean"] == []
    choices = {name: field for name, field in everything() if "enum" in field}
    assert {(field["enum"][0], field["default"], field["type"]) for field in choices.values()} == {
        (AS_IN_THE_RECIPE, AS_IN_THE_RECIPE, "string")
    }
    assert choices["train.zero_stage"]["enum"] == [AS_IN_THE_RECIPE, "1", "2", "3"]
    assert as_settings(Changes.model_validate({"train": {"zero_stage": "2"}})) == ["train.zero_stage=2"]
    assert [name for name, field in everything() if "const" in field] == []


@pytest.mark.parametrize(("choice", "arrives"), [(AS_IN_THE_RECIPE, ""), ("on", "=true"), ("off", "=false")])
def test_each_choice_of_a_boolean_arrives(choice: str, arrives: str) -> None:
    given = {"recipe": "quickstart", "changes": chosen(choice)}
    validate(given, SCHEMA, raise_on_error=True)
    changes = pretrain.validate_parameters(given)["changes"]
    assert sorted(as_settings(changes)) == [f"{path}{arrives}" for path in BOOLEANS if arrives]


def test_there_are_twenty_booleans() -> None:
    assert len(BOOLEANS) == 20
    assert "train.guard.enabled" in BOOLEANS


@pytest.mark.parametrize("ui", ["classic", "V2"])
@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=lambda deployment: deployment["name"])
def test_an_untouched_form_changes_nothing(
    deployment: dict[str, Any], ui: str, untouched_form: Callable[..., dict[str, Any]]
) -> None:
    flow = pkgutil.resolve_name(deployment["entrypoint"])
    schema = SCHEMA if flow is pretrain else parameter_schema(flow).model_dump()
    given = {**deployment["parameters"], "recipe": "quickstart", "root": "/root"}
    submitted: Any = hydrate(untouched_form(schema, given, ui), HydrationContext())
    validate(submitted, schema, raise_on_error=True)

    defaults = {name: one.default for name, one in inspect.signature(flow.fn).parameters.items()}
    quick = {**defaults, **flow.validate_parameters(given)}
    arrived = {**defaults, **flow.validate_parameters(submitted)}
    assert as_settings(arrived.pop("changes", Changes())) == as_settings(quick.pop("changes", Changes())) == []
    assert list(arrived.pop("settings", ())) == list(quick.pop("settings", ())) == []  # of a night
    assert arrived == quick


def test_json_fields_of_a_saved_deployment_are_read() -> None:
    """Scheduled runs receive a deployment's parameters as the UI saved them."""
    empty = {name: {"__prefect_kind": "json"} for name in ("clean.kinds", "clean.limits", "vocab.extend")}
    filled = {"clean.limits": {"__prefect_kind": "json", "value": '{"words": 50}'}}
    for given, arrives in ((empty, []), ({**empty, **filled}, ["clean.limits.words=50.0"])):
        changes = pretrain.validate_parameters({"recipe": "quickstart", "changes": given})["changes"]
        assert as_settings(changes) == arrives


def test_rows_of_a_micro_batch_are_a_number_or_auto() -> None:
    for given, arrives in (("8", "8"), ("auto", '"auto"')):
        parameters = {"recipe": "quickstart", "changes": {"train": {"micro_batch_rows": given}}}
        validate(parameters, SCHEMA, raise_on_error=True)
        changes = pretrain.validate_parameters(parameters)["changes"]
        assert as_settings(changes) == [f"train.micro_batch_rows={arrives}"]


def test_a_setting_has_one_value_wherever_the_form_shows_it() -> None:
    assert as_settings(Changes.model_validate({"train.model.layers": 3})) == ["train.model.layers=3"]
    twice = {"dedup.threshold": 0.9, "dedup": {"threshold": 0.7}}
    with pytest.raises(ValueError, match=r"dedup.threshold is 0\.9 and 0\.7 under its stage; leave one of them empty"):
        Changes.model_validate(twice)


def test_every_parameter_and_field_is_explained():
    assert [name for name, field in SCHEMA["properties"].items() if not field.get("description")] == []
    assert [name for name, field in everything() if not field.get("description") and "$ref" not in field] == []


def test_stages_are_choices_and_recipe_is_a_text():
    properties = SCHEMA["properties"]
    assert properties["from_stage"]["enum"] == list(STAGES)
    assert properties["until"]["enum"] == list(STAGES)
    assert properties["only"]["enum"] == [EVERY_STAGE, *STAGES]
    assert properties["recipe"]["type"] == "string"
    assert select_stages(**stage_selection("sample", "evaluate", EVERY_STAGE)) == STAGES
    assert select_stages(**stage_selection("dedup", "vocab", EVERY_STAGE)) == ("dedup", "decontaminate", "vocab")
    assert select_stages(**stage_selection("sample", "evaluate", "evaluate")) == ("evaluate",)


def test_changes_reach_the_recipe_as_set_words_do(foundry: Path, tmp_path: Path):
    given = {"dedup": {"threshold": 0.9}, "train": {"model": {"layers": 1}}, "clean": {"emoji": "drop"}, "sample": {}}
    changes = Changes.model_validate({**given, "budget_tokens": "20K"})
    assert as_settings(changes) == [
        'budget_tokens="20K"',
        'clean.emoji="drop"',
        "dedup.threshold=0.9",
        "train.model.layers=1",
    ]
    recipe = load_recipe(foundry / "foundry.toml", tmp_path, as_settings(changes))
    assert (recipe.dedup.threshold, recipe.clean.emoji, recipe.train.model.layers) == (0.9, "drop", 1)
    assert recipe.sample.budget_tokens == 20_000
    assert as_settings(Changes()) == []


def test_text_of_any_characters_reaches_the_recipe(foundry: Path, tmp_path: Path) -> None:
    """TOML knows no surrogates, as which JSON may escape characters beyond U+FFFF, and no DEL that is not escaped."""
    said = 'Réponds 😀 "vite"\x7f\n\\d'
    changes = Changes.model_validate({"evaluate": {"instruction": said}})
    assert load_recipe(foundry / "foundry.toml", tmp_path, as_settings(changes)).evaluate.instruction == said


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"dedup": {"threshold": "high"}}, "changes.dedup.threshold"),
        ({"dedup": {"threshold": 1.5}}, "changes.dedup.threshold"),
        ({"train": {"model": {"layers": "many"}}}, "changes.train.model.layers"),
        ({"dedup": {"treshold": 0.9}}, "changes.dedup.treshold"),
    ],
)
def test_a_wrong_value_is_refused_by_the_server_s_schema_and_by_the_flow_with_its_place(
    changes: dict[str, Any], place: str
):
    given = {"recipe": "quickstart", "changes": changes}
    refused = validate(given, SCHEMA, raise_on_error=False)
    assert refused, "the server takes the value"
    with pytest.raises(ParameterTypeError) as raised:
        pretrain.validate_parameters(given)
    assert place in str(raised.value)
