"""Measures of BERT and T5 on networks that find every token equally likely, whose figures can be worked out by hand."""

import math

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from model.config.network import BERTConfig, T5Config
from model.data.row_format import RowFormat
from model.data.schema import sequences_schema
from model.inference.scoring import Frame
from model.nn.bert import BERT
from model.nn.t5 import T5
from tasks.artifacts.tables.schema import SPANS
from tasks.common.numeric import unit_interval
from tasks.evaluate.benchmarks.likelihood import MaskedScorer, SpanScorer, make_scorer
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.heldout import EncodedSource, HeldoutDocument, encode_sources
from tasks.evaluate.masked_lm import choose_pairs, choose_positions, most_frequent_token, pair_scores, pseudo_scores
from tasks.evaluate.perplexity import unigram_code_lengths
from tasks.evaluate.samples import fillings, join_fillings, with_blanks
from tasks.evaluate.scores import split_evenly
from tasks.evaluate.span_corruption import document_rows, span_scores
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_sentencepiece

TEXTS = ["the cat sat on the mat. the dog sat on the log. " * 40, "日本語の文章です。" * 20]
VOCAB = 300


def silenced(network: nn.Module) -> nn.Module:
    """All weights zero: every logit is the same."""
    with torch.no_grad():
        for weight in network.parameters():
            weight.zero_()
    return network.eval()


@pytest.fixture(scope="module")
def pieces() -> bytes:
    return train_sentencepiece(TEXTS, VocabConfig(vocab_size=VOCAB))


@pytest.fixture
def tokenizer(pieces: bytes) -> Tokenizer:
    """A vocabulary in which the test gives some pieces another meaning."""
    return SentencePieceTokenizer(pieces)


@pytest.fixture(scope="module")
def bert() -> BERT:
    network = silenced(BERT(BERTConfig(vocab_size=VOCAB, context=16, layers=1, heads=1, width=8)))
    assert isinstance(network, BERT)
    return network


@pytest.fixture(scope="module")
def t5() -> T5:
    network = silenced(T5(T5Config(vocab_size=VOCAB, context=16, layers=1, heads=1, width=8)))
    assert isinstance(network, T5)
    return network


def sources_of(tokenizer: Tokenizer, texts: dict[str, list[str]]) -> list[EncodedSource]:
    documents = {source: [HeldoutDocument(b"", 0, text, None) for text in mine] for source, mine in texts.items()}
    return encode_sources(tokenizer, documents)


def values(rows: list[dict[str, object]], source: str = "en") -> dict[str, dict[str, object]]:
    return {str(row["metric"]): row for row in rows if row["task"] == f"heldout/{source}"}


@pytest.mark.parametrize("hidden", [10**6, 7])
def test_a_bert_that_knows_nothing_pays_log2_of_the_vocabulary_for_each_token(
    tokenizer: Tokenizer, bert: BERT, hidden: int
):
    two_contexts = next(text for length in range(100) if len(tokenizer.encode(text := "z" * length)) == 32)
    texts = {"en": ["the cat sat on the mat. the dog sat on the mat.", two_contexts], "ja": ["日本語の文章"]}
    tokenizer.cls, tokenizer.sep, tokenizer.mask = 4, 5, 6
    config = EvaluateConfig(hidden_tokens=hidden, batch_tokens=64, bootstrap_rounds=50, seed=1)
    rows = pseudo_scores(bert, tokenizer, sources_of(tokenizer, texts), config).rows
    tokens = sum(len(tokenizer.encode(text)) for text in texts["en"])
    found = values(rows)["pseudo_bits_per_byte"]
    if hidden > tokens:
        size = sum(len(text.encode()) for text in texts["en"])
        assert found["value"] == pytest.approx(tokens * math.log2(VOCAB) / size, rel=1e-5)
        assert found["note"] == f"each of {tokens} tokens hidden in turn, of {tokens}; of {size} bytes"
    else:
        # Seven tokens of log2(300) bits each, over their own bytes.
        size = round(7 * math.log2(VOCAB) / float(str(found["value"])))
        assert found["note"] == f"each of 7 tokens hidden in turn, of {tokens}; of {size} bytes"
    assert found["n"] == 2
    mean = (float(str(found["value"])) + float(str(values(rows, "ja")["pseudo_bits_per_byte"]["value"]))) / 2
    assert values(rows, "all")["pseudo_bits_per_byte"]["value"] == pytest.approx(mean)


def test_hidden_places_are_drawn_once_each():
    assert choose_positions(5, 5, 1).tolist() == [0, 1, 2, 3, 4]
    drawn = [choose_positions(10, 4, seed).tolist() for seed in range(200)]
    assert all(len(set(places)) == 4 and places == sorted(places) for places in drawn)
    often = np.bincount(np.concatenate(drawn), minlength=10)
    assert (abs(often - 80) < 4.5 * math.sqrt(80 * 0.6)).all()


@pytest.mark.parametrize(("tokens", "expected"), [(0, []), (4, [(0, 4)]), (5, [(0, 2), (2, 5)]), (8, [(0, 4), (4, 8)])])
def test_stretches_are_as_even_as_they_can_be(tokens: int, expected: list[tuple[int, int]]):
    assert split_evenly(tokens, 4) == expected


def row_format(objective: str, **ids: object) -> RowFormat:
    sizes = {"tokenizer_digest": "", "vocab_size": VOCAB, "eos": 2, "pad": 3}
    return RowFormat.model_validate({"objective": objective, **sizes, **ids})


def test_a_t5_that_knows_nothing_pays_ln_v_for_each_target(tokenizer: Tokenizer, t5: T5):
    texts = {"en": ["the cat sat on the mat. the dog sat on the mat.", "a log"]}
    sentinels = tuple(range(290, 300))
    layout = row_format("span_corruption", sentinels=sentinels, special=(0, 1, 2, 3, *sentinels))
    # These sentinels are pieces of text, which get no bytes, as sentinels have none.
    tokenizer.piece_lengths = np.where(np.arange(VOCAB) >= 290, 0, tokenizer.piece_lengths)
    tokenizer.piece_lengths[0] = 5
    flat = np.full(VOCAB, 8.0)
    config = EvaluateConfig(batch_tokens=32, bootstrap_rounds=50, seed=1)
    rows = span_scores(t5, tokenizer, sources_of(tokenizer, texts), flat, layout, 16, config).rows
    found = values(rows)
    assert found["target_nats_per_token"]["value"] == pytest.approx(math.log(VOCAB), rel=1e-5)
    bits, unigram = (
        float(str(found[name]["value"])) for name in ("target_bits_per_byte", "unigram_target_bits_per_byte")
    )
    assert bits / unigram == pytest.approx(math.log2(VOCAB) / 8, rel=1e-5)
    assert str(found["target_bits_per_byte"]["note"]).startswith("random_spans of ")
    assert found["text_target_nats_per_token"]["value"] == pytest.approx(math.log(VOCAB), rel=1e-5)
    assert found["unigram_text_target_nats_per_token"]["value"] == pytest.approx(8 * math.log(2), rel=1e-9)


def test_documents_are_cut_alone():
    document_of, rows = document_rows(
        [np.array([5, 6, 7, 8, 9]), np.array([], dtype=np.int32), np.array([4])], 4, pad=3
    )
    assert document_of.tolist() == [0, 0, 2]
    assert rows.tolist() == [[5, 6, 3, 3], [7, 8, 9, 3], [4, 3, 3, 3]]


def pairs_of(rows: list[tuple[str, list[int], int, bool | None]]) -> pa.Table:
    layout = row_format("masked_lm", cls=4, sep=5, mask=6)
    columns = {
        "row": list(range(len(rows))),
        "source": pa.array([source for source, *_ in rows]).dictionary_encode(),
        "tokens": [tokens for _, tokens, *_ in rows],
        "loss_start": [0] * len(rows),
        "second_start": [second for *_, second, _ in rows],
        "is_next": [answer for *_, answer in rows],
    }
    return pa.table(columns, schema=sequences_schema(8, VOCAB, layout))


def spans_of(rows: list[tuple[int, bytes, int]]) -> pa.Table:
    """Segments (row, document, bytes)."""
    columns = {
        "row": [row for row, *_ in rows],
        "tok_start": [1] * len(rows),
        "tok_len": [1] * len(rows),
        "doc_id": pa.array([document * 16 for _, document, _ in rows], pa.binary(16)),
        "piece": [0] * len(rows),
        "start": [0] * len(rows),
        "end": [size for *_, size in rows],
    }
    return pa.table(columns, schema=SPANS)


def test_pairs_that_a_bert_knows_nothing_of(bert: BERT):
    """Of equal logits the first counts: token 0, which is no text, and that the second stretch does not follow."""
    rows = pairs_of(
        [
            ("en", [4, 9, 9, 5, 9, 9, 5, 3], 4, True),
            ("en", [4, 9, 9, 5, 9, 9, 5, 3], 4, False),
            ("en", [4, 9, 9, 5, 9, 9, 5, 3], 4, False),
            ("en", [4, 9, 9, 9, 5, 3, 3, 3], 8, None),
        ]
    )
    spans = spans_of([(0, b"a", 4), (0, b"b", 4), (1, b"b", 8), (2, b"a", 8), (3, b"c", 8)])
    layout = row_format("masked_lm", cls=4, sep=5, mask=6, special=(0, 1, 2, 3, 4, 5, 6))
    code = np.full(VOCAB, 10.0)
    code[9] = 3.0
    config = EvaluateConfig(heldout_max_bytes=10**6, batch_tokens=16, bootstrap_rounds=50, seed=1)
    found = values(pair_scores(bert, rows, spans, code, layout, 0.25, config))
    assert found["masked_nats_per_token"]["value"] == pytest.approx(math.log(VOCAB), rel=1e-5)
    assert found["unigram_masked_nats_per_token"]["value"] == pytest.approx(3 * math.log(2))
    assert (found["masked_accuracy"]["value"], found["frequent_token_accuracy"]["value"]) == (0.0, 1.0)
    assert found["next_accuracy"]["value"] == found["majority_next_accuracy"]["value"] == pytest.approx(2 / 3)
    assert found["masked_accuracy"]["note"] == "4 hidden tokens in 4 pairs"
    assert found["next_accuracy"]["note"] == "3 pairs with two segments, of which 1 follow each other"
    assert {row["n"] for row in found.values()} == {3}


def test_the_most_frequent_token_is_one_of_text():
    code = unigram_code_lengths(pa.table({"token": pa.array([2, 9], pa.uint32()), "count": pa.array([50, 40])}), VOCAB)
    assert most_frequent_token(code, row_format("masked_lm", special=(0, 1, 2, 3))) == 9


def test_pairs_are_chosen_by_documents_up_to_so_many_bytes():
    rows = pairs_of([("en", [4, 9, 9, 5, 9, 9, 5, 3], 4, True)] * 4)
    spans = spans_of([(0, b"a", 4), (0, b"b", 4), (1, b"b", 8), (2, b"a", 8), (3, b"c", 8)])
    order = sorted((b"a", b"b", b"c"), key=lambda name: unit_interval(name * 16, 7))
    of_document = {b"a": [0, 2], b"b": [1], b"c": [3]}
    expected = [place for name in order for place in of_document[name]]
    for most, count in ((0, 1), (8, 1), (15, 1), (16, 2), (10**6, 4)):
        places, document_of = choose_pairs(rows, spans, most, draw=7)
        assert places.tolist() == expected[:count]
        assert document_of[0] == 0
    assert sorted(np.bincount(document_of).tolist()) == [1, 1, 2]


def test_choices_of_networks_that_know_nothing_cost_their_tokens(bert: BERT, t5: T5):
    masked = MaskedScorer(bert, Frame(4, 5, 6))
    spans = SpanScorer(t5, 3, 2, (299,))
    for choices in (masked, spans):
        scores = choices.score([10, 11], [[12], [13, 14, 15]])
        assert scores == pytest.approx([-math.log(VOCAB), -3 * math.log(VOCAB)], rel=1e-5)
    # 16 places: [CLS] and [SEP], or a sentinel and the end of text.
    assert (masked.max_choice_tokens, masked.max_prompt_tokens(4), masked.max_prompt_tokens(14)) == (14, 10, 0)
    assert (spans.max_choice_tokens, spans.max_prompt_tokens(4)) == (16, 14)
    assert masked.score([], [[12]]) == pytest.approx([-math.log(VOCAB)], rel=1e-5)
    assert not spans.is_greedy([10], [12])


def test_a_t5_is_asked_as_it_was_trained(t5: T5):
    sentinels = (299, 298)
    asked = {
        kind: make_scorer(t5, row_format("span_corruption", sentinels=sentinels, denoising=kind))
        for kind in ("random_spans", "iid_spans", "prefix_lm", "deshuffling", "bert_style")
    }
    assert [isinstance(choices, SpanScorer) for choices in asked.values()] == [True, True, True, False, False]
    assert "in place of a sentinel" in getattr(asked["random_spans"], "note", "")
    assert "after the prompt" in getattr(asked["prefix_lm"], "note", "")
    assert asked["deshuffling"].declined.startswith("declined: a T5 trained by deshuffling")


def test_holes_and_what_fills_them(tokenizer: Tokenizer):
    the, cat, sat = (tokenizer.encode_following(text) for text in ("the", " cat", " sat"))
    assert with_blanks(tokenizer, [*the, 299, *sat], {299}, [" cat"]) == "the ___ sat"
    assert with_blanks(tokenizer, [*the, 299, *sat, 299], {299}, ["n", " on"]) == "the___ sat ___"
    assert with_blanks(tokenizer, [*the, 299], {299}, []) == "the___"
    assert fillings(tokenizer, [299, *cat, 298, *sat], {298, 299}) == [" cat", " sat"]
    assert fillings(tokenizer, [*the, *cat], {298, 299}) == ["the cat"]
    assert join_fillings([" cat", " ", "\n", ""]) == "cat | ' ' | '\\n' | ''"
