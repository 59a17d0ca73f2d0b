"""Functions of the user: found in their folder, part of the identity by meaning, and told clearly when wrong."""

import pytest

from model.errors import RecipeError
from tasks.build import RunContext
from tasks.clean.config import CleanConfig, ExtensionsConfig
from tasks.clean.stage import build_clean
from tasks.extensions import load_extension

EDITS = '''
from house_words import SIGNATURE

def drop_signature(text, about):
    """Docstrings do not count."""
    return text.partition(SIGNATURE)[0]

def no_poems(text, about):
    return "it rhymes" if "rhyme" in text else None
'''
RULE = """
from tasks.clean.rule import Rule

SHOUTS = Rule("shouts", lambda statistics, limit: statistics.text.count("!"))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "house_rules.py").write_text(EDITS)
    (tmp_path / "house_words.py").write_text('SIGNATURE = "-- "\n')
    (tmp_path / "house_shouts.py").write_text(RULE)
    return tmp_path


def config(folder, **more):
    extensions = ExtensionsConfig(
        path=str(folder), edits=("house_rules:drop_signature",), rules=("house_rules:no_poems", "house_shouts:SHOUTS")
    )
    return CleanConfig(preset="minimal", extensions=extensions, limits={"house_shouts:SHOUTS": 2}, **more)


def test_edits_and_rules_of_the_user_run_and_reach_the_ledger(context, make_documents, folder):
    parent = make_documents([[("s", "A letter. -- Jo"), ("s", "A rhyme."), ("s", "No! No! No!"), ("s", "Yes! Yes!")]])
    artifact = build_clean(context, parent, config(folder))
    assert artifact.table("documents").column("text").to_pylist() == ["A letter. ", "Yes! Yes!"]
    rows = {row["rule"]: row for row in artifact.table("ledger").to_pylist()}
    assert rows["house_rules:no_poems"]["evidence"] == "it rhymes"
    assert (rows["house_shouts:SHOUTS"]["value"], rows["house_shouts:SHOUTS"]["limit"]) == (3, 2)
    assert rows["house_rules:drop_signature"]["action"] == "edit"


def test_they_work_in_worker_processes_too(context, make_documents, folder):
    parent = make_documents([[("s", f"Letter {number}. -- Jo")] for number in range(3)])
    artifact = build_clean(context, parent, config(folder, workers=2))
    assert artifact.table("documents").column("text").to_pylist() == [f"Letter {number}. " for number in range(3)]


def test_the_code_behind_them_counts_by_meaning(context, make_documents, folder):
    parent = make_documents([[("s", "A letter. -- Jo ~~ x")]])
    before = build_clean(context, parent, config(folder))
    (folder / "house_rules.py").write_text(EDITS.replace("do not count", "never count") + "\n# a comment\n")
    assert build_clean(context, parent, config(folder)).identity == before.identity
    (folder / "house_words.py").write_text('SIGNATURE = "~~ "\n')
    after = build_clean(RunContext(context.root, "next"), parent, config(folder))
    assert after.identity != before.identity
    assert after.table("documents").column("text").to_pylist() == ["A letter. -- Jo "]
    assert "house_rules:drop_signature" in after.cause


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("house_rules:nothing", "it has drop_signature, no_poems"),
        ("house_none:f", "there is no house_none.py"),
        ("house_broken:f", "house_broken.py:1"),
        ("house_fails:f", "ZeroDivisionError"),
        ("house_hides:f", "calls `import_module`"),
        ("json:loads", "taken"),
        ("a b:c", "module:function"),
    ],
)
def test_what_is_wrong_is_told(folder, name, says):
    (folder / "house_broken.py").write_text("def f(:\n")
    (folder / "house_fails.py").write_text("1 / 0\n")
    (folder / "house_hides.py").write_text("from importlib import import_module\nf = import_module('x').f\n")
    with pytest.raises(RecipeError, match=says):
        load_extension(name, folder, "clean.extensions")


def test_a_rule_of_the_user_needs_its_limit(context, make_documents, folder):
    extensions = ExtensionsConfig(path=str(folder), rules=("house_shouts:SHOUTS",))
    with pytest.raises(RecipeError, match="has no limit"):
        build_clean(context, make_documents([[("s", "x")]]), CleanConfig(extensions=extensions))
