"""Which ids are inside words, for each kind of vocabulary, and rows that say so."""

import argparse
from pathlib import Path

import pytest

from model.data.row_format import RowFormat, WordBorders
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.chunk.config import ChunkConfig
from tasks.chunk.row_formats import row_format, word_borders
from tasks.chunk.stage import build_chunk
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.open import open_tokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab

SOURCE_TEXT = Path(argparse.__file__).read_text(encoding="utf-8")[:20_000]
TEXT = 'The walker walked, walking unwalkably (all of 2024): "don\'t", 3.14 élan водопад; 我们走了。\n'
KINDS = [{}, {"model_type": "byte_level"}, {"model_type": "wordpiece"}]


@pytest.fixture
def documents(make_documents) -> Artifact:
    return make_documents([[("text", TEXT * 30), ("text", SOURCE_TEXT)]])


def words_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """Pieces joined to words by the borders alone."""
    borders = word_borders(tokenizer)
    ids = tokenizer.encode(text)
    words: list[bytes] = []
    for number, token in enumerate(ids):
        piece = tokenizer.piece_bytes[token]
        if number and borders.continues_word_V[token] and borders.leaves_word_open_V[ids[number - 1]]:
            words[-1] += piece
        else:
            words.append(piece)
    return [word.decode(errors="replace").strip() for word in words if word.strip()]


@pytest.mark.parametrize("settings", KINDS, ids=["sentencepiece", "byte_level", "wordpiece"])
def test_pieces_join_to_the_words_of_the_text(context: RunContext, documents: Artifact, settings) -> None:
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=400, **settings))
    tokenizer = open_tokenizer(vocab)
    assert len(tokenizer.encode("unwalkers")) > 1
    words = "The walker walked unwalkers of all , élan водопад ; don"
    assert words_of(tokenizer, "The walker walked unwalkers of all, élan водопад; don") == words.split()


@pytest.mark.parametrize("settings", KINDS[:2], ids=["sentencepiece", "byte_level"])
def test_what_is_written_without_blanks_is_a_word_a_piece(context, documents, settings) -> None:
    tokenizer = open_tokenizer(build_vocab(context, documents, VocabConfig(vocab_size=400, **settings)))
    pieces = [tokenizer.piece_bytes[token].decode(errors="replace") for token in tokenizer.encode("我们走了。")]
    whole = [piece.strip() for piece in pieces if piece.strip() and "\ufffd" not in piece]
    assert whole
    assert [word for word in words_of(tokenizer, "我们走了。") if word in whole] == whole


def test_special_tokens_are_outside_words(context: RunContext, documents: Artifact) -> None:
    for settings in KINDS:
        tokenizer = open_tokenizer(build_vocab(context, documents, VocabConfig(vocab_size=400, **settings)))
        borders = word_borders(tokenizer)
        assert not borders.continues_word_V[list(tokenizer.special)].any()
        assert not borders.leaves_word_open_V[list(tokenizer.special)].any()


def test_rows_say_it_where_whole_words_are_asked_for(context: RunContext, documents: Artifact) -> None:
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=400, model_type="wordpiece"))
    tokenizer = open_tokenizer(vocab)
    plain = ChunkConfig(objective="masked_lm", row_length=64, budget_tokens=1000)
    assert row_format(tokenizer, plain).word_borders == ""
    chunk = build_chunk(context, documents, vocab, plain.model_copy(update={"whole_words": True}))
    reported = RowFormat.of(chunk.table("sequences").schema)
    assert reported is not None
    read = WordBorders.unpacked(reported.word_borders, reported.vocab_size)
    assert (read.continues_word_V == word_borders(tokenizer).continues_word_V).all()
    assert (read.leaves_word_open_V == word_borders(tokenizer).leaves_word_open_V).all()


def test_borders_of_another_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match="are not those of 9 ids"):
        WordBorders.unpacked("AAAAAA==", 9)
