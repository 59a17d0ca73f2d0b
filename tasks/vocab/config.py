"""What can be chosen about the vocabulary."""

from typing import Literal

from pydantic import Field

from tasks.config import StrictConfig


class VocabConfig(StrictConfig):
    """Settings of the vocabulary. Special tokens are fixed: 0 unknown, 1 begin, 2 end of text, 3 padding."""

    vocab_size: int = Field(default=32_000, ge=300, le=1_048_576)
    """Pieces in the vocabulary, special tokens and the 256 byte pieces included."""
    model_type: Literal["bpe", "unigram"] = "bpe"
    """How pieces are found: `bpe` merges the most frequent pair, `unigram` prunes by likelihood (slower)."""
    character_coverage: float = Field(default=0.9995, ge=0.9, le=1.0)
    """Share of all characters in the sample that must get a piece of their own; the rest are spelled in bytes."""
    split_digits: bool = True
    """Every digit is a piece of its own, so that numbers are spelled the same everywhere."""
    max_bytes: int = Field(default=200_000_000, ge=10_000, le=10_000_000_000)
    """Text to train on, UTF-8 bytes; more than that is sampled. It stands in memory several times over."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Source -> its share of the sampled text, as in the training mixture; empty: in proportion to sizes."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Run seed, decides which documents are sampled."""
