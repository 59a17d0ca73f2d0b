"""The vocabulary of a run: same bytes again, sampled by weight, honest about what the text can give."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.tokenizer.base import MODEL_FILE
from tasks.tokenizer.open import open_tokenizer
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.corpus import (
    LONGEST_LINE,
    bytes_by_source,
    count_sources,
    plan_bytes,
    sample_texts,
    training_lines,
)
from tasks.vocab.stage import build_vocab
from tasks.vocab.train import train_sentencepiece

PROSE = "It was the best of times, it was the worst of times, it was the age of wisdom number {}. "
CODE = "def function_{}(value):\n    return value + {}\n"
PARTS = [
    [("prose", PROSE.format(number) * 3) for number in range(40)],
    [("code", CODE.format(number, number)) for number in range(60)],
]


@pytest.fixture
def documents(make_documents) -> Artifact:
    return make_documents(PARTS)


def test_artifact_holds_a_working_tokenizer_and_its_facts(context, documents):
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=320))
    tokenizer = open_tokenizer(vocab)
    assert tokenizer.vocab_size == 320
    facts = vocab.report.facts["vocabulary"]
    assert facts["pieces"] == 320
    assert set(facts["bytes_per_token"]) == {"code", "prose"}
    assert facts["bytes_per_token"]["prose"] > 1.5
    counts = vocab.report.source("code")
    assert counts.documents_in == counts.documents_out == 60


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_training_again_gives_the_same_file(model_type):
    config = VocabConfig(vocab_size=600, model_type=model_type)
    texts = [Path(argparse.__file__).read_text(encoding="utf-8")]
    assert train_sentencepiece(texts, config) == train_sentencepiece(texts, config)


def test_the_cut_into_parts_does_not_change_the_file(context, make_documents):
    one, three = (
        build_vocab(context, make_documents(parts), VocabConfig(vocab_size=310))
        for parts in ([PARTS[0]], [PARTS[0][:10], PARTS[0][10:40], []])
    )
    assert open_tokenizer(one).model == open_tokenizer(three).model


def test_text_too_small_says_how_many_pieces_it_gives(context, documents):
    with pytest.raises(InputError, match=r"vocab_size is 5000.* gives \d+ tokens at most.*vocab_size = "):
        build_vocab(context, documents, VocabConfig(vocab_size=5000))


def test_a_size_that_is_refused_is_not_advised():
    with pytest.raises(InputError, match=r"gives 262 tokens at most\. Add text \(vocab\.max_bytes is"):
        train_sentencepiece(["a"], VocabConfig(vocab_size=300))


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_the_number_of_pieces_named_in_the_error_can_be_had(model_type):
    texts = [text for part in PARTS for _, text in part]
    with pytest.raises(InputError) as caught:
        train_sentencepiece(texts, VocabConfig(vocab_size=5000, model_type=model_type))
    most = int(str(caught.value).split("vocab.vocab_size = ")[1].split()[0])
    config = VocabConfig(vocab_size=most, model_type=model_type)
    assert SentencePieceTokenizer(train_sentencepiece(texts, config)).vocab_size == most


def test_more_characters_than_pieces_names_both_cures():
    han = ["".join(map(chr, range(0x4E00, 0x4E00 + 900)))]
    with pytest.raises(InputError, match=r"vocab_size = 1161 or more, or lower vocab.character_coverage"):
        train_sentencepiece(han, VocabConfig(vocab_size=500, character_coverage=1.0))
    config = VocabConfig(vocab_size=1161, character_coverage=1.0)
    assert SentencePieceTokenizer(train_sentencepiece(han, config)).vocab_size == 1161


def test_a_source_without_weight_is_named(context, documents):
    with pytest.raises(InputError, match=r"source `prose`.*only code"):
        build_vocab(context, documents, VocabConfig(vocab_size=320, weights={"code": 1.0}))


def test_no_text_at_all_is_an_input_error(context, make_documents):
    with pytest.raises(InputError, match="no text to train"):
        build_vocab(context, make_documents([[]]), VocabConfig(vocab_size=320))


def test_sample_follows_weights_and_never_passes_its_plan(documents):
    sizes = bytes_by_source(count_sources(documents))
    assert sizes["prose"] == sum(len(text) for source, text in PARTS[0] if source == "prose")
    plan = plan_bytes(sizes, {"prose": 3.0, "code": 1.0}, 4000)
    assert plan == {"code": 1000, "prose": 3000}
    taken = {"code": 0, "prose": 0}
    for source, text in sample_texts(documents, sizes, plan, seed=3):
        taken[source] += len(text)
    assert taken["code"] <= 1000
    assert taken["prose"] <= 3000
    assert sum(taken.values()) > 2000


def test_of_a_few_long_documents_one_is_sampled(make_documents):
    """Else a source of one long document would be missing, and a corpus of one have no text to train on."""
    names = [f"source {number}" for number in range(20)]
    documents = make_documents([[(name, f"text of {name} " * 2000) for name in names]])
    sizes = bytes_by_source(count_sources(documents))
    sampled = list(sample_texts(documents, sizes, dict.fromkeys(names, 500), seed=3))
    assert [source for source, _ in sampled] == names
    assert {len(text) for _, text in sampled} == {500}


def test_a_larger_plan_only_adds_documents(documents):
    sizes = bytes_by_source(count_sources(documents))
    small, large = (
        {text for _, text in sample_texts(documents, sizes, {"prose": share}, seed=3)} for share in (3000, 6000)
    )
    assert small < large or {text[:200] for text in small} <= {text[:200] for text in large}


def test_lines_are_short_and_free_of_reserved_characters():
    lines = list(training_lines(["a\nb\0c\u2581d", "x" * (2 * LONGEST_LINE + 1)]))
    assert lines[:4] == ["a", "b", "c", "d"]
    assert [len(line) for line in lines[4:]] == [LONGEST_LINE, LONGEST_LINE, 1]


def test_forced_rebuild_reproduces(context, documents):
    config = VocabConfig(vocab_size=320)
    first = build_vocab(context, documents, config)
    again = build_vocab(replace(context, forced=frozenset({"vocab"})), documents, config)
    assert again.content == first.content
    assert not again.reused
    assert (first.path / MODEL_FILE).exists()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte_level", "wordpiece"])
def test_the_table_holds_every_entry_in_the_order_of_ids(context, make_documents, kind):
    documents = make_documents([[("code", Path(argparse.__file__).read_text(encoding="utf-8"))]])
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=420, model_type=kind))
    tokenizer = open_tokenizer(vocab)
    rows = vocab.table("vocabulary").to_pylist()
    assert [row["id"] for row in rows] == list(range(420))
    text = "It was the parser of argument number."
    written = b"".join(rows[token]["bytes"] for token in tokenizer.encode(text))
    assert written.replace(b" ", b"") == text.replace(" ", "").encode()
    special = {row["piece"]: row["id"] for row in rows if row["kind"] == "special"}
    assert special == tokenizer.special_names
    assert all((row["bytes"] is None) == (row["kind"] == "special") for row in rows)
    of_sentencepiece = kind in ("bpe", "unigram")
    assert [row["bytes"][0] for row in rows if row["kind"] == "byte"] == (list(range(256)) if of_sentencepiece else [])
    assert all((row["score"] is not None) == of_sentencepiece for row in rows)
    assert not any(row["added"] for row in rows)
