"""Vocabularies of today's families, trained here with their normaliser and splitter: the ids of the library that reads
their files, for any text in NFC."""

import json
import random
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from model.errors import InputError
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.open import tokenizer_of
from tasks.vocab.base import prepare_base
from tasks.vocab.config import VocabConfig
from tasks.vocab.output import fast_tokenizer
from tests.tasks.vocab.test_fast import TEXTS, released

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")
STRINGS = 20_000
ALPHABET = [
    *map(chr, range(32, 127)),
    *" \n\t  éßñжщя字語한ありा👍🏽\u200d\u00a0",
    " ",
    "the ",
    "ing",
    "12",
    "  ",
    "def ",
]


def byte_level(splitter: Any, **model: bool) -> tokenizers.Tokenizer:
    trained = tokenizers.Tokenizer(models.BPE(**model))
    trained.pre_tokenizer = splitter
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>"]
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, special_tokens=special)
    trained.train_from_iterator(TEXTS, trainer)
    return trained


def split(pattern: str) -> Any:
    cut = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def llama3() -> tokenizers.Tokenizer:
    return byte_level(split(GPT4), ignore_merges=True)


def qwen() -> tokenizers.Tokenizer:
    trained = byte_level(split(QWEN))
    trained.normalizer = normalizers.NFC()
    return trained


def smollm2() -> tokenizers.Tokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return byte_level(pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]))


def olmo2() -> tokenizers.Tokenizer:
    return byte_level(split(GPT4))


def llama2(older: bool) -> tokenizers.Tokenizer:
    """Return Llama 2's kind as `transformers` 4 (normalisers) or 5 (Metaspace) writes it."""
    parsed = json.loads(fast_tokenizer(released()))
    if not older:
        parsed["normalizer"] = None
        parsed["pre_tokenizer"] = {
            "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False
        }  # fmt: skip
    return tokenizers.Tokenizer.from_str(json.dumps(parsed))


METASPACE = "Llama 2 and Mistral by transformers 5"
FAMILIES = {
    "Llama 3": llama3,
    "Qwen 2 and 3": qwen,
    "SmolLM2": smollm2,
    "OLMo 2": olmo2,
    "Llama 2 and Mistral by transformers 4": lambda: llama2(older=True),
    METASPACE: lambda: llama2(older=False),
}


def ours(theirs: tokenizers.Tokenizer, folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    theirs.save(str(path))
    return tokenizer_of(prepare_base(VocabConfig(base=path)))


def strings(count: int) -> list[str]:
    draw = random.Random(1)
    made = ("".join(draw.choices(ALPHABET, k=draw.randrange(1, 40))) for _ in range(count))
    return [unicodedata.normalize("NFC", text) for text in made]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [STRINGS, pytest.param(1_000_000, marks=pytest.mark.prove_families)])
def test_ids_are_those_of_the_released_file(family: str, count: int, tmp_path: Path) -> None:
    theirs = FAMILIES[family]()
    tokenizer = ours(theirs, tmp_path)
    # A text that spells the name of a special token is text here: of a million strings, some spell `<s>`.
    theirs.encode_special_tokens = True
    texts = strings(count)
    if family == METASPACE:
        texts = [text.lstrip(" ") for text in texts]
    for begin in range(0, count, 50_000):
        some = texts[begin : begin + 50_000]
        expected = [encoded.ids for encoded in theirs.encode_batch(some, add_special_tokens=False)]
        found = [ids.tolist() for ids in tokenizer.encode_batch(some)]
        different = [text for text, one, other in zip(some, expected, found, strict=True) if one != other]
        assert different == []


@pytest.mark.parametrize("family", FAMILIES)
def test_text_comes_back_from_its_tokens(family: str, tmp_path: Path) -> None:
    tokenizer = ours(FAMILIES[family](), tmp_path)
    for text in (*TEXTS, *strings(200), "e\u0301"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_text_that_is_not_composed_has_other_tokens_than_qwen_gives_it(tmp_path: Path) -> None:
    theirs = qwen()
    tokenizer = ours(theirs, tmp_path)
    assert theirs.encode("e\u0301").ids == tokenizer.encode("\u00e9") != tokenizer.encode("e\u0301")


def test_a_space_that_begins_a_text_is_kept_where_transformers_5_loses_it(tmp_path: Path) -> None:
    theirs = llama2(older=False)
    tokenizer = ours(theirs, tmp_path)
    assert theirs.encode(" the", add_special_tokens=False).ids == theirs.encode("the", add_special_tokens=False).ids
    assert tokenizer.encode(" the") != tokenizer.encode("the")


def test_merges_that_sentencepiece_cannot_say_are_refused(tmp_path: Path) -> None:
    parsed = json.loads(fast_tokenizer(released()))
    path = tmp_path / "tokenizer.json"
    several = [merge for merge in parsed["model"]["merges"] if len("".join(merge)) > 2]
    parsed["model"]["merges"] = [merge for merge in parsed["model"]["merges"] if merge not in several]
    path.write_text(json.dumps(parsed))
    first = re.escape(min("".join(merge) for merge in several))  # whatever the order of a set
    with pytest.raises(InputError, match=rf"`{first}` can be made of \d+ pairs of tokens, and \d+ are merges"):
        prepare_base(VocabConfig(base=path))
