"""Which sampled documents an id or a part of a path names, and why a file has none."""

import os
from pathlib import Path

import pytest

from flows.recipe.load import load_recipe
from flows.removal.affected import Request, requested_ids
from flows.runs.run_documents import find_documents, rejects_of
from flows.runs.unsampled_files import ListedFile, explain_unsampled
from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.sample.discovery import find_files
from tasks.sample.stage import build_sample

RECIPE = """
format = 1
name = "letters"
budget_tokens = "1K"
[[sources]]
name = "letters"
paths = ["{recipe}/letters"]
format = "text"
weight = 1.0
"""


@pytest.fixture
def sampled(tmp_path: Path) -> Artifact:
    """Two letters, in folders by year and month."""
    for month in ("05", "06"):
        (tmp_path / "letters" / "2019" / month).mkdir(parents=True)
        (tmp_path / "letters" / "2019" / month / "letter.txt").write_text(f"A letter of month {month}, kept whole.")
    (tmp_path / "letters.toml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "letters.toml", tmp_path / "root")
    return build_sample(RunContext(tmp_path / "root", "run"), recipe.sample)


def test_a_folder_of_digits_is_not_taken_for_the_piece_of_a_document(sampled: Artifact) -> None:
    """Else `data forget 2019/05` would remove the documents of 2019/06 too."""
    paths = {row["doc_id"]: row["origin"]["path"] for row in sampled.table("documents").to_pylist()}
    (found,) = find_documents({"sample": sampled}, "2019/05")
    assert paths[found] == "2019/05/letter.txt"
    assert set(find_documents({"sample": sampled}, "2019/")) == set(paths)


def test_a_piece_names_its_document(sampled: Artifact) -> None:
    for doc_id in sampled.table("documents").column("doc_id").to_pylist():
        for wanted in (doc_id.hex(), f"{doc_id.hex()}/0", f"{doc_id.hex()[:12].upper()}/3"):
            assert find_documents({"sample": sampled}, wanted) == [doc_id]
        assert find_documents({"sample": sampled}, f"{doc_id.hex()}/x") == []


def test_a_file_name_that_is_no_utf_8_is_found_as_a_shell_gives_it(sampled: Artifact, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / "letters" / name).write_text("A letter from the café at the corner.")
    recipe = load_recipe(tmp_path / "letters.toml", tmp_path / "root")
    artifacts = {"sample": build_sample(RunContext(tmp_path / "root", "more"), recipe.sample)}
    (found,) = find_documents(artifacts, name)
    assert find_documents(artifacts, "caf\\xe9.txt") == [found]
    assert rejects_of(artifacts, name) == []
    assert requested_ids(tmp_path / "root", "more", artifacts, recipe, Request(files=(name,))) == {found}


def test_every_file_that_a_removal_names_was_sampled(sampled: Artifact, tmp_path: Path) -> None:
    """Else a typing error would leave a document behind, and the certificate would not say so."""
    recipe = load_recipe(tmp_path / "letters.toml", tmp_path / "root")

    def ids(*files: str) -> set[bytes]:
        return requested_ids(tmp_path / "root", "run", {"sample": sampled}, recipe, Request(files=files))

    assert len(ids("2019/05/letter.txt", "2019/06/letter.txt")) == 2
    with pytest.raises(InputError, match=r"--file 2019/6/letter.txt: run run sampled no document of this file"):
        ids("2019/05/letter.txt", "2019/6/letter.txt")


def test_a_removal_that_names_nothing_says_what_may_be_named(sampled: Artifact, tmp_path: Path) -> None:
    recipe = load_recipe(tmp_path / "letters.toml", tmp_path / "root")
    for request, problem in (
        (Request(promote=True), "is unfinished. Name documents to remove"),
        (Request(documents=("",)), r'"" is a part of every path. Name documents by ids'),
        (Request(sources=("leters",)), r"--source leters: the recipe has no such source; it has letters$"),
    ):
        with pytest.raises(InputError, match=problem):
            requested_ids(tmp_path / "root", "run", {"sample": sampled}, recipe, request)


def test_a_file_whose_documents_are_excluded_is_not_called_empty(sampled: Artifact, tmp_path: Path) -> None:
    root = tmp_path / "root"
    first = sampled.table("documents").to_pylist()[0]
    excluding = [f'sample.exclude_documents=["{first["doc_id"].hex()}"]']
    recipe = load_recipe(tmp_path / "letters.toml", root, excluding)
    without = build_sample(RunContext(root, "without"), recipe.sample)
    (listing,) = find_files(recipe.sample)
    file = next(file for file in listing.files if file.relative == first["origin"]["path"])
    asked = ListedFile(file, was_read=True)
    assert explain_unsampled(asked, without).endswith("or sample.exclude_documents leaves its records out")
    assert explain_unsampled(asked, sampled).endswith("it holds no record with a text")
