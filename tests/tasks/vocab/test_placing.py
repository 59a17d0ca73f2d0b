"""A Unigram base, as T5's: pieces placed by their scores, bytes instead of unknowns, sentinels where they were."""

import argparse
import io
import itertools
import math
from collections import Counter
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from model.errors import InputError
from tasks.tokenizer.model_file import BYTE, CONTROL, NORMAL, read_model
from tasks.tokenizer.open import open_tokenizer
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.base import prepare_base
from tasks.vocab.bpe import bare_processor, unreachable_tokens
from tasks.vocab.candidates import CandidateVocabulary, train_candidates
from tasks.vocab.config import VocabConfig
from tasks.vocab.extend import check_extension
from tasks.vocab.scripts import SCRIPTS, Script
from tasks.vocab.stage import build_vocab
from tasks.vocab.unigram import MARGIN, SPREAD, best_alternative, extend_unigram

CHINESE, RUSSIAN = SCRIPTS["zh"], SCRIPTS["ru"]

SOURCE_LINES = Path(argparse.__file__).read_text(encoding="utf-8").split("\n")
ENGLISH = [" ".join(line.split()) for line in SOURCE_LINES if line.split()]
CHINESE_TEXT = [f"转炉炼钢的时候，空气吹过铁水{number}分钟，钢水就炼成了。中国的钢铁厂很多。" for number in range(40)]
SYLLABLES = ("сталь", "ков", "ный", "чугун", "лит", "ой")
RUSSIAN_TEXT = [" ".join(map("".join, itertools.product(SYLLABLES, repeat=size))) for size in (1, 2, 3)]
PIECES, SENTINELS, ROWS = 600, 10, 640
T5 = {"normaliser": "none", "sentinels": SENTINELS, "embedding_rows": ROWS}
BARE = Script(CHINESE.ranges, (), spaced=False)


def t5_shaped(texts: list[str] = ENGLISH, **options: object) -> bytes:
    """As T5's own vocabulary: Unigram, padding 0, end 1, unknown 2, nmt_nfkc, no byte pieces."""
    model = io.BytesIO()
    settings = {"model_type": "unigram", "vocab_size": PIECES, "normalization_rule_name": "nmt_nfkc"}
    settings |= {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, num_threads=1, minloglevel=2, **settings
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bases") / "spiece.model"
    path.write_bytes(t5_shaped())
    return path


@pytest.fixture(scope="module")
def base(released: Path) -> bytes:
    return prepare_base(VocabConfig.model_validate({"base": released, **T5}))


def test_new_pieces_begin_behind_the_sentinels_the_rows_and_the_bytes(released: Path, base: bytes) -> None:
    theirs, ours = read_model(released.read_bytes()).pieces, read_model(base).pieces
    assert list(ours[:PIECES]) == list(theirs)
    assert [piece.piece for piece in ours[PIECES : PIECES + 2]] == ["<extra_id_9>", "<extra_id_8>"]
    assert ours[PIECES + SENTINELS - 1].piece == "<extra_id_0>"
    assert {piece.type for piece in ours[PIECES:ROWS]} == {CONTROL}
    assert [piece.type for piece in ours[ROWS:]] == [BYTE] * 256
    grown = extend_unigram(base, train_candidates(lambda: ["钢铁厂"] * 9, 2, 1.0), BARE, 5)
    added = read_model(grown.model).pieces[ROWS + 256 :]
    assert [piece.piece for piece in added] == grown.added == ["钢", "铁", "厂", "钢铁", "钢铁厂"]


def test_a_sentinel_in_a_text_is_text(base: bytes) -> None:
    tokenizer = SentencePieceTokenizer(base)
    ids = tokenizer.encode("a page of <extra_id_0> and <reserved_615>")
    assert not set(ids) & set(range(PIECES, ROWS))
    assert tokenizer.decode(ids) == "a page of <extra_id_0> and <reserved_615>"
    assert tokenizer.decode_bytes(range(PIECES, ROWS)) == b""


def test_fewer_rows_than_pieces_are_refused(released: Path) -> None:
    config = VocabConfig(base=released, normaliser="none", sentinels=SENTINELS, embedding_rows=PIECES)
    with pytest.raises(InputError, match=r"has 600 tokens and 10 sentinels, more than 600 rows"):
        prepare_base(config)


def test_bytes_replace_what_was_unknown_and_other_text_keeps_its_ids(released: Path, base: bytes) -> None:
    theirs = sentencepiece.SentencePieceProcessor(model_proto=released.read_bytes())
    ours = SentencePieceTokenizer(base)
    assert theirs.unk_id() in theirs.encode("steel 钢 {}")
    assert ours.decode(ours.encode("steel 钢 {}\n  x")) == "steel 钢 {}\n  x"
    known = [text for text in ENGLISH if theirs.unk_id() not in theirs.encode(text)]
    assert len(known) > 1000
    assert [ours.encode(text) for text in known] == theirs.encode(known)
    assert (ours.pad, ours.eos, ours.unk) == (0, 1, 2)


def test_a_piece_is_above_the_best_way_to_write_it_with_shorter_ones() -> None:
    scores = {"a": -1.0, "b": -2.0, "ab": -2.5, "c": -4.0}
    assert best_alternative("ab", scores, -9.0) == -3.0
    assert best_alternative("abc", scores, -9.0) == -6.5
    assert best_alternative("xa", scores, -9.0) == -10.0
    assert best_alternative("a", scores, -9.0) == -9.0


def test_a_piece_has_the_score_of_its_count_or_a_little_more_than_its_rival(base: bytes) -> None:
    donor = CandidateVocabulary(Counter({"钢": 50, "铁": 50}), Counter({"钢铁": 1}))
    scores = {piece.piece: piece.score for piece in read_model(extend_unigram(base, donor, BARE, 3).model).pieces}
    assert scores["钢"] == pytest.approx(math.log(50.5 / 100), abs=1e-6)
    assert math.log(1.5 / 100) < scores["钢"] + scores["铁"]
    assert MARGIN < scores["钢铁"] - scores["钢"] - scores["铁"] < (1 + SPREAD) * MARGIN
    frequent = CandidateVocabulary(Counter({"钢": 50, "铁": 50}), Counter({"钢铁": 40}))
    scores = {piece.piece: piece.score for piece in read_model(extend_unigram(base, frequent, BARE, 3).model).pieces}
    assert scores["钢铁"] == pytest.approx(math.log(40.5 / 100), abs=1e-6)


def test_two_ways_to_cut_a_text_never_tie(base: bytes) -> None:
    """中国 + 人 and 中 + 国人 would, if each word scored above its characters by the same."""
    donor = CandidateVocabulary(Counter({"中": 50, "国": 50, "人": 50}), Counter({"中国": 1, "国人": 1}))
    scores = {piece.piece: piece.score for piece in read_model(extend_unigram(base, donor, BARE, 5).model).pieces}
    assert abs(scores["中国"] + scores["人"] - scores["中"] - scores["国人"]) > MARGIN


HAN = st.text(st.sampled_from("中国人民钢铁加拿大学生命大夫"), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(words=st.dictionaries(HAN, st.integers(1, 1000), max_size=25))
def test_whatever_the_counts_every_placed_piece_is_emitted(base: bytes, words: dict[str, int]) -> None:
    characters = Counter("".join(words) * 100 + "中国")
    donor = CandidateVocabulary(characters, Counter({word: count for word, count in words.items() if len(word) > 1}))
    grown = extend_unigram(base, donor, BARE, 1000)
    assert set(unreachable_tokens(grown.model)) == set(unreachable_tokens(base))
    assert {word for word in words if len(word) > 1} <= set(grown.added)
    assert bare_processor(grown.model).encode(ENGLISH[:20]) == bare_processor(base).encode(ENGLISH[:20])


def test_base_pieces_of_the_same_script_stay_alive() -> None:
    """New pieces with the scores of their counts would write base words as two shorter ones."""
    base = t5_shaped([*ENGLISH, *RUSSIAN_TEXT * 9], vocab_size=640, character_coverage=1.0, byte_fallback=False)
    mine = {piece.piece for piece in read_model(base).pieces if piece.type == NORMAL and RUSSIAN.admits(piece.piece)}
    halves = {half for word in mine if len(word) > 3 for half in (word[:2], word[2:])} - mine
    grown = extend_unigram(
        base, CandidateVocabulary(Counter("".join(mine)), Counter(dict.fromkeys(halves, 100))), RUSSIAN, len(halves)
    )
    assert halves
    assert halves <= set(grown.added)
    check_extension(base, grown.model)


def test_the_stage_extends_a_unigram_base(context, make_documents, released: Path) -> None:
    documents = make_documents([[("en", text) for text in ENGLISH[:99]], [("zh", text) for text in CHINESE_TEXT]])
    config = VocabConfig.model_validate({"base": released, "extend": {"zh": 60}, **T5})
    tokenizer = open_tokenizer(build_vocab(context, documents, config))
    assert tokenizer.vocab_size == ROWS + 256 + 60
    assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in [*ENGLISH, *CHINESE_TEXT])
    tokens = sum(len(tokenizer.encode(text)) for text in CHINESE_TEXT)
    assert tokens < 0.5 * sum(map(len, CHINESE_TEXT))


def test_a_bpe_base_without_bytes_gets_them_too(context, make_documents, tmp_path: Path) -> None:
    path = tmp_path / "bpe.model"
    path.write_bytes(t5_shaped(model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False))
    documents = make_documents([[("zh", text) for text in CHINESE_TEXT]])
    tokenizer = open_tokenizer(build_vocab(context, documents, VocabConfig(base=path, extend={"zh": 40})))
    assert tokenizer.vocab_size == PIECES + 256 + 40
    assert tokenizer.decode(tokenizer.encode("é钢\n😀")) == "é钢\n😀"
