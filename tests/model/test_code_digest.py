"""Which parts of the code enter its digest."""

from pathlib import Path

import pytest

from model.code_digest import code_digest

SOURCE = '''"""A module."""
RATE = 1
"""Of something."""


def double(x):
    """Twice x."""
    return 2 * x
'''


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("Twice x.", "x and x.", False),
        ("Of something.", "Of nothing.", False),
        ("RATE = 1", "RATE   =   1  # one", False),
        ("2 * x", "x * 2", True),
        ("RATE = 1", "RATE = 2", True),
        ("double", "twofold", True),
    ],
)
def test_only_meaning_counts(tmp_path: Path, old: str, new: str, counts: bool) -> None:
    digests = []
    for name, text in (("before", SOURCE), ("after", SOURCE.replace(old, new))):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "module.py").write_text(text)
        digests.append(code_digest(tmp_path / name))
    assert (digests[0] != digests[1]) is counts


def test_names_of_modules_count(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text(SOURCE)
    assert code_digest(tmp_path / "one") != code_digest(tmp_path / "two")


def test_a_function_without_a_body_but_its_docstring_is_read(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text('def nothing():\n    """Does nothing."""\n')
    assert len(code_digest(tmp_path)) == 32
