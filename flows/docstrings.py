"""Documentation as running text: the docstrings of Python modules, one text a module, and the topics of `help()`.

Every installation of Python carries a few megabytes of carefully written prose in its docstrings. Modules are parsed,
never imported.
"""

import ast
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def module_text(name: str, source: bytes) -> str | None:
    """The docstrings of a module in order, each under its dotted name; None without any.

    A source that this Python cannot parse (another syntax, a wrong encoding) has no docstrings.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Invalid escapes in other people's strings are not our business.
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    sections = [f"{dotted}\n\n{text}" for dotted, text in _docstrings(name, tree)]
    return "\n\n\n".join(sections) + "\n" if sections else None


def module_files(folder: Path, *, recursive: bool = True) -> list[tuple[str, Path]]:
    """(dotted name below `folder`, file) of its Python modules, tests left out, sorted by name."""
    found: list[tuple[str, Path]] = []
    for path in folder.rglob("*.py") if recursive else folder.glob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        if not any(part in ("tests", "test", "testing") or part.startswith("test_") for part in parts):
            found.append((".".join(part for part in parts if part != "__init__"), path))
    return sorted(found)


def help_topics() -> dict[str, str]:
    """The pages of the language reference behind `help("TOPIC")`, by topic; several topics share one page."""
    from pydoc_data.topics import topics

    pages: dict[str, str] = {}
    for topic, text in sorted(topics.items()):
        if text not in pages.values():
            pages[topic] = text
    return pages


def _docstrings(dotted: str, node: _Documented) -> Iterator[tuple[str, str]]:
    text = ast.get_docstring(node)
    if text and text.strip():
        yield dotted, text.strip()
    for child in _documented_children(node.body):
        yield from _docstrings(f"{dotted}.{child.name}", child)


def _documented_children(body: Iterable[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
