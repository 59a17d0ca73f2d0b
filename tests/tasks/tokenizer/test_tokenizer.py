"""No text loses a byte in the tokenizer, and offsets name the bytes of each token."""

import io
import itertools
import json
import json.decoder
import random
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model.errors import InputError, IntegrityError
from tasks.tokenizer.base import BOS, DESCRIPTION_FILE, EOS, MODEL_FILE, PAD, UNK, Tokenizer
from tasks.tokenizer.model_file import UNUSED, read_model, write_model
from tasks.tokenizer.open import load_tokenizer
from tasks.tokenizer.pieces import UnsupportedModelError, read_pieces
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_sentencepiece

TEXTS = [
    Path(json.decoder.__file__).read_text(encoding="utf-8"),
    "Straße, café, naïve, 日本語の文章です。東京都は日本の首都です。 12345 67890\r\n" * 20,
]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    config = VocabConfig(vocab_size=500, model_type=request.param, character_coverage=0.99)
    return SentencePieceTokenizer(train_sentencepiece(TEXTS, config))


def released(**options: object) -> bytes:
    """A vocabulary as they are released: a blank before the first word, no padding."""
    model = io.BytesIO()
    settings = {"model_type": "bpe", "vocab_size": 500, "character_coverage": 0.99, "byte_fallback": True}
    settings |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, **options}
    lines = [line for text in TEXTS for line in text.splitlines()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, num_threads=1, minloglevel=2, **settings
    )
    return model.getvalue()


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def leading(request: pytest.FixtureRequest) -> Tokenizer:
    return SentencePieceTokenizer(released(model_type=request.param))


@settings(max_examples=300, deadline=None)
@given(text=st.text())
@example(text="")
@example(text=" lead")
@example(text="\u2581 x\u2581y")
@example(text="\x00\n")
def test_a_blank_before_the_first_word_is_no_part_of_the_text(leading: Tokenizer, text: str):
    ids, borders = leading.encode_with_offsets(text)
    if "\u2581" not in text:
        assert ids.tolist() == sentencepiece.SentencePieceProcessor(model_proto=leading.model).encode(text)
    assert leading.decode(ids) == text
    assert leading.decode([leading.eos, *ids]) == text
    assert not set(ids) & {leading.unk, leading.bos, leading.eos, leading.pad}
    following = leading.encode_following(text)
    assert leading.decode_bytes(following) == text.encode()
    assert leading.decode_following(following) == text
    assert (borders[0], borders[-1]) == (0, len(text.encode()))
    pieces = [leading.piece_bytes[token] for token in ids]
    if text and text[0] != "\u2581":
        pieces[0] = pieces[0].removeprefix(b" ")
    assert [text.encode()[start:end] for start, end in itertools.pairwise(borders)] == pieces


def test_where_a_word_is_decides_its_piece(leading: Tokenizer):
    assert leading.leading_space
    name = leading.decode_bytes(leading.encode("def")[:1])
    assert name.startswith(b" ")
    assert not leading.decode_bytes(leading.encode_following("def")[:1]).startswith(b" ")


def test_unknown_fills_rows_where_there_is_no_padding(leading: Tokenizer):
    assert (leading.unk, leading.bos, leading.eos, leading.pad) == (0, 1, 2, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"byte_fallback": False}, "no byte pieces"), ({"eos_id": -1}, "no end-of-text token")],
)
def test_a_vocabulary_that_cannot_serve_is_refused(options: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        SentencePieceTokenizer(released(**options))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_without_a_piece_for_a_space_it_cannot_serve(kind: str):
    parsed = read_model(released(model_type=kind))
    (space,) = (piece for piece in parsed.pieces if piece.piece == "\u2581")
    space.type = UNUSED
    with pytest.raises(InputError, match="no piece for a space"):
        SentencePieceTokenizer(write_model(parsed))
    with pytest.raises(UnsupportedModelError, match="no piece for a space"):
        read_pieces(write_model(parsed))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_text_without_spaces_trains_a_vocabulary_for_text_with_spaces(kind: str):
    """Chinese and Japanese have few spaces, fewer than the character coverage leaves out."""
    words = ["".join(random.Random(number).choices("日本語文章東京都首", k=2)) for number in range(40)]
    texts = ["".join(random.Random(number).choices(words, k=200)) for number in range(20)]
    tokenizer = SentencePieceTokenizer(train_sentencepiece(texts, VocabConfig(vocab_size=300, model_type=kind)))
    text = " 日本  語 a "
    ids, borders = tokenizer.encode_with_offsets(text)
    assert tokenizer.decode(ids) == text
    assert borders[-1] == len(text.encode())


@settings(max_examples=300, deadline=None)
@given(text=st.text())
@example(text="\u2581")
@example(text=" \u2581\u2581 x \u2581")
@example(text="\n\n\t  a \r\n  \x00 b \ufeff c\u200b \U0001f600")
@example(text="<s></s><unk><pad><0x41>")
@example(text=" lead and trail ")
def test_any_text_comes_back_byte_for_byte(tokenizer: Tokenizer, text: str):
    ids = tokenizer.encode(text)
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert tokenizer.decode(ids) == text
    assert not set(ids) & {UNK, BOS, EOS, PAD}


@settings(deadline=None)
@given(texts=st.lists(st.text(alphabet=st.sampled_from("ab \n\u2581é日😀")), max_size=6))
def test_batches_give_the_same_ids_as_single_texts(tokenizer: Tokenizer, texts: list[str]):
    batch = [ids.tolist() for ids in tokenizer.encode_batch(texts)]
    assert batch == [tokenizer.encode(text) for text in texts]


@settings(deadline=None)
@given(text=st.text())
def test_borders_cut_the_text_into_its_tokens(tokenizer: Tokenizer, text: str):
    ids, borders = tokenizer.encode_with_offsets(text)
    encoded = text.encode()
    assert borders[0] == 0
    assert borders[-1] == len(encoded)
    for token, start, end in zip(ids, borders[:-1], borders[1:], strict=True):
        assert encoded[start:end] == tokenizer.piece_bytes[token]


def test_a_character_outside_the_vocabulary_has_one_offset_a_byte(tokenizer: Tokenizer):
    ids, borders = tokenizer.encode_with_offsets("😀")
    assert borders[-5:].tolist() == [0, 1, 2, 3, 4]
    assert tokenizer.decode(ids[:2]) == "\ufffd"


def test_special_tokens_cover_no_bytes(tokenizer: Tokenizer):
    assert (tokenizer.unk, tokenizer.bos, tokenizer.eos, tokenizer.pad) == (UNK, BOS, EOS, PAD) == (0, 1, 2, 3)
    assert tokenizer.borders(np.array([BOS, EOS, PAD, UNK])).tolist() == [0, 0, 0, 0, 0]


def test_every_digit_is_a_token(tokenizer: Tokenizer):
    assert len(tokenizer.encode("1234567890")) == 10


def test_a_description_of_another_model_is_refused(tokenizer: Tokenizer, tmp_path: Path):
    (tmp_path / MODEL_FILE).write_bytes(tokenizer.model)
    description = tmp_path / DESCRIPTION_FILE
    description.write_text(json.dumps(tokenizer.description()))
    assert load_tokenizer(tmp_path / MODEL_FILE, description).vocab_size == 500
    description.write_text(json.dumps({**tokenizer.description(), "digest": "0" * 32}))
    with pytest.raises(IntegrityError, match="do not belong together"):
        load_tokenizer(tmp_path / MODEL_FILE, description)
