"""A byte that changed after publication is found and named, whatever file it is in."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from flows.cli import app
from flows.upkeep.verify import set_aside, verify
from tasks.artifacts.manifest import read_manifest, write_manifest
from tasks.artifacts.published import artifacts_under


def flip(path: Path, offset: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset % len(data)] ^= 1 << bit
    path.write_bytes(data)


def test_sound_artifacts_are_all_hashed(root: Path) -> None:
    heard: list[tuple[int, int]] = []
    found = verify(artifacts_under(root), lambda done, total: heard.append((done, total)))
    files = [path for path in root.glob("artifacts/*/*/*") if path.name != "manifest.json"]
    assert (found.artifacts, found.files, found.damages) == (3, len(files), ())
    assert found.bytes == sum(path.stat().st_size for path in files)
    assert heard[-1] == (found.bytes, found.bytes)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_bit_of_any_file_is_found_and_named(root: Path, data: st.DataObject) -> None:
    paths = sorted(path for path in root.glob("artifacts/*/*/*.arrow") if path.stat().st_size)
    path = data.draw(st.sampled_from(paths))
    offset, bit = data.draw(st.integers(0, path.stat().st_size - 1)), data.draw(st.integers(0, 7))
    flip(path, offset, bit)
    (damage,) = verify(artifacts_under(root)).damages
    assert (damage.place, damage.file) == (path.parent, path.name)
    flip(path, offset, bit)


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda m: m["identity_parts"]["libs"].update(numpy="0.1"), "its identity is not the digest of the parts"),
        (lambda m: m["files"][0].update(digest="0" * 32), "its content digest is not that of the files"),
        (lambda m: m.update(format=99), "is an artifact of format 99"),
        (lambda m: m.pop("content"), "is not a finished artifact"),
    ],
)
def test_a_manifest_that_was_edited_contradicts_itself(root: Path, edit, problem: str) -> None:
    (path,) = root.glob("artifacts/dedup/*/manifest.json")
    manifest = read_manifest(path.parent)
    edit(manifest)
    write_manifest(path.parent, manifest)
    assert any(damage.file == "manifest.json" and problem in damage.problem for damage in verify([path.parent]).damages)


def test_a_quick_look_hashes_only_what_was_touched(root: Path) -> None:
    whole = verify(artifacts_under(root))
    quick = verify(artifacts_under(root), quick=True)
    assert (quick.files, quick.bytes, quick.trusted, quick.damages) == (0, 0, whole.files, ())
    touched, shorter, gone = (
        sorted(root.glob("artifacts/sample/*/part-*.arrow"))[0],
        *sorted(root.glob("artifacts/dedup/*/*.arrow"))[:2],
    )
    flip(touched, 0, 0)
    os.truncate(shorter, shorter.stat().st_size - 1)
    gone.unlink()
    found = verify(artifacts_under(root), quick=True)
    assert {(damage.place, damage.file) for damage in found.damages} == {
        (path.parent, path.name) for path in (touched, shorter, gone)
    }
    assert found.files == 3


def test_a_file_that_was_written_again_with_the_same_bytes_is_hashed_and_fine(root: Path) -> None:
    path = sorted(root.glob("artifacts/sample/*/part-*.arrow"))[0]
    path.write_bytes(path.read_bytes())
    found = verify(artifacts_under(root), quick=True)
    assert (found.files, found.damages) == (1, ())


def test_missing_and_unlisted_files_are_named(root: Path) -> None:
    (folder,) = root.glob("artifacts/clean/*")
    gone = sorted(folder.glob("ledger-*"))[0]
    gone.unlink()
    (folder / "notes.txt").write_text("mine")
    problems = {damage.problem for damage in verify([folder]).damages}
    assert problems == {"is missing", "the file notes.txt is not listed in it"}


def test_the_command_names_the_damage_sets_it_aside_and_exits_with_5(root: Path) -> None:
    (part,) = root.glob("artifacts/clean/*/part-00000.arrow")
    flip(part, 100, 3)
    said = CliRunner().invoke(app, ["store", "verify", "clean", "--root", str(root)])
    assert said.exit_code == 5
    assert f"clean/{part.parent.name}/part-00000.arrow: has the digest" in " ".join(said.stdout.split())
    aside = json.loads(
        CliRunner().invoke(app, ["store", "verify", "--set-aside", "--root", str(root), "--json"]).stdout
    )
    assert [Path(path).name.partition(".")[0] for path in aside["set_aside"]] == [part.parent.name]
    assert not part.exists()
    assert CliRunner().invoke(app, ["store", "verify", "--root", str(root)]).exit_code == 0


def test_nothing_to_verify_is_an_error(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["store", "verify", "--root", str(tmp_path)]).exit_code == 3


def test_what_is_set_aside_is_not_used_again(root: Path) -> None:
    (folder,) = root.glob("artifacts/dedup/*")
    os.unlink(next(folder.glob("part-*")))
    (aside,) = set_aside(verify([folder]).damages)
    assert artifacts_under(root, "dedup") == []
    assert Path(aside).exists()


def test_what_a_killed_collection_left_half_removed_is_not_used_and_is_no_damage(root: Path) -> None:
    (folder,) = artifacts_under(root, "dedup")
    folder.rename(folder.with_name(f".removed-12345678-{folder.name}"))
    assert artifacts_under(root, "dedup") == []
    assert verify(artifacts_under(root)).damages == ()
