"""The kernels give the ids that SentencePiece gives, whatever is in the text and in the cache."""

import base64
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2 as schema

from tasks.tokenizer import encoder as encoding
from tasks.tokenizer.base import Encoded
from tasks.tokenizer.encoder import Encoder, open_encoder
from tasks.tokenizer.open import tokenizer_of
from tasks.tokenizer.pieces import UnsupportedModelError
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_byte_level

UNIGRAM, BPE = 1, 2
FIRST = 259
TROUBLE = "abcdefghij     \t\n.,-=xyzABC0123\u2581\0é日本語の東京都です。ещёбулк🙂👩\u200d\u3000ß\ufffd\U0010ffff"
OPTIONS = {
    "as it is": {},
    "no blank before": {"add_dummy_prefix": False},
    "pieces across blanks": {"split_by_whitespace": False},
    "pieces of blanks": {"allow_whitespace_only_pieces": True},
    "split digits": {"split_digits": True, "add_dummy_prefix": False, "allow_whitespace_only_pieces": True},
    "pieces across scripts": {"split_by_unicode_script": False, "split_by_number": False, "split_by_whitespace": False},
    "few characters": {"character_coverage": 0.98, "vocab_size": 450},
}


def ids_of(encoded: Encoded) -> list[list[int]]:
    return [encoded.ids[first:last].tolist() for first, last in zip(encoded.offsets, encoded.offsets[1:], strict=False)]


def encode(model: bytes, texts: Sequence[str], closing: int | None = None) -> list[list[int]]:
    return ids_of(Encoder(model).encode(pa.array(texts, pa.large_string()), closing))


@pytest.fixture(scope="module", params=[(kind, name) for kind in ("bpe", "unigram") for name in OPTIONS], ids=str)
def model(request: pytest.FixtureRequest, trained: Callable[..., bytes]) -> bytes:
    kind, name = request.param
    return trained(kind, **OPTIONS[name])


def texts_of(text: str) -> st.SearchStrategy[str]:
    """Any text, text full of trouble, excerpts of the training text, and long runs of one thing."""
    places = st.integers(0, len(text) - 1)
    excerpts = st.builds(lambda at, size: text[at : at + size], places, st.integers(0, 300))
    trouble = st.text(st.sampled_from(TROUBLE), max_size=120)
    runs = st.builds(lambda unit, times: unit * times, trouble.filter(lambda some: len(some) < 4), st.integers(0, 200))
    return st.one_of(st.text(), trouble, excerpts, runs, st.builds("{}{}{}".format, excerpts, trouble, excerpts))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_ids_are_those_of_sentencepiece(model: bytes, text: str, data: st.DataObject) -> None:
    texts = data.draw(st.lists(texts_of(text), max_size=8))
    tokenizer, encoder = SentencePieceTokenizer(model), open_encoder(model)
    assert encoder is not None
    column = pa.array(texts, pa.large_string())
    assert ids_of(encoder.encode(column)) == [tokenizer.encode(some) for some in texts]
    assert ids_of(encoder.encode(column, closing=2)) == [[*tokenizer.encode(some), 2] for some in texts]


def test_without_the_mark_of_blanks_they_are_its_own_ids(model: bytes, text: str) -> None:
    lines = text.splitlines()
    assert encode(model, lines) == sentencepiece.SentencePieceProcessor(model_proto=model).encode(lines)


@pytest.mark.parametrize("lines", [4, 64])
def test_a_full_cache_changes_no_id(model: bytes, text: str, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CACHE_LINES", lines)
    tokenizer, encoder = SentencePieceTokenizer(model), Encoder(model)
    column = pa.array(text.splitlines(), pa.large_string())
    for _ in range(3):
        assert ids_of(encoder.encode(column)) == [tokenizer.encode(line) for line in text.splitlines()]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_threads_gives_the_same(model: bytes, text: str, workers: int) -> None:
    encoder = Encoder(model)
    parts = [pa.array(text.splitlines()[start::7], pa.large_string()) for start in range(7)] * 5
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(encoder.encode, parts))
    for part, encoded in zip(parts, found, strict=True):
        assert ids_of(encoded) == ids_of(Encoder(model).encode(part))
    assert 1 <= len(encoder._idle) <= workers


class TakenMeanwhile(list[np.ndarray]):
    """Caches of which another thread takes the last one as soon as somebody asks whether there are any."""

    def __bool__(self) -> bool:
        self.clear()
        return True


def test_a_cache_that_another_thread_took_is_not_missed(model: bytes) -> None:
    encoder = Encoder(model)
    encoder.encode(pa.array(["a text"], pa.large_string()))
    encoder._idle = TakenMeanwhile(encoder._idle)
    assert ids_of(encoder.encode(pa.array(["another"], pa.large_string())))


def test_a_column_may_be_sliced_chunked_short_or_empty(model: bytes) -> None:
    tokenizer, encoder = SentencePieceTokenizer(model), Encoder(model)
    texts = ["", "one two", "", "три", "日本", ""]
    expected = [tokenizer.encode(some) for some in texts]
    for kind in (pa.string(), pa.large_string()):
        column = pa.array(["before", *texts, "after"], kind).slice(1, len(texts))
        assert ids_of(encoder.encode(column)) == expected
        chunks = pa.chunked_array([column.slice(0, 2), column.slice(2, 0), column.slice(2)])
        assert ids_of(encoder.encode(chunks)) == expected
        assert ids_of(encoder.encode(pa.chunked_array([], kind))) == []
    assert ids_of(encoder.encode(pa.array(["", ""]), closing=2)) == [[2], [2]]


def test_text_that_is_no_utf_8_is_refused(model: bytes) -> None:
    torn = pa.LargeStringArray.from_buffers(1, pa.py_buffer(np.array([0, 2], np.int64)), pa.py_buffer(b"a\xe6"))
    with pytest.raises(pa.ArrowInvalid):
        Encoder(model).encode(torn)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_word_of_a_megabyte_takes_seconds(trained: Callable[..., bytes], kind: str) -> None:
    model = trained(kind, split_by_whitespace=False, split_by_unicode_script=False, split_by_number=False)
    noise = base64.b64encode(random.Random(1).randbytes(750_000)).decode()
    words = ["a" * 1_000_000, "=" * 1_000_000, " " * 1_000_000, noise, "日本" * 170_000]
    began = time.process_time()
    found = encode(model, words)
    took = time.process_time() - began
    assert found == sentencepiece.SentencePieceProcessor(model_proto=model).encode(words)
    assert took < 60


def test_of_equal_scores_the_leftmost_pair_is_joined(assembled: Callable[..., bytes]) -> None:
    model = assembled(BPE, {"a": -9.0, "b": -9.0, "ab": -1.0, "ba": -1.0})
    a, b, ab, ba = range(FIRST, FIRST + 4)
    assert encode(model, ["aba", "bab", "abab", "aab"]) == [[ab, a], [ba, b], [ab, ab], [a, ab]]
    better = assembled(BPE, {"a": -9.0, "b": -9.0, "ab": -1.0, "ba": -0.5})
    assert encode(better, ["aba", "bab", "abab"]) == [[a, ba], [ba, b], [a, ba, b]]


def test_a_character_without_a_piece_may_be_joined(assembled: Callable[..., bytes]) -> None:
    model = assembled(BPE, {"qu": -1.0, "a": -2.0, "▁a": -3.0})
    qu, a = FIRST, FIRST + 1
    q, u = 3 + ord("q"), 3 + ord("u")
    assert encode(model, ["quaq", "uq", " a", "  "]) == [[qu, a, q], [u, q], [FIRST + 2], [FIRST + 3] * 2]


def test_sums_near_a_tie_round_as_they_do_in_sentencepiece(assembled: Callable[..., bytes]) -> None:
    """`ab` is .001 better than `a` and `b`, which round to more beyond 2^16, where sums are 1/128 apart."""
    model = assembled(UNIGRAM, {"ab": -5.006, "a": -2.5035, "b": -2.5035, "▁": -1.0, "c": -3.3, "▁c": -4.2999})
    found = encode(model, ["ab c" * 40_000])
    assert found == sentencepiece.SentencePieceProcessor(model_proto=model).encode(["ab c" * 40_000])
    whole = np.array(found[0]) == FIRST
    assert whole[0]
    assert 100 < whole.sum() < 39_900


def test_a_long_text_is_summed_anew_where_sentencepiece_does(trained: Callable[..., bytes], text: str) -> None:
    model = trained("unigram")
    long = text * 40
    assert encode(model, [long]) == [sentencepiece.SentencePieceProcessor(model_proto=model).encode(long)]


def test_user_defined_pieces_are_preferred(trained: Callable[..., bytes], text: str) -> None:
    model = trained("unigram", user_defined_symbols="json,日本")
    assert encode(model, [text]) == [sentencepiece.SentencePieceProcessor(model_proto=model).encode(text)]


@pytest.mark.parametrize(
    ("reason", "model_type", "change"),
    [
        ("neither BPE nor Unigram", 4, {}),
        ("changes text", BPE, {"precompiled_charsmap": b"some"}),
        ("drops spaces", UNIGRAM, {"remove_extra_whitespaces": True}),
        ("keeps spaces", BPE, {"escape_whitespaces": False}),
    ],
)
def test_models_that_need_more_are_left_to_sentencepiece(
    assembled: Callable[..., bytes], reason: str, model_type: int, change: dict[str, object]
) -> None:
    model = assembled(model_type, {"a": -1.0}, **change)
    with pytest.raises(UnsupportedModelError, match=reason):
        Encoder(model)
    assert open_encoder(model) is None


def test_a_bpe_model_with_symbols_of_the_user_is_left_to_sentencepiece(trained: Callable[..., bytes]) -> None:
    model = trained("bpe", user_defined_symbols="json")
    with pytest.raises(UnsupportedModelError, match="user-defined pieces"):
        Encoder(model)
    column = pa.array(["json decoder", "\u2581"])
    tokenizer = SentencePieceTokenizer(model)
    assert ids_of(tokenizer.encode_column(column)) == [tokenizer.encode(some) for some in column.to_pylist()]


@pytest.mark.parametrize(("unused", "declined"), [("<row_1>", False), ("abc", True), ("ac", True), ("a", True)])
def test_rows_kept_free_do_no_harm_where_no_text_leads_to_them(
    assembled: Callable[..., bytes], unused: str, declined: bool
) -> None:
    parsed = schema.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
    parsed.ParseFromString(assembled(BPE, {"b": -3.0, "ab": -1.0, "c": -2.0, "bc": -4.0}))
    parsed.pieces.add(piece=unused, score=-0.5, type=5)
    model = parsed.SerializeToString()
    if declined:
        with pytest.raises(UnsupportedModelError, match="out of use"):
            Encoder(model)
        return
    texts = ["abc <row_1> cab", unused, "acbcb"]
    assert encode(model, texts) == sentencepiece.SentencePieceProcessor(model_proto=model).encode(texts)


def test_a_piece_with_a_score_that_is_no_number_is_left_to_sentencepiece(assembled: Callable[..., bytes]) -> None:
    parsed = schema.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
    parsed.ParseFromString(assembled(BPE, {"a": float("nan")}))
    with pytest.raises(UnsupportedModelError, match="not a number"):
        Encoder(parsed.SerializeToString())


def test_a_byte_level_vocabulary_answers_in_the_same_form(text: str) -> None:
    tokenizer = tokenizer_of(train_byte_level([text], VocabConfig(vocab_size=400, model_type="byte_level")))
    texts = ["json decoder", "", "日本語 \u2581"]
    column = pa.chunked_array([texts[:2], texts[2:]])
    encoded = tokenizer.encode_column(column, closing=tokenizer.eos)
    assert encoded.ids.dtype == np.uint16
    assert ids_of(encoded) == [[*tokenizer.encode(some), tokenizer.eos] for some in texts]
    assert ids_of(tokenizer.encode_column(column)) == [tokenizer.encode(some) for some in texts]
