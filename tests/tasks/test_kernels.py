"""Compiled kernels: their cache folder follows every edit of the room, and rooms keep kernels to themselves."""

import ast
from pathlib import Path

import pytest

from tasks import kernels
from tasks.code import PROJECT
from tasks.kernels import kernel, room_fingerprint


def test_an_edited_helper_is_another_cache_folder(tmp_path: Path) -> None:
    (tmp_path / "hashing.py").write_text("A = 1\n")
    (tmp_path / "helper.py").write_text("B = 1\n")
    before = room_fingerprint(tmp_path)
    assert room_fingerprint(tmp_path) == before
    (tmp_path / "helper.py").write_text("B = 2\n")
    assert room_fingerprint(tmp_path) != before


def test_a_kernel_is_compiled_into_the_folder_of_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels._SETTINGS, "CACHE_DIR", str(tmp_path))
    kernels._cache_folder.cache_clear()
    try:
        double = kernel(_double)
        assert double(21) == 42
        folder = tmp_path / f"kernels-tasks-{room_fingerprint(Path(__file__).parent)}"
        assert list(folder.rglob("*.nbi"))
        assert str(tmp_path) == kernels._SETTINGS.CACHE_DIR
    finally:
        kernels._cache_folder.cache_clear()


def test_without_a_writable_place_a_kernel_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("no folder")
    monkeypatch.setattr(kernels._SETTINGS, "CACHE_DIR", str(occupied))
    kernels._cache_folder.cache_clear()
    try:
        assert kernel(_double)(4) == 8
    finally:
        kernels._cache_folder.cache_clear()


def _double(value):
    return 2 * value


@pytest.mark.parametrize("room", ["dedup", "decontaminate", "tokenizing"])
def test_kernel_modules_take_compiled_code_from_their_own_room_only(room: str) -> None:
    """A kernel that called another room's kernel would keep stale code after an edit there."""
    for path in (PROJECT / "tasks" / room).glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tasks."):
                other = PROJECT.joinpath(*node.module.split(".")).with_suffix(".py")
                outside = not node.module.startswith(f"tasks.{room}") and node.module != "tasks.kernels"
                assert not (outside and other.exists() and "@kernel" in other.read_text()), (path, node.module)
