"""Every script that a vocabulary can be grown by: its characters, and on a small text that all its rows are emitted."""

import io
from typing import get_args

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from tasks.common.text import is_unspaced
from tasks.tokenizer.open import tokenizer_of
from tasks.tokenizer.wordpiece import from_vocab_txt
from tasks.vocab.candidates import train_candidates
from tasks.vocab.config import Language
from tasks.vocab.extenders import extend_to, make_normaliser, unreachable
from tasks.vocab.scripts import SCRIPTS

ENGLISH = [
    f"The converter blows air through melted iron for {number} minutes and leaves steel." for number in range(80)
]
TEXTS = {
    "ar": "يُنفخ الهواء في الحديد المنصهر، فيبقى الفولاذ. مصانع الفولاذ كثيرة في المدينة، وفيها أفران كبيرة.",
    "el": "Ο αέρας περνά μέσα από το λιωμένο σίδερο και μένει ο χάλυβας. Τα εργοστάσια έχουν μεγάλους φούρνους.",
    "fa": "هوا در آهن گداخته دمیده می‌شود و فولاد می‌ماند. کارخانه‌های فولاد در شهر کوره‌های بزرگ دارند.",
    "he": "האוויר נושב דרך הברזל המותך והפלדה נשארת. במפעלי הפלדה של העיר יש תנורים גדולים.",
    "hi": "पिघले हुए लोहे में हवा फूँकी जाती है और इस्पात बच जाता है। शहर के कारखानों में बड़ी भट्टियाँ हैं।",
    "ja": "転炉では溶けた鉄に空気を吹き込み、鋼を作ります。町の製鉄所には大きな炉がたくさんあります。",
    "ko": "전로에서는 녹은 쇠에 공기를 불어 넣어 강철을 만든다. 도시의 제철소에는 큰 용광로가 많이 있다.",
    "ru": "Воздух продувают через расплавленный чугун, и остаётся сталь. На заводах города большие печи.",
    "th": "เป่าอากาศผ่านเหล็กหลอมเหลวแล้วจะเหลือเหล็กกล้า โรงงานในเมืองมีเตาหลอมขนาดใหญ่หลายเตา",
    "uk": "Повітря продувають крізь розплавлений чавун, і лишається сталь. На заводах міста є великі печі.",
    "zh": "转炉炼钢的时候，空气吹过铁水，钢水就炼成了。城里的钢铁厂有很多大炉子。",
}
ROWS = {True: 40, False: 100}
"""By whether the vocabulary is exact: another knows a word only when it knows all its characters."""


def sentencepiece_base(model_type: str) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH),
        model_writer=model,
        model_type=model_type,
        vocab_size=305,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def byte_level_base() -> bytes:
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=["</s>", "<pad>"], initial_alphabet=alphabet, show_progress=False
    )
    engine.train_from_iterator(ENGLISH, trainer)
    return engine.to_str().encode()


def word_piece_base() -> bytes:
    letters = "abcdefghijklmnopqrstuvwxyz"
    capitals = ["T", *letters, *(f"##{letter}" for letter in letters), *"0123456789,."]
    return from_vocab_txt("\n".join(["[PAD]", "[UNK]", "[SEP]", *capitals, *(f"##{digit}" for digit in range(10))]))


BASES = {
    "bpe": lambda: sentencepiece_base("bpe"),
    "unigram": lambda: sentencepiece_base("unigram"),
    "byte-level": byte_level_base,
    "wordpiece": word_piece_base,
}


@pytest.fixture(scope="module", params=BASES)
def base(request: pytest.FixtureRequest) -> bytes:
    return BASES[request.param]()


@pytest.mark.parametrize("name", TEXTS)
def test_all_rows_are_emitted_and_old_text_stays(base: bytes, name: str):
    script, read = SCRIPTS[name], make_normaliser(base)
    texts = [f"{TEXTS[name]} {number}" for number in range(30)]
    runs = [run for text in texts for run in script.runs(read(text))]
    rows = ROWS[tokenizer_of(base).exact]
    grown = extend_to(base, train_candidates(lambda: runs, 100, 1.0), script, rows, lambda: runs)
    assert len(grown.added) == rows
    assert set(unreachable(grown.model)) <= set(unreachable(base))
    before, after = tokenizer_of(base), tokenizer_of(grown.model)
    assert [before.encode(text) for text in ENGLISH[:9]] == [after.encode(text) for text in ENGLISH[:9]]
    if before.exact:
        assert len(after.encode(texts[0])) < 0.7 * len(before.encode(texts[0]))
        assert after.decode(after.encode(texts[0])) == texts[0]
    else:
        known = [ids.tolist().count(after.unk) for ids in after.encode_batch(texts)]
        unknown = [ids.tolist().count(before.unk) for ids in before.encode_batch(texts)]
        assert sum(known) < sum(unknown)


def test_every_language_of_the_settings_has_a_script():
    assert set(get_args(Language)) == set(SCRIPTS) == set(TEXTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_holds_its_characters_and_no_latin_text(name: str):
    script = SCRIPTS[name]
    assert script.characters
    assert len(set(script.characters)) == len(script.characters)
    assert all(map(script.holds, script.characters))
    assert script.spaced is not all(is_unspaced(ord(character)) for character in script.characters)
    assert not script.occurs_in("Steel, naïve Straße — 1.5 £ “x” \ufeff")
    assert script.occurs_in(TEXTS[name])
    assert all(character.isprintable() for character in script.characters)


def test_characters_of_the_national_standards_are_counted_as_the_standards_say():
    assert len(SCRIPTS["zh"].characters) == 6763
    assert len(SCRIPTS["ko"].characters) == 2350
    assert len(SCRIPTS["ja"].characters) == 83 + 86 + 2965
    assert SCRIPTS["ko"].characters[0] == "가"
    assert {"あ", "ア", "亜", "腕"} <= set(SCRIPTS["ja"].characters)


def test_runs_keep_blanks_between_words_where_words_have_them():
    assert list(SCRIPTS["ko"].runs("in 2015 강철 공장 steel")) == [" 강철 공장"]
    assert list(SCRIPTS["ja"].runs("in 2015 鋼を 作る steel")) == ["鋼を", "作る"]
    assert list(SCRIPTS["th"].runs("เหล็ก กล้า")) == ["เหล็ก", "กล้า"]
