"""The vocabulary that a run starts from: SentencePiece's file of a released model, read and judged before any work.

What a base must give: every text back byte for byte. Byte pieces stand for characters outside its vocabulary; a base
without them, which writes such text as `<unk>`, gets them. Its normaliser must be the identity. One that loses text
(T5's nmt_nfkc turns a full-width comma into a plain one, joins blanks and drops line ends) is taken away on demand:
text that it would have left alone keeps its ids.

T5's sentinels stand in no file: programs count them from the end of the vocabulary, so that a longer one would give
their trained rows to new pieces. Here they, and the rows that its embedding has besides, are written into the file.
"""

from pathlib import Path
from typing import Any

from model.errors import InputError
from model.file_content import Content
from model.model_files import MAX_VOCABULARY_BYTES, read_bounded
from tasks.tokenizer.base import is_json, json_model, json_model_type
from tasks.tokenizer.model_file import BPE, BYTE, UNIGRAM, read_model, write_model
from tasks.vocab.config import VocabConfig, sentinel_names
from tasks.vocab.special_tokens import add_controls

KINDS = {UNIGRAM: "unigram", BPE: "bpe"}

PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
"""First bytes of packed files."""

OF_SENTENCEPIECE = ("tokenizer.model", "spiece.model")
"""Names of its files beside released weights."""

CURE = 'Take a base that keeps text as it is, or set vocab.normaliser = "none".'


def read_base(path: Path, content: Content | None = None) -> bytes:
    """The base's file, BERT's `vocab.txt` as the `tokenizer.json` that says the same; ChangedInput where it does not
    hold `content`."""
    given = read_bounded(path, MAX_VOCABULARY_BYTES, content)
    packed = next((name for beginning, name in PACKED.items() if given.startswith(beginning)), None)
    if packed is not None:
        raise InputError(f"vocab.base: {path} is packed ({packed}). Unpack it, and set vocab.base to the file within.")
    if is_json(given) or not {b"[UNK]", b"[SEP]"} <= {line.rstrip(b"\r") for line in given.split(b"\n")}:
        return given
    from tasks.tokenizer.wordpiece import from_vocab_txt

    try:
        return from_vocab_txt(given.decode(), f"vocab.base: {path}")
    except UnicodeDecodeError as error:
        raise InputError(
            f"vocab.base: {path} looks like BERT's vocab.txt and is no UTF-8 (byte {error.start})"
        ) from error


def prepared_base(config: VocabConfig, released: bytes | None = None) -> bytes:
    """The base's bytes, ready to be extended: without a normaliser that loses text where `config` says so, behind its
    pieces T5's sentinels and the rows that its embedding has besides, the 256 byte pieces where it lacks them, and
    special tokens. `released` is what `read_base` gave, where it was read before.

    Raises InputError for a file that is no SentencePiece model, or one that would lose text.
    """
    path = config.base
    assert path is not None, "only a vocabulary with a base is prepared"
    given = read_base(path) if released is None else released
    if json_model_type(given) == "WordPiece":
        from tasks.vocab.wordpiece import prepared_word_pieces

        return prepared_word_pieces(given, config)
    if is_json(given):
        _refuse_sentencepiece(given, path)
        from tasks.vocab.bpe import prepared_merges

        return prepared_merges(given, config)
    parsed = read_model(given, f"vocab.base: {path}")
    if parsed.trainer_spec.model_type not in KINDS:
        raise InputError(f"vocab.base: {path} is neither a BPE nor a Unigram model; only these can be extended")
    if parsed.trainer_spec.treat_whitespace_as_suffix or not parsed.normalizer_spec.escape_whitespaces:
        raise InputError(f"vocab.base: {path} writes blanks behind words or not at all; such a model is not supported")
    changed = [
        _without_normaliser(parsed, path, config.normaliser),
        _with_reserved_rows(parsed, path, config.sentinels, config.embedding_rows),
        _with_byte_pieces(parsed, path),
        add_controls(parsed, config.special_tokens),
    ]
    parsed.trainer_spec.vocab_size = len(parsed.pieces)
    return write_model(parsed) if any(changed) else given


def _refuse_sentencepiece(given: bytes, path: Path) -> None:
    """Raise InputError for a `tokenizer.json` made from SentencePiece's file, which lacks what growing needs."""
    model = json_model(given)
    if model.get("type") != "Unigram" and not model.get("byte_fallback"):
        return
    stands = next((path.parent / name for name in OF_SENTENCEPIECE if (path.parent / name).is_file()), None)
    cure = (
        f"Set vocab.base to {stands}, which lies beside it." if stands else f"Take its {' or '.join(OF_SENTENCEPIECE)}."
    )
    raise InputError(
        f"vocab.base: {path} is a SentencePiece vocabulary ({model.get('type')}) written as a tokenizer.json, in which"
        f" its scores and kinds of pieces no longer stand. {cure}"
    )


def _without_normaliser(parsed: Any, path: Path, normaliser: str) -> bool:
    losses = _losses(parsed)
    if not losses:
        return False
    if normaliser == "keep":
        raise InputError(f"vocab.base: {path} would lose text, for its normaliser {' and '.join(losses)}. {CURE}")
    parsed.normalizer_spec.name = "identity"
    parsed.normalizer_spec.precompiled_charsmap = b""
    parsed.normalizer_spec.remove_extra_whitespaces = False
    return True


def _with_reserved_rows(parsed: Any, path: Path, sentinels: int, embedding_rows: int) -> bool:
    """Control pieces, with which no text is ever written: a page that shows `<extra_id_0>` must not give a sentinel."""
    before = len(parsed.pieces)
    changed = add_controls(parsed, sentinel_names(sentinels))
    if embedding_rows and embedding_rows < len(parsed.pieces):
        raise InputError(
            f"vocab.embedding_rows: {path} has {before} pieces and {sentinels} sentinels, more than {embedding_rows}"
            f" rows. Set it to the rows of the base model's embedding, or leave it out."
        )
    add_controls(parsed, [f"<reserved_{number}>" for number in range(len(parsed.pieces), embedding_rows)])
    return changed or len(parsed.pieces) > before


def _with_byte_pieces(parsed: Any, path: Path) -> bool:
    """Characters outside the vocabulary are spelled in bytes, so each byte needs a piece that stands for it alone."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    present = {piece.piece: piece.type for piece in parsed.pieces}
    wrong = [name for name in names if present.get(name, BYTE) != BYTE]
    if wrong:
        raise InputError(
            f"vocab.base: `{wrong[0]}` is an ordinary piece of {path}, so bytes cannot be spelled and text outside its"
            f" vocabulary would be lost. Take another base."
        )
    missing = [name for name in names if name not in present]
    for name in missing:
        parsed.pieces.add(piece=name, score=0.0, type=BYTE)
    changed = bool(missing) or not parsed.trainer_spec.byte_fallback
    parsed.trainer_spec.byte_fallback = True
    return changed


def _losses(parsed: Any) -> list[str]:
    """What the base's normaliser does to text that no decoding can take back."""
    spec = parsed.normalizer_spec
    losses = []
    if spec.precompiled_charsmap:
        losses.append(f"({spec.name or 'unnamed'}) maps characters to others")
    if spec.remove_extra_whitespaces:
        losses.append("drops blanks")
    return losses
