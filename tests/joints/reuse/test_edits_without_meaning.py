"""What cannot change a result hits with the same key: comments, docstrings, layout, log lines, places, surroundings."""

import ast
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts.identity import OF_CODE

pytestmark = pytest.mark.joints

Edit = Callable[[str], str]
LOGGER = "import logging\n\nlog = logging.getLogger(__name__)\n"
LOG_LINES = """
log.info("%s of %s", 1, ", ".join(sorted({"a": 1}.keys())))
log.exception(f"{len('abc')} words")
"""


def test_edits_without_meaning_hit(
    walked: Any, checkout: Path, forecaster: Callable[..., Any], joint: Callable[..., Any]
) -> None:
    """All modules are edited at once; where a stage misses all the same, its causes name the modules."""
    asking = forecaster(project=checkout)
    closures = _closures(walked)
    sources = {name: _path(checkout, name).read_text(encoding="utf-8") for name in set().union(*closures.values())}
    for reported, edit in EDITS.items():
        with joint(f"identity: {reported}") as tally:
            others = {name: edit(source) for name, source in sources.items()}
            edited = {name for name in sources if others[name] != sources[name]}
            for name in edited:
                _path(checkout, name).write_text(others[name], encoding="utf-8")
            for stage, answer in asking.ask().items():
                reported = "; ".join(answer.get("causes", [str(answer)]))
                for name in sorted(closures[stage] & edited):
                    tally.expect(f"{OF_CODE}{name}." not in reported, f"{name}: {stage} says {reported}")
                tally.expect(answer.get("outcome") == "reused", f"{stage}: {answer}")
            for name in edited:
                _path(checkout, name).write_text(sources[name], encoding="utf-8")
            tally.note = f"{len(edited)} of {len(sources)} modules of all closures; all keys stayed"


def test_another_layout_of_the_whole_checkout_hits(
    walked: Any, checkout: Path, forecaster: Callable[..., Any], joint: Callable[..., Any]
) -> None:
    with joint("identity: laid out by ruff in 60 columns") as tally:
        words = [sys.executable, "-m", "ruff", "format", "--quiet", "--isolated", "--line-length", "60", "."]
        subprocess.run(words, cwd=checkout, check=True)
        names = set().union(*_closures(walked).values())
        changed = [name for name in names if _text(checkout, name) != _text(walked.project, name)]
        for stage, answer in forecaster(project=checkout).ask().items():
            tally.expect(answer.get("outcome") == "reused", f"{stage}: {answer}")
        tally.note = f"{len(changed)} modules changed at once"
        assert changed


def test_other_surroundings_hit(
    walked: Any, checkout: Path, forecaster: Callable[..., Any], joint: Callable[..., Any], tmp_path: Path
) -> None:
    """Each a fresh process; the keys are compared with those of the run that built the pipeline."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(walked.root, elsewhere / "root")
    shutil.copytree(walked.recipe.parent, elsewhere / "inputs")
    moved = elsewhere / "inputs" / walked.recipe.name
    host = ("unshare", "--uts", "sh", "-c", 'hostname another-host && exec "$@"', "sh")
    processes: dict[str, dict[str, Any]] = {
        "the checkout in another folder": {"project": checkout},
        "another working directory": {"cwd": tmp_path},
        "another PYTHONHASHSEED": {"environment": {"PYTHONHASHSEED": "1234"}},
        "a C locale": {"environment": {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}},
        "another time zone": {"environment": {"TZ": "Pacific/Kiritimati"}},
        "one thread for everything": {"environment": {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}},
        "optimised byte code": {"environment": {"PYTHONOPTIMIZE": "2"}},
        "another user and home": {"environment": {"HOME": str(tmp_path), "USER": "another", "LOGNAME": "another"}},
    }
    if _may_name_the_host(host):
        processes["another host name"] = {"before": host}
    requests: dict[str, dict[str, Any]] = {
        "the artifact root in another folder": {"root": elsewhere / "root"},
        "the sources in another folder": {"recipe": moved},
        "sources and root in another folder": {"recipe": moved, "root": elsewhere / "root"},
    }
    settings = [
        *("clean.workers=4", "dedup.threads=1", "decontaminate.workers=8", "chunk.workers=3", "name='renamed'"),
        *("train.checkpoint_steps=3", "train.keep_checkpoints=9", "train.hang_seconds=5", "dedup.memory_bytes=4096"),
    ]
    with joint("identity: surroundings changed") as tally:
        existing = {path.parent.name: path.name for path in walked.root.glob("artifacts/*/*")}

        def expect(reported: str, answers: dict[str, Any]) -> None:
            for stage, answer in answers.items():
                same = (answer.get("key"), answer.get("outcome")) == (existing[stage], "reused")
                tally.expect(same, f"{reported}: {stage} says {answer}")

        for reported, options in processes.items():
            expect(reported, forecaster(**options).ask())
        asking = forecaster()
        for reported, places in requests.items():
            expect(reported, asking.ask(**places))
        for setting in settings:
            expect(setting, asking.ask(setting))
        tally.note = f"{len(processes) + len(requests) + len(settings)} surroundings; all keys stayed"


def _may_name_the_host(before: tuple[str, ...]) -> bool:
    if shutil.which(before[0]) is None:
        return False
    return subprocess.run([*before, "true"], capture_output=True, check=False).returncode == 0


def _closures(walked: Any) -> dict[str, set[str]]:
    """Stage -> the modules in which the definitions are that its fingerprint holds."""
    return {
        stage: {name.partition(":")[0] for name in manifest["identity_parts"]["code"]["definitions"] if ":" in name}
        for stage, manifest in walked.manifests().items()
    }


def _path(project: Path, module: str) -> Path:
    base = project.joinpath(*module.split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def _text(project: Path, module: str) -> str:
    return _path(project, module).read_text(encoding="utf-8")


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _is_docstring(statement: Any) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str)


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _comments(source: str) -> str:
    """A comment after every whole statement's line, and a block of them at both ends."""
    ends = {node.end_lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Return | ast.Assign)}
    lines = [f"{line}  # noted" if number in ends else line for number, line in enumerate(source.split("\n"), start=1)]
    return "# before all\n\n" + "\n".join(lines) + "\n# after all\n"


def _docstrings(source: str) -> str:
    tree: Any = ast.parse(source)
    for block in _blocks(tree):
        for statement in block:
            if _is_docstring(statement):
                statement.value = ast.Constant("Other words, 'quoted' and \\n broken.")
    return ast.unparse(tree)


def _no_docstrings(source: str) -> str:
    tree = ast.parse(source)
    for block in _blocks(tree):
        kept = [statement for statement in block if not _is_docstring(statement)]
        block[:] = kept or [ast.Pass() for _ in block[:1]]
    return ast.unparse(tree)


def _log_lines(source: str) -> str:
    """A logger in every module, and a log line at the head of every function."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body[0:0] = ast.parse(LOG_LINES).body
    at = 0
    while at < len(tree.body) and (_is_docstring(tree.body[at]) or _is_future(tree.body[at])):
        at += 1
    tree.body[at:at] = ast.parse(LOGGER).body
    return ast.unparse(tree)


def _no_log_lines(source: str) -> str:
    """Without the logger and its lines, where a module has them."""
    lines = source.split("\n")
    for node in reversed(ast.parse(source).body):
        if ast.unparse(node) in ("import logging", "log = logging.getLogger(__name__)"):
            del lines[node.lineno - 1 : node.end_lineno]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith("log.info("):
            return _no_log_lines(source.replace(ast.get_source_segment(source, node) or "", '""'))
    return "\n".join(lines)


def _blank_lines(source: str) -> str:
    """Blank lines before every statement at the top, trailing blanks, and no line feed at the end."""
    lines = source.split("\n")
    for node in reversed(ast.parse(source).body):
        line = min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", []))])
        lines[line - 1 : line - 1] = ["", "   ", ""]
    return "\n".join(lines).rstrip("\n")


EDITS: dict[str, Edit] = {
    "comments added": _comments,
    "docstrings changed": _docstrings,
    "docstrings removed": _no_docstrings,
    "laid out anew from the syntax tree": lambda source: ast.unparse(ast.parse(source)),
    "blank lines": _blank_lines,
    "line ends of another system": lambda source: source.replace("\n", "\r\n"),
    "log lines added": _log_lines,
    "log lines removed": _no_log_lines,
}
