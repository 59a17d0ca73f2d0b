"""The demo's input, made from the Python that runs the tests."""

import bz2
import json
import shutil
import sysconfig
from pathlib import Path

import pytest

from flows.recipe.load import QUICKSTART, load_recipe
from flows.recipe.quickstart import CLOZE, STAMP, Installation, prepare
from model.errors import InputError


@pytest.fixture(scope="module")
def installation() -> Installation:
    paths = sysconfig.get_paths()
    return Installation(Path(paths["stdlib"]), Path(paths["purelib"]), documented=("networkx",))


@pytest.fixture(scope="module")
def folder(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("root"), installation)


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != STAMP]
    return {path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def items(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / CLOZE).read_text().splitlines()]


def test_leaked_items_are_in_the_sources_and_unseen_ones_do_not(folder: Path):
    documentation = " ".join(" ".join(path.read_text().split()) for path in folder.rglob("documentation/**/*.txt"))
    found = {item["id"]: item["match_text"] in documentation for item in items(folder)}
    leaked = [found_there for key, found_there in found.items() if key.startswith("documentation")]
    unseen = [found_there for key, found_there in found.items() if key.startswith("unseen")]
    assert len(leaked) >= 60
    assert all(leaked)
    assert len(unseen) >= 60
    assert not any(unseen)


def test_items_have_the_fields_of_a_benchmark_and_their_ids_differ(folder: Path):
    assert all({"id", "context", "choices", "answer", "match_text", "lang"} == set(item) for item in items(folder))
    assert len({item["id"] for item in items(folder)}) == len(items(folder))


def test_a_copied_root_is_prepared_already(folder: Path, installation: Installation, tmp_path: Path):
    root = folder.parent.parent
    copy = tmp_path / "elsewhere"
    shutil.copytree(root, copy)
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    assert prepare(copy, installation) == copy / folder.relative_to(root)
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


def test_prepared_again_it_is_left_as_it_is(folder: Path, installation: Installation):
    before = contents(folder)
    root = folder.parents[1]
    prepare(root, installation)
    assert contents(folder) == before
    (folder / STAMP).unlink()
    prepare(root, installation)
    assert contents(folder) == before, "made again from scratch it is the same bytes, and no file is touched"


def test_a_damaged_or_foreign_file_is_put_right(folder: Path, installation: Installation):
    before = contents(folder)
    (folder / CLOZE).write_text("{}\n")
    (folder / "documentation" / "stray").mkdir()
    (folder / "documentation" / "stray" / "x.txt").write_text("stray")
    prepare(folder.parents[1], installation)
    after = contents(folder)
    assert {name: content for name, (content, _) in after.items()} == {
        name: content for name, (content, _) in before.items()
    }
    assert not (folder / "documentation" / "stray").exists()


def test_packages_are_found_where_this_environment_borrows_them_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As with `python -m venv --system-site-packages`, whose own folder holds no package that Bessemer needs."""
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": "/lib", "purelib": str(tmp_path)})
    assert Installation.current().readmes()
    assert (Installation.current().site_packages / "prefect" / "__init__.py").is_file()


def test_a_python_stripped_of_its_documentation_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="documentation was stripped"):
        prepare(tmp_path / "root", Installation(tmp_path, tmp_path, documented=()))


def test_the_novels_ship_whole_with_their_licence_and_are_no_more_than_half_of_the_text(tmp_path: Path):
    (novels,) = [one for one in load_recipe(QUICKSTART, tmp_path).sample.sources if one.name == "novels"]
    assert novels.weight is not None
    assert novels.weight <= 0.5
    folder = QUICKSTART.parents[1] / "texts"
    assert [Path(path).resolve().parent for path in novels.paths] == [folder.resolve()]
    books = {path.name: bz2.decompress(path.read_bytes()).decode().splitlines() for path in folder.glob("*.bz2")}
    assert {name: len(lines) for name, lines in books.items()} == {
        "pride_and_prejudice.jsonl.bz2": 61,
        "war_and_peace.jsonl.bz2": 369,
    }
    chapters = [json.loads(line) for lines in books.values() for line in lines]
    assert len({chapter["id"] for chapter in chapters}) == 430
    assert any("a truth universally acknowledged" in chapter["text"] for chapter in chapters)
    about = (folder / "README.md").read_text(encoding="utf-8")
    assert "CC0 1.0" in about
    assert all(name in about for name in books)


def test_no_item_is_a_paragraph_of_licences_so_that_licences_can_be_held_out(folder: Path):
    assert {item["id"].partition("-")[0] for item in items(folder)} == {"documentation", "readme", "unseen"}


def test_a_root_that_cannot_be_made_is_named_before_text_is_collected(capsys: pytest.CaptureFixture[str]):
    """As one under /proc, of which even root may make none."""
    with pytest.raises(InputError, match="--root /dev/null/root: cannot be written"):
        prepare(Path("/dev/null/root"))
    assert not capsys.readouterr().err
