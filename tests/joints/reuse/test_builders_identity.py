"""What the builders of the stages put into an identity: all settings, each input by its content, each file that they
read by its bytes.

Each is asked for the identity under which it would build, from inputs that exist by name only, so that all of this
takes seconds. `test_inputs.py` and `test_same_bytes.py` prove the same on a pipeline that was built.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.recipe.load import load_recipe
from flows.recipe.stages import STAGES
from tasks.artifacts.identity import Identity, differences

READ_BY = {
    "notes/worn.txt": ("sample", "source/notes"),
    "lines/a.jsonl": ("sample", "source/lines"),
    "gzipped_lines/a.jsonl.gz": ("sample", "source/gzipped_lines"),
    "parquet/a.parquet": ("sample", "source/parquet"),
    "remote/0.txt": ("sample", "source/remote"),
    "own_words.py": ("clean", "function own_rules:unfold"),
    "rude.txt": ("clean", "words rude"),
    "spelling.tsv": ("clean", "spelling 1"),
    "deny.txt": ("clean", "deny-list"),
    "plain.jsonl": ("clean", "classifier plain"),
    "calm.safetensors": ("clean", "classifier calm"),
    "cloze.jsonl": ("decontaminate", "benchmark/cloze"),
    "zipped.jsonl.gz": ("decontaminate", "benchmark/zipped"),
}
"""A file of each kind that a stage reads, and its name among the inputs."""
PARENTS = {
    "sample": set(),
    "clean": {"documents"},
    "dedup": {"documents"},
    "decontaminate": {"documents"},
    "vocab": {"documents"},
    "chunk": {"documents", "vocab"},
    "train": {"sequences", "vocab"},
    "evaluate": {"model", "vocab", "sequences", "decontaminated"},
}
"""The artifacts that each stage reads, by the names that its identity gives them."""

Identities = Callable[..., dict[str, Identity]]


@pytest.fixture
def inputs(alloy: Path, tmp_path: Path) -> Path:
    """A copy of the recipe and its inputs, to be changed."""
    return Path(shutil.copytree(alloy, tmp_path / "inputs"))


def keys(identities: dict[str, Identity]) -> dict[str, str]:
    return {stage: identity.key for stage, identity in identities.items()}


def test_a_builder_counts_every_setting_and_every_input(alloy: Path, tmp_path: Path, identities: Identities) -> None:
    recipe = load_recipe(alloy / "alloy.toml", tmp_path)
    found = identities(alloy / "alloy.toml", tmp_path)
    for stage in STAGES:
        identity = found[stage]
        assert identity.stage == stage
        assert identity.params == getattr(recipe, stage).identity_params(), stage
        files = {name for reader, name in READ_BY.values() if reader == stage}
        assert set(identity.parents) >= PARENTS[stage] | files, stage
    sources = {f"source/{source.name}" for source in recipe.sample.sources}
    assert set(found["sample"].parents) == sources


@pytest.mark.parametrize("changed", STAGES)
def test_an_artifact_counts_by_its_content_where_it_is_read_and_by_nothing_else(
    alloy: Path, tmp_path: Path, identities: Identities, changed: str
) -> None:
    recipe = alloy / "alloy.toml"
    before = identities(recipe, tmp_path)
    assert keys(identities(recipe, tmp_path, parents={changed: {"identity": "another"}})) == keys(before)
    after = identities(recipe, tmp_path, parents={changed: {"content": "other content"}})
    readers = {stage for stage in STAGES if f"content of {changed}" in before[stage].parents.values()}
    assert {stage for stage in STAGES if after[stage].key != before[stage].key} == readers
    assert readers or changed == STAGES[-1]


@pytest.mark.parametrize("name", READ_BY)
def test_a_file_counts_by_its_bytes_in_the_stage_that_reads_it(
    inputs: Path, tmp_path: Path, identities: Identities, name: str
) -> None:
    recipe, path = inputs / "alloy.toml", inputs / name
    before = identities(recipe, tmp_path)
    assert keys(identities(recipe, tmp_path)) == keys(before)
    path.write_bytes(OTHERS[name](path.read_bytes()) if name in OTHERS else path.read_bytes() + b"\n")
    after = identities(recipe, tmp_path)
    stage, parent = READ_BY[name]
    assert {it for it in STAGES if after[it].key != before[it].key} == {stage}
    causes = list(differences(before[stage].parts(), after[stage].parts()))
    assert any(cause.startswith(f"the input `{parent}` has other content") for cause in causes), causes
    assert all(cause.startswith("the input `") for cause in causes), causes


def test_other_bytes_behind_an_old_time_count(inputs: Path, tmp_path: Path, identities: Identities) -> None:
    """A program may write as many bytes as before, and put the time of the last change back."""
    path, old = inputs / "notes" / "worn.txt", 1_000_000_000 * 10**9
    os.utime(path, ns=(old, old))
    before = identities(inputs / "alloy.toml", tmp_path)["sample"]
    assert identities(inputs / "alloy.toml", tmp_path)["sample"].key == before.key
    with path.open("r+b") as file:
        file.write(b"X")
    os.utime(path, ns=(old, old))
    assert identities(inputs / "alloy.toml", tmp_path)["sample"].key != before.key


OTHERS: dict[str, Callable[[bytes], bytes]] = {
    "own_words.py": lambda old: old.replace(b"'z'", b"'y'"),
    "rude.txt": lambda old: old.replace(b"knave", b"knaves"),
    "spelling.tsv": lambda old: old.replace(b"receive", b"obtain"),
    "deny.txt": lambda old: old.replace(b"banned.example", b"other.example"),
    "calm.safetensors": lambda old: old[:-1] + b"\x01",
}
"""Lists and functions count by their meaning: a blank line more is the same list."""
