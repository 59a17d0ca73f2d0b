"""What can be chosen about the vocabulary."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from model.config import RUNTIME
from tasks.common.config import StrictConfig

COVERAGE = 0.9995
FEWEST = 300
"""Pieces: 256 bytes, the special tokens, and a few characters."""
RESERVED = re.compile(r"\[PAD\]|\[UNK\]|<unk>|<s>|</s>|<pad>|<extra_id_\d+>|<0x[0-9A-F]{2}>")
"""Names of tokens that stand in vocabularies without being asked for, or through other settings."""
TRAINED = ("vocab_size", "model_type", "split_digits", "lowercase")
"""What a base decides by itself."""
OF_A_BASE = ("extend", "normaliser", "embedding_rows")
"""What says nothing without one."""

Language = Literal["ar", "el", "fa", "he", "hi", "ja", "ko", "ru", "th", "uk", "zh"]
"""Languages with a script of their own, apart from Latin letters (`scripts.py`)."""
OF_BERT = ("[CLS]", "[SEP]", "[MASK]")


def sentinel_names(count: int) -> tuple[str, ...]:
    """Names of T5's sentinels in the order of their ids: number 0 has the highest."""
    return tuple(f"<extra_id_{number}>" for number in reversed(range(count)))


class VocabConfig(StrictConfig):
    """Settings of the vocabulary. Special tokens of one trained here are 0 unknown, 1 begin, 2 end of text, 3 padding;
    a base keeps its own. Those of other objectives stand behind all pieces."""

    vocab_size: int = Field(default=32_000, ge=FEWEST, le=1_048_576)
    """Pieces in the vocabulary, special tokens and the 256 byte pieces included."""
    model_type: Literal["bpe", "unigram", "byte_level", "wordpiece"] = "bpe"
    """How pieces are found: `bpe` merges the most frequent pair of characters, `unigram` prunes by likelihood (slower),
    `byte_level` merges bytes as GPT-2 does, `wordpiece` cuts words as BERT does and loses blanks."""
    character_coverage: float = Field(default=COVERAGE, ge=0.9, le=1.0)
    """Share of all characters in the sample that must get a piece of their own; the rest are spelled in bytes
    (`wordpiece`: words that hold them become [UNK]). Without meaning for `byte_level`."""
    split_digits: bool = True
    """Every digit is a piece of its own, so that numbers are spelled the same everywhere."""
    lowercase: bool = False
    """`wordpiece` alone: text is read in small letters and without accents, as by BERT's uncased vocabularies."""
    base: Annotated[Path | None, RUNTIME] = None
    """A vocabulary to start from instead of training one: SentencePiece's `.model` file of a released model, the
    `tokenizer.json` of a byte-level or WordPiece one, or BERT's `vocab.txt`. Its ids stay; its content, not its place,
    is part of the identity."""
    extend: dict[Language, Annotated[int, Field(ge=1, le=1_000_000)]] = Field(default_factory=dict)
    """Language -> rows added to the base for its script, found in this run's text: Arabic, Greek, Persian, Hebrew,
    Hindi, Japanese, Korean, Russian, Thai, Ukrainian, Chinese. Empty: the base as it is."""
    normaliser: Literal["keep", "none"] = "keep"
    """`none` takes away a base's normaliser that loses text (T5's maps signs to others, joins blanks and drops line
    ends); text that it would have left alone keeps its ids."""
    sentinels: int = Field(default=0, ge=0, le=1000)
    """Sentinels `<extra_id_N>` for T5's objective, the last one first (100 as a rule). A T5 base has them right behind
    its pieces, and its embedding has rows for them: set `embedding_rows`, too."""
    special_tokens: tuple[str, ...] = ()
    """Special tokens besides, which no text gives; BERT's objective needs `["[CLS]", "[SEP]", "[MASK]"]`."""
    embedding_rows: int = Field(default=0, ge=0, le=2_000_000)
    """Rows of the base model's embedding where it has more than its vocabulary has pieces (flan-t5: 32128); new pieces
    begin behind them. 0: as many as the base's file has pieces; what stands behind them is new to the model."""
    max_bytes: int = Field(default=200_000_000, ge=10_000, le=10_000_000_000)
    """Text to train on, UTF-8 bytes; more than that is sampled. It stands in memory several times over."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Source -> its share of the sampled text, as in the training mixture; empty: in proportion to sizes."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Run seed, decides which documents are sampled."""

    @property
    def pieces_to_find(self) -> int:
        """Pieces that the run's text must give: all of them, or those added to the base."""
        return self.vocab_size if self.base is None else sum(self.extend.values())

    def halved(self) -> "VocabConfig":
        """The same with half as many pieces to find, for a part of the text."""
        if self.base is None:
            return self.model_copy(update={"vocab_size": self.vocab_size // 2})
        return self.model_copy(update={"extend": {name: rows // 2 for name, rows in self.extend.items() if rows > 1}})

    @property
    def special_names(self) -> tuple[str, ...]:
        """Special tokens behind all pieces of a vocabulary trained here, in the order of their ids. WordPiece has
        BERT's at its beginning."""
        known = OF_BERT if self.model_type == "wordpiece" else ()
        return (*(name for name in self.special_tokens if name not in known), *sentinel_names(self.sentinels))

    @property
    def trained_pieces(self) -> int:
        """Pieces that training gives, where the vocabulary has `special_names` besides."""
        return self.vocab_size - len(self.special_names)

    @field_validator("special_tokens")
    @classmethod
    def _names_of_their_own(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for number, name in enumerate(names):
            if len(name) < 2 or not name.isprintable() or any(sign.isspace() or sign == "\u2581" for sign in name):
                raise ValueError(f"`{name}` cannot name a special token: take two visible characters or more")
            if RESERVED.fullmatch(name):
                raise ValueError(f"`{name}` is the name of a token that every vocabulary may have; take another")
            if name in names[:number]:
                raise ValueError(f"`{name}` stands there twice")
        return names

    @model_validator(mode="after")
    def _a_base_or_training(self) -> "VocabConfig":
        if self.base is None:
            if self.trained_pieces < FEWEST:
                raise ValueError(
                    f"`vocab_size` counts special tokens, too: {self.vocab_size} leave {self.trained_pieces} pieces for"
                    f" text, and {FEWEST} are needed"
                )
            for name in OF_A_BASE:
                if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                    raise ValueError(f"`{name}` speaks of a base; name one in `base`, or leave `{name}` out")
            if self.lowercase and self.model_type != "wordpiece":
                raise ValueError(
                    "`lowercase` has a meaning for `wordpiece` alone; other vocabularies keep text as it is"
                )
            if self.model_type == "byte_level" and self.character_coverage != COVERAGE:
                raise ValueError("`character_coverage` has no meaning for `byte_level`, where bytes write all")
            return self
        for name in TRAINED:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"`{name}` has no meaning beside `base`, whose pieces stay as they are; leave it out")
        return self
