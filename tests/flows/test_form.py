"""The form of a run: every field of the stages with its help, none required, and what it gives is `--set` words."""

from pathlib import Path
from typing import Any

import pytest
from prefect.exceptions import ParameterTypeError
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from flows.form import EVERY_STAGE, Changes, chosen_stretch, settings
from flows.pretrain import pretrain
from flows.recipe import load_recipe
from flows.road import STAGES, stretch
from tasks.dedup.config import DedupConfig

SCHEMA = parameter_schema(pretrain).model_dump()


def everything() -> list[tuple[str, dict[str, Any]]]:
    models = SCHEMA["definitions"].items()
    return [(f"{model}.{name}", field) for model, found in models for name, field in found["properties"].items()]


def test_every_field_of_a_stage_is_in_the_form_with_its_help_and_bounds():
    fields = SCHEMA["definitions"]["dedup"]["properties"]
    assert set(fields) == set(DedupConfig.model_fields) - {"seed", "priorities"}
    threshold = fields["threshold"]
    assert (threshold["type"], threshold["maximum"], threshold["exclusiveMinimum"]) == ("number", 1.0, 0.0)
    assert threshold["description"].endswith("is removed. (0.8 unless the recipe says otherwise)")


def test_no_field_offers_null_and_none_is_required():
    assert [name for name, field in everything() if "anyOf" in field or field.get("default", "") is None] == []
    assert [name for name, model in SCHEMA["definitions"].items() if model.get("required")] == []
    assert SCHEMA["required"] == ["recipe"]


def test_every_parameter_and_field_is_explained():
    assert [name for name, field in SCHEMA["properties"].items() if not field.get("description")] == []
    assert [name for name, field in everything() if not field.get("description") and "$ref" not in field] == []


def test_stages_are_choices_and_recipe_is_a_text():
    properties = SCHEMA["properties"]
    assert properties["from_stage"]["enum"] == list(STAGES)
    assert properties["until"]["enum"] == list(STAGES)
    assert properties["only"]["enum"] == [EVERY_STAGE, *STAGES]
    assert properties["recipe"]["type"] == "string"
    assert stretch(**chosen_stretch("sample", "evaluate", EVERY_STAGE)) == STAGES
    assert stretch(**chosen_stretch("dedup", "vocab", EVERY_STAGE)) == ("dedup", "decontaminate", "vocab")
    assert stretch(**chosen_stretch("sample", "evaluate", "evaluate")) == ("evaluate",)


def test_changes_reach_the_recipe_as_set_words_do(foundry: Path, tmp_path: Path):
    given = {"dedup": {"threshold": 0.9}, "train": {"model": {"layers": 1}}, "clean": {"emoji": "drop"}, "sample": {}}
    changes = Changes.model_validate({**given, "budget_tokens": "20K"})
    assert settings(changes) == [
        'budget_tokens="20K"',
        'clean.emoji="drop"',
        "dedup.threshold=0.9",
        "train.model.layers=1",
    ]
    recipe = load_recipe(foundry / "foundry.toml", tmp_path, settings(changes))
    assert (recipe.dedup.threshold, recipe.clean.emoji, recipe.train.model.layers) == (0.9, "drop", 1)
    assert recipe.sample.budget_tokens == 20_000
    assert settings(Changes()) == []


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
