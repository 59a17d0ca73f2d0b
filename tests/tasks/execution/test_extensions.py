"""Functions of the user: found in their folder, part of the identity by meaning, and named clearly when wrong."""

import os
import py_compile

import pytest

from model.errors import RecipeError
from tasks.artifacts.build import RunContext
from tasks.clean.config import CleanConfig, ExtensionsConfig
from tasks.clean.stage import build_clean
from tasks.execution import plugins as extensions
from tasks.execution.plugins import load_extension

EDITS = '''
from house_words import SIGNATURE

def drop_signature(text, about):
    """Docstrings do not count."""
    return text.partition(SIGNATURE)[0]

def no_poems(text, about):
    return "it rhymes" if "rhyme" in text else None
'''
RULE = """
from tasks.clean.filters.rule import Rule

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
        ("house_exits:f", "SystemExit: 3"),
        ("house_zeros:f", "house_zeros.py:1: .*null bytes"),
        ("house_parsed:f", "house_parsed.py has an expression of too many parts"),
        ("house_written:f", "house_written.py has an expression of too many parts"),
        ("house_hides:f", "house_hides.py:1 uses `import_module`"),
        ("house_renames:f", "house_renames.py:1 uses `import_module`"),
        ("house_keeps:f", "house_keeps.py:2 uses `import_module`"),
        ("house_runs:f", "house_runs.py:2 uses `run_path`"),
        ("house_places:f", "house_places.py:1 uses `spec_from_file_location`"),
        ("house_evaluates:f", "house_evaluates.py:1 uses `eval`"),
        ("json:loads", "taken"),
        ("a b:c", "module:function"),
    ],
)
def test_what_is_wrong_is_reported(folder, name, says):
    (folder / "house_broken.py").write_text("def f(:\n")
    (folder / "house_fails.py").write_text("1 / 0\n")
    (folder / "house_exits.py").write_text("raise SystemExit(3)\n")
    (folder / "house_zeros.py").write_bytes(b"\0")
    (folder / "house_parsed.py").write_text("x = " + "+".join(["1"] * 5000))
    (folder / "house_written.py").write_text("x = " + "+".join(["1"] * 900))
    (folder / "house_hides.py").write_text("from importlib import import_module\nf = import_module('x').f\n")
    (folder / "house_renames.py").write_text("from importlib import import_module as load\nf = load('x').f\n")
    (folder / "house_keeps.py").write_text("import importlib\nload = importlib.import_module\nf = load('x').f\n")
    (folder / "house_runs.py").write_text("import runpy\nf = runpy.run_path('x.py')['f']\n")
    (folder / "house_places.py").write_text("from importlib.util import spec_from_file_location as place\nf = place\n")
    (folder / "house_evaluates.py").write_text("f, = map(eval, ['len'])\n")
    with pytest.raises(RecipeError, match=says):
        load_extension(name, folder, "clean.extensions")


def test_an_edit_that_returns_no_text_is_named(context, make_documents, folder):
    """A function that forgets its `return`, say."""
    extensions = ExtensionsConfig(path=str(folder), edits=("house_rules:no_poems",))
    with pytest.raises(RecipeError, match="`house_rules:no_poems` returned NoneType, and an edit returns the text"):
        build_clean(context, make_documents([[("s", "A letter.")]]), CleanConfig(extensions=extensions))


def test_a_rule_of_the_user_needs_its_limit(context, make_documents, folder):
    extensions = ExtensionsConfig(path=str(folder), rules=("house_shouts:SHOUTS",))
    with pytest.raises(RecipeError, match="has no limit"):
        build_clean(context, make_documents([[("s", "x")]]), CleanConfig(extensions=extensions))


def test_what_was_fingerprinted_runs_though_the_files_are_replaced_before_they_are_imported(folder, monkeypatch):
    before = load_extension("house_rules:drop_signature", folder, "here").fingerprint
    (folder / "house_words.py").write_text("SIGNATURE = '~~ '\n")
    whole = extensions._fingerprint

    def replaced(*given):
        found = whole(*given)
        (folder / "house_words.py").write_text("SIGNATURE = '## '\n")
        (folder / "house_rules.py").write_text("raise ValueError('imported')\n")
        return found

    monkeypatch.setattr(extensions, "_fingerprint", replaced)
    found = load_extension("house_rules:drop_signature", folder, "here")
    assert found.fingerprint != before
    assert found.function("one -- two ~~ three ## four", None) == "one -- two "


def test_what_was_fingerprinted_runs_though_it_is_imported_by_a_call_after_an_edit(tmp_path):
    (tmp_path / "house_late.py").write_text("def say(text, about):\n    from house_said import WORD\n    return WORD\n")
    (tmp_path / "house_said.py").write_text("WORD = 'first'\n")
    found = load_extension("house_late:say", tmp_path, "here")
    (tmp_path / "house_said.py").write_text("WORD = 'other'\n")
    assert found.function("", None) == "first"
    assert load_extension("house_late:say", tmp_path, "here").function("", None) == "other"


def test_modules_of_one_name_in_two_folders_each_serve_their_own(tmp_path):
    """A service runs one recipe after the other, and a function may import its helper as late as it is called."""
    for word in ("first", "other"):
        (tmp_path / word).mkdir()
        late = "def say(text, about):\n    from house_shared import WORD\n    return WORD\n"
        (tmp_path / word / f"house_{word}.py").write_text(late)
        (tmp_path / word / "house_shared.py").write_text(f"WORD = '{word}'\n")
    for word in ("first", "other", "first"):
        assert load_extension(f"house_{word}:say", tmp_path / word, "here").function("", None) == word


def test_compiled_code_beside_a_module_does_not_run_in_its_place(tmp_path):
    path = tmp_path / "house_stale.py"
    path.write_text("def say(text, about):\n    return 'first'\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    py_compile.compile(str(path))
    path.write_text("def say(text, about):\n    return 'other'\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert load_extension("house_stale:say", tmp_path, "here").function("", None) == "other"


def test_the_packages_above_a_module_count_too(tmp_path):
    (tmp_path / "house_pack").mkdir()
    (tmp_path / "house_pack" / "__init__.py").write_text("WORD = 'first'\n")
    (tmp_path / "house_pack" / "said.py").write_text(
        "import house_pack\n\ndef say(text, about):\n    return house_pack.WORD\n"
    )
    (tmp_path / "house_pack" / "inner.py").write_text("def say(text, about):\n    return text\n")
    before = load_extension("house_pack.inner:say", tmp_path, "here").fingerprint
    (tmp_path / "house_pack" / "__init__.py").write_text("WORD = 'other'\n")
    assert load_extension("house_pack.inner:say", tmp_path, "here").fingerprint != before
    assert load_extension("house_pack.said:say", tmp_path, "here").function("", None) == "other"
