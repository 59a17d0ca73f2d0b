"""A grown vocabulary: every added piece is emitted, no old id moves, no old text is cut in another way."""

import gzip
import io
import json
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2 as schema

from model.errors import InputError
from tasks.tokenizer.model_file import NORMAL
from tasks.vocab.bpe import bare_processor, extend_bpe, merge_symbols, unreachable_tokens
from tasks.vocab.scripts import SCRIPTS

CHINESE, RUSSIAN = SCRIPTS["zh"], SCRIPTS["ru"]

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
BASE = DATA / "tokenizers" / "mistral_v1_32k.model"
DONOR = DATA / "tokenizers" / "chinese_llama_sp_zh_20k.model"
ENGLISH = [
    f"The converter blows air through melted iron for {number} minutes, and steel remains." for number in range(200)
]


def trained(**options: object) -> bytes:
    model = io.BytesIO()
    settings = {"model_type": "bpe", "vocab_size": 340, "byte_fallback": True, "normalization_rule_name": "identity"}
    settings.update(options)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH), model_writer=model, num_threads=1, minloglevel=2, **settings
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def base() -> bytes:
    """A small English vocabulary."""
    return trained()


def pieces(model: bytes) -> list[tuple[str, float, int]]:
    parsed = schema.ModelProto()
    parsed.ParseFromString(model)
    return [(piece.piece, piece.score, piece.type) for piece in parsed.pieces]


def test_a_word_without_a_two_character_piece_inside_gets_one(base: bytes) -> None:
    grown = extend_bpe(base, [*"加拿大", "加拿大"], CHINESE)
    assert (grown.added, grown.intermediates) == ([*"加拿大", "加拿", "加拿大"], ["加拿"])
    assert unreachable_tokens(grown.model) == unreachable_tokens(base)


def test_a_word_that_is_built_from_known_pieces_needs_nothing_between(base: bytes) -> None:
    asked = [*"中国人民", "中国", "人民", "中国人民"]
    grown = extend_bpe(base, asked, CHINESE)
    assert (grown.added, grown.intermediates) == (asked, [])


def test_the_characters_of_a_word_become_pieces_before_it(base: bytes) -> None:
    grown = extend_bpe(base, ["中国", "国人"], CHINESE)
    assert grown.added == ["中", "国", "中国", "人", "国人"]
    assert grown.intermediates == ["中", "国", "人"]


def test_old_pieces_keep_ids_scores_and_types_and_new_scores_fall(base: bytes) -> None:
    grown = extend_bpe(base, ["中国", "加拿大", "钢铁"], CHINESE)
    old, new = pieces(base), pieces(grown.model)
    assert new[: len(old)] == old
    lowest = min(score for _, score, kind in old if kind == NORMAL)
    scores = [score for _, score, _ in new[len(old) :]]
    assert scores == [lowest - 1 - number for number in range(len(scores))]


def test_pieces_of_another_script_or_with_blanks_are_left_out(base: bytes) -> None:
    asked = ["2015", "......", "中国steel", "▁中国", "中国"]
    grown = extend_bpe(base, asked, CHINESE)
    assert grown.added == ["中", "国", "中国"]


def test_russian_words_may_begin_with_their_blank(base: bytes) -> None:
    grown = extend_bpe(base, ["▁сталь", "сталь", "▁steel"], RUSSIAN)
    assert "▁steel" not in grown.added
    assert unreachable_tokens(grown.model) == unreachable_tokens(base)
    encoded = bare_processor(grown.model).encode(" сталь сталь", out_type=str)
    assert encoded == ["▁сталь", "▁сталь"]


def test_a_limit_counts_rows_and_never_leaves_a_word_half_built(base: bytes) -> None:
    grown = extend_bpe(base, ["加拿大", "钢铁"], CHINESE, limit=5)
    assert grown.added == ["加", "拿", "大", "加拿", "加拿大"]
    assert extend_bpe(base, ["加拿大", "钢铁", "厂"], CHINESE, limit=4).added == ["钢", "铁", "钢铁", "厂"]
    assert extend_bpe(base, ["加拿大"], CHINESE, limit=4).added == []


def test_every_ideograph_of_gb2312_is_there_once() -> None:
    found = CHINESE.characters
    assert (len(found), len(set(found)), found[0], found[-1]) == (6763, 6763, "啊", "齄")


HAN = st.text(st.sampled_from("中国人民钢铁加拿大学生命大夫工厂长"), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(HAN, max_size=25), text=st.text(st.sampled_from("中国人民钢铁加拿大学生命 theconvr"), max_size=30)
)
def test_whatever_is_asked_for_all_added_are_reachable_and_our_merges_are_sentencepieces(
    base: bytes, words: list[str], text: str
) -> None:
    grown = extend_bpe(base, words, CHINESE)
    assert set(unreachable_tokens(grown.model)) == set(unreachable_tokens(base))
    assert set(words) <= {piece for piece, _, _ in pieces(grown.model)}
    scores = {piece: score for piece, score, kind in pieces(grown.model) if kind == NORMAL}
    known = [symbol for symbol in merge_symbols(text.replace(" ", "▁"), scores) if symbol in scores]
    emitted = bare_processor(grown.model).encode(text, out_type=str)
    assert known == [piece for piece in emitted if not piece.startswith("<0x")]
    assert bare_processor(grown.model).encode(ENGLISH) == bare_processor(base).encode(ENGLISH)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: trained(model_type="unigram", vocab_size=300), "not a BPE model"),
        (lambda: b"\xffnot a model", "no SentencePiece model"),
        (lambda: b"", "holds no pieces"),
    ],
)
def test_a_base_that_cannot_be_grown_is_refused(model, message: str) -> None:
    with pytest.raises(InputError, match=message):
        extend_bpe(model(), ["中国"], CHINESE)


def lines(folder: str, most: int) -> list[str]:
    found: list[str] = []
    with gzip.open(DATA / folder / "part-000.jsonl.gz", "rt", encoding="utf-8") as stream:
        for record in stream:
            found += [line for line in json.loads(record)["text"].split("\n") if line]
            if len(found) >= most:
                return found[:most]
    return found


def as_chinese_llama_merges(base: bytes, donor: bytes) -> bytes:
    """Every piece of the donor that the base lacks, at score 0, in the donor's order."""
    merged, given = schema.ModelProto(), schema.ModelProto()
    merged.ParseFromString(base)
    given.ParseFromString(donor)
    known = {piece.piece for piece in merged.pieces}
    for piece in given.pieces:
        if piece.piece not in known:
            merged.pieces.add(piece=piece.piece, score=0.0)
    return merged.SerializeToString()


@pytest.mark.skipif(not BASE.exists(), reason="the folder of real vocabularies is not there")
def test_a_real_base_grown_by_chinese_llamas_own_donor() -> None:
    """Beside Chinese-LLaMA's merge: fewer rows, fewer tokens on Chinese prose, nothing dead, English untouched."""
    base, donor = BASE.read_bytes(), DONOR.read_bytes()
    asked = sorted((piece for piece, _, kind in pieces(donor) if kind == NORMAL), key=len)
    grown, theirs = extend_bpe(base, asked, CHINESE).model, as_chinese_llama_merges(base, donor)
    assert unreachable_tokens(base) == unreachable_tokens(grown) == []
    assert len(unreachable_tokens(theirs)) > 300
    assert len(pieces(grown)) < len(pieces(theirs))
    english = lines("en_books", 2000)
    before, after, after_theirs = (bare_processor(model).encode(english) for model in (base, grown, theirs))
    assert before == after
    assert sum(one != other for one, other in zip(before, after_theirs, strict=True)) > 200
    chinese = ["".join(filter(CHINESE.holds, line)) for line in lines("zh_techdocs", 3000)]
    counts = [sum(map(len, bare_processor(model).encode(chinese))) for model in (base, grown, theirs)]
    assert counts[1] < counts[2] < counts[0]
