"""A base that is damaged, or that cannot keep text, ends in a sentence for people before any document is read."""

import gzip
import io
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
import tokenizers

from model.errors import InputError
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.model_file import NORMAL, read_model
from tasks.tokenizer.open import tokenizer_of
from tasks.vocab.base import prepare_base
from tasks.vocab.config import VocabConfig
from tasks.vocab.output import fast_tokenizer
from tasks.vocab.stage import build_vocab
from tasks.vocab.train import train_byte_level, train_wordpiece

ENGLISH = [
    f"The converter blows air through melted iron for {number} minutes, and steel remains." for number in range(80)
]
CODE = Path(json.decoder.__file__).read_text(encoding="utf-8")


def sentencepiece_model(**options: object) -> bytes:
    model = io.BytesIO()
    settings = {"model_type": "bpe", "vocab_size": 340, "byte_fallback": True, "normalization_rule_name": "identity"}
    settings |= {"remove_extra_whitespaces": False, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH), model_writer=model, num_threads=1, minloglevel=2, **settings
    )
    return model.getvalue()


def byte_level() -> bytes:
    return train_byte_level([CODE], VocabConfig(vocab_size=400, model_type="byte_level"))


def word_pieces() -> bytes:
    return train_wordpiece([CODE], VocabConfig(vocab_size=300, model_type="wordpiece"))


def opened(path: Path, content: bytes) -> Tokenizer:
    path.write_bytes(content)
    return tokenizer_of(prepare_base(VocabConfig(base=path)))


@pytest.mark.parametrize("make", [sentencepiece_model, byte_level, word_pieces])
def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path, make: Callable[[], bytes]):
    """The last byte of a JSON file is a line end: without it nothing is lost."""
    model, generator = make(), random.Random(1)
    for size in {0, 1, 2, 100, *(generator.randrange(len(model) - 1) for _ in range(150))}:
        with pytest.raises(InputError):
            opened(tmp_path / "base", model[:size])
    assert opened(tmp_path / "base", model).vocab_size >= 300


def test_a_model_cut_between_two_pieces_is_refused(tmp_path: Path):
    """Such a file can be parsed: it is a model with fewer pieces that does not say what kind it is."""
    model = sentencepiece_model()
    parsed = read_model(model)
    lengths = [piece.ByteSize() + 2 for piece in parsed.pieces]
    assert max(lengths) < 130
    with pytest.raises(InputError, match="ends before the type of the model"):
        opened(tmp_path / "base.model", model[: sum(lengths[:300])])


def test_a_unigram_model_in_json_names_sentencepieces_file(tmp_path: Path):
    model = sentencepiece_model(model_type="unigram", vocab_size=300)
    with pytest.raises(InputError, match=r"a SentencePiece vocabulary .* Take its tokenizer\.model or spiece\.model"):
        opened(tmp_path / "tokenizer.json", fast_tokenizer(model))
    (tmp_path / "spiece.model").write_bytes(model)
    with pytest.raises(InputError, match=r"Set vocab\.base to .*/spiece\.model"):
        opened(tmp_path / "tokenizer.json", fast_tokenizer(model))


@pytest.mark.parametrize("seed", range(3))
def test_garbage_is_refused(tmp_path: Path, seed: int):
    with pytest.raises(InputError):
        opened(tmp_path / "base.model", random.Random(seed).randbytes(5000))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no pieces"),
        (b"{}", "no tokenizer.json with pieces"),
        (b'{"model": 5}', "no tokenizer.json with pieces"),
        (b'{"kind": "sentencepiece", "vocab_size": 300}', "no tokenizer.json with pieces"),
        (b'{"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}', "Take its tokenizer.model or spiece.model"),
        (b'{"model": {"type": "BPE", "vocab": {"a": 0}}, "added_tokens": []}', "cannot read this tokenizer.json"),
        (b'{"model": {"type": "WordPiece", "vocab": {"a": "b"}}}', "cannot read this tokenizer.json"),
        (b'{"model": ', "is not JSON"),
        pytest.param(b'{"model": ' + b"[" * 200_000, "is not JSON", id="nested"),
        pytest.param(b'{"model": ' + b"1" * 5_000 + b"}", "is not JSON", id="digits"),
        (
            b'{"model": {"type": "BPE", "continuing_subword_prefix": "x", "vocab": {"a": 0}, "merges": []}}',
            "the option continuing_subword_prefix",
        ),
        (b"a page of text\nand another line\n", "no SentencePiece model"),
        (b"[UNK]\n[SEP]\n\xff\n", "not UTF-8"),
        (b"[UNK]\n[SEP]\na\na\n", "a piece occurs twice"),
        (gzip.compress(b"{}", mtime=0), r"compressed \(gzip\)\. Decompress it"),
        (b"PK\x03\x04 and so on", r"compressed \(zip\)"),
    ],
)
def test_what_is_no_vocabulary_is_named(context, make_documents, tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "base"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"^vocab\.base: {re.escape(str(path))}\b.*{message}"):
        build_vocab(context, make_documents([[("en", "text")]]), VocabConfig(base=path))


def test_composition_of_a_byte_level_base_is_left_to_cleaning_and_kept_in_its_file(tmp_path: Path):
    """Qwen's and GPT-NeoX's files compose characters (NFC)."""
    parsed, path = json.loads(byte_level()), tmp_path / "base.json"
    parsed["normalizer"] = {"type": "NFC"}
    composed = opened(path, json.dumps(parsed).encode())
    assert composed.decode(composed.encode("e\u0301")) == "e\u0301"
    assert json.loads(composed.model)["normalizer"] == {"type": "NFC"}
    theirs = tokenizers.Tokenizer.from_buffer(composed.model)
    assert theirs.encode("e\u0301").ids == theirs.encode("\u00e9").ids == composed.encode("\u00e9")


def test_a_normaliser_of_a_byte_level_base_that_loses_text_is_named_with_the_cure(tmp_path: Path):
    parsed, path = json.loads(byte_level()), tmp_path / "base.json"
    parsed["normalizer"] = {"type": "Lowercase"}
    problem = rf'^vocab\.base: {re.escape(str(path))}: the normaliser Lowercase .* or set vocab\.normaliser = "none"\.$'
    with pytest.raises(InputError, match=problem):
        opened(path, json.dumps(parsed).encode())
    bare = tokenizer_of(prepare_base(VocabConfig(base=path, normaliser="none")))
    assert bare.decode(bare.encode("E")) == "E"
    # Without the normaliser, the splitter still loses text.
    parsed["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    with pytest.raises(InputError, match=r"Use a base that keeps text unchanged\.$"):
        opened(path, json.dumps(parsed).encode())


def test_a_base_without_bytes_gets_them(tmp_path: Path):
    tokenizer = opened(tmp_path / "base.model", sentencepiece_model(byte_fallback=False, vocab_size=48))
    assert tokenizer.vocab_size == 48 + 256
    assert tokenizer.decode(tokenizer.encode("钢 é")) == "钢 é"


def test_a_base_whose_bytes_are_ordinary_pieces_is_refused(tmp_path: Path):
    parsed = read_model(sentencepiece_model(byte_fallback=False, vocab_size=48))
    parsed.pieces.add(piece="<0x41>", score=-50.0, type=NORMAL)
    with pytest.raises(InputError, match="`<0x41>` is an ordinary token"):
        opened(tmp_path / "base.model", parsed.SerializeToString())


def test_a_byte_level_base_that_lacks_a_byte_is_refused(tmp_path: Path):
    parsed = json.loads(byte_level())
    parsed["model"]["vocab"]["gone"] = parsed["model"]["vocab"].pop("\u0100")
    with pytest.raises(InputError, match="1 bytes without a piece, the byte 0 among them"):
        opened(tmp_path / "base.json", json.dumps(parsed).encode())


def test_a_byte_that_no_text_holds_may_lack(tmp_path: Path):
    """GPT-NeoX's vocabulary has no piece for C0, C1 and F5 to FF, which never occur in UTF-8."""
    parsed = json.loads(byte_level())
    for byte in (0xC0, 0xC1, *range(0xF5, 0x100)):
        parsed["model"]["vocab"][f"row {byte}"] = parsed["model"]["vocab"].pop(chr(byte))
    tokenizer = opened(tmp_path / "base.json", json.dumps(parsed).encode())
    assert tokenizer.decode(tokenizer.encode("\U0010ffff é\0")) == "\U0010ffff é\0"


def test_two_pieces_of_one_id_are_refused(tmp_path: Path):
    parsed = json.loads(word_pieces())
    parsed["model"]["vocab"]["more"] = 7
    with pytest.raises(InputError, match=r"two pieces .* share an id"):
        opened(tmp_path / "base.json", json.dumps(parsed).encode())


def test_a_special_token_with_the_id_of_a_piece_is_refused(tmp_path: Path):
    parsed = json.loads(byte_level())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    parsed["added_tokens"].append({"id": 300, "content": "<|end|>", **flags})
    with pytest.raises(InputError, match=r"the added token `<\|end\|>`"):
        opened(tmp_path / "base.json", json.dumps(parsed).encode())


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path):
    """A piece that is both special and ordinary: SentencePiece would not open it either."""
    parsed = read_model(sentencepiece_model())
    parsed.pieces.add(piece="</s>", score=-50.0, type=NORMAL)
    with pytest.raises(InputError, match="SentencePiece cannot read this vocabulary"):
        opened(tmp_path / "base.model", parsed.SerializeToString())
