"""A part's documents as tokens, each closed, with the text that each token covers where pieces don't show it."""

import pyarrow as pa
import pytest

from tasks.chunk.tokenize import TABLE, tokenize_part
from tasks.tokenizer.open import tokenizer_of
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.tokenizer.wordpiece import from_vocab_txt
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_sentencepiece

TEXTS = ["  The steels,钢 ", "", "the 🙂 steel"]


@pytest.fixture
def documents() -> pa.Table:
    return pa.table(
        {
            "source": pa.array(["a", "a", "b"]).dictionary_encode(),
            "doc_id": pa.array([b"1" * 16, b"2" * 16, b"3" * 16], pa.binary(16)),
            "piece": pa.array([0, 0, 0], pa.int16()),
            "text": pa.array(TEXTS, pa.large_string()),
        }
    )


def test_pieces_that_say_their_text_need_no_column_for_it(documents: pa.Table) -> None:
    tokenizer = SentencePieceTokenizer(
        train_sentencepiece(
            ["The steel of the steels, which are alloys of iron and carbon. " * 50], VocabConfig(vocab_size=300)
        )
    )
    tokens = tokenize_part(documents, 0, tokenizer).tables[TABLE]
    assert tokens.column("tokens").to_pylist() == [[*tokenizer.encode(text), tokenizer.eos] for text in TEXTS]
    assert "token_bytes" not in tokens.column_names


def test_token_bytes_tile_the_text_where_a_vocabulary_drops_blanks(documents: pa.Table) -> None:
    tokenizer = tokenizer_of(from_vocab_txt("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nsteel\n##s\nthe\n钢\n,\n"))
    tokens = tokenize_part(documents, 0, tokenizer).tables[TABLE]
    assert tokens.schema.field("token_bytes").type == pa.large_list(pa.uint32())
    assert tokens.column("token_bytes").to_pylist() == [[5, 6, 1, 1, 4, 0], [0], [3, 5, 6, 0]]
    assert tokens.column("tokens").to_pylist() == [[*tokenizer.encode(text), tokenizer.eos] for text in TEXTS]
    assert tokens.column("text_bytes").to_pylist() == [17, 0, 14]
