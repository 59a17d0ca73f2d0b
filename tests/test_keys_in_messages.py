"""A message that says which key to set names one that exists."""

import ast
import re
from pathlib import Path

from pydantic import BaseModel

from flows.recipe.schema import Recipe

PROJECT = Path(__file__).parents[1]
STAGES = "sample|clean|dedup|decontaminate|vocab|chunk|train|evaluate"
KEY = re.compile(rf"(?<![\w./:-])({STAGES})\.(?!txt\b)([a-z_]+)(?![\w/(])")


def test_every_key_that_a_message_names_exists() -> None:
    tables = {name: field.annotation for name, field in Recipe.model_fields.items()}
    unknown: list[str] = []
    named = 0
    for path in (path for root in ("tasks", "flows", "model") for path in sorted((PROJECT / root).rglob("*.py"))):
        raised = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)]
        for text in (part for node in raised for part in ast.walk(node) if isinstance(part, ast.Constant)):
            for table, key in KEY.findall(text.value) if isinstance(text.value, str) else ():
                model = tables[table]
                assert isinstance(model, type)
                assert issubclass(model, BaseModel)
                named += 1
                if key not in model.model_fields:
                    unknown.append(f"{path.relative_to(PROJECT)}:{text.lineno} {table}.{key}")
    assert named > 50
    assert not unknown


def test_a_key_of_several_stages_is_named_as_a_recipe_writes_it() -> None:
    wrong: list[str] = []
    for path in (path for root in ("tasks", "flows") for path in sorted((PROJECT / root).rglob("*.py"))):
        raised = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)]
        for text in (part for node in raised for part in ast.walk(node) if isinstance(part, ast.Constant)):
            if isinstance(text.value, str) and re.search(r"\b(sample|chunk)\.(budget_tokens|max_epochs)", text.value):
                wrong.append(f"{path.relative_to(PROJECT)}:{text.lineno} {text.value}")
    assert not wrong
