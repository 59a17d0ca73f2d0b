"""Bits per byte whose values can be checked in the head, and their standard errors."""

import lzma
import math

import numpy as np
import pyarrow as pa
import pytest
import torch

from model.config.network import GPTConfig
from model.nn.gpt import GPT
from tasks.evaluate import scores as scores_module
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.heldout import HeldoutDocument, encode_sources, heldout_documents
from tasks.evaluate.perplexity import heldout_scores, perplexity, unigram_code_lengths, xz_bits_per_byte
from tasks.evaluate.scores import NO_MEASUREMENT, HeldoutRows, Measurement, plain_mean, ratio
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.open import tokenizer_of
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.tokenizer.wordpiece import from_vocab_txt
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_sentencepiece

ITEM = {"item_id": "1", "context": "", "choices": [], "answer": "a", "match_text": ""}
CONFIG = EvaluateConfig(batch_tokens=64, bootstrap_rounds=50, seed=1)
TEXTS = ["the cat sat on the mat. the dog sat on the log. " * 40, "日本語の文章です。" * 20]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return SentencePieceTokenizer(train_sentencepiece(TEXTS, VocabConfig(vocab_size=300)))


def indifferent_network(vocab_size: int) -> GPT:
    """Every token is equally likely after any other."""
    network = GPT(GPTConfig(vocab_size=vocab_size, context=8, layers=1, heads=1, width=8)).initialise(1)
    with torch.no_grad():
        network.embedding.weight.zero_()
    return network.eval()


def unigram(counts: dict[int, int]) -> pa.Table:
    return pa.table(
        {"token": pa.array(list(counts), pa.uint32()), "count": pa.array(list(counts.values()), pa.int64())}
    )


def test_a_model_that_knows_nothing_pays_log2_of_the_vocabulary_for_each_token(tokenizer):
    texts = {"en": ["the cat sat on the mat.", "a log"], "ja": ["日本語😀"]}
    languages = {"en": "en", "ja": None}
    rows = heldout_scores(
        indifferent_network(300),
        tokenizer.eos,
        encode_sources(
            tokenizer,
            {
                source: [HeldoutDocument(b"", 0, text, languages[source]) for text in documents]
                for source, documents in texts.items()
            },
        ),
        unigram_code_lengths(unigram({}), 300),
        CONFIG,
        advance=lambda done: None,
    ).rows
    values = {(row["task"], row["metric"]): row for row in rows}
    for source, documents in texts.items():
        tokens = sum(len(tokenizer.encode(text)) for text in documents)
        size = sum(len(text.encode()) for text in documents)
        expected = tokens * math.log2(300) / size
        for metric in ("bits_per_byte", "unigram_bits_per_byte"):
            assert values[f"heldout/{source}", metric]["value"] == pytest.approx(expected, rel=1e-5)
            assert values[f"heldout/{source}", metric]["n"] == len(documents)
        xz = values[f"heldout/{source}", "xz_bits_per_byte"]["value"]
        assert xz == 8 * len(lzma.compress("".join(documents).encode(), preset=9)) / size
    assert values["heldout/ja", "bits_per_byte"]["stderr"] is None
    mean = sum(values[f"heldout/{source}", "bits_per_byte"]["value"] for source in texts) / 2
    assert values["heldout/all", "bits_per_byte"]["value"] == pytest.approx(mean)
    assert values["heldout/all", "bits_per_byte"]["n"] == 3
    for source in ("en", "ja", "all"):
        assert values[f"heldout/{source}", "perplexity"]["value"] == pytest.approx(300, rel=1e-5)
    assert values["language/en", "bits_per_byte"]["value"] == values["heldout/en", "bits_per_byte"]["value"]
    assert values["language/en", "bits_per_byte"]["n"] == 2
    assert ("language/ja", "bits_per_byte") not in values


def test_text_with_unknown_words_has_no_figure():
    """A vocabulary that loses more would look the better: only xz, which loses nothing, is given."""
    tokenizer = tokenizer_of(from_vocab_txt("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n"))
    texts = {"known": ["the cat", "cat"], "lost": ["the cat", "the dog"]}
    documents = {source: [HeldoutDocument(b"", 0, text, "en") for text in mine] for source, mine in texts.items()}
    scores = heldout_scores(
        indifferent_network(7),
        tokenizer.eos,
        encode_sources(tokenizer, documents),
        unigram_code_lengths(unigram({}), 7),
        CONFIG,
        advance=lambda done: None,
    )
    assert not [row for row in scores.documents if row["source"] == "lost"]
    found = {(row["task"].removeprefix("heldout/"), row["metric"]): row for row in scores.rows}
    assert found["known", "bits_per_byte"]["value"] == pytest.approx(3 * math.log2(7) / 10)
    for source in ("lost", "all"):
        for metric in ("bits_per_byte", "unigram_bits_per_byte"):
            assert (found[source, metric]["value"], found[source, metric]["stderr"]) == (None, None)
        assert found[source, "xz_bits_per_byte"]["value"] > 0
    assert "4 tokens, 1 of them unknown" in found["lost", "bits_per_byte"]["note"]


def test_a_bootstrap_in_blocks_draws_what_one_at_once_does(monkeypatch: pytest.MonkeyPatch):
    """Memory is limited by blocks of rounds, and the draws are those of one stream of random words."""
    bits, sizes = np.arange(1.0, 8.0), np.array([1, 2, 3, 4, 5, 6, 9])
    whole = ratio(bits, sizes, rounds=50, seed=3)
    monkeypatch.setattr(scores_module, "DRAWS_AT_ONCE", 3 * 7)
    assert ratio(bits, sizes, rounds=50, seed=3) == whole
    monkeypatch.setattr(scores_module, "DRAWS_AT_ONCE", 1)
    assert ratio(bits, sizes, rounds=50, seed=3) == whole


def test_one_bit_a_byte_is_one():
    measured = ratio(np.array([10.0, 20.0, 30.0]), np.array([10, 20, 30]), rounds=100, seed=1)
    assert measured == Measurement(1.0, 0.0)


def test_bootstrap_agrees_with_the_error_of_a_mean_when_documents_are_of_one_size():
    bits = np.tile([1.0, 3.0], 200)
    measured = ratio(bits, np.ones(400, dtype=np.int64), rounds=2000, seed=7)
    assert measured.value == 2.0
    assert measured.stderr == pytest.approx(1 / math.sqrt(400), rel=0.1)
    assert ratio(bits, np.ones(400, dtype=np.int64), rounds=2000, seed=7) == measured


def test_documents_without_anything_to_measure_give_nothing():
    nothing, one = np.zeros(3), np.array([0.0, 0.0, 2.0])
    assert ratio(nothing, nothing, rounds=100, seed=1) == NO_MEASUREMENT
    # Draws that miss the one document with a count say nothing; all others say the same.
    assert ratio(one, one, rounds=100, seed=1) == Measurement(1.0, 0.0)


def test_perplexity_is_that_of_a_fair_die():
    assert perplexity(Measurement(math.log(6), 0.5)).value == pytest.approx(6.0)
    assert perplexity(Measurement(math.log(6), 0.5)).stderr == pytest.approx(3.0)
    assert perplexity(Measurement(1000.0, None)) == NO_MEASUREMENT


def test_the_bits_of_each_document_add_up_to_the_figure_of_its_source(tokenizer, heldout_artifact):
    first = heldout_artifact([("en", "the cat sat on the mat."), ("en", "a log")])
    later = heldout_artifact([("en", "the dog sat.")], items=[{"benchmark": "b"} | ITEM])
    documents = heldout_documents([first, later], max_bytes=1000, seed=1)
    assert sorted(one.text for one in documents["en"]) == ["a log", "the cat sat on the mat.", "the dog sat."]
    scores = heldout_scores(
        indifferent_network(300),
        tokenizer.eos,
        encode_sources(tokenizer, documents),
        unigram_code_lengths(unigram({}), 300),
        CONFIG,
        advance=lambda done: None,
    )
    whole = next(row["value"] for row in scores.rows if row["metric"] == "bits_per_byte")
    assert [(row["doc_id"], row["bytes"]) for row in scores.documents] == [
        (one.doc_id, len(one.text)) for one in documents["en"]
    ]
    assert sum(row["bits"] for row in scores.documents) / (23 + 5 + 12) == pytest.approx(whole)


def test_no_document_is_drawn_behind_one_that_is_cut_to_nothing(heldout_artifact):
    """The byte that is left is half a character of one text, and would be a document of one letter of another."""
    artifact = heldout_artifact([("ja", text) for _ in range(6) for text in ("日本", "abc")])
    order = [one.text for one in heldout_documents([artifact], max_bytes=1000, seed=1)["ja"]]
    place = next(n for n in range(1, 11) if (order[n], order[n + 1]) == ("日本", "abc"))
    most = sum(len(text.encode()) for text in order[:place]) + 1
    assert [one.text for one in heldout_documents([artifact], max_bytes=most, seed=1)["ja"]] == order[:place]


def test_a_document_that_several_runs_held_out_counts_once(heldout_artifact):
    """Else it would be two documents to the bootstrap, and take the room of another one."""
    first = heldout_artifact([("en", "a log"), ("en", "a mat")])
    later = heldout_artifact([("en", "a log"), ("en", "a cat")])
    documents = heldout_documents([first, later], max_bytes=1000, seed=1)["en"]
    assert sorted(one.text for one in documents) == ["a cat", "a log", "a mat"]


def test_a_language_holds_documents_of_all_sources():
    found = HeldoutRows(rounds=50, seed=1)
    found.add_languages("bits", ["zh", None], np.array([8.0, 100.0]), np.array([4, 4]))
    found.add_languages("bits", ["zh", "en"], np.array([4.0, 9.0]), np.array([4, 3]))
    rows = {row["task"]: row for row in found.scores().rows}
    assert (rows["language/zh"]["value"], rows["language/zh"]["n"]) == (1.5, 2)
    assert (rows["language/en"]["value"], rows["language/en"]["stderr"]) == (3.0, None)


def test_frequent_tokens_are_cheap_and_unseen_ones_are_smoothed():
    bits = unigram_code_lengths(unigram({0: 6, 1: 0}), vocab_size=2)
    assert bits.tolist() == pytest.approx([-math.log2(7 / 8), 3.0])


def test_repetitive_data_compresses_and_noise_does_not():
    assert xz_bits_per_byte(b"a" * 100_000) < 0.1
    noise = np.random.default_rng(1).integers(0, 256, 100_000, dtype=np.uint8).tobytes()
    assert 8.0 <= xz_bits_per_byte(noise) < 8.1


def test_mean_over_sources_counts_each_source_once():
    assert plain_mean([Measurement(1.0, 0.3), Measurement(3.0, 0.4)]) == Measurement(2.0, 0.25)
    assert plain_mean([Measurement(1.0, 0.3), Measurement(3.0, None)]).stderr is None
    assert plain_mean([Measurement(1.0, 0.3), NO_MEASUREMENT]) == NO_MEASUREMENT


def test_heldout_text_is_bounded_by_bytes_and_cut_at_a_character(heldout_artifact):
    artifact = heldout_artifact([("en", "a" * 10), ("en", "b" * 10), ("ja", "日本" * 10)])
    found = heldout_documents([artifact], max_bytes=16, seed=1)
    texts = {source: [one.text for one in documents] for source, documents in found.items()}
    assert {one.language for documents in found.values() for one in documents} == {None}
    assert sorted(map(len, texts["en"])) == [6, 10]
    assert texts["ja"] == ["日本日本日"]
    assert {text[0] for text in texts["en"]} == {"a", "b"}
    assert [one.text for one in heldout_documents([artifact], max_bytes=10_000, seed=1)["ja"]] == ["日本" * 10]
