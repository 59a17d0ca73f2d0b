"""Change one place of the code at a time and see whether the default tests notice.

    python benchmarks/mutants.py --folder FOLDER [--seed 1] [--count 100] [--again] [--table]

The changes are those of `mutants.json`, drawn from an early commit, and `--count` more that `--seed` draws from the
lines of flows, tasks and model: a comparison, an operator of arithmetic, a boolean or a constant becomes its neighbour.
Each is made in a copy of the project in FOLDER, and the tests run that reach the changed file, to the first failure:
those that import it, then the others of its package, nearest first, for `--limit` seconds together. Verdicts are JSON
lines, so that a later call goes on; `--again` tries once more what was not killed, after tests were added; `--table`
only prints. At the end the tests that killed must pass in the copy unchanged."""

import argparse
import ast
import contextlib
import difflib
import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
ROOTS = ("flows", "tasks", "model")
KNOWN = Path(__file__).with_suffix(".json")
"""`early`: changes of an early commit; `equivalent`: changes that no test can notice, by file, with the reason."""
OPEN = (None, "near")
MOST_ELSEWHERE = 5
"""Tests of other packages that import a file run too where they are as few as this."""
HANG_SECONDS = 60
"""No default test takes a third of it."""
SLOW = {"chaos", "joints", "browser", "prove_resume", "prove_data", "prove_labels", "prove_forget"}
NEIGHBOURS = {
    "Lt": ("<", "<="), "LtE": ("<=", "<"), "Gt": (">", ">="), "GtE": (">=", ">"), "Eq": ("==", "!="),
    "NotEq": ("!=", "=="), "Is": ("is", "is not"), "IsNot": ("is not", "is"), "In": ("in", "not in"),
    "NotIn": ("not in", "in"), "Add": ("+", "-"), "Sub": ("-", "+"), "Mult": ("*", "/"), "Div": ("/", "*"),
    "FloorDiv": ("//", "*"), "Mod": ("%", "*"), "And": ("and", "or"), "Or": ("or", "and"),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A changed line, without its indentation; kind `remove` replaces the whole statement."""

    file: str
    line: int
    kind: str
    was: str
    becomes: str

    @property
    def change(self) -> str:
        """The change as a key of `equivalent`: the same line of another file may decide something."""
        return f"{self.file}: {self.was} -> {self.becomes}"


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    verdict: str
    """`killed`, `near` (survived the nearest tests), `survived`, `timeout` or `gone`: the package has no such line."""
    tests: str
    """What killed it; otherwise the tests that ran."""
    seconds: float


def sources(tree: Path) -> dict[str, str]:
    """Return the product's code by path from the tree."""
    paths = (path for root in ROOTS for path in sorted((tree / root).rglob("*.py")))
    return {path.relative_to(tree).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def draw(seed: int, count: int) -> list[Mutant]:
    """Draw lines of code by a seeded counter until `count` of them could be changed."""
    sites: dict[tuple[str, int], list[Mutant]] = {}
    lines: list[tuple[str, int]] = []
    for file, text in sources(PROJECT).items():
        numbered = enumerate(text.splitlines(), 1)
        lines += [(file, number) for number, line in numbered if line.strip() and not line.strip().startswith("#")]
        for mutant in changes(file, text):
            sites.setdefault((file, mutant.line), []).append(mutant)
    drawn: dict[Mutant, None] = {}
    for counter in itertools.count():
        number = int.from_bytes(hashlib.blake2b(f"{seed} {counter}".encode()).digest())
        if choices := sites.get(lines[number % len(lines)]):
            drawn[choices[(number >> 128) % len(choices)]] = None
        if len(drawn) == count:
            return list(drawn)
    raise AssertionError("a counter has no end")


def changes(file: str, text: str) -> Iterator[Mutant]:
    """Yield every change of a module, but of messages and annotations."""
    data = text.encode()
    starts = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]

    def changed(kind: str, begin: int, end: int, old: str, new: str) -> Mutant:
        place = data.index(old.encode(), begin, end)
        line = max(number for number, start in enumerate(starts) if start <= place)
        whole = data[starts[line] : starts[line + 1]]
        there = place - starts[line]
        becomes = whole[:there] + new.encode() + whole[there + len(old.encode()) :]
        return Mutant(file, line + 1, kind, whole.decode().strip(), becomes.decode().strip())

    def span(node: ast.expr) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[(node.end_lineno or 0) - 1] + (
            node.end_col_offset or 0
        )

    def visit(node: ast.AST) -> Iterator[Mutant]:
        between: Sequence[tuple[ast.expr, ast.AST, ast.expr]] = []
        kind = "compare"
        match node:
            case ast.Raise() | ast.JoinedStr() | ast.Call(func=ast.Attribute(value=ast.Name(id="log"))):
                return
            case ast.Compare(left=left, ops=ops, comparators=others):
                between = list(zip([left, *others], ops, others, strict=False))
            case ast.BoolOp(op=op, values=values):
                kind, between = "bool", [(one, op, other) for one, other in itertools.pairwise(values)]
            case ast.BinOp(left=left, op=op, right=right):
                if type(op).__name__ in NEIGHBOURS and not is_text(left) and not is_text(right):
                    kind, between = "arith", [(left, op, right)]
            case ast.UnaryOp(op=ast.Not()):
                yield changed("bool", *span(node), "not ", "")
            case ast.Constant(value=bool(value)):
                yield changed("bool", *span(node), str(value), str(not value))
            case ast.Constant(value=int(value) | float(value)):
                nearby = value + 1 if isinstance(value, int) or not value else value * 1.5
                yield changed("const", *span(node), data[slice(*span(node))].decode(), str(nearby))
        for one, op, other in between:
            yield changed(kind, span(one)[1], span(other)[0], *NEIGHBOURS[type(op).__name__])
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and field not in {"annotation", "returns", "msg"}:
                    yield from visit(child)

    yield from visit(ast.parse(text))


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def find(mutant: Mutant, code: dict[str, str]) -> tuple[str, int] | None:
    """Return where the line is in today's code: in its file, else in the most alike path of its package, or of its root
    where that package is no more."""
    package = package_of(mutant.file)
    within = package if any(file.startswith(f"{package}/") for file in code) else package.partition("/")[0]
    found: list[tuple[bool, float, int, str, int]] = []
    for file in [file for file in code if file == mutant.file or file.startswith(f"{within}/")]:
        alike = difflib.SequenceMatcher(None, file, mutant.file).ratio()
        numbers = [number for number, line in enumerate(code[file].splitlines(), 1) if line.strip() == mutant.was]
        found += [(file == mutant.file, alike, -abs(number - mutant.line), file, number) for number in numbers]
    return max(found)[3:] if found else None


def applied(mutant: Mutant, text: str, line: int) -> str:
    lines = text.splitlines(keepends=True)
    last = line
    if mutant.kind == "remove":
        statements = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt))
        last = next(node.end_lineno or line for node in statements if node.lineno == line)
    indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
    return "".join([*lines[: line - 1], f"{indent}{mutant.becomes}\n", *lines[last:]])


def package_of(file: str) -> str:
    return "/".join(Path(file).with_suffix("").parts[:2])


@functools.cache
def imports() -> dict[str, set[str]]:
    """Return what each file of product and tests imports, as files."""
    files = [*sources(PROJECT), *(path.relative_to(PROJECT).as_posix() for path in (PROJECT / "tests").rglob("*.py"))]
    by_name = {file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in files}
    found: dict[str, set[str]] = {file: set() for file in files}
    for file in files:
        for node in ast.walk(ast.parse((PROJECT / file).read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            found[file].update(by_name[name] for name in names if name in by_name)
    return found


def tests_of(file: str) -> tuple[list[str], list[str]]:
    """Return the test modules nearest to a file, and the others of its package, by number of imports between."""
    distance = {file: 0}
    for steps in range(1, 10):
        distance |= {
            one: steps for one, others in imports().items() if one not in distance and others & distance.keys()
        }
    home = f"tests/{package_of(file)}/"
    stem = Path(file).stem
    tests = [one for one in imports() if Path(one).name.startswith("test_") and not SLOW & set(Path(one).parts)]
    direct = [one for one in tests if distance.get(one) == 1 and not one.startswith(home)]
    of_package = [one for one in tests if one.startswith(home)]
    of_package += direct if len(direct) <= MOST_ELSEWHERE or not of_package else []

    def nearness(one: str) -> tuple[bool, int, int]:
        return Path(one).stem != f"test_{stem}", distance.get(one, 10), (PROJECT / one).stat().st_size

    ordered = sorted(of_package, key=nearness)
    near = [one for one in ordered if not nearness(one)[0] or distance.get(one) == 1] or ordered[:2]
    return near, [one for one in ordered if one not in near]


def pytest(tree: Path, tests: list[str], seconds: float) -> tuple[int | None, str]:
    """Run tests in the copy to the first failure; return the exit code, None when time was up, and the output."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "NUMBA_CACHE_DIR": str(tree.parent / "kernels")}
    shutil.rmtree(tree / ".hypothesis", ignore_errors=True)  # what failed under one change is not tried on others
    hang = ["-o", f"faulthandler_timeout={HANG_SECONDS}", "-o", "faulthandler_exit_on_timeout=true"]
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-xv",
        "--tb=no",
        "--hypothesis-seed=1",
        *hang,
        f"--basetemp={tree.parent / 'scratch'}",
        *tests,
    ]
    with (tree.parent / "output").open("w+") as output:
        child = subprocess.Popen(
            words, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        output.seek(0)
        return code, output.read()


def judge(mutant: Mutant, tree: Path, code: dict[str, str], limit: float, *, is_wide: bool) -> Verdict:
    where = find(mutant, code)
    if where is None:
        return Verdict(mutant, "gone", "", 0.0)
    file, line = where
    near, wide = tests_of(file)
    tests = wide if is_wide else near
    began = time.monotonic()
    (tree / file).write_text(applied(mutant, code[file], line), encoding="utf-8")
    try:
        status, output = pytest(tree, tests, limit) if tests else (0, "")
    finally:
        (tree / file).write_text(code[file], encoding="utf-8")
    seconds = round(time.monotonic() - began, 1)
    reached = [*tests[:1], *re.findall(r"^(tests/\S+::\S+)", output, re.MULTILINE)][-1:]
    if status is None:
        return Verdict(mutant, "timeout", f"in {reached[0]}", seconds)
    assert status != 4 or "while loading conftest" in output, output  # pytest refuses the command
    if status not in (0, 5):
        killer = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", output, re.MULTILINE)
        return Verdict(mutant, "killed", killer[1] if killer else f"hangs or crashes in {reached[0]}", seconds)
    if not is_wide:
        return Verdict(mutant, "near", f"all {len(near)} nearest", seconds)
    return Verdict(mutant, "survived", f"all {len(near) + len(wide)} of the package", seconds)


def table(groups: dict[str, list[Mutant]], verdicts: list[Verdict], equivalent: dict[str, str]) -> str:
    """Return counts by group and package, and below them what was not killed with the tests that ran."""
    last = {verdict.mutant: verdict for verdict in verdicts}
    before = {verdict.mutant for verdict in verdicts if verdict.verdict == "survived"}
    names = ("killed", "timeout", "near", "survived", "equivalent", "gone", "not run", "survived before")
    counts: dict[str, Counter[str]] = {}
    left: list[str] = []
    for group, mutants in groups.items():
        for mutant in mutants:
            same = equivalent.get(mutant.change)
            verdict = last.get(mutant, Verdict(mutant, "not run", "", 0.0))
            for row in (group, package_of(mutant.file)):
                count = counts.setdefault(row, Counter())
                count["equivalent" if same else verdict.verdict] += 1
                count["survived before"] += mutant in before and not same
            if same or verdict.verdict in ("near", "survived", "timeout"):
                left.append(f"{verdict.verdict} {mutant.file}:{mutant.line}\n  {mutant.was}\n  {mutant.becomes}")
                left.append(f"  {f'equivalent: {same}' if same else verdict.tests}")
    rows = [f"{row:<24}" + "".join(f"{counts[row][name]:>11}" for name in names) for row in sorted(counts)]
    return "\n".join([f"{'':<24}" + "".join(f"{name:>11}" for name in names[:-1]) + "   (before)", *rows, *left])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--limit", type=float, default=240, help="seconds for one mutant")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    known = json.loads(KNOWN.read_text(encoding="utf-8"))
    record, choice = folder / "verdicts.jsonl", folder / f"drawn-{asked.seed}-{asked.count}.json"
    folder.mkdir(parents=True, exist_ok=True)
    if not choice.exists():  # later calls try the same changes, though the code may have moved
        choice.write_text(json.dumps([asdict(one) for one in draw(asked.seed, asked.count)], indent=1))
    groups = {
        "early": [Mutant(**one) for one in known["early"]],
        "drawn": [Mutant(**one) for one in json.loads(choice.read_text())],
    }
    mutants = [*groups["drawn"], *groups["early"]]
    lines = record.read_text().splitlines() if record.exists() else []
    verdicts = [Verdict(Mutant(**one.pop("mutant")), **one) for one in map(json.loads, lines)]
    last = {verdict.mutant: verdict.verdict for verdict in verdicts}
    equivalent = known["equivalent"]
    wanted = [one for one in mutants if last.get(one) in ([*OPEN, "survived", "timeout"] if asked.again else OPEN)]
    wanted = [one for one in wanted if one.change not in equivalent]
    if wanted and not asked.table:
        tree = folder / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        left_out = shutil.ignore_patterns(".git", ".venv", ".peers", "__pycache__", "bessemer-data")
        shutil.copytree(PROJECT, tree, ignore=left_out)
        code = sources(tree)
        first = [one for one in wanted if asked.again or last.get(one) is None]
        for mutant, is_wide in itertools.chain(((one, False) for one in first), ((one, True) for one in wanted)):
            if is_wide and last[mutant] != "near":
                continue
            verdicts.append(judge(mutant, tree, code, asked.limit, is_wide=is_wide))
            last[mutant] = verdicts[-1].verdict
            with record.open("a") as stream:
                stream.write(json.dumps(asdict(verdicts[-1])) + "\n")
            print(verdicts[-1].verdict, mutant.file, mutant.line, verdicts[-1].tests, verdicts[-1].seconds, flush=True)
        killers = sorted({one.tests for one in verdicts if one.verdict == "killed" and "hangs" not in one.tests})
        status, output = pytest(tree, killers, 3600)
        assert status == 0, f"tests that killed fail in the unchanged copy:\n{output[-3000:]}"
    print(table(groups, verdicts, equivalent))


if __name__ == "__main__":
    main()
