"""Fingerprints of code from the user's cache: those of the same bytes, for every checkout, and of no others."""

import os
from pathlib import Path

import pytest

from tasks.common import code_cache
from tasks.common.code_cache import FOLDER, MAX_STATES, cached_code_of, project_state
from tasks.common.code_fingerprint import code_of

ROOTS = ("tasks.common.digests:combined_digest",)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bessemer" / FOLDER


def count(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Count from now on what is computed."""
    computed: list[tuple[str, ...]] = []
    monkeypatch.setattr(code_cache, "code_of", lambda roots: computed.append(tuple(roots)) or code_of(roots))
    return computed


def test_an_answer_is_computed_once_and_equals_the_computed_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = count(monkeypatch)
    first, second = cached_code_of(ROOTS), cached_code_of(ROOTS)
    assert first == second == code_of(ROOTS)
    assert computed == [ROOTS]
    assert [path.name for path in cache.iterdir()] == [project_state()]


@pytest.mark.parametrize("damage", [lambda data: data[:50], lambda data: data.replace(b"a", b"b"), lambda data: b""])
def test_a_damaged_answer_is_computed_again(cache: Path, damage, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached_code_of(ROOTS)
    (file,) = cache.rglob("*.json")
    file.write_bytes(damage(file.read_bytes()))
    computed = count(monkeypatch)
    assert cached_code_of(ROOTS) == first
    assert computed == [ROOTS]


def test_any_byte_of_any_file_is_another_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    for name in ("flows/a.py", "tasks/b.py", "model/c/d.txt"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x = 1\n")
    monkeypatch.setattr(code_cache, "PROJECT", project)
    states = {project_state()}
    (project / "model/c/d.txt").write_text("x = 2\n")
    os.utime(project / "model/c/d.txt", ns=(1, 1))
    states.add(project_state())
    (project / "tasks/e.py").touch()
    states.add(project_state())
    (project / "tasks/e.py").rename(project / "tasks/f.py")
    states.add(project_state())
    assert len(states) == 4
    (project / "tasks/__pycache__").mkdir()
    (project / "tasks/__pycache__/b.pyc").touch()
    states.add(project_state())
    assert len(states) == 4


def test_links_to_nothing_and_files_that_go_meanwhile_end_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / "tasks").mkdir(parents=True)
    (project / "tasks/a.py").write_text("x = 1\n")
    monkeypatch.setattr(code_cache, "PROJECT", project)
    state = project_state()
    (project / "tasks/b.py").symlink_to("nowhere")
    assert project_state() == state
    (project / "tasks/c.py").write_text("x = 2\n")
    digest = code_cache.digest_bytes

    def remove_meanwhile(data: bytes) -> str:
        (project / "tasks/c.py").unlink(missing_ok=True)
        return digest(data)

    monkeypatch.setattr(code_cache, "digest_bytes", remove_meanwhile)
    assert project_state() == state


def test_old_states_are_removed(cache: Path) -> None:
    for number in range(MAX_STATES + 3):
        (cache / f"{number:032x}").mkdir(parents=True)
        os.utime(cache / f"{number:032x}", ns=(number, number))
    cached_code_of(ROOTS)
    kept = {path.name for path in cache.iterdir()}
    assert len(kept) == MAX_STATES
    assert project_state() in kept
    assert f"{0:032x}" not in kept


def test_without_a_writable_cache_the_answer_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert cached_code_of(ROOTS) == code_of(ROOTS)
