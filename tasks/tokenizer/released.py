"""Read the vocabulary file of a released model in the format that the tokenizers here use.

Newer programs save Llama 2's kind of vocabulary, a SentencePiece BPE, as a `tokenizer.json` and write no
`tokenizer.model`. Scores of tokens are gone there, but the ranks of merges hold the same order: SentencePiece joins the
adjacent symbols whose token has the highest score, the library `tokenizers` those whose merge has the lowest rank. The
two agree if every pair of tokens that makes a token is a merge, and all merges that make one token follow each other; a
file without these properties is refused.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2 as schema

from model.errors import InputError
from model.file_content import Content
from model.model_files import MAX_VOCABULARY_BYTES, read_bounded, read_json
from tasks.tokenizer.base import is_json, json_model
from tasks.tokenizer.json_format import begin_token, parse_merges, read_tokenizer_json
from tasks.tokenizer.model_file import BLANK, BPE, BYTE, CONTROL, NORMAL, UNKNOWN_TYPE, USER_DEFINED, write_model
from tasks.tokenizer.wordpiece import from_vocab_txt

BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_UNKNOWN, _BEGIN, _END, _PADDING = "<unk>", "<s>", "</s>", "<pad>"

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
    model = json_model(data) if is_json(data) else {}
    # A BPE that spells unknown characters in byte tokens is SentencePiece's.
    if model.get("type") == "BPE" and model.get("byte_fallback"):
        return _sentencepiece_from_json(data, path)
    if is_json(data) or not {b"[UNK]", b"[SEP]"} <= {line.rstrip(b"\r") for line in data.split(b"\n")}:
        return data
    try:
        return from_vocab_txt(data.decode(), f"vocab.base: {path}")
    except UnicodeDecodeError as error:
        raise InputError(
            f"vocab.base: {path} looks like BERT's vocab.txt, but byte {error.start} is not UTF-8"
        ) from error


def texts_begin(path: Path) -> bool:
    """Return whether programs put the begin token before each text of a released SentencePiece vocabulary.

    Its own file does not say so: the `tokenizer.json` beside it has a post-processor, or `tokenizer_config.json` the
    setting `add_bos_token`, which is on for Llama where it is left out. Beside a vocabulary of this program is its
    description.
    """
    if path.suffix == ".txt":
        return False  # BERT's vocab.txt
    if path.suffix == ".json":
        with suppress(InputError):  # `read_base` says what is wrong with it
            return begin_token(read_json(path, MAX_VOCABULARY_BYTES)) >= 0
        return False
    beside = path.with_name("tokenizer.json")
    if beside.is_file():
        parsed = read_json(beside, MAX_VOCABULARY_BYTES)
        return begin_token(parsed) >= 0 if "model" in parsed else parsed.get("begin", -1) >= 0
    settings = path.with_name("tokenizer_config.json")
    if not settings.is_file():
        return False
    found = read_json(settings)
    return bool(found.get("add_bos_token", str(found.get("tokenizer_class", "")).startswith("Llama")))


def _sentencepiece_from_json(data: bytes, path: Path) -> bytes:
    """Return SentencePiece's file of the vocabulary in a `tokenizer.json`, with equal ids; InputError if none has
    them."""
    place = f"vocab.base: {path}"
    parsed = read_tokenizer_json(data, place)
    vocabulary: dict[str, int] = parsed["model"]["vocab"]
    special = {token["content"]: token for token in parsed["added_tokens"]}
    names = {number: name for name, number in vocabulary.items()}
    names |= {token["id"]: token["content"] for token in parsed["added_tokens"]}
    if sorted(names) != list(range(len(names))):
        raise InputError(f"{place}: ids of its tokens are not 0 to {len(names) - 1}; some are missing.")
    ordinary = {name for name in vocabulary if name not in special and not BYTE_TOKEN.fullmatch(name)}
    ranks = _ranks(parsed["model"].get("merges") or [], ordinary, place)
    model = schema.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]  # made at run time by protobuf
    for number in range(len(names)):
        name = names[number]
        kind, score = NORMAL, -float(ranks.get(name, len(ranks)))
        if name == _UNKNOWN:
            kind, score = UNKNOWN_TYPE, 0.0
        elif BYTE_TOKEN.fullmatch(name):
            kind, score = BYTE, 0.0
        elif name in special:
            kind, score = (CONTROL if special[name]["special"] else USER_DEFINED), 0.0
        model.pieces.add(piece=name, score=score, type=kind)
    trainer, normaliser = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.vocab_size, trainer.byte_fallback = BPE, len(names), True
    for field, name in (("unk_id", _UNKNOWN), ("bos_id", _BEGIN), ("eos_id", _END), ("pad_id", _PADDING)):
        setattr(trainer, field, vocabulary.get(name, special.get(name, {}).get("id", -1)))
    normaliser.name = "identity"
    normaliser.add_dummy_prefix = _puts_a_space_before_texts(parsed, place)
    normaliser.remove_extra_whitespaces, normaliser.escape_whitespaces = False, True
    return write_model(model)


def _ranks(merges: list[Any], ordinary: set[str], place: str) -> dict[str, int]:
    """Return the position of each merged token in the order of merges."""
    ranks: dict[str, int] = {}
    made: dict[str, int] = {}
    last = ""
    for first, second in parse_merges(merges):
        token = first + second
        if token in ranks and token != last:
            raise InputError(
                f"{place}: merges that make `{token}` do not follow each other, which no SentencePiece model can say."
                f" Take the model's tokenizer.model instead."
            )
        ranks.setdefault(token, len(ranks))
        made[token] = made.get(token, 0) + 1
        last = token
    for token in sorted(ordinary):
        pairs = sum(token[:cut] in ordinary and token[cut:] in ordinary for cut in range(1, len(token)))
        if pairs != made.get(token, 0):
            raise InputError(
                f"{place}: `{token}` can be made of {pairs} pairs of tokens, and {made.get(token, 0)} are merges; a"
                f" SentencePiece model joins all. Take the model's tokenizer.model instead."
            )
    return ranks


def _puts_a_space_before_texts(parsed: dict[str, Any], place: str) -> bool:
    """Return whether texts are read as if a space were before them; InputError for other changes of text."""
    normaliser, splitter = parsed.get("normalizer"), parsed.get("pre_tokenizer")
    steps = (normaliser or {}).get("normalizers") or ([normaliser] if normaliser else [])
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
    if steps and steps[-1] == blanks and splitter is None:
        if not steps[:-1]:
            return False
        if steps[:-1] == [{"type": "Prepend", "prepend": BLANK}]:
            return True
    if not steps and splitter is not None and splitter["type"] == "Metaspace" and not splitter.get("split", True):
        return splitter.get("prepend_scheme", "always") != "never"
    raise InputError(
        f"{place}: this tokenizer.json changes text by its normalizer or pre_tokenizer in a way that is not supported"
        f" here. Take the model's tokenizer.model instead."
    )
