"""No text loses a byte in the tokenizer, and offsets name the bytes of each token."""

import json
import json.decoder
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model.errors import IntegrityError
from tasks.tokenizer import BOS, DESCRIPTION_FILE, EOS, MODEL_FILE, PAD, UNK, Tokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.training import train_pieces

TEXTS = [
    Path(json.decoder.__file__).read_text(encoding="utf-8"),
    "Straße, café, naïve, 日本語の文章です。東京都は日本の首都です。 12345 67890\r\n" * 20,
]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    config = VocabConfig(vocab_size=500, model_type=request.param, character_coverage=0.99)
    return Tokenizer(train_pieces(TEXTS, config))


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
    assert Tokenizer.load(tmp_path / MODEL_FILE, description).vocab_size == 500
    description.write_text(json.dumps({**tokenizer.description(), "digest": "0" * 32}))
    with pytest.raises(IntegrityError, match="do not belong together"):
        Tokenizer.load(tmp_path / MODEL_FILE, description)
