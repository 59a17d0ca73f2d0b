"""Each new row names the old ones with which its base wrote the same bytes; what the base could not write, none."""

import io
import json
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from model.digests import digest_bytes
from tasks.tokenizer.base import DESCRIPTION_FILE
from tasks.tokenizer.open import open_tokenizer, tokenizer_of
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab

ENGLISH = [f"The converter blows air through melted iron for {number} minutes." for number in range(80)]
CHINESE = [f"转炉炼钢的时候，空气吹过铁水{number}分钟，钢水就炼成了。" for number in range(40)]


def sentencepiece_base(**options: object) -> bytes:
    model = io.BytesIO()
    settings = {"model_type": "bpe", "vocab_size": 340, "byte_fallback": True, "normalization_rule_name": "identity"}
    settings |= {"remove_extra_whitespaces": False, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH), model_writer=model, num_threads=1, minloglevel=2, **settings
    )
    return model.getvalue()


def byte_level_base() -> bytes:
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    engine.train_from_iterator(ENGLISH, trainer)
    return engine.to_str().encode()


@pytest.fixture
def documents(make_documents):
    return make_documents([[("en", text) for text in ENGLISH] + [("zh", text) for text in CHINESE]])


@pytest.mark.parametrize("make", [sentencepiece_base, byte_level_base])
def test_a_base_that_writes_all_in_bytes_gives_ids_for_every_new_piece(context, documents, tmp_path: Path, make):
    path = tmp_path / "base.model"
    path.write_bytes(make())
    vocab = build_vocab(context, documents, VocabConfig(base=path, extend={"zh": 50}))
    base, extended = tokenizer_of(path.read_bytes()) if make is sentencepiece_base else None, open_tokenizer(vocab)
    rows = vocab.table("added_pieces").to_pylist()
    assert [row["id"] for row in rows] == [*range(340, extended.vocab_size)]
    old = extended.piece_bytes[:340]
    for row in rows:
        assert all(number < 340 for number in row["base_ids"])
        assert b"".join(old[number] for number in row["base_ids"]) == extended.piece_bytes[row["id"]]
    steel = next(row for row in rows if extended.piece_bytes[row["id"]] == "钢".encode())
    assert len(steel["base_ids"]) == 3
    if base is not None:
        assert steel["base_ids"] == base.encode_following("钢")
    description = json.loads(vocab.file(DESCRIPTION_FILE).read_text())
    assert description["base"] == {"digest": digest_bytes(path.read_bytes()), "pieces": 340}


def test_a_base_without_bytes_gives_none_for_what_it_did_not_know(context, documents, tmp_path: Path):
    path = tmp_path / "spiece.model"
    path.write_bytes(
        sentencepiece_base(model_type="unigram", vocab_size=48, byte_fallback=False, normalization_rule_name="nmt_nfkc")
    )
    config = VocabConfig(base=path, extend={"zh": 20}, normaliser="none", sentinels=4, embedding_rows=58)
    vocab = build_vocab(context, documents, config)
    rows = vocab.table("added_pieces").to_pylist()
    assert rows[0]["id"] == 58
    assert len(rows) == 256 + 20
    assert not any(row["base_ids"] for row in rows)
    assert json.loads(vocab.file(DESCRIPTION_FILE).read_text())["base"]["pieces"] == 58
    assert open_tokenizer(vocab).sentinels == (51, 50, 49, 48)


def test_a_base_as_it_is_has_no_new_rows(context, documents, tmp_path: Path):
    path = tmp_path / "base.model"
    path.write_bytes(sentencepiece_base())
    vocab = build_vocab(context, documents, VocabConfig(base=path))
    assert vocab.table("added_pieces").num_rows == 0


def test_a_vocabulary_trained_here_has_no_base(context, documents):
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=400))
    assert vocab.files("added_pieces") == []
    assert "base" not in json.loads(vocab.file(DESCRIPTION_FILE).read_text())
