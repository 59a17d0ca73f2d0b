"""The files of a published network: `config.json` and safetensors, in one file or in several with an index.

Pickles are not read, since reading one runs code that it contains. Without PyTorch, since recipes are checked by it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blake3

from model.durable import digest_file
from model.errors import InputError

SETTINGS = "config.json"
ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin", "*.pt", "*.pth", "*.ckpt")


def is_published(folder: Path) -> bool:
    """Whether a folder is one of `transformers`' and none of ours."""
    return (folder / SETTINGS).is_file() and not (folder / "model.json").is_file()


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights, sorted; InputError where there are none but pickles, or an index names more."""
    if (folder / ONE_FILE).is_file():
        return [folder / ONE_FILE]
    if (folder / INDEX).is_file():
        names = sorted(set(read_json(folder / INDEX).get("weight_map", {}).values()))
        absent = [name for name in names if not (folder / name).is_file()]
        if absent or not names:
            raise InputError(
                f"{folder / INDEX} names {len(names)} files of weights, and {_some(absent)} are not there. Copy the"
                f" whole folder again."
            )
        return [folder / name for name in names]
    pickle = next((path.name for pattern in PICKLES for path in sorted(folder.glob(pattern))), None)
    if pickle is not None:
        raise InputError(
            f"{folder} holds its weights in a pickle ({pickle}), and reading one runs code that it contains. Take the"
            f" safetensors that most publishers offer beside it, or write them where you trust the file:"
            f" AutoModelForPreTraining.from_pretrained(FOLDER).save_pretrained(OTHER_FOLDER)."
        )
    raise InputError(f"{folder} has neither {ONE_FILE} nor {INDEX}: there are no weights in it")


def published_digest(folder: Path, digest: Callable[[Path], str] = digest_file) -> str:
    """A digest that stands for settings and weights, whatever the files' dates and whereabouts; `digest` is that of one
    file."""
    paths = [folder / SETTINGS, *weight_files(folder)]
    told = "".join(f"{path.name} {digest(path)}\n" for path in paths)
    return blake3.blake3(told.encode()).hexdigest(length=16)


def read_json(path: Path) -> dict[str, Any]:
    """The settings in a file; InputError where there are none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} is no JSON that can be read ({error}). Take an untouched copy of the model."
        ) from error
    if not isinstance(values, dict):
        raise InputError(f"{path} is JSON without settings in it. Take an untouched copy of the model.")
    return values


def _some(names: list[str]) -> str:
    return f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
