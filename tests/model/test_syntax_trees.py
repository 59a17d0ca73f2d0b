"""The text of a syntax tree depends on meaning alone, under every version of Python."""

import ast
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from model.code_digest import meaning

PROJECT = Path(__file__).resolve().parents[2]
BASE = "def f(x):\n    return x + 1\n"


def text(source: str) -> str:
    return meaning(ast.parse(source))


@pytest.mark.parametrize(
    "same",
    [
        "# a comment\ndef f(x):\n    return x + 1  # why\n",
        'def f(x):\n    """Says what f does."""\n    return x + 1\n',
        '"""Module."""\ndef f(x):\n\n\n    return (x +\n        1)\n',
        'def f(x):\n    log.info("adding to %s", x)\n    return x + 1\n',
        'def f(x):\n    logger.debug("adding")\n    return x + 1\n',
        'def f(x):\n    log.info("%s of %s", len(x), ", ".join(sorted(x)))\n    return x + 1\n',
        "import logging\nlog = logging.getLogger(__name__)\n\ndef f(x):\n    return x + 1\n",
    ],
)
def test_what_cannot_change_a_result_does_not_count(same: str) -> None:
    assert text(same) == text(BASE)


@pytest.mark.parametrize(
    "other",
    [
        "def f(x):\n    return x + 2\n",
        "def f(x):\n    return x + 1.0\n",
        "def f(x, y=0):\n    return x + 1\n",
        "def f(x):\n    return x - 1\n",
        "def f(x):\n    return y + 1\n",
        "async def f(x):\n    return x + 1\n",
        "@cache\ndef f(x):\n    return x + 1\n",
        "def f(x):\n    blog.info(x)\n    return x + 1\n",
        "def f(x):\n    log.write(x)\n    return x + 1\n",
        "def f(x):\n    log.append(x)\n    return x + 1\n",
        'def f(x):\n    log.info("%s", x.pop())\n    return x + 1\n',
        'def f(x):\n    log.info("%s", x := 3)\n    return x + 1\n',
        "LIMIT = 3\ndef f(x):\n    return x + 1\n",
    ],
)
def test_what_can_change_a_result_counts(other: str) -> None:
    assert text(other) != text(BASE)


def test_a_function_left_with_only_its_docstring_is_still_a_function() -> None:
    assert text('def f():\n    """Nothing."""\n') == text("def f():\n    pass\n")


def test_attribute_docstrings_are_help_and_not_meaning() -> None:
    assert text('class C:\n    bands: int = 16\n    """Bands."""\n') == text("class C:\n    bands: int = 16\n")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("None", "False"),
        ("1", "True"),
        ("0.0", "-0.0"),
        ('"1"', "1"),
        ('"a"', 'b"a"'),
        ("{**x}", "{None: x}"),
        ("x[:]", "x[0:]"),
        ("lambda *, a, b=1: a", "lambda *, a=1, b: a"),
        ('f"{x}"', 'f"{x!r}"'),
        ('f"{x}"', 'f"{x:.1f}"'),
        ('f"{x}y"', 'f"{x}" "z"'),
        ('f"{x=}"', 'f"{x =}"'),
        ("a.b.c", "a.c.b"),
        ("f().a.b", "f().b.a"),
        ("f(*x)", "f(**x)"),
        ("f(x=1)", "f(y=1)"),
    ],
)
def test_expressions_that_differ_have_other_texts(one: str, other: str) -> None:
    assert text(one) != text(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('"ab"', '"a" "b"'),
        ('u"ab"', '"ab"'),
        ('f"a{x}b" "c"', 'f"a{x}bc"'),
        ('"a" f"b{x}"', 'f"ab{x}"'),
        ('f"{x}" f""', 'f"{x}"'),
        ('f"{x:}"', 'f"{x}"'),
        ("x = (1, 2)", "x = 1, 2"),
        ('"\\u00e9"', '"é"'),
    ],
)
def test_two_spellings_of_one_thing_have_one_text(one: str, other: str) -> None:
    assert text(one) == text(other)


DIGEST_PROGRAM = """
import ast, hashlib, pathlib, sys
from model.code_digest import meaning
from tasks.common.definitions import Module
for path in sys.stdin.read().split("\\n"):
    source = pathlib.Path(path).read_bytes()
    digest = hashlib.sha256(meaning(ast.parse(source)).encode())
    if path.startswith(("flows/", "tasks/", "model/")):
        module = Module(path.removesuffix(".py").replace("/", "."), pathlib.Path(path), source)
        for name in sorted(module._written):
            digest.update(repr((name, module.written(name))).encode())
    print(path, digest.hexdigest())
"""


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_other_versions_of_python_write_every_file_of_the_project_alike(version: str) -> None:
    """In each file: the text of the module, and each definition of the product with all that it refers to."""
    interpreter = find_python(version)
    if interpreter is None:
        pytest.skip(f"there is no Python {version} here to compare with")
    files = [
        path.relative_to(PROJECT).as_posix()
        for package in ("flows", "tasks", "model", "tests", "benchmarks")
        for path in sorted((PROJECT / package).rglob("*.py"))
    ]
    mine, theirs = told_by(sys.executable, *files), told_by(interpreter, *files)
    assert len(mine) == len(files) > 800
    assert [line for line, other in zip(mine, theirs, strict=True) if line != other] == []


@functools.cache
def told_by(python: str, *files: str) -> list[str]:
    """A line for each file, with a digest of all that this interpreter writes of it."""
    environment = {"PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, "-c", DIGEST_PROGRAM],
        input="\n".join(files),
        text=True,
        capture_output=True,
        cwd=PROJECT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def find_python(version: str) -> str | None:
    """An interpreter of this version that runs: on the path, or where pyenv keeps them."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [Path(folder) / f"python{version}" for folder in os.environ["PATH"].split(os.pathsep)]
    for path in (*found, *sorted(kept.glob(f"{version}.*/bin/python{version}"))):
        if shutil.which(path):
            asked = [str(path), "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
            done = subprocess.run(asked, text=True, capture_output=True, check=False)
            if done.stdout.strip() == version:
                return str(path)
    return None
