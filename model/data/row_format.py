"""What a trainer must know of the rows it reads: their objective, and the ids that stand for no text.

It travels in the Arrow schema of SEQUENCES, so that the trainer needs no tokenizer, and rows of one tokenizer are never
read for another.

What stands in place of a target that is not predicted.

Which tokens make a word together, told by their ids alone, so that rows can say it without their tokenizer.

Two neighbours belong to one word where the first leaves a word open and the second goes on with one: `play` `##ing` of
WordPiece, a letter behind a letter without a blank between them elsewhere.
"""

import base64
import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from model.config import BaseConfig
from model.data.span_lengths import Denoising
from model.errors import InputError

Objective = Literal["causal_lm", "masked_lm", "span_corruption"]
"""What is predicted: each next token (GPT), masked tokens and whether two stretches follow each other (BERT), spans
that were taken out (T5)."""

KEY = b"row_format"
"""Name of the entry in the schema's metadata."""


class RowFormat(BaseConfig):
    """The objective that rows were laid out for, and the tokenizer's special ids; -1 where it has none."""

    objective: Objective
    tokenizer_digest: str
    vocab_size: int
    """Number of ids; every id is below it."""
    eos: int
    """Closes every document."""
    pad: int
    """Fills the end of rows."""
    cls: int = -1
    """Begins a pair of stretches."""
    sep: int = -1
    """Ends each stretch of a pair."""
    mask: int = -1
    """Stands in place of a masked token."""
    sentinels: tuple[int, ...] = ()
    """Stand in place of spans that were taken out, number 0 first."""
    special: tuple[int, ...] = ()
    """All ids that stand for no text, sorted: they are neither masked nor drawn as random tokens."""

    word_borders: str = ""
    """Which ids stand inside words (`word_borders.WordBorders.packed`), where words are hidden as a whole."""
    denoising: Denoising = "random_spans"
    """How span_corruption makes inputs and targets; the length of rows follows from it and from the two below."""
    noise_density: float = 0.15
    """Share of a row's tokens that span_corruption takes out."""
    mean_noise_span: float = 3.0
    """Mean length of the spans that it takes out, tokens; of `random_spans` alone."""

    def metadata(self) -> dict[bytes, bytes]:
        """Metadata for the schema of SEQUENCES."""
        return {KEY: json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()}

    @staticmethod
    def of(schema: pa.Schema) -> "RowFormat | None":
        """The format that a schema carries, None where it carries none; InputError where it is unreadable."""
        written = (schema.metadata or {}).get(KEY)
        if written is None:
            return None
        try:
            content: Any = json.loads(written)
            return RowFormat.model_validate(content)
        except (ValueError, ValidationError) as error:
            raise InputError(
                f"the sequences say of their rows {written[:80]!r}, which this version does not understand. Build them"
                f" anew from chunk."
            ) from error


NO_LOSS = -100
"""What PyTorch's cross entropy ignores."""


@dataclass(frozen=True)
class WordBorders:
    """What each id is to the word that it stands in."""

    continues_word_V: np.ndarray
    """bool[V]: it may go on with the word of the token before it."""
    leaves_word_open_V: np.ndarray
    """bool[V]: the token behind it may go on with its word."""

    def packed(self) -> str:
        """Two bits an id, as text."""
        return base64.b64encode(
            np.packbits(np.stack([self.continues_word_V, self.leaves_word_open_V])).tobytes()
        ).decode()

    @staticmethod
    def unpacked(text: str, vocab_size: int) -> "WordBorders":
        """The borders that `packed` gave for so many ids; ValueError where they are of another number."""
        bits = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
        if len(bits) != -(-2 * vocab_size // 8):
            raise ValueError(f"{len(bits)} bytes of word borders are not those of {vocab_size} ids")
        goes_on, leaves_open = np.unpackbits(bits, count=2 * vocab_size).reshape(2, vocab_size).astype(np.bool_)
        return WordBorders(goes_on, leaves_open)
