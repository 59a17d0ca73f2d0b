"""A byte-level vocabulary loses no byte either, and special tokens in a text are text."""

import json
import json.decoder
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from model.errors import InputError, IntegrityError
from tasks.tokenizer.base import DESCRIPTION_FILE, Tokenizer
from tasks.tokenizer.byte_level import ByteLevelTokenizer, check_exact, piece_raw, piece_text
from tasks.tokenizer.open import load_tokenizer, tokenizer_of

SPECIAL = ["<|endoftext|>", "<|padding|>"]
TEXTS = [Path(json.decoder.__file__).read_text(encoding="utf-8"), "Straße, naïve, 日本語の文章です。\r\n" * 20]


def gpt2_shaped() -> bytes:
    """As GPT-2's own vocabulary: bytes, a regular expression that keeps words apart, one end-of-text token."""
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    engine.train_from_iterator(TEXTS, trainer)
    return engine.to_str().encode()


def changed(given: bytes, **parts: Any) -> bytes:
    return json.dumps({**json.loads(given), **parts}).encode()


@pytest.fixture(scope="module")
def model() -> bytes:
    return gpt2_shaped()


@pytest.fixture(scope="module")
def tokenizer(model: bytes) -> Tokenizer:
    return tokenizer_of(model)


def test_every_byte_has_a_character_of_its_own():
    raw = bytes(range(256))
    assert len(set(piece_text(raw))) == 256
    assert piece_raw(piece_text(raw)) == raw
    assert set(piece_text(raw)) == set(pre_tokenizers.ByteLevel.alphabet())
    assert piece_text(b" the\n") == "ĠtheĊ"


@settings(max_examples=300, deadline=None)
@given(text=st.text())
@example(text="")
@example(text=" \u2581 x\r\n\x00")
@example(text="a page of <|endoftext|> and <|padding|>")
def test_any_text_comes_back_byte_for_byte(tokenizer: Tokenizer, text: str):
    ids, borders = tokenizer.encode_with_offsets(text)
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert tokenizer.decode(ids) == tokenizer.decode_following(tokenizer.encode_following(text)) == text
    assert not set(ids) & {tokenizer.eos, tokenizer.pad}
    assert borders[-1] == len(text.encode())
    assert [one.tolist() for one in tokenizer.encode_batch([text, "x"])] == [ids.tolist(), tokenizer.encode("x")]


def test_ids_are_those_of_the_library(model: bytes, tokenizer: Tokenizer):
    engine = tokenizers.Tokenizer.from_buffer(model)
    assert [tokenizer.encode(text) for text in TEXTS] == [engine.encode(text).ids for text in TEXTS]


def test_special_tokens_cover_no_bytes(tokenizer: Tokenizer):
    assert (tokenizer.eos, tokenizer.pad, tokenizer.bos, tokenizer.unk) == (0, 1, -1, -1)
    assert tokenizer.borders(np.array([0, 1])).tolist() == [0, 0, 0]
    assert tokenizer.vocab_size == 500
    assert isinstance(tokenizer, ByteLevelTokenizer)


def test_special_tokens_are_found_by_the_names_of_published_vocabularies(model: bytes):
    parsed = json.loads(model)
    renamed = {"<|endoftext|>": "<｜end▁of▁sentence｜>", "<|padding|>": "<｜begin▁of▁sentence｜>"}
    names = {renamed.get(piece, piece): number for piece, number in parsed["model"]["vocab"].items()}
    added = [{**token, "content": renamed[token["content"]]} for token in parsed["added_tokens"]]
    deepseek = tokenizer_of(changed(model, model={**parsed["model"], "vocab": names}, added_tokens=added), pads=False)
    assert (deepseek.eos, deepseek.bos, deepseek.pad) == (0, 1, -1)


def test_a_description_says_the_kind_and_belongs_to_one_model(tokenizer: Tokenizer, model: bytes, tmp_path: Path):
    path, description = tmp_path / "byte_level.json", tmp_path / DESCRIPTION_FILE
    path.write_bytes(model)
    description.write_text(json.dumps(tokenizer.description()))
    assert json.loads(description.read_text())["kind"] == "byte-level"
    assert load_tokenizer(path, description).vocab_size == 500
    description.write_text(json.dumps({**tokenizer.description(), "kind": "sentencepiece"}))
    with pytest.raises(IntegrityError, match="kind"):
        load_tokenizer(path, description)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"normalizer": {"type": "NFKC"}}, "the normaliser NFKC"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "a space put before texts"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "holds no byte-level BPE"),
        ({"model": {"type": "WordPiece", "vocab": {}}}, "no byte-level BPE but a model of the type WordPiece"),
        (
            {"added_tokens": [{"content": "<mask>", "special": False, "lstrip": True, "rstrip": False}]},
            "'<mask>', which absorbs whitespace",
        ),
        (
            {
                "pre_tokenizer": {
                    "type": "Sequence",
                    "pretokenizers": [{"type": "Split", "behavior": "Removed"}, {"type": "ByteLevel"}],
                }
            },
            "a splitter that drops what it finds",
        ),
        (
            {
                "pre_tokenizer": {
                    "type": "Sequence",
                    "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "ByteLevel"}],
                }
            },
            "the splitter WhitespaceSplit",
        ),
    ],
)
def test_what_would_lose_text_is_refused(model: bytes, parts: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        check_exact(json.loads(changed(model, **parts)))


def test_without_an_end_or_padding_it_cannot_serve(model: bytes):
    parsed = json.loads(model)
    for content, message in (("<|endoftext|>", "no end-of-text token"), ("<|padding|>", "neither a padding nor")):
        vocabulary = {piece: number for piece, number in parsed["model"]["vocab"].items() if piece != content}
        added = [token for token in parsed["added_tokens"] if token["content"] != content]
        with pytest.raises(InputError, match=message):
            tokenizer_of(changed(model, model={**parsed["model"], "vocab": vocabulary}, added_tokens=added))
