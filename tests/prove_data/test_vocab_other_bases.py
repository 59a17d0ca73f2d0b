"""Other bases extended with real text: byte-level, WordPiece, and beside Chinese-LLaMA's recipe on the same text."""

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.model_file import read_model
from tasks.tokenizer.open import tokenizer_of
from tasks.vocab.bpe import bare_processor, prepare_byte_level, unreachable_byte_level, unreachable_tokens
from tasks.vocab.candidates import train_candidates
from tasks.vocab.config import VocabConfig
from tasks.vocab.extenders import extend_to, make_normaliser, unreachable
from tasks.vocab.scripts import SCRIPTS
from tasks.vocab.train import train_wordpiece

CHINESE = SCRIPTS["zh"]

pytestmark = pytest.mark.prove_data

Measured = Callable[..., None]
TEXTS = {"zh": "zh_techdocs", "ru": "ru_techdocs"}
"""What each script's rows are found in; every fifth document is kept out."""
UNTOUCHED = ("en_books", "en_techdocs_md", "en_speech_drama", "it_techdocs", "readme_changelog_md")


@pytest.fixture(scope="module")
def mistral(data: Path) -> bytes:
    return (data / "tokenizers" / "mistral_v1_32k.model").read_bytes()


@pytest.mark.parametrize("name", TEXTS)
def test_a_byte_level_base(name: str, data: Path, corpora: Any, measured: Measured) -> None:
    """OLMo's and GPT-NeoX's vocabulary of 50,280 pieces; its normaliser (NFC) is taken away."""
    raw = gzip.decompress((data / "tokenizers" / "gpt_neox_olmo_50k.tokenizer.json.gz").read_bytes())
    base = prepare_byte_level(raw, VocabConfig(base=Path("neox.json"), normaliser="none"))
    script, folder = SCRIPTS[name], TEXTS[name]
    runs = [run for text in corpora.documents(folder, kept_out=False) for run in script.runs(text)]
    grown = extend_to(base, train_candidates(lambda: runs, 10_000, 0.9995), script, 8000, lambda: runs)
    dead = len(set(unreachable_byte_level(grown.model)) - set(unreachable_byte_level(base)))
    note = f"{len(grown.added)} added, {len(grown.intermediates)} of them to build others"
    measured("vocab", f"byte-level, {name}: pieces never emitted", dead, at_most=0, note=note)
    before, after = tokenizer_of(base), tokenizer_of(grown.model)
    old = [line for line in corpora.lines(*UNTOUCHED) if not script.occurs_in(line)]
    both = zip(before.encode_batch(old), after.encode_batch(old), strict=True)
    moved = sum(one.tolist() != other.tolist() for one, other in both)
    measured("vocab", f"byte-level, {name}: lines with other ids", moved, at_most=0, note=f"of {len(old):,}")
    unseen = [run for text in corpora.documents(folder, kept_out=True) for run in script.runs(text)]
    costs = [sum(map(len, one.encode_batch(unseen))) / sum(map(len, unseen)) for one in (before, after)]
    reported = f"{costs[0]:.3f} -> {costs[1]:.3f} a character"
    measured("vocab", f"byte-level, {name}: tokens by the base's", costs[1] / costs[0], at_most=0.5, note=reported)


@pytest.fixture(scope="module", params=["cased", "small letters"])
def word_pieces(request: pytest.FixtureRequest, corpora: Any) -> tuple[str, bytes]:
    """BERT's own vocabularies are not at hand: an English one is trained here, cased or not."""
    config = VocabConfig(vocab_size=16_000, model_type="wordpiece", lowercase=request.param == "small letters")
    return request.param, train_wordpiece(corpora.documents("en_books"), config)


@pytest.mark.parametrize("name", TEXTS)
def test_a_word_piece_base(name: str, word_pieces: tuple[str, bytes], corpora: Any, measured: Measured) -> None:
    case, base = word_pieces
    script, folder, read = SCRIPTS[name], TEXTS[name], make_normaliser(base)
    runs = [run for text in corpora.documents(folder, kept_out=False) for run in script.runs(read(text))]
    rows = 3000
    grown = extend_to(base, train_candidates(lambda: runs, 2 * rows, 0.9995), script, rows, lambda: runs)
    what = f"WordPiece, {case}, {name}"
    dead = len(set(unreachable(grown.model)) - set(unreachable(base)))
    measured("vocab", f"{what}: pieces never emitted", dead, at_most=0, note=f"{len(grown.added)} added")
    before, after = tokenizer_of(base), tokenizer_of(grown.model)
    old = [line for line in corpora.lines(*UNTOUCHED) if not script.occurs_in(line)]
    both = zip(before.encode_batch(old), after.encode_batch(old), strict=True)
    moved = sum(one.tolist() != other.tolist() for one, other in both)
    measured("vocab", f"{what}: lines with other ids", moved, at_most=0, note=f"of {len(old):,}")
    unseen = [run for text in corpora.documents(folder, kept_out=True) for run in script.runs(read(text))]
    shares = [unknown_share(tokenizer, unseen) for tokenizer in (before, after)]
    measured("vocab", f"{what}: share of unknown words", shares[1], at_most=0.02, note=f"before {shares[0]:.3f}")
    documents = list(corpora.documents(folder, kept_out=True))
    short = sum(
        int(borders[-1]) != len(text.encode())
        for text, (_, borders) in zip(documents, after.encode_batch_with_borders(documents), strict=True)
    )
    measured("vocab", f"{what}: documents with bytes of no token", short, at_most=0, note=f"of {len(documents)}")


def unknown_share(tokenizer: Tokenizer, texts: list[str]) -> float:
    ids = list(tokenizer.encode_batch(texts))
    return sum(int((row == tokenizer.unk).sum()) for row in ids) / sum(map(len, ids))


def test_beside_chinese_llamas_recipe_on_the_same_text(corpora: Any, mistral: bytes, measured: Measured) -> None:
    """Its recipe: a Unigram donor of 20,000 pieces, of which all that the base lacks are appended at score 0. Counted
    within Chinese text alone: its donor also merges Latin words and signs, which changes the ids of old text."""
    text = corpora.lines("zh_techdocs", kept_out=False)
    donor, options = io.BytesIO(), {"model_type": "unigram", "vocab_size": 20_000, "max_sentence_length": 2**20}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for line in text if CHINESE.occurs_in(line)),
        model_writer=donor,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    merged, known = read_model(mistral), {piece.piece for piece in read_model(mistral).pieces}
    for piece in read_model(donor.getvalue()).pieces:
        if piece.piece not in known:
            merged.pieces.add(piece=piece.piece, score=0.0)
    theirs, their_rows = merged.SerializeToString(), len(merged.pieces) - len(known)
    runs = [run for line in text for run in CHINESE.runs(line)]
    rows = their_rows * 3 // 4
    ours = extend_to(mistral, train_candidates(lambda: runs, rows, 0.9995), CHINESE, rows, lambda: runs).model
    dead, moved = len(unreachable_tokens(theirs)), 0
    for old, new in zip(*(bare_processor(m).encode(corpora.lines("en_books")) for m in (mistral, theirs)), strict=True):
        moved += old != new
    note = f"theirs: {dead:,} pieces never emitted, {moved:,} lines of en_books with other ids"
    measured("vocab", "rows of ours by theirs", rows / their_rows, at_most=0.75, note=f"of {their_rows:,}; {note}")
    for folder in ("zh_techdocs", "zh_classic_prose", "wiki_zh_ru"):
        unseen = [run for text in corpora.documents(folder, kept_out=True) for run in CHINESE.runs(text)]
        costs = [
            sum(map(len, bare_processor(model).encode(unseen))) / sum(map(len, unseen)) for model in (ours, theirs)
        ]
        reported = f"{costs[0]:.3f} against {costs[1]:.3f} tokens per character"
        measured("vocab", f"tokens of ours by theirs, {folder}", costs[0] / costs[1], at_most=0.97, note=reported)
