"""The file `tokenizer.json` of the library `tokenizers`: reading, checking, writing, and encoding with the library."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tokenizers

from model.errors import InputError
from tasks.tokenizer.base import Tokenizer

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>")
BEGIN = ("<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "<｜begin▁of▁sentence｜>")
UNKNOWN = ("<unk>", "<|unk|>", "<|unknown|>", "[UNK]")

PADDING = ("<|padding|>", "<pad>", "<|pad|>", "<|finetune_right_pad_id|>", "<｜▁pad▁｜>")
"""Names of special tokens in published vocabularies, whose files do not say what they are for."""


class LibraryTokenizer(Tokenizer):
    """A vocabulary in this format, with which the library encodes."""

    leading_space = False
    _engine: tokenizers.Tokenizer

    def encode(self, text: str) -> list[int]:
        return self._engine.encode(text, add_special_tokens=False).ids

    def encode_following(self, text: str) -> list[int]:
        return self.encode(text)

    def _encode_slice(self, texts: list[str]) -> Iterator[np.ndarray]:
        for encoded in self._engine.encode_batch_fast(texts, add_special_tokens=False):
            yield np.array(encoded.ids, dtype=np.int32)


def open_engine(text: bytes) -> tokenizers.Tokenizer:
    """Return the library's tokenizer of a file, which encodes any text as text, whole.

    A page that holds `<|endoftext|>` or `[MASK]` is text; only chunking and training insert the tokens themselves.
    """
    engine = tokenizers.Tokenizer.from_buffer(text)
    engine.encode_special_tokens = True
    engine.no_padding()
    engine.no_truncation()
    return engine


def begin_token(parsed: dict[str, Any]) -> int:
    """Return the id of the token that the post-processor of a `tokenizer.json` puts before each text; -1 for none.

    One may close the text as well (`add_eos_token`). BERT's texts are between `[CLS]` and `[SEP]`, and begin with none.
    """
    processor = parsed.get("post_processor") or {}
    for step in processor.get("processors", [processor]):
        match step:
            case {"single": [{"SpecialToken": {"id": name}}, {"Sequence": _}, *behind], "special_tokens": special}:
                closing = [one.get("SpecialToken", {}).get("id") for one in behind]
                if all(one in END_OF_TEXT for one in closing):
                    return int((special.get(name, {}).get("ids") or [-1])[0])
    return -1


def parse_merges(merges: Iterable[str | Sequence[str]]) -> list[tuple[str, str]]:
    """Return merges as pairs; older files have each as one string with a space between its tokens."""
    split = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
    return [(left, right) for left, right in split]


def to_json_bytes(parsed: dict[str, Any]) -> bytes:
    """Return the bytes of a `tokenizer.json`; the same content gives the same bytes."""
    return (json.dumps(parsed, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def read_tokenizer_json(text: bytes, place: str = "tokenizer") -> dict[str, Any]:
    """Return the content of a `tokenizer.json` whose model has a vocabulary, piece -> id; errors begin with `place`.

    Raises InputError for a damaged file, for other JSON, and for a vocabulary in which two tokens share an id or a
    token has two ids."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:  # An integer of thousands of digits is no JSONDecodeError.
        raise InputError(
            f"{place}: this file begins like a tokenizer.json and is not JSON ({error}). It may be truncated:"
            f" download it again."
        ) from error
    model = parsed.get("model") if isinstance(parsed, dict) else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(parsed, dict) or not isinstance(vocabulary, dict) or not vocabulary:
        raise InputError(
            f"{place}: this JSON file is no tokenizer.json with pieces and their ids. Byte-level vocabularies (as"
            f" GPT-2's) and WordPiece (as BERT's) are supported; for others use SentencePiece's `.model` file."
        )
    if parsed["model"].get("type") == "BPE" and parsed["model"].get("continuing_subword_prefix"):
        # The library ends the process where it cuts such a prefix within a character.
        raise InputError(f"{place}: the option continuing_subword_prefix of this tokenizer.json is not supported")
    try:
        tokenizers.Tokenizer.from_buffer(text)
    except Exception as error:  # the library raises plain exceptions
        raise InputError(f"{place}: the library `tokenizers` cannot read this tokenizer.json: {error}") from error
    owners = {number: piece for piece, number in vocabulary.items()}
    if len(owners) < len(vocabulary):
        raise InputError(f"{place}: two pieces of this tokenizer.json share an id")
    for token in parsed.setdefault("added_tokens", []):
        name, number = token["content"], token["id"]
        if vocabulary.get(name, number) != number or owners.get(number, name) != name:
            raise InputError(
                f"{place}: the added token `{name}` of this tokenizer.json has the id {number}, and its vocabulary"
                f" says `{owners.get(number, name)}` = {vocabulary.get(name, number)}: the file contradicts itself"
            )
    return parsed
