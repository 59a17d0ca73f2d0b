"""Shingles and signatures: against a plain Python reference and against datasketch itself."""

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.artifacts.tables.columns import text_buffers
from tasks.dedup.minhash import band_keys, fold_table, hash_words, s_curve, shingle_sets, signatures_of
from tasks.dedup.near_duplicates import set_similarity

MIXED = [
    "The quick brown fox jumps over the lazy dog. " * 40,
    "дом и сад — Ёлка " * 9,
    "我们今天去公园散步，然后回家吃饭。",
    "a",
    "",
    "!!! ???",
    "ภาษาไทยไม่มีช่องว่าง",
    "snake_case and __init__ are words",
    "naïve café 𝟙𝟚 😀 ok",
    "カタカナと漢字 mixed with English words",
    "x" * 5000,
    " ".join(f"word{number}" for number in range(6000)),
]

texts_strategy = st.lists(st.text(st.sampled_from("ab_ Zé дЖ中文のไ，.\n😀𠀀1"), max_size=80), min_size=1, max_size=8)


def buffers(texts):
    return text_buffers(pa.array(texts, pa.large_string()))


def reference_words(text):
    """The definition in plain words, on characters instead of bytes."""
    words, run = [], ""
    for character in text:
        codepoint = ord(character)
        kind = "L" if character == "_" or 0x20000 <= codepoint <= 0x3FFFD else unicodedata.category(character)[0]
        unspaced = 0x0E00 <= codepoint <= 0x0EFF or 0x3040 <= codepoint <= 0x9FFF or codepoint >= 0x20000
        if kind in "LNM" and codepoint < 0x40000 and not unspaced:
            run += character.lower() if len(character.lower()) == 1 else character
            continue
        if run:
            words.append(run)
            run = ""
        if kind in "LNM" and unspaced:
            words.append(character)
    return [*words, run] if run else words


def reference_shingles(text, width):
    words = reference_words(text)
    if not words:
        return {("raw", text)}
    return {tuple(words[i : i + width]) for i in range(max(1, len(words) - width + 1))}


def kernel_words(text):
    data, offsets = buffers([text])
    out = np.empty(len(text.encode()) // 2 + 2, np.uint64)
    return out[: hash_words(data, offsets[0], offsets[1], fold_table(), out)].tolist()


@given(texts_strategy)
@settings(deadline=None)
def test_equal_words_have_equal_hashes_and_different_words_different_ones(texts):
    by_hash, by_word = {}, {}
    for text in texts:
        expected, found = reference_words(text), kernel_words(text)
        assert len(found) == len(expected)
        for word, value in zip(expected, found, strict=True):
            assert by_hash.setdefault(value, word) == word
            assert by_word.setdefault(word, value) == value


@given(texts_strategy, st.integers(1, 7))
@settings(deadline=None)
def test_jaccard_of_hashed_shingles_is_the_jaccard_of_the_shingles(texts, width):
    data, offsets = buffers(texts)
    flat, lengths = shingle_sets(data, offsets, np.arange(len(texts)), width)
    ends = np.cumsum(lengths)
    plain = [reference_shingles(text, width) for text in texts]
    for i in range(len(texts)):
        assert lengths[i] == len(plain[i])
        expected = len(plain[0] & plain[i]) / len(plain[0] | plain[i])
        found = set_similarity(flat, 0, lengths[0], ends[i] - lengths[i], ends[i])
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("length", "seed", "width"), [(112, 1, 5), (16, 7, 1), (128, 42, 3)])
def test_signatures_are_those_of_datasketch_bit_for_bit(length, seed, width):
    generator = np.random.default_rng(seed)
    random_texts = ["".join(generator.choice(list("abc дé 中の. "), 300)) for _ in range(5)]
    texts = MIXED + random_texts
    data, offsets = buffers(texts)
    ours = signatures_of(data, offsets, width, length, seed)
    for row in range(len(texts)):
        flat, _ = shingle_sets(data, offsets, np.array([row]), width)
        theirs = MinHash(num_perm=length, seed=seed, hashfunc=int, scheme="affine32")
        theirs.update_batch([int(value) >> 32 for value in flat])
        assert ours[row].tolist() == theirs.hashvalues.tolist()


def test_a_slice_of_a_column_gives_the_signatures_of_its_rows():
    whole = pa.array(MIXED, pa.large_string())
    full = signatures_of(*text_buffers(whole), 5, 112, 1)
    assert np.array_equal(signatures_of(*text_buffers(whole.slice(2, 5)), 5, 112, 1), full[2:7])


def test_case_and_punctuation_do_not_change_a_signature_but_a_word_does():
    data, offsets = buffers(
        ["One two, three four five six!", "one TWO three: four five SIX", "one two three four five 10"]
    )
    signatures = signatures_of(data, offsets, 5, 112, 1)
    assert np.array_equal(signatures[0], signatures[1])
    assert not np.array_equal(signatures[0], signatures[2])


def test_documents_without_words_are_compared_by_their_bytes():
    data, offsets = buffers(["***", "***", "+++", ""])
    signatures = signatures_of(data, offsets, 5, 112, 1)
    assert np.array_equal(signatures[0], signatures[1])
    assert not np.array_equal(signatures[0], signatures[2])


def test_signatures_estimate_jaccard_within_their_error():
    words = [f"w{i}" for i in range(4000)]
    half = [*words[:2000], *(f"v{i}" for i in range(2000))]
    data, offsets = buffers([" ".join(words), " ".join(half)])
    signatures = signatures_of(data, offsets, 1, 1024, 1)
    estimate = float(np.mean(signatures[0] == signatures[1]))
    assert abs(estimate - 1 / 3) < 4 * np.sqrt(1 / 3 * 2 / 3 / 1024)


def test_band_keys_agree_exactly_where_the_band_agrees():
    signatures = np.arange(28, dtype=np.uint32).reshape(2, 14)
    signatures[1] = signatures[0]
    signatures[1, 9] += 1
    first, second = band_keys(signatures, 0, 7), band_keys(signatures, 1, 7)
    assert first[0] == first[1]
    assert second[0] != second[1]
    assert first[0] != second[0]


def test_s_curve_states_the_chance_of_being_compared():
    curve = dict(map(tuple, s_curve(16, 7)))
    assert curve[0.8] == pytest.approx(0.9769, abs=1e-4)
    assert curve[1.0] == 1.0
    assert s_curve(1, 1)[0] == [0.5, 0.5]
