"""The files of a published network: `config.json` and safetensors, in one file or in several with an index.

Pickles are not read, since reading one runs code that it contains. Names that an index gives stay in its folder, and
lengths that a file states about itself are bounded before anything is read by them. Without PyTorch, since recipes are
checked by it.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import blake3

from model.digests import file_bytes, why_no_file
from model.errors import InputError
from model.file_content import Content, bytes_of, content_of_file

SETTINGS = "config.json"

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"

MOST_JSON_BYTES = 64 * 1024**2
"""Of settings and of an index; that of 100,000 tensors has 10 MB."""

MOST_HEADER_BYTES = 32 * 1024**2
"""Of the JSON at the beginning of a file of safetensors, whose own library takes 100 MB and then parses them."""

MOST_VOCABULARY_BYTES = 128 * 1024**2
"""Of a vocabulary's file; a tokenizer.json of 256,000 pieces and their merges has 35 MB."""

PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin", "*.pt", "*.pth", "*.ckpt")


def is_published(folder: Path) -> bool:
    """Whether a folder is one of `transformers`' and none of ours."""
    return (folder / SETTINGS).is_file() and not (folder / "model.json").is_file()


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights, sorted; InputError where there are none but pickles, or an index names more."""
    if (folder / ONE_FILE).is_file():
        return _with_bounded_headers([folder / ONE_FILE])
    if (folder / INDEX).is_file():
        names = _plain_names(folder / INDEX)
        absent = [name for name in names if not (folder / name).is_file()]
        if absent or not names:
            raise InputError(
                f"{folder / INDEX} names {len(names)} files of weights, and {_some(absent)} are not there. Copy the"
                f" whole folder again."
            )
        return _with_bounded_headers(folder / name for name in names)
    pickle = next((path.name for pattern in PICKLES for path in sorted(folder.glob(pattern))), None)
    if pickle is not None:
        raise InputError(
            f"{folder} holds its weights in a pickle ({pickle}), and reading one runs code that it contains. Take the"
            f" safetensors that most publishers offer beside it, or write them where you trust the file:"
            f" AutoModelForPreTraining.from_pretrained(FOLDER).save_pretrained(OTHER_FOLDER)."
        )
    raise InputError(f"{folder} has neither {ONE_FILE} nor {INDEX}: there are no weights in it")


def published_digest(folder: Path, digest: Callable[[Path], str] = lambda path: content_of_file(path).digest) -> str:
    """A digest that stands for settings and weights, whatever the files' dates and whereabouts; `digest` is that of one
    file's content."""
    paths = [folder / SETTINGS, *weight_files(folder)]
    told = "".join(f"{path.name} {digest(path)}\n" for path in paths)
    return blake3.blake3(told.encode()).hexdigest(length=16)


def read_json(path: Path) -> dict[str, Any]:
    """The settings in a file; InputError where there are none."""
    try:
        values = json.loads(read_bounded(path, MOST_JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} is no JSON that can be read ({error}). Take an untouched copy of the model."
        ) from error
    if not isinstance(values, dict):
        raise InputError(f"{path} is JSON without settings in it. Take an untouched copy of the model.")
    return values


def read_bounded(path: Path, most: int, content: Content | None = None) -> bytes:
    """The bytes of a file; InputError where it is none (a pipe would wait for ever), or has more than `most`, or does
    not hold the `content` that it had."""
    if problem := why_no_file(path):
        raise InputError(f"{path} {problem}. Name the file itself.")
    if path.stat().st_size > most:
        raise InputError(
            f"{path} has {path.stat().st_size:,} bytes, and no file of its kind has more than {most:,}. Take an"
            f" untouched copy of the model."
        )
    return file_bytes(path) if content is None else bytes_of(path, content)


def check_header(path: Path) -> None:
    """Raise InputError where a file of safetensors states a header that is larger than the file or than any needs."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
    if length > min(MOST_HEADER_BYTES, max(0, path.stat().st_size - 8)):
        raise InputError(
            f"{path} is no safetensors file, or is cut off: it states a header of {length:,} bytes, has"
            f" {path.stat().st_size:,} in all, and a header has {MOST_HEADER_BYTES:,} at most. Take it from where it"
            f" came from again."
        )


def _with_bounded_headers(paths: Iterable[Path]) -> list[Path]:
    checked = list(paths)
    for path in checked:
        check_header(path)
    return checked


def _plain_names(index: Path) -> list[str]:
    """The files that an index names; InputError for a name that leads out of its folder."""
    weight_map = read_json(index).get("weight_map", {})
    names: list[Any] = [*weight_map.values()] if isinstance(weight_map, dict) else [None]
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or "\0" in name:
            raise InputError(
                f"{index} names {name!r} as a file of weights, and these lie beside it, under plain names. Nothing was"
                f" read from there. Take an untouched copy of the model."
            )
    return sorted(set(names))


def _some(names: list[str]) -> str:
    return f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
