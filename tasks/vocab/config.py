"""Settings of the vocabulary."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from model.config import EXPERT, RUNTIME, Reach
from tasks.common.config import StrictConfig

DEFAULT_COVERAGE = 0.9995
MIN_VOCABULARY = 300
"""Tokens: 256 bytes, the special tokens, and a few characters."""
RESERVED_NAMES = re.compile(r"\[PAD\]|\[UNK\]|<unk>|<s>|</s>|<pad>|<extra_id_\d+>|<0x[0-9A-F]{2}>")
"""Names of tokens that vocabularies have anyway, or through other settings."""
TRAINING_FIELDS = ("vocab_size", "model_type", "split_digits", "lowercase")
"""Fields that a base decides by itself."""
BASE_FIELDS = ("extend", "normaliser", "embedding_rows")
"""Fields that have no meaning without a base."""

Language = Literal["ar", "el", "fa", "he", "hi", "ja", "ko", "ru", "th", "uk", "zh"]
"""Languages with a script of their own, other than Latin (`scripts.py`)."""
BERT_TOKENS = ("[CLS]", "[SEP]", "[MASK]")


def sentinel_names(count: int) -> tuple[str, ...]:
    """Return the names of T5's sentinels in the order of their ids: number 0 has the highest."""
    return tuple(f"<extra_id_{number}>" for number in reversed(range(count)))


class VocabConfig(StrictConfig):
    """Settings of the vocabulary. Special tokens of one trained here are 0 unknown, 1 begin, 2 end of text, 3
    padding; a base keeps its own. Special tokens for other objectives follow all other tokens."""

    vocab_size: int = Field(default=32_000, ge=MIN_VOCABULARY, le=1_048_576)
    """Tokens in the vocabulary, special tokens and the 256 byte tokens included."""
    model_type: Literal["bpe", "unigram", "byte_level", "wordpiece"] = "bpe"
    """How tokens are found: `bpe` merges the most frequent pair of characters, `unigram` prunes by likelihood
    (slower), `byte_level` merges bytes as GPT-2 does, `wordpiece` splits words as BERT does and loses whitespace."""
    character_coverage: Annotated[float, EXPERT] = Field(default=DEFAULT_COVERAGE, ge=0.9, le=1.0)
    """Share of all characters in the sample that must get a token of their own; the rest are spelled in bytes
    (`wordpiece`: words with them become [UNK]). Not used by `byte_level`."""
    split_digits: Annotated[bool, EXPERT] = True
    """Every digit is a token of its own, so that numbers are spelled the same everywhere."""
    lowercase: Annotated[bool, EXPERT] = False
    """`wordpiece` only: lowercase text and strip accents, like BERT's uncased vocabularies."""
    base: Annotated[Path | None, RUNTIME] = None
    """A vocabulary to start from instead of training one: SentencePiece's `.model` file of a released model, the
    `tokenizer.json` of a byte-level or WordPiece one, or BERT's `vocab.txt`; that of a published `train.base_model` by
    default. Its ids stay; its content, not its path, is part of the identity."""
    extend: dict[Language, Annotated[int, Field(ge=1, le=1_000_000)]] = Field(default_factory=dict)
    """Language -> tokens added to the base for its script, found in this run's text: Arabic, Greek, Persian, Hebrew,
    Hindi, Japanese, Korean, Russian, Thai, Ukrainian, Chinese. Empty: the base as it is."""
    normaliser: Annotated[Literal["keep", "none"], EXPERT] = "keep"
    """`none` removes a base's normaliser that loses text (T5's replaces characters, merges spaces and drops line
    ends); text that it would not have changed keeps its ids."""
    sentinels: Annotated[int, EXPERT] = Field(default=0, ge=0, le=1000)
    """Sentinels `<extra_id_N>` for T5's objective, in descending order (usually 100). A T5 base has them directly
    after its other tokens, and its embedding has rows for them: `embedding_rows`."""
    special_tokens: Annotated[tuple[str, ...], EXPERT] = ()
    """Further special tokens, which no text encodes to; BERT's objective needs `["[CLS]", "[SEP]", "[MASK]"]`."""
    embedding_rows: Annotated[int, EXPERT] = Field(default=0, ge=0, le=2_000_000)
    """Rows of the base model's embedding where it has more than its vocabulary has tokens (flan-t5: 32128); new
    tokens follow them. 0: those of a published `train.base_model`, and without one as many as the base's file has
    tokens; any token after them is new to the model."""
    keep: Annotated[str | None, RUNTIME, Reach.EARLIER, EXPERT] = None
    """A run whose vocabulary is used as it is; null makes one. The other settings of this table must be those of that
    run."""
    max_bytes: Annotated[int, EXPERT] = Field(default=200_000_000, ge=10_000, le=10_000_000_000)
    """Text to train on, UTF-8 bytes; more than that is sampled. It is held in memory several times."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Source -> its share of the sampled text, as in the training mixture; empty: in proportion to sizes."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Run seed; decides which documents are sampled."""

    @property
    def pieces_to_find(self) -> int:
        """Tokens that the run's text must give: all of them, or those added to the base."""
        return self.vocab_size if self.base is None else sum(self.extend.values())

    def halved(self) -> "VocabConfig":
        """Return the same with half as many tokens to find, for a part of the text."""
        if self.base is None:
            return self.model_copy(update={"vocab_size": self.vocab_size // 2})
        return self.model_copy(update={"extend": {name: rows // 2 for name, rows in self.extend.items() if rows > 1}})

    @property
    def special_names(self) -> tuple[str, ...]:
        """Special tokens at the end of a vocabulary trained here, in the order of their ids. WordPiece has BERT's at
        its beginning."""
        known = BERT_TOKENS if self.model_type == "wordpiece" else ()
        return (*(name for name in self.special_tokens if name not in known), *sentinel_names(self.sentinels))

    @property
    def trained_pieces(self) -> int:
        """Tokens to be found by training, apart from `special_names`."""
        return self.vocab_size - len(self.special_names)

    @field_validator("special_tokens")
    @classmethod
    def _names_of_their_own(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for number, name in enumerate(names):
            if len(name) < 2 or not name.isprintable() or any(sign.isspace() or sign == "\u2581" for sign in name):
                raise ValueError(f"`{name}` cannot name a special token: use at least two visible characters")
            if RESERVED_NAMES.fullmatch(name):
                raise ValueError(f"`{name}` is the name of a token that every vocabulary may have; choose another")
            if name in names[:number]:
                raise ValueError(f"`{name}` is listed twice")
        return names

    @model_validator(mode="after")
    def _a_base_or_training(self) -> "VocabConfig":
        if self.base is None:
            if self.trained_pieces < MIN_VOCABULARY:
                raise ValueError(
                    f"`vocab_size` includes special tokens: {self.vocab_size} leaves {self.trained_pieces} tokens for"
                    f" text, and {MIN_VOCABULARY} are needed"
                )
            for name in BASE_FIELDS:
                if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                    raise ValueError(f"`{name}` applies only to a base; set `base`, or leave `{name}` out")
            if self.lowercase and self.model_type != "wordpiece":
                raise ValueError("`lowercase` applies to `wordpiece` only; other vocabularies do not change text")
            if self.model_type == "byte_level" and self.character_coverage != DEFAULT_COVERAGE:
                raise ValueError("`character_coverage` does not apply to `byte_level`, which encodes every character")
            return self
        for name in TRAINING_FIELDS:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"`{name}` cannot be set with `base`, whose tokens do not change; leave it out")
        return self
