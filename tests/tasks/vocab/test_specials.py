"""Special tokens of BERT and T5 follow all pieces, and no text ever gives one."""

import json
import json.decoder
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from model.errors import InputError
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.model_file import USER_DEFINED, read_model
from tasks.tokenizer.open import open_tokenizer, tokenizer_of
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.base import prepare_base
from tasks.vocab.config import VocabConfig
from tasks.vocab.special_tokens import break_special_names, check_special
from tasks.vocab.stage import build_vocab
from tasks.vocab.train import train_byte_level, train_sentencepiece

BERT = ("[CLS]", "[SEP]", "[MASK]")
TEXTS = [f"A page shows [MASK] and [CLS] and <extra_id_0> and </s> {number} times, it says." for number in range(90)]
"""The names occur so often that each would become a piece."""
TEXTS += Path(json.decoder.__file__).read_text(encoding="utf-8").splitlines()
KINDS = ("bpe", "unigram", "byte_level")


def trained(model_type: str, **options: object) -> Tokenizer:
    config = VocabConfig.model_validate({"vocab_size": 420, "model_type": model_type, **options})
    if model_type == "byte_level":
        return tokenizer_of(train_byte_level(TEXTS, config))
    return SentencePieceTokenizer(train_sentencepiece(TEXTS, config))


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return trained(request.param, special_tokens=BERT, sentinels=3)


def test_they_are_behind_all_pieces_and_number_0_has_the_highest_id(tokenizer: Tokenizer):
    assert tokenizer.vocab_size == 420
    assert (tokenizer.unk, tokenizer.bos, tokenizer.eos, tokenizer.pad) == (0, 1, 2, 3)
    assert (tokenizer.cls, tokenizer.sep, tokenizer.mask) == (414, 415, 416)
    assert tokenizer.sentinels == (419, 418, 417)
    assert tokenizer.special == (0, 1, 2, 3, *range(414, 420))
    assert tokenizer.decode_bytes(tokenizer.special) == b""
    reported = tokenizer.description()
    assert (reported["cls"], reported["sep"], reported["mask"], reported["sentinels"]) == (
        414,
        415,
        416,
        [419, 418, 417],
    )


NAMES = st.sampled_from(["[MASK]", "[CLS]", "<extra_id_0>", "<s>", "</s>", "<unk>", "<pad>", "[", "MASK]", " ", "x"])


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(NAMES, max_size=6))
def test_a_text_that_shows_their_names_is_text(tokenizer: Tokenizer, parts: list[str]):
    text = "".join(parts)
    (ids,) = tokenizer.encode_batch([text])
    assert not set(ids.tolist()) & set(tokenizer.special)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("model_type", KINDS)
def test_a_name_that_the_text_is_full_of_becomes_no_piece(model_type: str):
    assert "es" in {piece.decode(errors="replace") for piece in trained(model_type).piece_bytes}
    tokenizer = trained(model_type, special_tokens=("es",))
    assert tokenizer.special_names["es"] == 419
    assert 419 not in tokenizer.encode_following("es")


@pytest.mark.parametrize("model_type", KINDS)
def test_a_vocabulary_without_them_is_what_it_was(model_type: str):
    tokenizer = trained(model_type)
    assert (tokenizer.cls, tokenizer.sep, tokenizer.mask, tokenizer.sentinels) == (-1, -1, -1, ())
    assert set(tokenizer.description()) == {"kind", "vocab_size", "unk", "bos", "eos", "pad", "digest"}


def test_the_size_that_the_error_names_can_be_had_with_them():
    with pytest.raises(InputError) as caught:
        trained("bpe", vocab_size=5000, sentinels=20)
    most = int(str(caught.value).split("vocab.vocab_size = ")[1].split()[0])
    assert trained("bpe", vocab_size=most, sentinels=20).vocab_size == most


@pytest.mark.parametrize("model_type", ["bpe", "byte_level"])
def test_behind_a_base_they_take_new_rows(context, make_documents, tmp_path, model_type: str):
    base = trained(model_type)
    path = tmp_path / "base.model"
    path.write_bytes(base.model)
    documents = make_documents([[("en", text) for text in TEXTS] + [("zh", "转炉炼钢")]])
    config = VocabConfig(base=path, extend={"zh": 6}, special_tokens=BERT, sentinels=2)
    vocab = build_vocab(context, documents, config)
    tokenizer = open_tokenizer(vocab)
    assert tokenizer.sentinels == (421, 420)
    assert (tokenizer.cls, tokenizer.sep, tokenizer.mask) == (422, 423, 424)
    assert tokenizer.vocab_size == 431
    assert [tokenizer.encode(text) for text in TEXTS] == [base.encode(text) for text in TEXTS]
    rows = vocab.table("added_pieces").to_pylist()
    assert [row["base_ids"] for row in rows[:5]] == [[]] * 5


def test_a_base_that_cuts_them_out_of_text_does_so_no_more(tmp_path):
    """ALBERT's vocabulary holds `[MASK]` as a piece of the user's, which SentencePiece finds in any text."""
    model = read_model(trained("bpe").model)
    model.pieces.add(piece="[MASK]", score=0.0, type=USER_DEFINED)
    path = tmp_path / "base.model"
    path.write_bytes(model.SerializeToString())
    assert SentencePieceTokenizer(path.read_bytes()).encode("[MASK]") == [420]
    tokenizer = SentencePieceTokenizer(prepare_base(VocabConfig(base=path, special_tokens=("[MASK]",))))
    assert (tokenizer.mask, tokenizer.vocab_size) == (420, 421)
    assert 420 not in tokenizer.encode("[MASK]")


@pytest.mark.parametrize("model_type", ["bpe", "byte_level"])
def test_an_ordinary_piece_of_the_base_cannot_become_one(tmp_path, model_type: str):
    path = tmp_path / "base.model"
    path.write_bytes(trained(model_type).model)
    with pytest.raises(InputError, match=r"`er` cannot become a special token: the base has an ordinary token"):
        prepare_base(VocabConfig(base=path, special_tokens=("er",)))


def test_a_piece_that_is_both_special_and_ordinary_is_refused():
    """A word as an added token of a `tokenizer.json` has the id of the piece that merges make of it."""
    parsed = json.loads(trained("byte_level").model)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    parsed["added_tokens"].append({"id": parsed["model"]["vocab"]["er"], "content": "er", **flags})
    with pytest.raises(InputError, match="`er` is both a special token and an ordinary token"):
        check_special(tokenizer_of(json.dumps(parsed).encode()), ())


def test_one_that_is_missing_is_named():
    with pytest.raises(InputError, match=r"no special token \[MASK\]"):
        check_special(trained("bpe"), ("[MASK]",))


def test_names_are_cut_after_their_first_character_wherever_they_begin():
    assert list(break_special_names(["x[M] aaa", "b"], ["[M]", "aa"])) == ["x[\nM] a\na\na", "b"]


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"special_tokens": ["[CLS]", "[CLS]"]}, "listed twice"),
        ({"special_tokens": ["x"]}, "two visible characters"),
        ({"special_tokens": ["a b"]}, "two visible characters"),
        ({"special_tokens": ["<extra_id_7>"]}, "every vocabulary may have"),
        ({"special_tokens": ["</s>"]}, "every vocabulary may have"),
        ({"vocab_size": 350, "sentinels": 100}, "350 leaves 250 tokens for text"),
    ],
)
def test_names_and_sizes_that_cannot_serve_are_refused(settings_: dict[str, object], message: str):
    with pytest.raises(ValidationError, match=message):
        VocabConfig.model_validate(settings_)
