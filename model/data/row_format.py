"""The format of rows of SEQUENCES: their objective, the special ids, and which tokens form words.

It is stored in the Arrow schema of SEQUENCES, so that the trainer needs no tokenizer, and rows of one tokenizer are
never read as those of another.
"""

import base64
import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from model.config import BaseConfig
from model.config.network import Objective
from model.data.span_lengths import Denoising
from model.errors import InputError

KEY = b"row_format"
"""Key of the schema's metadata."""

NO_LOSS = -100
"""Target of positions that are not predicted; PyTorch's cross entropy ignores it."""


class RowFormat(BaseConfig):
    """The objective that rows were packed for, and the tokenizer's special ids; -1 where it has none."""

    objective: Objective
    tokenizer_digest: str
    vocab_size: int
    """Number of ids; every id is below it."""
    eos: int
    """Closes every document."""
    pad: int
    """Fills the end of rows."""
    cls: int = -1
    """Begins a sentence pair."""
    sep: int = -1
    """Ends each sentence of a pair."""
    mask: int = -1
    """Replaces a masked token."""
    sentinels: tuple[int, ...] = ()
    """Replace removed spans, number 0 first."""
    special: tuple[int, ...] = ()
    """All ids that are not text, sorted: they are neither masked nor drawn as random tokens."""
    word_borders: str = ""
    """`WordBorders.packed`, where whole words are masked."""
    denoising: Denoising = "random_spans"
    """How span_corruption makes inputs and targets; this and the two settings below decide the length of rows."""
    noise_density: float = 0.15
    """Share of a row's tokens that span_corruption removes."""
    mean_noise_span: float = 3.0
    """`random_spans`: mean length of the removed spans, tokens."""

    def metadata(self) -> dict[bytes, bytes]:
        """Return the metadata for the schema of SEQUENCES."""
        return {KEY: json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()}

    @staticmethod
    def of(schema: pa.Schema) -> "RowFormat | None":
        """Return the format in a schema's metadata, None where there is none; InputError where it is unreadable."""
        written = (schema.metadata or {}).get(KEY)
        if written is None:
            return None
        try:
            return RowFormat.model_validate_json(written)
        except ValidationError as error:
            raise InputError(
                f"the sequences have the row format {written[:80]!r}, which this version does not know. Build them"
                f" again from chunk."
            ) from error


@dataclass(frozen=True)
class WordBorders:
    """Which tokens form words, by their ids, so that rows can be masked by words without their tokenizer.

    Two neighbours belong to one word where the first leaves a word open and the second continues one: `play` `##ing` of
    WordPiece; in other vocabularies a letter after a letter without whitespace between them.
    """

    continues_word_V: np.ndarray
    """bool[V]: it may continue the word of the previous token."""
    leaves_word_open_V: np.ndarray
    """bool[V]: the next token may continue its word."""

    def packed(self) -> str:
        """Return two bits for each id, as base64."""
        return base64.b64encode(
            np.packbits(np.stack([self.continues_word_V, self.leaves_word_open_V])).tobytes()
        ).decode()

    @staticmethod
    def unpacked(text: str, vocab_size: int) -> "WordBorders":
        """Return the borders from the text of `packed`; ValueError where they are not those of `vocab_size` ids."""
        bits = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
        if len(bits) != -(-2 * vocab_size // 8):
            raise ValueError(f"{len(bits)} bytes of word borders are not those of {vocab_size} ids")
        continues, leaves_open = np.unpackbits(bits, count=2 * vocab_size).reshape(2, vocab_size).astype(np.bool_)
        return WordBorders(continues, leaves_open)
