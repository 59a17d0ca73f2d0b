"""The fingerprint of this package's code, by meaning: comments, docstrings and formatting do not count."""

import ast
import functools
from pathlib import Path

from model.reading import digest_bytes
from model.syntax import meaning


@functools.cache
def code_digest(package: Path = Path(__file__).parent) -> str:
    """BLAKE3-128 over the names and syntax trees of all modules of the package, 32 hexadecimal digits."""
    trees = (
        f"{path.relative_to(package).as_posix()}\n{meaning(ast.parse(path.read_bytes()))}"
        for path in sorted(package.rglob("*.py"))
    )
    return digest_bytes("\0".join(trees).encode())
