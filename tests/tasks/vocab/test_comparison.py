"""What an extension does, on texts whose tokens can be counted by hand."""

import io
import json

import pytest
import sentencepiece
import tokenizers

from tasks.tokenizer.model_file import NORMAL, read_model, write_model
from tasks.tokenizer.wordpiece import from_vocab_txt
from tasks.vocab.bpe import extend_bpe
from tasks.vocab.comparison import TokenCounter, compare_vocabularies, sample_texts_by
from tasks.vocab.config import VocabConfig
from tasks.vocab.extenders import unreachable
from tasks.vocab.scripts import SCRIPTS
from tasks.vocab.train import train_byte_level

CHINESE = SCRIPTS["zh"]

ENGLISH = [f"The converter blows air through melted iron for {number} minutes." for number in range(200)]


def trained(**options: object) -> bytes:
    model = io.BytesIO()
    settings = {"model_type": "bpe", "vocab_size": 340, "byte_fallback": True, "normalization_rule_name": "identity"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH), model_writer=model, num_threads=1, minloglevel=2, **{**settings, **options}
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def base() -> bytes:
    return trained()


def test_a_character_of_three_bytes_becomes_one_token(base: bytes):
    """Before: a blank and three bytes for each line; after: a blank and a character."""
    after = extend_bpe(base, ["钢"], CHINESE).model
    assert compare_vocabularies(base, after, {"zh": ["钢\n钢\n"]}, [CHINESE])["zh"] == {
        "characters": 2,
        "tokens": [8, 4],
        "tokens_per_character": [4.0, 2.0],
        "tokens_per_word": None,
        "byte_share": [0.75, 0.0],
        "unknown_share": [0.0, 0.0],
        "untouched_lines": 0,
        "moved_lines": 0,
    }


def test_words_are_counted_where_blanks_part_them(base: bytes):
    result = compare_vocabularies(base, base, {"en": ["The iron\nThe air"]}, [CHINESE])["en"]
    tokens = sum(map(len, sentencepiece.SentencePieceProcessor(model_proto=base).encode(["The iron", "The air"])))
    assert result["tokens_per_word"] == [tokens / 4, tokens / 4]
    assert (result["untouched_lines"], result["moved_lines"]) == (2, 0)


def test_a_line_of_old_text_with_other_ids_is_counted(base: bytes):
    model = read_model(base)
    model.pieces.add(piece="ai", score=0.0, type=NORMAL)
    result = compare_vocabularies(base, write_model(model), {"en": ["air\nThe\nair 钢"]}, [CHINESE])["en"]
    assert (result["untouched_lines"], result["moved_lines"]) == (2, 1)


def test_unknown_tokens_are_distinguished_from_bytes(base: bytes):
    lossy = trained(vocab_size=80, byte_fallback=False)
    result = compare_vocabularies(lossy, base, {"zh": ["钢铁"]}, [CHINESE])["zh"]
    assert result["unknown_share"] == [0.5, 0.0]
    assert result["byte_share"] == [0.0, round(6 / 7, 6)]


def test_a_letter_with_an_accent_is_no_byte_where_tokens_are_spelled_in_characters():
    """Byte-level vocabularies spell a byte as such a letter; others mean the letter."""
    pieces = [("<unk>", 0.0), ("é", -1.0), ("café", -1.5), ("<0xE9>", -9.0)]
    counter = TokenCounter(tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0)).to_str().encode())
    counter.encode(["é", "café"])
    assert (counter.tokens, counter.bytes) == (2, 0)


def test_a_token_that_reads_like_a_byte_is_none():
    parsed = json.loads(train_byte_level(ENGLISH, VocabConfig(vocab_size=300, model_type="byte_level")))
    parsed["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = False
    parsed["model"]["vocab"]["\\x"] = 300
    parsed["model"]["merges"].append(["\\", "x"])
    counter = TokenCounter(json.dumps(parsed).encode())
    assert counter.encode(["\\x"]) == [[300]]
    assert counter.bytes == 0
    counter.encode(["é"])
    assert counter.bytes == 2


def test_lines_are_counted_whole_whatever_the_file_says_of_their_length():
    """Published files may cut texts at the context of their model, and pad them to it."""
    engine = tokenizers.Tokenizer.from_str(from_vocab_txt("[PAD]\n[UNK]\n[SEP]\nair\n").decode())
    engine.enable_truncation(2)
    engine.enable_padding(length=4)
    model = engine.to_str().encode()
    counter = TokenCounter(model)
    counter.encode_back(["air air air", "air"])
    assert (counter.tokens, counter.lost_lines) == (4, 0)
    assert unreachable(model) == []


def test_no_text_gives_no_ratios(base: bytes):
    result = compare_vocabularies(base, base, {"en": ["\n"]}, [])["en"]
    assert (result["tokens"], result["tokens_per_character"], result["tokens_per_word"]) == ([0, 0], [None, None], None)


def test_texts_are_drawn_by_document_however_the_parts_are_cut(make_documents):
    texts = [("prose" if number % 2 else "code", f"text {number}" * 20) for number in range(200)]
    one, two = make_documents([texts]), make_documents([texts[:50], texts[50:]])
    drawn = sample_texts_by("source", one, seed=1, most=5000)
    assert set(drawn) == {"code", "prose"}
    assert all(2000 < sum(map(len, of_source)) <= 5200 for of_source in drawn.values())
    everything = sample_texts_by("source", two, seed=1)
    assert {name: sorted(found) for name, found in everything.items()} == {
        name: sorted(text for source, text in texts if source == name) for name in drawn
    }
    assert drawn != sample_texts_by("source", one, seed=2, most=5000)


def test_of_a_few_long_documents_one_is_drawn(make_documents):
    documents = make_documents([[(f"source {number}", f"text {number}" * 2000) for number in range(20)]])
    drawn = sample_texts_by("source", documents, seed=1, most=500)
    assert {name: len(texts) for name, texts in drawn.items()} == {f"source {number}": 1 for number in range(20)}
