"""The base vocabulary of a run: a released file, read, checked and prepared for extension before any work.

A base must decode every text byte for byte. Byte tokens spell characters outside its vocabulary; a base without them,
which encodes such text as `<unk>`, gets them. One without a token for the space is refused. Its normaliser must be the
identity. One that loses text (T5's nmt_nfkc maps a full-width comma to a plain one, merges spaces and drops line ends)
is removed on request; text that it would not have changed keeps its ids.

No file contains T5's sentinels: programs number them from the end of the vocabulary, so that a longer one would give
their trained embeddings to new tokens. Here they are written into the file, with the rows that its embedding has beyond
its vocabulary.
"""

from pathlib import Path
from typing import Any

from model.errors import InputError
from tasks.tokenizer.base import is_json, json_model_type
from tasks.tokenizer.model_file import BYTE, MODEL_TYPES, read_model, write_model
from tasks.tokenizer.released import read_base
from tasks.vocab.config import VocabConfig, sentinel_names
from tasks.vocab.special_tokens import add_controls

SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model")
"""Names of SentencePiece's file in the folder of a released model."""


def prepare_base(config: VocabConfig, released: bytes | None = None, *, pads: bool = True) -> bytes:
    """Return the base's bytes, ready to be extended: without a lossy normaliser where `config` removes it; after its
    tokens T5's sentinels and placeholders for further embedding rows, the 256 byte tokens where it lacks them, and
    special tokens. `released` is the result of `read_base`, where the file was read before. With `pads`, a byte-level
    vocabulary without a padding token gets one, which rows of training data need.

    Raises InputError for a file of no supported kind, or one that would lose text.
    """
    path = config.base
    assert path is not None, "only a vocabulary with a base is prepared"
    data = read_base(path) if released is None else released
    kind = json_model_type(data)
    if kind == "WordPiece":
        from tasks.vocab.wordpiece import prepare_wordpiece

        return prepare_wordpiece(data, config)
    if kind == "Unigram":
        raise _converted_from_sentencepiece(path)
    if is_json(data):
        from tasks.vocab.bpe import prepare_byte_level

        return prepare_byte_level(data, config, pads=pads)
    parsed = read_model(data, f"vocab.base: {path}")
    if parsed.trainer_spec.model_type not in MODEL_TYPES:
        raise InputError(f"vocab.base: {path} is neither a BPE nor a Unigram model; only these can be extended")
    if parsed.trainer_spec.treat_whitespace_as_suffix or not parsed.normalizer_spec.escape_whitespaces:
        raise InputError(
            f"vocab.base: {path} marks spaces after words, or not at all; such a model is not supported. Choose another"
            f" base."
        )
    changed = [
        _remove_normaliser(parsed, path, config.normaliser),
        _add_reserved_tokens(parsed, path, config.sentinels, config.embedding_rows),
        _add_byte_tokens(parsed, path),
        add_controls(parsed, config.special_tokens),
    ]
    parsed.trainer_spec.vocab_size = len(parsed.pieces)
    return write_model(parsed) if any(changed) else data


def _converted_from_sentencepiece(path: Path) -> InputError:
    """Return the error for a `tokenizer.json` converted from SentencePiece's file, which lacks what an extension
    needs."""
    sibling = next((path.parent / name for name in SENTENCEPIECE_FILES if (path.parent / name).is_file()), None)
    advice = (
        f"Set vocab.base to {sibling} instead." if sibling else f"Take its {' or '.join(SENTENCEPIECE_FILES)} instead."
    )
    return InputError(
        f"vocab.base: {path} is a SentencePiece vocabulary (Unigram) converted to a tokenizer.json, which lacks its"
        f" scores and types of tokens. {advice}"
    )


def _remove_normaliser(parsed: Any, path: Path, normaliser: str) -> bool:
    losses = _normaliser_losses(parsed)
    if not losses:
        return False
    if normaliser == "keep":
        raise InputError(
            f"vocab.base: {path} would lose text: its normaliser {' and '.join(losses)}. Choose a base that does not"
            f' change text, or set vocab.normaliser = "none".'
        )
    parsed.normalizer_spec.name = "identity"
    parsed.normalizer_spec.precompiled_charsmap = b""
    parsed.normalizer_spec.remove_extra_whitespaces = False
    return True


def _add_reserved_tokens(parsed: Any, path: Path, sentinels: int, embedding_rows: int) -> bool:
    """Append sentinels and placeholders as control tokens, which no text encodes to: a page with `<extra_id_0>` must
    not give a sentinel."""
    before = len(parsed.pieces)
    changed = add_controls(parsed, sentinel_names(sentinels))
    if embedding_rows and embedding_rows < len(parsed.pieces):
        raise InputError(
            f"vocab.embedding_rows: {path} has {before} tokens and {sentinels} sentinels, more than {embedding_rows}"
            f" rows. Set it to the rows of the base model's embedding, or leave it out."
        )
    add_controls(parsed, [f"<reserved_{number}>" for number in range(len(parsed.pieces), embedding_rows)])
    return changed or len(parsed.pieces) > before


def _add_byte_tokens(parsed: Any, path: Path) -> bool:
    """Append missing byte tokens: characters outside the vocabulary are spelled in bytes, so each byte needs its own
    token."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    present = {piece.piece: piece.type for piece in parsed.pieces}
    wrong = [name for name in names if present.get(name, BYTE) != BYTE]
    if wrong:
        raise InputError(
            f"vocab.base: `{wrong[0]}` is an ordinary token of {path}, so that bytes cannot be spelled and text outside"
            f" its vocabulary would be lost. Take another base."
        )
    missing = [name for name in names if name not in present]
    for name in missing:
        parsed.pieces.add(piece=name, score=0.0, type=BYTE)
    changed = bool(missing) or not parsed.trainer_spec.byte_fallback
    parsed.trainer_spec.byte_fallback = True
    return changed


def _normaliser_losses(parsed: Any) -> list[str]:
    """Return what the base's normaliser does to text that decoding cannot undo."""
    spec = parsed.normalizer_spec
    losses = []
    if spec.precompiled_charsmap:
        losses.append(f"({spec.name or 'unnamed'}) maps characters to others")
    if spec.remove_extra_whitespaces:
        losses.append("drops spaces")
    return losses
