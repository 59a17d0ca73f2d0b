"""Files of vocabularies, as released models bring them and as runs leave them: found in folders, read, and judged."""

import json
from pathlib import Path

from model.errors import InputError
from model.published.files import MOST_JSON_BYTES, MOST_VOCABULARY_BYTES, read_bounded
from tasks.tokenizer import DESCRIPTION_FILE, MODEL_FILES, is_json, json_model_type
from tasks.vocab.base import read_base
from tasks.vocab.fast import FAST_FILE
from tasks.vocab.kinds import kind_of

OF_BERT = "vocab.txt"
FILES = ("*.model", "*tokenizer.json", OF_BERT)
"""Names of vocabularies' files: SentencePiece's, those of the library `tokenizers`, and BERT's."""
KNOWN = "`*.model`, `*tokenizer.json` or `vocab.txt`"
EXPECTED = "Expected is SentencePiece's file (.model), a tokenizer.json of the library tokenizers, or BERT's vocab.txt."
GZIP = b"\x1f\x8b"
"""First bytes of every gzip file (RFC 1952)."""


def vocabularies_within(folder: Path) -> list[Path]:
    """The files of vocabularies anywhere in a folder, each vocabulary once: a vocab artifact's is the file that its
    description names, and a `vocab.txt` with a `tokenizer.json` beside it says what that says."""
    found: list[Path] = []
    for path in (path for pattern in FILES for path in sorted(folder.rglob(pattern))):
        own = vocabulary_described(path)
        if own is not None:
            found.append(own)
        elif _is_vocabulary(path):
            found.append(path)
    return sorted(dict.fromkeys(found))


def vocabulary_described(path: Path) -> Path | None:
    """The vocabulary's file of a vocab artifact whose description is `path`; None for any other file."""
    if path.name != DESCRIPTION_FILE:
        return None
    try:
        described = json.loads(read_bounded(path, MOST_JSON_BYTES))
    except (ValueError, RecursionError):
        return None
    kind = described.get("kind") if isinstance(described, dict) else None
    model = path.with_name(MODEL_FILES[kind]) if kind in MODEL_FILES else None
    return model if model is not None and model.is_file() else None


def _is_vocabulary(path: Path) -> bool:
    if not path.is_file() or path.name == FAST_FILE:
        return False
    if path.name == OF_BERT:
        return not (path.parent / DESCRIPTION_FILE).exists() and is_json(read_base(path))
    return path.suffix != ".json" or json_model_type(read_bounded(path, MOST_VOCABULARY_BYTES)) is not None


def read_vocabulary(path: Path) -> tuple[bytes, str]:
    """A vocabulary's bytes, those of BERT's `vocab.txt` as the `tokenizer.json` that says the same, and its kind.

    Raises InputError, which names the path and what was expected, for a file that holds none.
    """
    refuse_compressed(path)
    try:
        model = read_base(path)
        return model, kind_of(model)
    except InputError as error:
        # What the parser of SentencePiece's file has to say of another file ("wire format") helps nobody.
        reason = str(error).removeprefix("vocab.base: ").removeprefix(str(path)).lstrip(": ")
        reason = reason.partition(" (")[0].rstrip(".")
        raise InputError(f"{path}: {reason}. {EXPECTED}") from error


def refuse_compressed(path: Path) -> None:
    """Raise InputError for a gzip file."""
    with path.open("rb") as file:
        if file.read(len(GZIP)) == GZIP:
            raise InputError(f"{path} is compressed, and gz files are not read here. Unpack it: gunzip -k {path}")
