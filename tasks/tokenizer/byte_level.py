"""Byte-level BPE vocabularies (Radford et al., 2019, GPT-2): every piece is a sequence of bytes.

The file is a `tokenizer.json` of the library `tokenizers`, as published for GPT-2, GPT-NeoX, OLMo, Llama 3 and Qwen. It
writes each byte as a printable character: printable Latin-1 as itself, the others as U+0100 and up, in order.

Qwen's and GPT-NeoX's files bring text into NFC first. Here it is read as it is: the clean stage composes characters, so
ids are those of the file for all text that went through it, and for other text that is in NFC.
"""

from collections.abc import Iterator
from typing import Any

from model.errors import InputError
from tasks.tokenizer.json_format import (
    BEGIN,
    END_OF_TEXT,
    PADDING,
    UNKNOWN,
    LibraryTokenizer,
    begin_token,
    open_engine,
    read_tokenizer_json,
    to_json_bytes,
)

PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))

CHARACTER_OF_BYTE = {byte: chr(byte) for byte in PRINTABLE} | {
    byte: chr(0x100 + number) for number, byte in enumerate(sorted({*range(256)} - {*PRINTABLE}))
}

BYTE_OF_CHARACTER = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}

BYTES_OF_TEXT = (*range(0xC0), *range(0xC2, 0xF5))
"""Bytes that occur in UTF-8. GPT-NeoX's vocabulary has no pieces for the 13 others, and needs none."""

LOSSLESS_SPLITTERS = ("ByteLevel", "Digits", "FixedLength", "Punctuation", "Split", "UnicodeScripts")
"""Pre-tokenizers that keep all of a text, apart from their options; others drop or replace some of it."""


def piece_text(raw: bytes) -> str:
    """Return bytes as the pieces of such a vocabulary spell them."""
    return "".join(CHARACTER_OF_BYTE[byte] for byte in raw)


def piece_raw(piece: str) -> bytes:
    """Return the bytes of a piece; the inverse of `piece_text`."""
    return bytes(BYTE_OF_CHARACTER[character] for character in piece)


class ByteLevelTokenizer(LibraryTokenizer):
    """Encodes and decodes with one byte-level vocabulary."""

    kind = "byte-level"

    def _open(self, model: bytes) -> None:
        parsed = read_tokenizer_json(model)
        check_exact(parsed)
        # Tokens must cover every byte of a text, so NFC is left to the clean stage; the file keeps it for others.
        self._engine = open_engine(to_json_bytes({**parsed, "normalizer": None}))
        pieces = {**parsed["model"]["vocab"], **{token["content"]: token["id"] for token in parsed["added_tokens"]}}
        self.vocab_size = max(pieces.values()) + 1
        self.unk, self.bos, self.eos, self.pad = (
            next((pieces[name] for name in names if name in pieces), -1)
            for names in (UNKNOWN, BEGIN, END_OF_TEXT, PADDING)
        )
        self.begin = begin_token(parsed)
        self.piece_bytes = _bytes_of_pieces(parsed, self.vocab_size)
        self._name_special({token["content"]: token["id"] for token in parsed["added_tokens"] if token["special"]})


def check_exact(parsed: dict[str, Any], place: str = "tokenizer") -> None:
    """Raise InputError, which begins with `place`, if a parsed `tokenizer.json` is of another kind or loses bytes of
    some text."""
    model = parsed.get("model", {})
    splitters = list(_steps(parsed.get("pre_tokenizer")))
    if model.get("type") != "BPE" or not any(step["type"] == "ByteLevel" for step in splitters):
        raise InputError(
            f"{place}: this tokenizer.json holds no byte-level BPE but a model of the type {model.get('type')}. Such"
            f" models lose text (WordPiece drops whitespace), so that tokens could not be traced to documents."
        )
    options = ("end_of_word_suffix", "dropout")
    normalisers = [
        f"the normaliser {step['type']}" for step in _steps(parsed.get("normalizer")) if step["type"] != "NFC"
    ]
    losses = [f"the splitter {step['type']}" for step in splitters if step["type"] not in LOSSLESS_SPLITTERS]
    losses += ["a space put before texts" for step in splitters if step.get("add_prefix_space")]
    losses += ["a splitter that drops what it finds" for step in splitters if step.get("behavior") == "Removed"]
    losses += [f"the option {name}" for name in options if model.get(name)]
    absent = [byte for byte in BYTES_OF_TEXT if CHARACTER_OF_BYTE[byte] not in model["vocab"]]
    losses += [f"{len(absent)} bytes without a piece, the byte {absent[0]} among them,"] if absent else []
    losses += [
        f"the added token {token['content']!r}, which absorbs whitespace"
        for token in parsed["added_tokens"]
        if not token["special"] and (token["lstrip"] or token["rstrip"])
    ]
    if normalisers or losses:
        hint = "Use a base that keeps text unchanged" + ("" if losses else ', or set vocab.normaliser = "none"')
        raise InputError(
            f"{place}: {' and '.join(normalisers + losses)} in this tokenizer.json would change text, or lose some."
            f" {hint}."
        )


def _steps(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normaliser or pre-tokenizer, those inside of sequences one by one."""
    if part is not None and part["type"] == "Sequence":
        for inner in part.get("pretokenizers") or part.get("normalizers") or ():
            yield from _steps(inner)
    elif part is not None:
        yield part


def _bytes_of_pieces(parsed: dict[str, Any], size: int) -> tuple[bytes, ...]:
    found = [b""] * size
    for piece, number in parsed["model"]["vocab"].items():
        if all(character in BYTE_OF_CHARACTER for character in piece):
            found[number] = piece_raw(piece)
    for token in parsed["added_tokens"]:
        found[token["id"]] = b"" if token["special"] else token["content"].encode()
    return tuple(found)
