"""Folders of foreign weights: no path leads outside, and no stated length is trusted."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from model.checkpoint.weights import WEIGHTS, load_model
from model.errors import InputError
from model.huggingface.io import published_config
from model.model_files import (
    INDEX,
    MAX_HEADER_BYTES,
    MAX_JSON_BYTES,
    MAX_VOCABULARY_BYTES,
    ONE_FILE,
    SETTINGS,
    published_digest,
    read_bounded,
    read_json,
    weight_files,
)
from tasks.vocab.base import read_base


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in two files with an index, and a file of weights outside of it."""
    inside = tmp_path / "model"
    inside.mkdir()
    (inside / SETTINGS).write_text("{}")
    for path in (inside / "a.safetensors", inside / "b.safetensors", tmp_path / "outside.safetensors"):
        save_file({"w": torch.zeros(2)}, path)
    return inside


def index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_files_that_an_index_names_are_found_beside_it(folder: Path) -> None:
    index(folder, {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"})
    assert weight_files(folder) == [folder / "a.safetensors", folder / "b.safetensors"]


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "x/../../outside.safetensors",
        "{outside}",
        "..",
        ".",
        "",
        "sub/a.safetensors",
        "a\\b",
        "a\0",
        7,
        None,
        ["a.safetensors"],
    ],
)
def test_no_name_of_an_index_leads_out_of_its_folder(folder: Path, name: object) -> None:
    if name == "{outside}":
        name = str(folder.parent / "outside.safetensors")
    index(folder, {"x": "a.safetensors", "y": name})
    with pytest.raises(InputError, match=r"must be in its own folder|are missing"):
        weight_files(folder)
    with pytest.raises(InputError, match=r"must be in its own folder|are missing"):
        published_digest(folder)


@pytest.mark.parametrize("weight_map", [["a.safetensors"], "a.safetensors", 3, None])
def test_an_index_of_another_shape_is_refused(folder: Path, weight_map: object) -> None:
    index(folder, weight_map)
    with pytest.raises(InputError):
        weight_files(folder)


@pytest.mark.parametrize("length", [2**64 - 1, MAX_HEADER_BYTES + 1, 1000])
def test_a_header_longer_than_its_file_or_than_any_needs_is_refused_unread(folder: Path, length: int) -> None:
    size = 0 if length > 2**40 else length + 7  # one byte too few
    with (folder / ONE_FILE).open("wb") as stream:
        stream.write(struct.pack("<Q", length))
        stream.truncate(size + 8 if length == MAX_HEADER_BYTES + 1 else 8 + min(size, 900))
    with pytest.raises(InputError, match=f"states a header of {length:,} bytes"):
        weight_files(folder)


def test_weights_of_ours_have_a_bounded_header_too(tmp_path: Path) -> None:
    from model.digests import digest_file

    (tmp_path / WEIGHTS).write_bytes(struct.pack("<Q", 2**50) + b"{}")
    described = {"config": {"architecture": "gpt"}, "weights_digest": digest_file(tmp_path / WEIGHTS)}
    (tmp_path / "model.json").write_text(json.dumps(described))
    with pytest.raises(InputError, match="states a header"):
        load_model(tmp_path)


def test_settings_are_bounded_in_bytes_and_depth(folder: Path) -> None:
    with (folder / SETTINGS).open("wb") as stream:
        stream.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(InputError, match=r"67,108,865 bytes"):
        read_json(folder / SETTINGS)
    (folder / SETTINGS).write_text("[" * 500_000)
    with pytest.raises(InputError, match="cannot be read as JSON"):
        read_json(folder / SETTINGS)


@pytest.mark.parametrize(
    "values",
    [
        {"model_type": "gpt2", "n_layer": 10**9},
        {"model_type": "llama", "rope_parameters": [1]},
        {"model_type": "llama", "hidden_size": "x", "num_attention_heads": 2},
        {"model_type": "llama", "rope_parameters": {"rope_theta": "x"}},
        {"model_type": "t5", "d_ff": {}, "num_layers": 10**9},
        {"model_type": ["gpt2"]},
        {"model_type": "gpt2", "vocab_size": 512, "n_embd": 16, "n_layer": 2, "n_head": 3, "n_positions": 64},
    ],
)
def test_settings_of_another_kind_are_refused_before_a_network_is_laid_out(folder: Path, values: dict) -> None:
    (folder / SETTINGS).write_text(json.dumps(values))
    with pytest.raises(InputError, match="config") as refused:
        published_config(folder)
    assert "Value error" not in str(refused.value)


def test_pipes_devices_and_huge_files_are_no_vocabularies(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.model")
    (tmp_path / "zero.model").symlink_to("/dev/zero")
    with (tmp_path / "huge.model").open("wb") as stream:
        stream.truncate(MAX_VOCABULARY_BYTES + 1)
    for name, reported in (("pipe", "is a FIFO"), ("zero", "is a character device"), ("huge", "134,217,729 bytes")):
        with pytest.raises(InputError, match=reported):
            read_base(tmp_path / f"{name}.model")
    (tmp_path / "fine").write_bytes(b"x")
    assert read_bounded(tmp_path / "fine", 1) == b"x"


def test_a_pointer_of_git_lfs_is_named_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    """A clone without Git LFS has such files in place of the large ones."""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1519952168\n"
    for name, read in ((ONE_FILE, lambda path: weight_files(path.parent)), ("tokenizer.json", read_base)):
        (folder / name).write_text(pointer)
        with pytest.raises(InputError, match=rf"{name} is a pointer of Git LFS.*`git lfs pull`"):
            read(folder / name)
