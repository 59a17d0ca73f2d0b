"""A byte-level vocabulary trained on the run's text: the same file for any number of threads, no byte lost."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from model.errors import InputError
from tasks.tokenizer.base import BOS, EOS, PAD, UNK
from tasks.tokenizer.open import open_tokenizer, tokenizer_of
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab
from tasks.vocab.train import train_byte_level

TEXTS = [Path(argparse.__file__).read_text(encoding="utf-8")]
AGAIN = """
import argparse, hashlib
from pathlib import Path
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_byte_level
texts = [line for line in Path(argparse.__file__).read_text().splitlines(keepends=True)]
config = VocabConfig(vocab_size=900, model_type="byte_level")
print(hashlib.sha256(train_byte_level(texts, config)).hexdigest())
"""


def config(**options: object) -> VocabConfig:
    return VocabConfig.model_validate({"vocab_size": 600, "model_type": "byte_level", **options})


def test_the_vocabulary_has_the_size_asked_for_and_the_special_tokens_of_all_others() -> None:
    tokenizer = tokenizer_of(train_byte_level(TEXTS, config()))
    assert tokenizer.vocab_size == 600
    assert (tokenizer.unk, tokenizer.bos, tokenizer.eos, tokenizer.pad) == (UNK, BOS, EOS, PAD)
    assert len(tokenizer.encode(TEXTS[0])) < 0.5 * len(TEXTS[0])
    assert tokenizer.decode(tokenizer.encode(TEXTS[0])) == TEXTS[0]


def test_digits_are_pieces_of_their_own_where_asked() -> None:
    texts = [*TEXTS, *["in 2015 and 2016 and 2015"] * 50]
    split, joined = (tokenizer_of(train_byte_level(texts, config(split_digits=split))) for split in (True, False))
    assert [split.decode([token]) for token in split.encode("in 2015")][-4:] == ["2", "0", "1", "5"]
    assert [joined.decode([token]) for token in joined.encode("in 2015")] == ["in", " 2015"]


def test_threads_change_no_byte() -> None:
    def digest(threads: int) -> str:
        settings = {**os.environ, "RAYON_NUM_THREADS": str(threads), "PYTHONPATH": str(Path(__file__).parents[3])}
        asked = [sys.executable, "-c", AGAIN]
        return subprocess.run(asked, env=settings, capture_output=True, text=True, check=True).stdout

    assert digest(1) == digest(4) == digest(3)


def test_text_too_small_says_how_many_pieces_it_gives() -> None:
    with pytest.raises(InputError, match=r"vocab_size is 900.*gives \d+ tokens at most") as caught:
        train_byte_level(["a small text"] * 3, config(vocab_size=900))
    most = int(str(caught.value).split("gives ")[1].split()[0])
    assert 260 < most < 300


def test_the_stage_trains_one(context, make_documents) -> None:
    documents = make_documents([[("code", TEXTS[0])], [("code", TEXTS[0][:5000])]])
    vocab = build_vocab(context, documents, config())
    tokenizer = open_tokenizer(vocab)
    assert tokenizer.kind == "byte-level"
    assert vocab.report.facts["vocabulary"]["model_type"] == "byte_level"
    assert vocab.report.facts["vocabulary"]["bytes_per_token"]["code"] > 2
    assert (vocab.path / "byte_level.json").exists()
