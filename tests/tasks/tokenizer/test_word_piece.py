"""WordPiece loses blanks and case, and yet every byte of a text belongs to one of its tokens."""

import itertools
import json
import json.decoder
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model.errors import Bug, InputError
from tasks.tokenizer.base import DESCRIPTION_FILE, Tokenizer
from tasks.tokenizer.open import open_tokenizer, tokenizer_of
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.tokenizer.wordpiece import WordPieceTokenizer, from_vocab_txt
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_wordpiece

TEXTS = [Path(json.decoder.__file__).read_text(encoding="utf-8"), "Straße, naïve, 日本語の文章です。 한국어\r\n" * 20]
LINES = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nsteel\n##s\nthe\n钢\n,\nа\n##н\n##а\n"


@pytest.fixture(scope="module", params=[False, True])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    config = VocabConfig(vocab_size=560, model_type="wordpiece", lowercase=request.param, character_coverage=1.0)
    return tokenizer_of(train_wordpiece(TEXTS, config))


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return tokenizer_of(from_vocab_txt(LINES))


def test_special_ids_of_one_trained_here(tokenizer: Tokenizer):
    assert (tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep, tokenizer.mask) == (0, 1, 2, 3, 4)
    assert (tokenizer.bos, tokenizer.eos) == (tokenizer.cls, tokenizer.sep)
    assert tokenizer.special == (0, 1, 2, 3, 4)
    assert not tokenizer.exact
    assert tokenizer.vocab_size == 560


def test_bytes_of_each_token_by_hand(small: Tokenizer):
    """Blanks belong to the token behind them, what nothing follows to the last; 钢 takes three bytes."""
    ids, borders = small.encode_with_offsets("  The steels,钢 ")
    assert [small.piece_bytes[number] for number in ids] == [b"the", b"steel", b"s", b",", "钢".encode()]
    assert borders.tolist() == [0, 5, 11, 12, 13, 17]
    assert small.decode(ids) == "the steels, 钢"


def test_an_added_token_behind_the_pieces_has_an_id_and_bytes(small: Tokenizer):
    """Programs add ordinary words to a vocabulary so: in `added_tokens` alone, and not as special tokens."""
    parsed = json.loads(small.model)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    parsed["added_tokens"].append({"id": small.vocab_size, "content": "slag", **flags})
    tokenizer = tokenizer_of(json.dumps(parsed).encode())
    assert tokenizer.vocab_size == small.vocab_size + 1
    assert tokenizer.special == small.special
    ids = tokenizer.encode("the slag")
    assert [tokenizer.piece_bytes[number] for number in ids] == [b"the", b"slag"]


def test_an_unknown_word_is_one_token_with_all_its_bytes(small: Tokenizer):
    ids, borders = small.encode_with_offsets("the 🙂 steel")
    assert ids[1] == small.unk
    assert borders.tolist() == [0, 3, 8, 14]
    assert small.decode(ids) == "the [UNK] steel"
    assert small.decode([small.cls, *ids, small.sep, small.pad]) == "the [UNK] steel"


def test_a_character_that_gives_two_tokens_gives_its_bytes_to_the_first():
    """Small letters part Hangul into its letters: 한 is three of them, and three bytes."""
    lines = "[PAD]\n[UNK]\n[SEP]\n\u1112\n##\u1161\n##\u11ab\n"
    ids, borders = tokenizer_of(from_vocab_txt(lines)).encode_with_offsets("한")
    assert len(ids) == 3
    assert borders.tolist() == [0, 3, 3, 3]


@settings(max_examples=300, deadline=None)
@given(text=st.text())
@example(text=" lead and trail ")
@example(text="\u0301a\u0301\u0301 İ ﬁ \U0001f600\u200d\ufeff")
@example(text="[CLS] a page that shows [MASK][SEP]")
@example(text="가각 钢铁\x00\ufffd")
def test_borders_tile_the_text_and_no_text_gives_a_special_token(tokenizer: Tokenizer, text: str):
    ids, borders = tokenizer.encode_with_offsets(text)
    assert (len(borders), borders[0]) == (len(ids) + 1, 0)
    assert (np.diff(borders) >= 0).all()
    if len(ids):
        assert borders[-1] == len(text.encode())
    starts = {len(text[:place].encode()) for place in range(len(text) + 1)}
    assert set(borders.tolist()) <= starts
    assert set(ids.tolist()) & set(tokenizer.special) <= {tokenizer.unk}
    assert ids.tolist() == tokenizer.encode(text) == tokenizers_ids(tokenizer, text)


def tokenizers_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    engine = tokenizers.Tokenizer.from_buffer(tokenizer.model)
    engine.encode_special_tokens = True
    return engine.encode(text, add_special_tokens=False).ids


@settings(deadline=None)
@given(texts=st.lists(st.text(alphabet=st.sampled_from("ab \né日😀,"), max_size=8), max_size=6))
def test_batches_are_single_texts(tokenizer: Tokenizer, texts: list[str]):
    both = list(tokenizer.encode_batch_with_borders(texts))
    assert [ids.tolist() for ids, _ in both] == [ids.tolist() for ids in tokenizer.encode_batch(texts)]
    for text, (ids, borders) in zip(texts, both, strict=True):
        alone, alone_borders = tokenizer.encode_with_offsets(text)
        assert (ids.tolist(), borders.tolist()) == (alone.tolist(), alone_borders.tolist())


def test_a_vocabulary_that_is_exact_gives_the_same_borders_by_its_pieces():
    from tasks.vocab.train import train_sentencepiece

    tokenizer = SentencePieceTokenizer(train_sentencepiece(TEXTS, VocabConfig(vocab_size=560, character_coverage=0.99)))
    assert tokenizer.exact
    for text, (ids, borders) in zip(TEXTS, tokenizer.encode_batch_with_borders(TEXTS), strict=True):
        pieces = [text.encode()[start:end] for start, end in itertools.pairwise(borders)]
        assert pieces == [tokenizer.piece_bytes[number] for number in ids]


def test_ids_alone_do_not_show_bytes(small: Tokenizer):
    with pytest.raises(Bug, match="do not determine"):
        small.borders(np.array([5, 6]))


def test_a_list_of_pieces_is_read_in_small_letters_where_it_has_no_capital_ones(small: Tokenizer):
    assert small.encode("THE") == [7]
    cased = tokenizer_of(from_vocab_txt(LINES + "The\n"))
    assert cased.encode("The the THE") == [13, 7, 1]


def test_the_artifact_loads_it_again(context, make_documents):
    from tasks.vocab.stage import build_vocab

    documents = make_documents([[("code", text) for text in TEXTS[0].split("\n\n")]])
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=300, model_type="wordpiece"))
    assert isinstance(open_tokenizer(vocab), WordPieceTokenizer)
    reported = json.loads(vocab.file(DESCRIPTION_FILE).read_text())
    assert (reported["kind"], reported["mask"], reported["eos"]) == ("wordpiece", 4, 3)
    assert vocab.report.facts["vocabulary"]["unknown_share"]["code"] < 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab": {}}, "no tokenizer.json with pieces"),
        ({"continuing_subword_prefix": "@@"}, "do not begin with"),
        ({"vocab": {"[UNK]": 1, "the": 0}}, r"has no \[SEP\]"),
    ],
)
def test_one_that_cannot_serve_is_refused(small: Tokenizer, change: dict[str, object], message: str):
    parsed = json.loads(small.model)
    parsed["model"] |= change
    parsed["added_tokens"] = [token for token in parsed["added_tokens"] if token["content"] == "[UNK]"]
    with pytest.raises(InputError, match=message):
        tokenizer_of(json.dumps(parsed).encode())


def test_a_list_with_a_piece_twice_is_refused():
    with pytest.raises(InputError, match="occurs twice"):
        from_vocab_txt(LINES + "the\n")
