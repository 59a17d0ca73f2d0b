"""The fingerprint of this package's code, by meaning: comments, docstrings and formatting do not count."""

import ast
import functools
from pathlib import Path

from model.durable import digest_bytes


@functools.cache
def code_digest(package: Path = Path(__file__).parent) -> str:
    """BLAKE3-128 over the names and syntax trees of all modules of the package, 32 hexadecimal digits."""
    trees = (
        f"{path.relative_to(package).as_posix()}\n{_meaning(path.read_text(encoding='utf-8'))}"
        for path in sorted(package.rglob("*.py"))
    )
    return digest_bytes("\0".join(trees).encode())


def _meaning(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name, body in ast.iter_fields(node):
            if isinstance(body, list):
                setattr(node, name, [statement for statement in body if not _is_docstring(statement)])
    return ast.dump(tree)


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
