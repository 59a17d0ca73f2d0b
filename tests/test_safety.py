"""What may never be done with what others wrote, read from the source of every module: no shell runs it, no pickle of
it is loaded, no archive of it is unpacked, none of it is evaluated.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).parents[1]
SHELLS = {"system", "popen", "getoutput", "getstatusoutput", "create_subprocess_shell"}
UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
ARCHIVES = {"tarfile", "zipfile", "unpack_archive"}
OF_A_PINNED_PACKAGE = {"tasks/clean/filters/language.py", "flows/inspection/fields.py"}
"""py3langid's own model is a pickle within its wheel, which requirements.lock pins: it is code as its modules are."""
BETWEEN_PROCESSES = {"tasks/execution/dask_worker.py"}
"""Work on its way to a cluster's processes, over the wire that the driver itself opened; nothing of it is stored."""


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax tree of every module by its name; read by the first test, and not in each process that only
    collects tests."""
    return {
        path.relative_to(PROJECT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for package in ("flows", "tasks", "model", "benchmarks", "deployments")
        for path in sorted((PROJECT / package).rglob("*.py"))
    }


@functools.cache
def calls(tree: ast.AST) -> list[tuple[str, str, ast.Call]]:
    """(what it is called on, name, call) of every call: ("torch", "load", ...) for `torch.load(...)`."""
    return list(_calls(tree))


def _calls(tree: ast.AST) -> Iterator[tuple[str, str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield ast.unparse(node.func.value), node.func.attr, node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield "", node.func.id, node


def given(call: ast.Call, name: str) -> str | None:
    """The source of a keyword argument, None where it is not given."""
    return next((ast.unparse(word.value) for word in call.keywords if word.arg == name), None)


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
            names.update(alias.name for alias in node.names)
    return names


def reaches_a_shell(tree: ast.AST) -> bool:
    through_a_call = any(
        (name in SHELLS and owner in ("", "os", "subprocess", "asyncio")) or given(call, "shell") not in (None, "False")
        for owner, name, call in calls(tree)
    )
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.List | ast.Tuple)]
    words = [[item.value for item in node.elts if isinstance(item, ast.Constant)] for node in lists]
    return through_a_call or any(line[1:2] == ["-c"] and str(line[0]).endswith("sh") for line in words)


def unpickles(tree: ast.AST) -> bool:
    if imported(tree) & UNPICKLERS:
        return True
    for owner, name, call in calls(tree):
        if owner == "torch" and name == "load" and given(call, "weights_only") != "True":
            return True
        if given(call, "allow_pickle") not in (None, "False") or name in ("from_pickled_model", "read_pickle"):
            return True
        if given(call, "trust_remote_code") not in (None, "False"):
            return True
    return False


def evaluates(tree: ast.AST) -> bool:
    called = {(owner, name) for owner, name, _ in calls(tree)}
    return bool(called & {("", "eval"), ("", "exec"), ("yaml", "load")})


def test_no_recipe_reaches_a_shell() -> None:
    assert len(modules()) > 300
    assert [name for name, tree in modules().items() if reaches_a_shell(tree)] == []


def test_no_pickle_is_loaded() -> None:
    found = {name for name, tree in modules().items() if unpickles(tree)}
    assert found - BETWEEN_PROCESSES == OF_A_PINNED_PACKAGE


def test_archives_are_unpacked_where_a_user_asks_for_it_alone_and_nothing_is_evaluated() -> None:
    """`init --unpack`, member by member: tests/flows/inspection/test_init.py has hostile archives."""
    assert [name for name, tree in modules().items() if imported(tree) & ARCHIVES] == ["flows/inspection/unpack.py"]
    assert [name for name, tree in modules().items() if evaluates(tree)] == []


@pytest.mark.parametrize("file", sorted((PROJECT / "deployments").glob("*.yaml")), ids=lambda path: path.name)
def test_no_deployment_runs_a_shell_script(file: Path) -> None:
    assert "run_shell_script" not in yaml.safe_dump(yaml.safe_load(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("seen_by", "source"),
    [
        (reaches_a_shell, "subprocess.run(words, shell=True)"),
        (reaches_a_shell, "subprocess.run(words, shell=asked)"),
        (reaches_a_shell, "os.system(words)"),
        (reaches_a_shell, "from os import popen\npopen(words)"),
        (reaches_a_shell, "subprocess.Popen(['/bin/sh', '-c', words])"),
        (unpickles, "import pickle"),
        (unpickles, "from joblib import load"),
        (unpickles, "torch.load(path)"),
        (unpickles, "torch.load(path, weights_only=asked)"),
        (unpickles, "numpy.load(path, allow_pickle=True)"),
        (unpickles, "AutoModel.from_pretrained(path, trust_remote_code=True)"),
        (evaluates, "eval(words)"),
        (evaluates, "yaml.load(words, yaml.Loader)"),
    ],
)
def test_the_walk_sees_what_it_looks_for(seen_by, source: str) -> None:
    assert seen_by(ast.parse(source))


@pytest.mark.parametrize("seen_by", [reaches_a_shell, unpickles, evaluates])
def test_the_walk_lets_pass_what_is_safe(seen_by) -> None:
    safe = "subprocess.run(words, shell=False)\ntorch.load(path, weights_only=True)\nnumpy.load(path)\nmodel.eval()\n"
    assert not seen_by(ast.parse(safe + "['taskset', '-c', '0']\nyaml.safe_load(words)"))
