"""Read the vocabulary file of a released model in the format that the tokenizers here use."""

from pathlib import Path

from model.errors import InputError
from model.file_content import Content
from model.model_files import MAX_VOCABULARY_BYTES, read_bounded
from tasks.tokenizer.base import is_json, json_model
from tasks.tokenizer.from_json import is_sentencepiece_bpe, sentencepiece_from_json

COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
}
"""First bytes of compressed files."""


def read_base(path: Path, content: Content | None = None) -> bytes:
    """Return the base's file: BERT's `vocab.txt` converted to the equivalent `tokenizer.json`, and a SentencePiece BPE
    in a `tokenizer.json` to SentencePiece's own format.

    Raises ChangedInput where the file is not `content` any more, InputError for a compressed file or one that is not
    UTF-8.
    """
    data = read_bounded(path, MAX_VOCABULARY_BYTES, content)
    packed = next((name for beginning, name in COMPRESSED.items() if data.startswith(beginning)), None)
    if packed is not None:
        raise InputError(
            f"vocab.base: {path} is compressed ({packed}). Decompress it, and set vocab.base to the result."
        )
    if is_json(data) and is_sentencepiece_bpe(json_model(data)):
        return sentencepiece_from_json(data, path)
    if is_json(data) or not {b"[UNK]", b"[SEP]"} <= {line.rstrip(b"\r") for line in data.split(b"\n")}:
        return data
    from tasks.tokenizer.wordpiece import from_vocab_txt

    try:
        return from_vocab_txt(data.decode(), f"vocab.base: {path}")
    except UnicodeDecodeError as error:
        raise InputError(
            f"vocab.base: {path} looks like BERT's vocab.txt, but byte {error.start} is not UTF-8"
        ) from error
