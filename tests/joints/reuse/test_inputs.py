"""Every kind of input, byte by byte: the stage that reads it misses and names it; the same bytes hit."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from flows.recipe.load import load_recipe
from tasks.sample.config import Format
from tasks.sample.discovery import find_files
from tasks.sample.remote import RemoteFile

pytestmark = pytest.mark.joints


def _flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    path.write_bytes(data)


def _relink(path: Path) -> None:
    elsewhere = path.with_name(f".{path.name}")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


OTHER_BYTES: dict[str, Callable[[Path], object]] = {
    "the first byte flipped": lambda path: _flip(path, 0.0),
    "a byte in the middle flipped": lambda path: _flip(path, 0.5),
    "the last byte flipped": lambda path: _flip(path, 1.0),
    "a byte appended": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "swapped for another file": lambda path: (path.unlink(), path.write_bytes(b"Another text.\n"))[0],
}
SAME_BYTES: dict[str, Callable[[Path], object]] = {
    "touched": lambda path: os.utime(path, ns=(1, 1)),
    "written again": lambda path: path.write_bytes(path.read_bytes()),
    "made executable": lambda path: path.chmod(0o755),
    "a link to its bytes": _relink,
}


@pytest.fixture
def inputs(alloy: Path, tmp_path: Path) -> Path:
    """A copy of the inputs, to be changed."""
    return Path(shutil.copytree(alloy, tmp_path / "inputs"))


def test_the_inputs_are_of_every_format(alloy: Path, tmp_path: Path) -> None:
    """A format that no source has would hide its readers from these proofs."""
    listings = find_files(load_recipe(alloy / "alloy.toml", tmp_path).sample)
    read = {(file.format, file.compression) for listing in listings for file in listing.files}
    assert {format for format, _ in read} == set(get_args(Format)) - {"auto"}
    assert {compression for _, compression in read} == {None, "gzip", "zstd", "bzip2"}


def test_a_file_of_a_source(
    walked: Any, inputs: Path, forecaster: Callable[..., Any], joint: Callable[..., Any]
) -> None:
    asking, recipe = forecaster(), inputs / "alloy.toml"
    listings = find_files(load_recipe(recipe, walked.root).sample)
    with joint("identity: bytes of every kind of file changed") as tally:
        for listing in listings:
            name, path = listing.source.name, _local(listing.files[0].path)
            for reported, change in OTHER_BYTES.items():
                answers = _after(change, path, lambda: asking.ask(recipe=recipe))
                _expect_only(
                    tally, f"{path.name} of {name} {reported}", answers, "sample", f"the input `source/{name}`"
                )
        tally.note = "every miss named the source, and nothing else missed"
    with joint("identity: the same bytes in other files") as tally:
        for listing in listings:
            for reported, change in SAME_BYTES.items():
                if change is _relink and isinstance(listing.files[0].path, RemoteFile):
                    continue  # Object stores have no links, and what lists them passes links over.
                path = _local(listing.files[0].path)
                _expect_reuse(tally, f"{path} {reported}", _after(change, path, lambda: asking.ask(recipe=recipe)))
        tally.note = "all keys stayed"


def test_a_byte_flipped_behind_an_old_time(
    walked: Any, inputs: Path, forecaster: Callable[..., Any], joint: Callable[..., Any]
) -> None:
    """The file is known by its size, times and inode and is not read again; a writer may put the old mtime back."""
    asking, recipe = forecaster(), inputs / "alloy.toml"
    old = 1_000_000_000 * 10**9
    with joint("identity: a byte flipped, the old time put back") as tally:
        for listing in find_files(load_recipe(recipe, walked.root).sample):
            name, path = listing.source.name, listing.files[0].path
            if isinstance(path, RemoteFile):
                continue
            os.utime(path, ns=(old, old))
            _expect_reuse(tally, f"{path.name} of {name} before", asking.ask(recipe=recipe))
            _flip(path, 0.5)
            os.utime(path, ns=(old, old))
            answers = asking.ask(recipe=recipe)
            _expect_only(tally, f"{path.name} of {name} flipped", answers, "sample", f"the input `source/{name}`")
            _flip(path, 0.5)
            os.utime(path, ns=(old, old))


def test_files_come_go_and_take_other_names(
    walked: Any, inputs: Path, forecaster: Callable[..., Any], joint: Callable[..., Any]
) -> None:
    asking, recipe = forecaster(), inputs / "alloy.toml"
    with joint("identity: files added, removed and renamed") as tally:
        for listing in find_files(load_recipe(recipe, walked.root).sample):
            name, path = listing.source.name, _local(listing.files[0].path)
            more, renamed = path.with_name(f"more-{path.name}"), path.with_name(f"renamed-{path.name}")
            named_by_itself = str(path) in listing.source.paths

            shutil.copy(path, more)
            answers = asking.ask(recipe=recipe)
            more.unlink()
            if named_by_itself:
                _expect_reuse(tally, f"a file beside {path.name} of {name}, which is named alone", answers)
            else:
                _expect_only(tally, f"a file added to {name}", answers, "sample", f"the input `source/{name}`")

            for reported, elsewhere in (("renamed", renamed), ("removed", inputs.parent / path.name)):
                path.rename(elsewhere)
                answers = asking.ask(recipe=recipe)
                elsewhere.rename(path)
                if named_by_itself or (reported == "removed" and len(listing.files) == 1):
                    error = answers["sample"].get("error", "")
                    tally.expect(
                        error.startswith("InputError") and name in error, f"{path} {reported}: {answers['sample']}"
                    )
                else:
                    case = f"a file of {name} {reported}"
                    _expect_only(tally, case, answers, "sample", f"the input `source/{name}`")
        for passed_over in ("notes/left-out-1.txt", "notes/.hidden.txt", "pages/style.css"):
            (inputs / passed_over).write_text("Passed over.\n")
            _expect_reuse(tally, f"{passed_over} added, which is not read", asking.ask(recipe=recipe))
        tally.note = "a miss names the source; what is not read changes nothing"


def test_benchmarks(walked: Any, inputs: Path, forecaster: Callable[..., Any], joint: Callable[..., Any]) -> None:
    asking, recipe = forecaster(), inputs / "alloy.toml"
    benchmarks = load_recipe(recipe, walked.root).decontaminate.benchmarks
    with joint("identity: benchmark files changed") as tally:
        for benchmark in benchmarks:
            for reported, change in OTHER_BYTES.items():
                answers = _after(change, benchmark.path, lambda: asking.ask(recipe=recipe))
                cause = f"the input `benchmark/{benchmark.name}`"
                _expect_only(tally, f"{benchmark.path.name} {reported}", answers, "decontaminate", cause)
            for reported, change in SAME_BYTES.items():
                answers = _after(change, benchmark.path, lambda: asking.ask(recipe=recipe))
                _expect_reuse(tally, f"{benchmark.path.name} {reported}", answers)
            away = benchmark.path.rename(inputs / "away")
            error = asking.ask(recipe=recipe)["decontaminate"].get("error", "")
            tally.expect("InputError" in error and benchmark.name in error, f"{benchmark.path.name} removed: {error}")
            away.rename(benchmark.path)
        tally.note = "every miss named the benchmark"


def test_what_a_recipe_brings_to_clean(
    walked: Any, inputs: Path, forecaster: Callable[..., Any], joint: Callable[..., Any]
) -> None:
    """Word lists and deny-lists count by their entries, functions of the user by their meaning."""
    asking, recipe = forecaster(), inputs / "alloy.toml"
    functions = ("the input `function own_rules:unfold`", "the input `function own_rules:is_nothing_but_z`")
    changes: dict[str, tuple[str, tuple[str, ...]]] = {
        "rude.txt": ("churl\nknaves\n", ("the input `words rude`",)),
        "spelling.tsv": ("recieve\tobtain\n", ("the input `spelling 1`",)),
        "deny.txt": ("domain banned.example\n", ("the input `deny-list`",)),
        "own_rules.py": ((inputs / "own_rules.py").read_text().replace("'fi'", "'f i'"), functions),
        "own_words.py": ("LAST = 'y'\n", functions),
    }
    with joint("identity: lists and functions that a recipe brings") as tally:
        for name, (other, causes) in changes.items():
            answers = _after(
                lambda path, text=other: path.write_text(text), inputs / name, lambda: asking.ask(recipe=recipe)
            )
            found = answers["clean"].get("causes", [])
            held = len(found) == len(causes) and all(
                any(cause.startswith(wanted) for cause in found) for wanted in causes
            )
            tally.expect(held, f"{name} changed: clean says {answers['clean']}")
            for reported, change in SAME_BYTES.items():
                answers = _after(change, inputs / name, lambda: asking.ask(recipe=recipe))
                _expect_reuse(tally, f"{name} {reported}", answers)
            away = (inputs / name).rename(inputs / "away")
            answer = asking.ask(recipe=recipe)["clean"]
            tally.expect(answer.get("outcome") != "reused", f"{name} removed: {answer}")
            away.rename(inputs / name)
        commented = "# Of ours.\n" + (inputs / "own_rules.py").read_text()
        answers = _after(
            lambda path: path.write_text(commented), inputs / "own_rules.py", lambda: asking.ask(recipe=recipe)
        )
        _expect_reuse(tally, "a comment in a function of the user", answers)
        tally.note = "every miss named the list or the functions"


def test_data_beside_the_code(
    walked: Any, checkout: Path, forecaster: Callable[..., Any], joint: Callable[..., Any]
) -> None:
    """Word lists and tables beside the modules are code: their bytes count."""
    asking = forecaster(project=checkout)
    manifests = walked.manifests()
    code = {stage: manifest["identity_parts"]["code"]["definitions"] for stage, manifest in manifests.items()}
    files = {name for definitions in code.values() for name in definitions if ":" not in name}
    assert "tasks/clean/kernels/stop_words.tsv" in files
    with joint("identity: data files beside the code changed") as tally:
        for file in sorted(files):
            (stage,) = (name for name, definitions in code.items() if file in definitions)
            path = checkout / file
            for reported, change in OTHER_BYTES.items():
                answers = _after(change, path, asking.ask)
                _expect_only(tally, f"{file} {reported}", answers, stage, f"code: {file} was edited")
            for reported, change in SAME_BYTES.items():
                _expect_reuse(tally, f"{file} {reported}", _after(change, path, asking.ask))
            away = path.rename(checkout / "away")
            _expect_only(tally, f"{file} removed", asking.ask(), stage, f"code: {file} was removed")
            away.rename(path)
            more = path.with_name("more.tsv")
            more.write_text("more\n")
            _expect_only(tally, f"{more.name} added", asking.ask(), stage, f"code: {more.relative_to(checkout)} is new")
            more.unlink()
        tally.note = f"{', '.join(sorted(files))}"


def _local(path: Path | RemoteFile) -> Path:
    return path if isinstance(path, Path) else Path(path.uri.partition("://")[2])


def _after(change: Callable[[Path], object], path: Path, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answers with the file changed; afterwards the file is as it was."""
    whole, hidden = path.read_bytes(), path.with_name(f".{path.name}")
    change(path)
    try:
        return ask()
    finally:
        path.unlink()
        hidden.unlink(missing_ok=True)
        path.write_bytes(whole)


def _expect_only(tally: Any, reported: str, answers: dict[str, Any], stage: str, cause: str) -> None:
    """One stage misses for one cause, and all others hit."""
    causes = answers[stage].get("causes", [])
    held = len(causes) == 1 and causes[0].startswith(cause)
    others = [name for name, answer in answers.items() if name != stage and answer.get("outcome") != "reused"]
    tally.expect(held and not others, f"{reported}: {stage} says {answers[stage]}; others that miss: {others}")


def _expect_reuse(tally: Any, reported: str, answers: dict[str, Any]) -> None:
    missing = {name: answer for name, answer in answers.items() if answer.get("outcome") != "reused"}
    tally.expect(not missing, f"{reported}: {missing}")
