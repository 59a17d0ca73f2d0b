"""Other programs read a run's vocabulary and give the same ids, runs of blanks and all."""

import io
import json.decoder
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.model_file import NORMAL, USER_DEFINED, read_model, write_model
from tasks.tokenizer.open import open_tokenizer
from tasks.tokenizer.sentencepiece import BLANK, SentencePieceTokenizer
from tasks.vocab.bpe import extend_bpe
from tasks.vocab.config import VocabConfig
from tasks.vocab.output import FAST_FILE, fast_tokenizer
from tasks.vocab.scripts import SCRIPTS
from tasks.vocab.stage import build_vocab
from tasks.vocab.train import train_sentencepiece

CHINESE = SCRIPTS["zh"]

CODE = Path(json.decoder.__file__).read_text(encoding="utf-8")
TEXTS = [CODE, "Straße, café, naïve, 日本語の文章です。 12345  67890\r\n" * 20]


def released(**options: object) -> bytes:
    model = io.BytesIO()
    settings_ = {"model_type": "bpe", "vocab_size": 500, "character_coverage": 0.99, "byte_fallback": True}
    settings_ |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, **options}
    lines = [line for text in TEXTS for line in text.splitlines()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, num_threads=1, minloglevel=2, **settings_
    )
    return model.getvalue()


def with_tied_blanks(model: bytes) -> bytes:
    """LLaMA's and Mistral's vocabularies end with runs of blanks up to sixteen, all of one score."""
    parsed = read_model(model)
    known = {piece.piece for piece in parsed.pieces}
    for length in range(2, 17):
        if BLANK * length not in known:
            parsed.pieces.add(piece=BLANK * length, score=-1e9, type=NORMAL)
    return write_model(parsed)


def with_users_pieces(model: bytes) -> bytes:
    """As Gemma's: signs of a dialogue and runs of blanks, which SentencePiece cuts out of any text."""
    parsed = read_model(model)
    for piece in ("<|turn|>", BLANK * 20):
        parsed.pieces.add(piece=piece, score=0.0, type=USER_DEFINED)
    return write_model(parsed)


MODELS = {
    "pieces of the user's": lambda: with_users_pieces(MODELS["trained bpe"]()),
    "trained bpe": lambda: train_sentencepiece(TEXTS, VocabConfig(vocab_size=500, character_coverage=0.99)),
    "trained unigram": lambda: train_sentencepiece(
        TEXTS, VocabConfig(vocab_size=500, model_type="unigram", character_coverage=0.99, sentinels=9)
    ),
    "released bpe": lambda: with_tied_blanks(released()),
    "released unigram": lambda: released(model_type="unigram"),
    "grown bpe": lambda: extend_bpe(released(), ["中国", "日本語", "東京都"], CHINESE).model,
}


@pytest.fixture(scope="module", params=MODELS)
def both(request: pytest.FixtureRequest) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    model = MODELS[request.param]()
    fast = tokenizers.Tokenizer.from_buffer(fast_tokenizer(model))
    fast.encode_special_tokens = True
    return SentencePieceTokenizer(model), fast


ANYTHING = st.one_of(st.text(), st.text(st.sampled_from("  \n\tabe=日本語中国東京都é<>/s0x41😀"), max_size=60))


@settings(max_examples=400, deadline=None)
@given(text=ANYTHING)
@example(text=" " * 40 + "def  f(x):" + " " * 17 + "pass ")
@example(text="<s></s><unk><pad><0x41><extra_id_0>")
@example(text=CODE)
@example(text="a<|turn|>b <|turn|> c")
def test_ids_and_text_are_the_same(both, text: str):
    ours, fast = both
    text = text.replace(BLANK, "_")
    ids = ours.encode(text)
    assert fast.encode(text, add_special_tokens=False).ids == ids
    assert fast.decode(ids, skip_special_tokens=False) == text


def test_pieces_are_at_their_ids(both):
    ours, fast = both
    assert fast.get_vocab_size() == ours.vocab_size
    parsed = read_model(ours.model)
    assert all(fast.id_to_token(number) == piece.piece for number, piece in enumerate(parsed.pieces))


def test_the_artifact_holds_it_and_transformers_reads_it(context, make_documents):
    from transformers import PreTrainedTokenizerFast

    documents = make_documents([[("code", text) for text in CODE.split("\n\n")]])
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=400, sentinels=3, special_tokens=("[MASK]",)))
    ours = open_tokenizer(vocab)
    fast = PreTrainedTokenizerFast(tokenizer_file=str(vocab.file(FAST_FILE)), eos_token="</s>", mask_token="[MASK]")
    assert (fast.eos_token_id, fast.mask_token_id, len(fast)) == (ours.eos, ours.mask, 400)
    assert fast.convert_tokens_to_ids("<extra_id_0>") == ours.sentinels[0]
    lines = CODE.split("\n")
    assert fast(lines, add_special_tokens=False)["input_ids"] == [ours.encode(line) for line in lines]
    assert fast.decode(ours.encode(CODE)) == CODE


def test_a_blank_sign_of_the_text_itself_is_what_differs():
    model = MODELS["trained bpe"]()
    fast = tokenizers.Tokenizer.from_buffer(fast_tokenizer(model))
    assert fast.encode(BLANK, add_special_tokens=False).ids == SentencePieceTokenizer(model).encode(" ")
