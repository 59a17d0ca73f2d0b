"""A WordPiece vocabulary trained the same in every process, and a released one grown by a script."""

import json
import json.decoder
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.errors import InputError
from tasks.tokenizer.open import open_tokenizer, tokenizer_of
from tasks.vocab.base import prepare_base
from tasks.vocab.config import VocabConfig
from tasks.vocab.extenders import keeps_base, kind_of, tokens_of_script, truncate_vocabulary, vocabulary_size
from tasks.vocab.scripts import SCRIPTS
from tasks.vocab.stage import build_vocab
from tasks.vocab.train import train_wordpiece
from tasks.vocab.wordpiece import extend_wordpiece, unreachable_wordpieces

CHINESE, RUSSIAN = SCRIPTS["zh"], SCRIPTS["ru"]

ENGLISH = [f"The converter blows air through melted iron for {number} minutes, it says." for number in range(80)]
CHINESE_TEXT = [f"转炉炼钢的时候，空气吹过铁水{number}分钟。" for number in range(40)]
RUSSIAN_TEXT = [f"Конвертер продувает воздух через чугун {number} минут, и остаётся сталь." for number in range(40)]
CODE = Path(json.decoder.__file__).read_text(encoding="utf-8").split("\n\n")
TRAIN = """
import sys
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_wordpiece
texts = open(sys.argv[1], encoding="utf-8").read().split("\\x1f")
sys.stdout.buffer.write(train_wordpiece(texts, VocabConfig(vocab_size=330, model_type="wordpiece", lowercase=True)))
"""


def trained(texts: list[str], **options: object) -> bytes:
    config = {"vocab_size": 300, "model_type": "wordpiece", "character_coverage": 1.0, **options}
    return train_wordpiece(texts, VocabConfig.model_validate(config))


def released(*, lowercase: bool = False) -> bytes:
    from tasks.tokenizer.wordpiece import from_vocab_txt

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"Tabcdefghijklmnopqrstuvwxyz0123456789,."]
    pieces += [f"##{character}" for character in "abcdefghijklmnopqrstuvwxyz0123456789"]
    pieces += ["the", "The", "iron", "##er", "air"]
    kept = [piece for piece in pieces if not lowercase or piece == piece.lower() or piece.startswith("[")]
    return from_vocab_txt("\n".join(kept) + "\n")


@pytest.fixture(scope="module")
def base() -> bytes:
    return released()


def test_a_token_of_the_prefix_alone_is_a_token_that_is_never_emitted() -> None:
    from tasks.tokenizer.wordpiece import from_vocab_txt

    assert unreachable_wordpieces(from_vocab_txt("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n#\n##\n##b\n")) == ["##"]


@pytest.mark.parametrize("threads", ["true", "false"])
def test_every_process_gives_the_same_bytes(tmp_path: Path, threads: str):
    path = tmp_path / "texts"
    path.write_text("\x1f".join(CODE + RUSSIAN_TEXT + CHINESE_TEXT), encoding="utf-8")
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": threads}
    config = VocabConfig(vocab_size=330, model_type="wordpiece", lowercase=True)
    mine = train_wordpiece(CODE + RUSSIAN_TEXT + CHINESE_TEXT, config)
    asked = [sys.executable, "-c", TRAIN, str(path)]
    assert subprocess.run(asked, capture_output=True, check=True, env=environment).stdout == mine


def test_a_trained_one_knows_its_text_and_has_no_dead_piece_but_characters():
    model = trained(CODE + RUSSIAN_TEXT + CHINESE_TEXT)
    tokenizer = tokenizer_of(model)
    assert not any(tokenizer.unk in ids for ids in tokenizer.encode_batch([*CODE, *RUSSIAN_TEXT, *CHINESE_TEXT]))
    assert "##钢" not in json.loads(model)["model"]["vocab"]
    assert all(len(piece.removeprefix("##")) == 1 for piece in unreachable_wordpieces(model))


def test_rare_characters_become_unknown_words():
    tokenizer = tokenizer_of(trained([*CODE * 9, "one ☃ man"], character_coverage=0.9999, vocab_size=300))
    assert tokenizer.encode("☃") == [tokenizer.unk]
    assert tokenizer.unk not in tokenizer.encode("man")


def test_too_many_characters_and_too_few_pieces_are_reported():
    with pytest.raises(InputError, match=r"characters of the sampled text .* alone need 906.*become \[UNK\]"):
        trained([" ".join(map(chr, range(0x4E00, 0x4E00 + 901)))])
    with pytest.raises(InputError, match=r"vocab_size is 5000, and the sampled text gives \d+ tokens at most"):
        trained(ENGLISH, vocab_size=5000)


def test_a_character_comes_in_twice_and_a_word_where_it_is(base: bytes):
    grown = extend_wordpiece(base, ["с", "т", "▁ст", "ст"], RUSSIAN, 20)
    assert grown.added == ["▁с", "с", "▁т", "т", "▁ст", "ст"]
    assert grown.intermediates == ["▁с", "▁т"]
    vocabulary = json.loads(grown.model)["model"]["vocab"]
    first = vocabulary_size(base)
    assert [vocabulary[piece] - first for piece in ("с", "##с", "т", "##т", "ст", "##ст")] == [0, 1, 2, 3, 4, 5]
    assert tokenizer_of(grown.model).encode("стст") == [first + 4, first + 5]
    assert keeps_base(base, grown.model)


def test_what_the_splitter_parts_comes_in_alone(base: bytes):
    grown = extend_wordpiece(base, ["钢", "钢铁", "，"], CHINESE, 20)
    assert grown.added == ["▁钢", "▁，"]
    assert tokenizer_of(grown.model).encode("钢钢，") == [vocabulary_size(base)] * 2 + [vocabulary_size(base) + 1]


def test_what_the_normaliser_changes_stays_out():
    grown = extend_wordpiece(released(lowercase=True), ["й", "С", "с"], RUSSIAN, 20)
    assert grown.added == ["▁с", "с"]


def test_limits_and_known_pieces(base: bytes):
    assert extend_wordpiece(base, ["с"], RUSSIAN, 1).added == ["▁с"]
    once = extend_wordpiece(base, ["с"], RUSSIAN, 2)
    again = extend_wordpiece(once.model, ["с", "т"], RUSSIAN, 2)
    assert again.added == ["▁т", "т"]
    assert tokens_of_script(once.model, RUSSIAN) == ["с", "##с"]
    assert truncate_vocabulary(once.model, vocabulary_size(base)) == prepared(base)


def prepared(base: bytes) -> bytes:
    return (json.dumps(json.loads(base), ensure_ascii=False, separators=(",", ":")) + "\n").encode()


WORDS = st.lists(st.text(st.sampled_from("стальчугу"), min_size=1, max_size=4), max_size=12)


@settings(max_examples=60, deadline=None)
@given(words=WORDS, beginnings=WORDS)
def test_whatever_comes_in_is_emitted_and_old_text_stays(base: bytes, words: list[str], beginnings: list[str]):
    letters = list("стальчугу")
    grown = extend_wordpiece(base, [*letters, *words, *(f"▁{word}" for word in beginnings)], RUSSIAN, 1000)
    assert set(unreachable_wordpieces(grown.model)) <= set(unreachable_wordpieces(base))
    before, after = tokenizer_of(base), tokenizer_of(grown.model)
    assert [before.encode(line) for line in ENGLISH[:9]] == [after.encode(line) for line in ENGLISH[:9]]
    assert after.unk not in after.encode(" ".join(words))


def test_a_piece_that_nothing_leads_to_is_found(base: bytes):
    """Each word that could hold ##b behind one sign is in the vocabulary whole."""
    parsed = json.loads(base)
    parsed["model"]["vocab"] = {"[UNK]": 0, "a": 1, "##b": 2, "ab": 3}
    parsed["added_tokens"] = []
    assert unreachable_wordpieces(json.dumps(parsed).encode()) == ["##b"]


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt"])
def test_the_stage_extends_a_released_one(context, make_documents, base: bytes, tmp_path: Path, name: str):
    path = tmp_path / name
    pieces = json.loads(base)["model"]["vocab"]
    path.write_bytes(base if name.endswith("json") else ("\n".join(pieces) + "\n").encode())
    rows = [("en", text) for text in ENGLISH] + [("ru", text) for text in RUSSIAN_TEXT]
    documents = make_documents([[*rows, *(("zh", text) for text in CHINESE_TEXT)]])
    vocab = build_vocab(context, documents, VocabConfig(base=path, extend={"zh": 20, "ru": 90}))
    tokenizer = open_tokenizer(vocab)
    assert kind_of(tokenizer.model) == "wordpiece"
    assert tokenizer.vocab_size == len(pieces) + 110
    before = tokenizer_of(base)
    assert [before.encode(text) for text in ENGLISH] == [tokenizer.encode(text) for text in ENGLISH]
    assert not any(tokenizer.unk in tokenizer.encode(text) for text in RUSSIAN_TEXT + CHINESE_TEXT)
    facts = vocab.report.facts["vocabulary"]
    reported = facts["languages"]["en"]
    assert (reported["untouched_lines"], reported["moved_lines"]) == (len(ENGLISH), 0)
    assert reported["unknown_share"][0] > 0.15 > reported["unknown_share"][1] == 0
    assert facts["unknown_share"] == {"en": 0.0, "ru": 0.0, "zh": 0.0}
    assert facts["added"]["ru"]["rows"] == 90
    rows_told = vocab.table("added_pieces").to_pylist()
    assert [row["id"] for row in rows_told] == [*range(len(pieces), tokenizer.vocab_size)]
    assert all(row["base_ids"] == [] for row in rows_told)


def test_new_rows_name_the_pieces_that_the_base_would_take(base: bytes):
    from tasks.vocab.output import added_token_table

    once = extend_wordpiece(base, ["с", "т"], RUSSIAN, 4).model
    twice = extend_wordpiece(once, ["▁ст", "ст"], RUSSIAN, 2).model
    first = vocabulary_size(once)
    assert added_token_table(once, twice, first).to_pylist() == [
        {"id": first, "base_ids": [first - 4, first - 1]},
        {"id": first + 1, "base_ids": [first - 3, first - 1]},
    ]


def test_a_sign_that_is_only_among_its_like_is_emitted(base: bytes):
    """U+FF5E is no punctuation to BERT, so a run of them is one word."""
    grown = extend_wordpiece(base, ["～"], CHINESE, 5)
    assert grown.added == ["▁～", "～"]
    assert unreachable_wordpieces(grown.model) == unreachable_wordpieces(base)
    assert tokenizer_of(grown.model).encode("～～") == [vocabulary_size(base), vocabulary_size(base) + 1]


def test_special_tokens_that_only_the_vocabulary_names_are_special_all_the_same(base: bytes, tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(base), "added_tokens": []}))
    tokenizer = tokenizer_of(prepare_base(VocabConfig(base=path, special_tokens=("[MASK]",))))
    assert (tokenizer.vocab_size, tokenizer.mask, tokenizer.special) == (vocabulary_size(base), 4, (0, 1, 2, 3, 4))
    assert [token["content"] for token in json.loads(tokenizer.model)["added_tokens"]][4] == "[MASK]"


def test_its_normaliser_cannot_be_taken_away(base: bytes, tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(base)
    with pytest.raises(InputError, match=r"vocab\.normaliser: a WordPiece vocabulary needs its normaliser"):
        prepare_base(VocabConfig(base=path, normaliser="none"))
    prepared_ = tokenizer_of(prepare_base(VocabConfig(base=path, sentinels=2, special_tokens=("[CLS]", "[X]"))))
    assert prepared_.sentinels == (vocabulary_size(base) + 1, vocabulary_size(base))
    assert prepared_.special_names["[X]"] == vocabulary_size(base) + 2
    assert prepared_.cls == 2
