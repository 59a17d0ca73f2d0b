"""Every real document, and many a made-up text, has the ids that SentencePiece gives it, under six vocabularies."""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import sentencepiece

from tasks.tokenizer.encoder import Encoder
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.base import prepare_base
from tasks.vocab.candidates import train_candidates
from tasks.vocab.config import VocabConfig
from tasks.vocab.extenders import extend_to
from tasks.vocab.scripts import SCRIPTS
from tasks.vocab.train import train_sentencepiece

pytestmark = pytest.mark.prove_data

Measured = Callable[..., None]
BASES = ("mistral_v1_32k", "chinese_llama_sp_zh_20k", "spm_ja_8k", "spm_botchan_en_1k")
TAUGHT = ("en_books", "ru_novels", "zh_techdocs", "it_techdocs", "readme_changelog_md")
MARK = "\u2581"
MADE_UP = 100_000
SOUP = (
    "  \t\n\0\u00a0\u3000\u200b\ufeff\u2581abcXYZ019.,;<>/_-=ñéüßæﬁ①½приветЁъ"
    "钢铁厂，。中国人民日本語テスト한국어🙂👩\u200d👧\u0301\u202e"
)
BATCH = 500


def documents(data: Path) -> Iterator[str]:
    """The text of every record of every corpus."""
    for part in sorted(data.glob("*/*.jsonl.gz")):
        with gzip.open(part, "rt", encoding="utf-8") as stream:
            for record in map(json.loads, stream):
                for field in ("text", "clean", "question"):
                    if isinstance(record.get(field), str):
                        yield record[field]


def some_text(data: Path, corpora: tuple[str, ...], most_bytes: int) -> Iterator[str]:
    for corpus in corpora:
        space = most_bytes
        with gzip.open(data / corpus / "part-000.jsonl.gz", "rt", encoding="utf-8") as stream:
            for record in map(json.loads, stream):
                if space > 0:
                    yield record["text"]
                    space -= len(record["text"].encode())


@pytest.fixture(scope="module", params=[*BASES, "mistral_v1_32k + zh + ru", "unigram trained here"])
def model(request: pytest.FixtureRequest, data: Path) -> bytes:
    """Released models as bases are prepared: without a normaliser that loses text, with byte pieces."""
    if request.param == "unigram trained here":
        return train_sentencepiece(some_text(data, TAUGHT, 500_000), VocabConfig(vocab_size=8000, model_type="unigram"))
    path = data / "tokenizers" / f"{request.param.split()[0]}.model"
    normaliser = "keep" if "mistral" in request.param else "none"
    prepared = prepare_base(VocabConfig(base=path, normaliser=normaliser))
    for name in request.param.split(" + ")[1:]:
        corpus = {"zh": "zh_techdocs", "ru": "ru_novels"}[name]
        runs = [run for text in some_text(data, (corpus,), 3_000_000) for run in SCRIPTS[name].runs(text)]
        donor = train_candidates(lambda runs=runs: runs, 8000, 0.9995)
        prepared = extend_to(prepared, donor, SCRIPTS[name], 6000, lambda runs=runs: runs).model
    return prepared


def different(model: bytes, texts: Iterator[str]) -> tuple[int, int]:
    """(texts whose ids are not SentencePiece's, texts). Those with U+2581 are compared with our own spelling of it."""
    peer, tokenizer, encoder = (
        sentencepiece.SentencePieceProcessor(model_proto=model),
        SentencePieceTokenizer(model),
        Encoder(model),
    )
    wrong = count = 0
    while batch := list(islice(texts, BATCH)):
        encoded = encoder.encode(pa.array(batch, pa.large_string()))
        expected = iter(peer.encode([text for text in batch if MARK not in text], return_type="numpy"))
        for text, (first, last) in zip(batch, pairwise(encoded.offsets.tolist()), strict=True):
            wanted = tokenizer.encode(text) if MARK in text else next(expected)
            wrong += not np.array_equal(encoded.ids[first:last], wanted)
            count += 1
    return wrong, count


def test_every_document_has_the_ids_of_sentencepiece(
    data: Path, model: bytes, measured: Measured, request: pytest.FixtureRequest
) -> None:
    wrong, count = different(model, documents(data))
    name = request.node.callspec.params["model"]
    measured("tokenizing", f"documents with other ids, {name}", wrong, at_most=0, note=f"{count} documents")
    assert count > 20_000


def test_made_up_texts_have_the_ids_of_sentencepiece(
    data: Path, model: bytes, measured: Measured, request: pytest.FixtureRequest
) -> None:
    """Excerpts cut anywhere, with foreign characters inside, and soup."""
    generator = random.Random(1)
    real = list(some_text(data, TAUGHT, 300_000))

    def texts() -> Iterator[str]:
        for number in range(MADE_UP):
            soup = "".join(generator.choices(SOUP, k=generator.randrange(40)))
            text = generator.choice(real)
            at, size = generator.randrange(len(text)), generator.randrange(200)
            yield soup if number % 4 == 0 else text[at : at + size] + soup + text[at : at + size // 2]

    wrong, count = different(model, texts())
    name = request.node.callspec.params["model"]
    measured("tokenizing", f"made-up texts with other ids, {name}", wrong, at_most=0, note=f"{count} texts")
