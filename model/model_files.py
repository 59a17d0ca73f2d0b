"""The files of a published network: `config.json` and safetensors, in one file or in several with an index.

Pickles are not read, since reading one runs code that it contains. File names in an index must stay in its folder, and
lengths in headers are checked before anything is read by them. Imports no PyTorch, since checking a recipe imports it.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import blake3

from model.digests import read_bytes, unreadable_reason
from model.errors import InputError
from model.file_content import Content, content_of_file, read_content

SETTINGS = "config.json"

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"

MAX_JSON_BYTES = 64 * 1024**2
"""Limit for settings and an index; that of 100,000 tensors has 10 MB."""

MAX_HEADER_BYTES = 32 * 1024**2
"""Limit for the JSON header of a safetensors file; the library's own is 100 MB."""

MAX_VOCABULARY_BYTES = 128 * 1024**2
"""Limit for a vocabulary; a tokenizer.json of 256,000 tokens and their merges has 35 MB."""

SHARD_BYTES = 5_000_000_000
"""Largest file of weights that is written."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""First bytes of the file that git leaves in place of a large one where Git LFS is not installed."""

PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin", "*.pt", "*.pth", "*.ckpt")


def is_published(folder: Path) -> bool:
    """Return whether a folder holds a model of `transformers`, not one of ours."""
    return (folder / SETTINGS).is_file() and not (folder / "model.json").is_file()


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files, sorted; InputError where there are only pickles, or files of the index are missing."""
    if (folder / ONE_FILE).is_file():
        check_header(folder / ONE_FILE)
        return [folder / ONE_FILE]
    if (folder / INDEX).is_file():
        names = _plain_names(folder / INDEX)
        absent = [name for name in names if not (folder / name).is_file()]
        if absent or not names:
            raise InputError(
                f"{folder / INDEX} names {len(names)} weight files, of which {some(absent)} are missing. Copy the"
                f" whole folder again."
            )
        for name in names:
            check_header(folder / name)
        return [folder / name for name in names]
    pickle = next((path.name for pattern in PICKLES for path in sorted(folder.glob(pattern))), None)
    if pickle is not None:
        raise InputError(
            f"{folder} has its weights in a pickle ({pickle}), and reading one runs code that it contains. Use the"
            f" safetensors that most publishers also offer, or write them if you trust the file:"
            f" AutoModelForPreTraining.from_pretrained(FOLDER).save_pretrained(OTHER_FOLDER)."
        )
    raise InputError(f"{folder} has neither {ONE_FILE} nor {INDEX}, so it has no weights")


def published_digest(folder: Path, digest: Callable[[Path], str] = lambda path: content_of_file(path).digest) -> str:
    """Return a digest of settings and weights, whatever the files' dates and location; `digest` digests one file."""
    paths = [folder / SETTINGS, *weight_files(folder)]
    listing = "".join(f"{path.name} {digest(path)}\n" for path in paths)
    return blake3.blake3(listing.encode()).hexdigest(length=16)


def read_json(path: Path, most_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the settings in a JSON file; InputError where there are none."""
    try:
        values = json.loads(read_bounded(path, most_bytes))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read as JSON ({error}). Take an untouched copy of the model.") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} is JSON without settings. Take an untouched copy of the model.")
    return values


def read_bounded(path: Path, limit: int, content: Content | None = None) -> bytes:
    """Return the bytes of a file; InputError where it is no file (a pipe would block), has more than `limit` bytes, or
    has changed from `content`."""
    if problem := unreadable_reason(path):
        raise InputError(f"{path} {problem}. Name the file itself.")
    if path.stat().st_size > limit:
        raise InputError(
            f"{path} has {path.stat().st_size:,} bytes, and files of its kind have at most {limit:,}. Take an"
            f" untouched copy of the model."
        )
    data = read_bytes(path) if content is None else read_content(path, content)
    _refuse_pointer(path, data)
    return data


def check_header(path: Path) -> None:
    """Raise InputError where a safetensors file states a header that is larger than the file or the limit."""
    with path.open("rb") as stream:
        beginning = stream.read(len(LFS_POINTER))
    _refuse_pointer(path, beginning)
    length = int.from_bytes(beginning[:8], "little")
    if length > min(MAX_HEADER_BYTES, max(0, path.stat().st_size - 8)):
        raise InputError(
            f"{path} is not a safetensors file, or is truncated: it states a header of {length:,} bytes, has"
            f" {path.stat().st_size:,} in all, and a header has at most {MAX_HEADER_BYTES:,}. Copy it again from its"
            f" source."
        )


def _refuse_pointer(path: Path, data: bytes) -> None:
    if data.startswith(LFS_POINTER):
        raise InputError(
            f"{path} is a pointer of Git LFS, not the file itself: the model was cloned without its large files. Run"
            f" `git lfs pull` in its folder, or download the file again."
        )


def _plain_names(index: Path) -> list[str]:
    """Return the file names in an index; InputError for one that leads out of its folder."""
    weight_map = read_json(index).get("weight_map", {})
    names: list[Any] = [*weight_map.values()] if isinstance(weight_map, dict) else [None]
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or "\0" in name:
            raise InputError(
                f"{index} names {name!r} as a weight file, and weight files must be in its own folder. Nothing was read"
                f" from there. Take an untouched copy of the model."
            )
    return sorted(set(names))


def some(names: Sequence[str]) -> str:
    """Return the number of names and the first three of them, for messages."""
    shown = ", ".join(names[:3])
    return f"{len(names)} ({shown}{', ...' if len(names) > 3 else ''})" if names else "none"
