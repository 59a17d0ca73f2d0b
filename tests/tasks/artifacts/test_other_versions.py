"""Unfinished builds that another version of the code or of a library left."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.artifacts import reuse
from tasks.artifacts.identity import Identity
from tasks.artifacts.reuse import IDENTITY, NONE_YET, adopt, explain_miss, other_version, write_identity
from tasks.common.code_fingerprint import Code

ROOTS, LOOP = ("model.train.rank:main",), "model.train.trainer:step"
NOW = Identity("train", Code("2", ROOTS, {LOOP: "b"}), {"rate": 1}, {"rows": "r"}, {"torch": "2.13.0", "numba": "0.68"})


def left(root: Path, identity: Identity) -> Path:
    folder = root / "work" / f"{identity.key}.000001-aa"
    folder.mkdir(parents=True)
    write_identity(folder, identity)
    return folder


def test_what_differs_in_code_and_libraries_alone_is_found(tmp_path: Path) -> None:
    then = replace(NOW, code=Code("1", ROOTS, {LOOP: "a"}), libs={"torch": "2.12.0", "numba": "0.68"})
    folder = left(tmp_path, then)
    found = other_version(tmp_path, NOW)
    assert found is not None
    assert found.folder == folder
    assert found.changed == {f"code.{LOOP}": ("a", "b"), "libs.torch": ("2.12.0", "2.13.0")}


def test_other_settings_or_rows_are_another_build(tmp_path: Path) -> None:
    left(tmp_path, replace(NOW, params={"rate": 2}))
    left(tmp_path, replace(NOW, parents={"rows": "s"}))
    left(tmp_path, NOW)
    assert other_version(tmp_path, NOW) is None


def test_one_whose_identity_is_damaged_is_named_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = left(tmp_path, replace(NOW, libs={"torch": "2.12.0"}))
    (folder / IDENTITY).write_bytes((folder / IDENTITY).read_bytes().replace(b"2.12.0", b"2.12.1"))
    assert other_version(tmp_path, NOW) is None
    assert f"{folder / IDENTITY} is damaged" in caplog.text


@pytest.mark.parametrize("looked", ["find_sealed", "is_set_aside"])
def test_what_another_process_removes_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked: str
) -> None:
    left(tmp_path, replace(NOW, libs={"torch": "2.12.0"}))
    artifact = tmp_path / "artifacts" / NOW.stage / "1"
    artifact.mkdir(parents=True)
    (artifact / "manifest.json").touch()
    look = getattr(reuse, looked)

    def look_late(path: Path, *more: str) -> object:
        shutil.rmtree(path if path.is_dir() else path.parent)
        return look(path, *more)

    monkeypatch.setattr(reuse, looked, look_late)
    if looked == "find_sealed":
        assert other_version(tmp_path, NOW) is None
    else:
        assert explain_miss(tmp_path, NOW).cause == NONE_YET


def test_an_adopted_build_is_found_by_whoever_builds(tmp_path: Path) -> None:
    left(tmp_path, replace(NOW, libs={"torch": "2.12.0"}))
    found = other_version(tmp_path, NOW)
    assert found is not None
    folder = adopt(tmp_path, found, NOW)
    assert list((tmp_path / "work").glob(f"{NOW.key}.[0-9]*")) == [folder]
    assert other_version(tmp_path, NOW) is None
