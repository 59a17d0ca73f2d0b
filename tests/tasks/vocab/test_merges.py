"""A byte-level base grown: merges behind all others, no byte sequence of other scripts touched."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from model.errors import InputError
from tasks.tokenizer.byte_level import piece_text
from tasks.tokenizer.json_format import parse_merges
from tasks.tokenizer.open import open_tokenizer, tokenizer_of
from tasks.vocab.bpe import extend_byte_level, merge_pairs, prepare_byte_level, readable_tokens, unreachable_byte_level
from tasks.vocab.config import VocabConfig
from tasks.vocab.extenders import keeps_base, kind_of, truncate_vocabulary, vocabulary_size
from tasks.vocab.scripts import SCRIPTS
from tasks.vocab.stage import build_vocab

CHINESE, RUSSIAN = SCRIPTS["zh"], SCRIPTS["ru"]

ANY = Path("base.json")
ENGLISH = [f"The converter blows air through melted iron for {number} minutes — café, naïve." for number in range(80)]
CHINESE_TEXT = [f"转炉炼钢的时候，空气吹过铁水{number}分钟，钢水就炼成了。中国的钢铁厂很多。" for number in range(40)]
RUSSIAN_TEXT = [f"Конвертер продувает воздух через чугун {number} минут, и остаётся сталь." for number in range(40)]


def gpt2_shaped(special: tuple[str, ...] = ("<|endoftext|>",)) -> bytes:
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    engine.train_from_iterator(ENGLISH, trainer)
    return engine.to_str().encode()


@pytest.fixture(scope="module")
def released() -> bytes:
    return gpt2_shaped()


@pytest.fixture(scope="module")
def base(released: bytes) -> bytes:
    return prepare_byte_level(released, VocabConfig(base=ANY))


def test_a_base_without_padding_gets_a_row_for_it(released: bytes, base: bytes) -> None:
    before = vocabulary_size(released)
    assert vocabulary_size(base) == before + 1
    tokenizer = tokenizer_of(base)
    assert (tokenizer.eos, tokenizer.pad) == (0, before)
    assert [tokenizer.encode(text) for text in ENGLISH] == [
        tokenizers.Tokenizer.from_buffer(released).encode(text).ids for text in ENGLISH
    ]


def test_padding_takes_a_row_that_the_embedding_has_to_spare(released: bytes) -> None:
    before = vocabulary_size(released)
    for rows, expected in ((before, before + 1), (before + 1, before + 1), (before + 20, before + 20)):
        tokenizer = tokenizer_of(prepare_byte_level(released, VocabConfig(base=ANY, embedding_rows=rows)))
        assert (tokenizer.pad, tokenizer.vocab_size) == (before, expected)


def test_new_pieces_begin_behind_the_rows_of_the_embedding(released: bytes) -> None:
    model = prepare_byte_level(gpt2_shaped(("<|endoftext|>", "<|padding|>")), VocabConfig(base=ANY, embedding_rows=512))
    assert vocabulary_size(model) == 512
    grown = extend_byte_level(model, ["钢"], CHINESE, 10)
    assert tokenizer_of(grown.model).encode("钢") == [512 + len(grown.added) - 1]
    assert tokenizer_of(model).decode_bytes(range(450, 512)) == b""


def test_a_character_of_three_bytes_takes_two_merges_and_its_neighbour_one(base: bytes) -> None:
    """U+94A2 and U+94A3 are E9 92 A2 and E9 92 A3."""
    assert piece_text("钢".encode()) not in json.loads(base)["model"]["vocab"]
    grown = extend_byte_level(base, ["钢", "钣"], CHINESE, 10)
    assert grown.added == ["\\xe9\\x92", "钢", "钣"]
    assert grown.intermediates == ["\\xe9\\x92"]
    assert keeps_base(base, grown.model)


def test_later_words_rank_behind_earlier_ones(base: bytes) -> None:
    """The first word brings five merges, the second one. Were that one thought to come before the first's last, the
    third word would be built on a piece that BPE never leaves there."""
    grown = extend_byte_level(base, ["中生", "生中", "中生中"], CHINESE, 10)
    assert json.loads(grown.model)["model"]["merges"][-1] == [piece_text(part.encode()) for part in ("中生", "中")]
    assert unreachable_byte_level(grown.model) == []


def test_bytes_that_other_scripts_begin_with_are_never_joined(base: bytes) -> None:
    """U+FFE5, the full-width yen sign, begins with EF BF as U+FFFD does, which is no Chinese text."""
    grown = extend_byte_level(base, ["￥", "，"], CHINESE, 10)
    assert "￥" not in grown.added
    assert grown.added[-1] == "，"


def test_a_word_that_the_splitter_cuts_is_left_out(base: bytes) -> None:
    assert extend_byte_level(base, ["，钢"], CHINESE, 10).added == []


def test_limits_and_blanks_before_words(base: bytes) -> None:
    assert extend_byte_level(base, ["钢铁"], CHINESE, 3).added == []
    grown = extend_byte_level(base, ["▁сталь"], RUSSIAN, 20)
    assert grown.added[-1] == "▁сталь"
    tokenizer = tokenizer_of(grown.model)
    assert len(tokenizer.encode(" сталь")) == 1


def test_merges_are_applied_as_the_library_applies_them(base: bytes) -> None:
    parsed = json.loads(base)
    ranks = {pair: rank for rank, pair in enumerate(parse_merges(parsed["model"]["merges"]))}
    vocabulary = parsed["model"]["vocab"]
    for word in ("converter", " through", "naïve", "钢"):
        symbols = merge_pairs(list(piece_text(word.encode())), ranks)
        assert [vocabulary[symbol] for symbol in symbols] == tokenizer_of(base).encode(word)


HAN = st.text(st.sampled_from("中国人民钢铁加拿大学生命"), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(words=st.lists(HAN, max_size=15), text=st.text(st.sampled_from("中国人民钢铁 theé—\n"), max_size=30))
def test_whatever_is_asked_for_all_whole_characters_are_emitted(base: bytes, words: list[str], text: str) -> None:
    grown = extend_byte_level(base, words, CHINESE, 1000)
    assert set(unreachable_byte_level(grown.model)) == set(unreachable_byte_level(base))
    assert set(words) <= {*readable_tokens(grown.model)}
    before, after = tokenizer_of(base), tokenizer_of(grown.model)
    assert [before.encode(line) for line in ENGLISH[:9]] == [after.encode(line) for line in ENGLISH[:9]]
    assert after.decode(after.encode(text)) == text


def test_the_stage_extends_a_tokenizer_json(context, make_documents, released: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(released)
    documents = make_documents(
        [[("en", text) for text in ENGLISH], [(name, t) for name in ("zh", "ru") for t in CHINESE_TEXT + RUSSIAN_TEXT]]
    )
    vocab = build_vocab(context, documents, VocabConfig(base=path, extend={"zh": 90, "ru": 100}))
    tokenizer = open_tokenizer(vocab)
    assert kind_of(tokenizer.model) == "byte-level"
    assert tokenizer.vocab_size == vocabulary_size(released) + 1 + 190
    facts = vocab.report.facts["vocabulary"]
    assert (facts["model_type"], facts["base"]["besides"]) == ("byte-level", 1)
    reported = facts["languages"]["en"]
    assert (reported["moved_lines"], reported["untouched_lines"]) == (0, len(ENGLISH))
    assert reported["tokens"][1] < 0.5 * reported["tokens"][0]
    assert reported["byte_share"][1] < reported["byte_share"][0]
    assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in [*ENGLISH, *CHINESE_TEXT, *RUSSIAN_TEXT])
    before = tokenizer_of(truncate_vocabulary(tokenizer.model, vocabulary_size(released) + 1))
    assert before.encode("钢铁 сталь") == tokenizer_of(released_with_padding(released)).encode("钢铁 сталь")


def released_with_padding(released: bytes) -> bytes:
    return prepare_byte_level(released, VocabConfig(base=ANY))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model": ', "begins like a tokenizer.json and is not JSON"),
        ('{"model": {}, "added_tokens": []}', "no tokenizer.json with pieces"),
    ],
)
def test_a_file_that_is_none_is_refused(context, make_documents, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        build_vocab(context, make_documents([[("en", "text")]]), VocabConfig(base=path))


def test_sentinels_and_normalisers(released: bytes, context, make_documents, tmp_path: Path) -> None:
    path, parsed = tmp_path / "tokenizer.json", json.loads(released)
    path.write_text(json.dumps({**parsed, "normalizer": {"type": "NFKC"}}))
    documents = make_documents([[("en", "text")]])
    with pytest.raises(InputError, match="the normaliser NFKC"):
        build_vocab(context, documents, VocabConfig(base=path))
    tokenizer = open_tokenizer(build_vocab(context, documents, VocabConfig(base=path, normaliser="none")))
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "e\u0301"
