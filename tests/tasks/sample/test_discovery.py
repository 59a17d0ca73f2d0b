"""Paths, folders and patterns become files with stable names; what does not exist is an error before work begins."""

import os
import socket
from collections import Counter

import pytest
from pydantic import ValidationError

from model.errors import InputError, RecipeError
from tasks.sample import discovery
from tasks.sample.config import SampleConfig, Source, Thread
from tasks.sample.discovery import find_files
from tasks.sample.formats import guess_format


def listing(*paths, **fields):
    source = Source(name="s", paths=tuple(str(path) for path in paths), weight=1, **fields)
    (found,) = find_files(SampleConfig(sources=(source,), budget_tokens=1000))
    return found


def names(*paths, **fields):
    return [file.relative for file in listing(*paths, **fields).files]


@pytest.fixture
def tree(tmp_path):
    for name in ("b.md", "a.txt", "sub/c.py", "sub/deep/d.html", "sub/e.png", ".hidden/f.txt", "LICENSE"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("words")
    return tmp_path


def test_a_folder_is_read_recursively_and_sorted_without_hidden_or_unknown_files(tree):
    found = listing(tree)
    assert [(file.relative, file.format) for file in found.files] == [
        ("LICENSE", "text"),
        ("a.txt", "text"),
        ("b.md", "markdown"),
        ("sub/c.py", "code"),
        ("sub/deep/d.html", "html"),
    ]
    assert found.skipped == {"of another format": 1}


def test_a_pattern_is_relative_to_its_fixed_part(tree):
    assert names(f"{tree}/sub/**/*.html") == ["deep/d.html"]
    assert names(f"{tree}/*/c.py") == ["sub/c.py"]


def test_a_pattern_may_begin_at_the_root_of_the_file_system():
    assert os.path.dirname(next(discovery._matches("/**/*", Counter()))) == "/"


def test_a_single_file_is_relative_to_its_folder(tree):
    assert names(tree / "sub" / "c.py") == ["c.py"]


def test_a_file_matched_twice_is_read_once(tree):
    assert names(f"{tree}/*.txt", f"{tree}/a.*") == ["a.txt"]


def test_files_of_a_second_root_are_marked(tree, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "a.txt").write_text("else")
    assert names(f"{tree}/*.txt", f"{other}/*.txt") == ["@2/a.txt", "a.txt"]


def test_excluded_paths_are_counted(tree):
    found = listing(tree, exclude=("sub/**", "**/LICENSE"))
    assert [file.relative for file in found.files] == ["a.txt", "b.md"]
    assert found.skipped["excluded"] == 4


def test_paths_are_excluded_in_every_folder_of_a_source(tree, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    for name in ("sub/a.txt", "b.txt"):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_text("x")
    found = listing(tree, other, exclude=("sub/**",))
    assert [file.relative for file in found.files if file.relative.startswith("@2/")] == ["@2/b.txt"]
    assert len(listing(tree, other, exclude=("@2/sub/*",)).files) == len(listing(tree, other).files) - 1


def test_a_file_below_an_excluded_folder_is_not_read_by_another_path_of_the_source(tree):
    found = listing(tree, tree / "sub", exclude=("sub/**", "**/LICENSE"))
    assert [file.relative for file in found.files] == ["a.txt", "b.md"]
    assert found.skipped["excluded"] == 4


def test_files_that_are_named_keep_the_names_that_they_have_in_the_whole_folder(tree):
    found = listing(tree, only=("sub/c.py", "b.md", "gone.txt"))
    assert [file.relative for file in found.files] == ["b.md", "sub/c.py"]
    assert found.skipped["not named by `only`"] == 4


def test_a_stated_format_takes_every_match_of_a_pattern_but_only_its_own_files_of_a_folder(tree):
    assert names(f"{tree}/sub/*", format="text") == ["c.py", "e.png"]
    assert names(tree, format="markdown") == ["b.md"]


def test_files_of_no_bytes_stay_so_that_they_can_be_rejected(tree):
    (tree / "empty.txt").write_bytes(b"")
    assert [file.relative for file in listing(tree).files if file.size == 0] == ["empty.txt"]


def test_a_folder_named_like_data_stays_so_that_it_can_be_rejected(tree):
    (tree / "folder.txt").mkdir()
    assert names(f"{tree}/*.txt") == ["a.txt", "folder.txt"]
    assert names(f"{tree}/*") == ["LICENSE", "a.txt", "b.md", "folder.txt"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gone.txt", "does not exist"),
        ("gone/*.txt", "fixed part .*gone does not exist"),
        ("*.rtf", "exists, but nothing in it matches"),
        ("sub/e.png", "not read as it is .a picture, sound or film"),
        ("sub/e.png.gz", "not read as it is .decompress it first; a picture"),
        ("box.mbox", "not read as it is .a mailbox: `bessemer init --unpack` writes"),
        ("all.tar.gz", "not read as it is .an archive: `bessemer init --unpack` unpacks it"),
        ("report.PDF", "not read as it is .PDF: extract its text first"),
        ("odd.xyz", 'suffix does not show its format. Add format = "text"'),
        ("sub/*.png", "is empty"),
    ],
)
def test_what_cannot_be_read_at_all_is_an_input_error(tree, path, message):
    for name in ("sub/e.png.gz", "box.mbox", "all.tar.gz", "report.PDF", "odd.xyz"):
        (tree / name).write_bytes(b"x")
    with pytest.raises(InputError, match=message):
        listing(f"{tree}/{path}")


def test_a_source_of_empty_files_is_empty(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(InputError, match="1 of 0 bytes"):
        listing(tmp_path)


def test_a_uri_of_an_unknown_scheme_is_refused():
    with pytest.raises(RecipeError, match="the scheme `gopher` is unknown"):
        listing("gopher://bucket/x.jsonl")


def test_a_file_uri_is_a_path(tree):
    assert names(f"file://{tree}/sub") == names(tree / "sub")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jsonl.gz", ("jsonl", "gzip")),
        ("a.JSONL.zst", ("jsonl", "zstd")),
        ("README", ("text", None)),
        ("README.md", ("markdown", None)),
        ("LICENSE.APACHE", ("text", None)),
        ("Makefile", ("code", None)),
        ("a.tsv.gz", ("csv", "gzip")),
        ("a.warc.gz", ("warc", "gzip")),
        ("a.feather", ("arrow", None)),
        ("a.tar", (None, None)),
    ],
)
def test_names_say_format_and_compression(tmp_path, name, expected):
    assert guess_format(name) == expected


def test_weights_must_sum_to_one():
    def config(*weights, **fields):
        sources = tuple(Source(name=f"s{i}", paths="x", weight=weight) for i, weight in enumerate(weights))
        return SampleConfig(sources=sources, budget_tokens=1, **fields)

    assert config(0.3, 0.7)
    assert config(3, 7, normalise_weights=True)
    with pytest.raises(ValidationError, match=r"sum to 1 and sum to 0\.8 \(s0 0\.3, s1 0\.5\)"):
        config(0.3, 0.5)
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        config(-0.1, 1.1)
    with pytest.raises(ValidationError, match="s1 has no weight"):
        config(1.0, None)
    with pytest.raises(ValidationError, match="but s0 has a weight"):
        config(1.0, None, temperature=1)
    assert config(None, None, temperature=1)


def test_many_epochs_must_be_allowed():
    def config(**fields):
        return SampleConfig(sources=(Source(name="s", paths="x", weight=1),), budget_tokens=1, **fields)

    assert config().max_epochs == 4
    assert config(max_epochs=16)
    with pytest.raises(ValidationError, match=r"max_epochs = 17 .* allow_many_epochs = true"):
        config(max_epochs=17)
    assert config(max_epochs=17, allow_many_epochs=True)


def test_a_measured_source_must_exist():
    with pytest.raises(ValidationError, match="tokens_per_byte names other"):
        SampleConfig(sources=(Source(name="s", paths="x", weight=1),), budget_tokens=1, tokens_per_byte={"other": 0.2})


def test_source_names_must_differ():
    source = Source(name="s", paths="x", weight=0.5)
    with pytest.raises(ValidationError, match="s is used more than once"):
        SampleConfig(sources=(source, source), budget_tokens=1)


def test_threads_of_another_format_are_refused(tree):
    with pytest.raises(RecipeError, match="threads are read from jsonl"):
        listing(f"{tree}/a.txt", thread=Thread())


@pytest.mark.parametrize("pattern", ["", "*"])
def test_a_pipe_or_socket_without_a_suffix_is_passed_over_by_name(pattern, tmp_path):
    (tmp_path / "a.txt").write_text("words")
    (tmp_path / "picture.png").write_bytes(b"png")
    os.mkfifo(tmp_path / "control")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "listener"))
        source = Source(name="s", paths=(str(tmp_path / pattern),), weight=1)
        (listing,) = find_files(SampleConfig(sources=(source,), budget_tokens=1))
    assert [file.relative for file in listing.files] == ["a.txt"]
    assert dict(listing.skipped) == {
        "not a file but a FIFO (control)": 1,
        "not a file but a socket (listener)": 1,
        "of another format": 1,
    }
