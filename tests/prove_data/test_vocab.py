"""A released base extended with real text: nothing dead, nothing moved, nothing lost, fewer tokens for fewer rows."""

import gzip
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tokenizers

from tasks.tokenizer import BLANK, Tokenizer
from tasks.vocab.base import prepared_base, read_model
from tasks.vocab.config import VocabConfig
from tasks.vocab.donor import train_donor
from tasks.vocab.fast import fast_tokenizer
from tasks.vocab.growing import isolated, unreachable
from tasks.vocab.kinds import extended as extended_by
from tasks.vocab.merges import dead_pieces, prepared_merges
from tasks.vocab.scripts import CHINESE, RUSSIAN, SCRIPTS

pytestmark = pytest.mark.prove_data

Measured = Callable[..., None]
ROWS = {"zh": 8000, "ru": 8000}
TEXTS = {"zh": ("zh_techdocs", "zh_classic_prose"), "ru": ("ru_techdocs", "ru_novels")}
"""What each script's rows are found in; every fifth document is kept out."""
UNTOUCHED = ("en_books", "en_techdocs_md", "en_speech_drama", "it_techdocs", "readme_changelog_md")
STRINGS = 1_000_000
SOUP = (
    "  \t\n\r\x00\u00a0\u3000\u200b\u200d\ufeff\u2581",
    "abcXYZ019.,;<>/_-",
    "ñéüßæﬁ①½…",
    "привет ЙЁъ",
    "钢铁厂，。中国人民",
    "日本語テスト한국어",
    "🙂👩\u200d👧🇮🇹",
    "e\u0301\u0327\u200f\u202e",
    "<s></s><unk><0x41>",
)


@pytest.fixture(scope="module")
def base(data: Path) -> bytes:
    return (data / "tokenizers" / "mistral_v1_32k.model").read_bytes()


@pytest.fixture(scope="module")
def extended(data: Path, base: bytes) -> bytes:
    model = base
    for name, rows in ROWS.items():
        runs = [run for text in documents(data, TEXTS[name], kept_out=False) for run in SCRIPTS[name].runs(text)]
        donor = train_donor(lambda runs=runs: runs, rows + 2000, 0.9995)
        model = extended_by(model, donor, SCRIPTS[name], rows, lambda runs=runs: runs).model
    return model


def documents(data: Path, folders: tuple[str, ...], kept_out: bool | None = None) -> Iterator[str]:
    """Texts of the corpora; of those kept out of training, or of the others, where that is asked."""
    for folder in folders:
        for part in sorted((data / folder).glob("*.jsonl.gz")):
            with gzip.open(part, "rt", encoding="utf-8") as stream:
                for number, record in enumerate(stream):
                    if kept_out is None or (number % 5 == 0) == kept_out:
                        yield json.loads(record)["text"]


def lines(data: Path, folders: tuple[str, ...], kept_out: bool | None = None) -> list[str]:
    return [line for text in documents(data, folders, kept_out) for line in text.split("\n") if line]


def test_every_row_is_emitted_and_the_base_stands(base: bytes, extended: bytes, measured: Measured) -> None:
    old, new = ([(p.piece, p.score, p.type) for p in read_model(model).pieces] for model in (base, extended))
    measured("vocab", "added pieces never emitted", len(unreachable(extended)), at_most=0, note=f"{len(new)} pieces")
    assert len(new) == len(old) + sum(ROWS.values())
    assert new[: len(old)] == old


def test_text_without_the_new_scripts_keeps_its_ids(
    data: Path, base: bytes, extended: bytes, measured: Measured
) -> None:
    before, after = Tokenizer(base), Tokenizer(extended)
    old = [line for line in lines(data, UNTOUCHED) if not CHINESE.occurs_in(line) and not RUSSIAN.occurs_in(line)]
    moved = sum(
        one.tolist() != other.tolist()
        for one, other in zip(before.encode_batch(old), after.encode_batch(old), strict=True)
    )
    measured("vocab", "lines of old text with other ids", moved, at_most=0, note=f"of {len(old):,} lines en, it, code")


@pytest.mark.parametrize("name", ROWS)
def test_new_text_takes_fewer_tokens(name: str, data: Path, base: bytes, extended: bytes, measured: Measured) -> None:
    script = SCRIPTS[name]
    for folder in TEXTS[name]:
        runs = [run for text in documents(data, (folder,), kept_out=True) for run in script.runs(text)]
        characters = sum(map(len, runs))
        before, after = (sum(map(len, isolated(model).encode(runs))) / characters for model in (base, extended))
        what = f"tokens per character of {folder}, extended by base"
        measured("vocab", what, after / before, at_most=0.8, note=f"{before:.3f} -> {after:.3f}")


def test_a_unigram_base_of_t5s_shape(data: Path, tmp_path: Path, measured: Measured) -> None:
    """T5's own vocabulary is not at hand: one of its shape is trained here, with 100 sentinels and 28 spare rows."""
    english, model, path = lines(data, ("en_books",)), io.BytesIO(), tmp_path / "spiece.model"
    options = {"model_type": "unigram", "vocab_size": 8000, "normalization_rule_name": "nmt_nfkc"}
    options |= {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(english[::2]), model_writer=model, num_threads=1, minloglevel=2, **options
    )
    path.write_bytes(model.getvalue())
    base = prepared_base(VocabConfig(base=path, normaliser="none", sentinels=100, embedding_rows=8128))
    runs = [run for text in documents(data, ("zh_techdocs",), kept_out=False) for run in CHINESE.runs(text)]
    grown = extended_by(base, train_donor(lambda: runs, 10_000, 0.9995), CHINESE, 8000, lambda: runs)
    dead = len(set(unreachable(grown.model)) - set(unreachable(base)))
    measured("vocab", "T5-shaped: pieces never emitted", dead, at_most=0, note=f"{len(grown.added)} added")
    theirs, ours = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes()), Tokenizer(grown.model)
    known = [line for line, ids in zip(english, theirs.encode(english), strict=True) if theirs.unk_id() not in ids]
    normal = [line for line in known if theirs.normalize(line) == "\u2581" + line.replace(" ", "\u2581")]
    moved = sum(ours.encode(line) != ids for line, ids in zip(normal, theirs.encode(normal), strict=True))
    note = f"of {len(normal):,} lines that its normaliser leaves alone"
    measured("vocab", "T5-shaped: lines of old text with other ids", moved, at_most=0, note=note)
    count_other_ids("Unigram base", base, english, measured)
    count_other_ids("Unigram extended", grown.model, [*english, *lines(data, ("zh_techdocs", "wiki_zh_ru"))], measured)
    chinese = list(documents(data, ("zh_techdocs",), kept_out=True))
    lost = sum(ours.decode(ours.encode(text)) != text for text in chinese)
    measured("vocab", "T5-shaped: Chinese documents that did not come back", lost, at_most=0, note=f"of {len(chinese)}")


@pytest.mark.parametrize("name", ROWS)
def test_a_byte_level_base(name: str, data: Path, measured: Measured) -> None:
    """OLMo's and GPT-NeoX's vocabulary of 50,280 pieces; its normaliser (NFC) is taken away."""
    raw = gzip.decompress((data / "tokenizers" / "gpt_neox_olmo_50k.tokenizer.json.gz").read_bytes())
    base, script, folder = (
        prepared_merges(raw, VocabConfig(base=Path("neox.json"), normaliser="none")),
        SCRIPTS[name],
        TEXTS[name][0],
    )
    runs = [run for text in documents(data, (folder,), kept_out=False) for run in script.runs(text)]
    grown = extended_by(base, train_donor(lambda: runs, 10_000, 0.9995), script, 8000, lambda: runs)
    dead = len(set(dead_pieces(grown.model)) - set(dead_pieces(base)))
    note = f"{len(grown.added)} added, {len(grown.intermediates)} of them to build others"
    measured("vocab", f"byte-level, {name}: pieces never emitted", dead, at_most=0, note=note)
    before, after = Tokenizer.of(base), Tokenizer.of(grown.model)
    old = [line for line in lines(data, UNTOUCHED) if not script.occurs_in(line)]
    both = zip(before.encode_batch(old), after.encode_batch(old), strict=True)
    moved = sum(one.tolist() != other.tolist() for one, other in both)
    measured("vocab", f"byte-level, {name}: lines with other ids", moved, at_most=0, note=f"of {len(old):,}")
    unseen = [run for text in documents(data, (folder,), kept_out=True) for run in script.runs(text)]
    costs = [sum(map(len, one.encode_batch(unseen))) / sum(map(len, unseen)) for one in (before, after)]
    told = f"{costs[0]:.3f} -> {costs[1]:.3f} a character"
    measured("vocab", f"byte-level, {name}: tokens by the base's", costs[1] / costs[0], at_most=0.5, note=told)


def test_beside_chinese_llamas_recipe_on_the_same_text(data: Path, base: bytes, measured: Measured) -> None:
    """Its recipe: a Unigram donor of 20,000 pieces, of which all that the base lacks are appended at score 0. Counted
    within Chinese text alone: its donor also merges Latin words and signs, which changes the ids of old text."""
    text = lines(data, ("zh_techdocs",), kept_out=False)
    donor, options = io.BytesIO(), {"model_type": "unigram", "vocab_size": 20_000, "max_sentence_length": 2**20}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for line in text if CHINESE.occurs_in(line)),
        model_writer=donor,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    merged, known = read_model(base), {piece.piece for piece in read_model(base).pieces}
    for piece in read_model(donor.getvalue()).pieces:
        if piece.piece not in known:
            merged.pieces.add(piece=piece.piece, score=0.0)
    theirs, their_rows = merged.SerializeToString(), len(merged.pieces) - len(known)
    runs = [run for line in text for run in CHINESE.runs(line)]
    rows = their_rows * 3 // 4
    ours = extended_by(base, train_donor(lambda: runs, rows, 0.9995), CHINESE, rows, lambda: runs).model
    dead, moved = len(unreachable(theirs)), 0
    for old, new in zip(*(isolated(m).encode(lines(data, ("en_books",))) for m in (base, theirs)), strict=True):
        moved += old != new
    note = f"theirs: {dead:,} pieces never emitted, {moved:,} lines of en_books with other ids"
    measured("vocab", "rows of ours by theirs", rows / their_rows, at_most=0.75, note=f"of {their_rows:,}; {note}")
    for folder in ("zh_techdocs", "zh_classic_prose", "wiki_zh_ru"):
        unseen = [run for text in documents(data, (folder,), kept_out=True) for run in CHINESE.runs(text)]
        costs = [sum(map(len, isolated(model).encode(unseen))) / sum(map(len, unseen)) for model in (ours, theirs)]
        told = f"{costs[0]:.3f} against {costs[1]:.3f} tokens per character"
        measured("vocab", f"tokens of ours by theirs, {folder}", costs[0] / costs[1], at_most=0.97, note=told)


def test_a_million_random_strings_come_back(extended: bytes, measured: Measured) -> None:
    tokenizer, generator = Tokenizer(extended), random.Random(1)
    strings = ["".join(soup(generator)) for _ in range(STRINGS)]
    special = {tokenizer.unk, tokenizer.bos, tokenizer.eos}
    lost = 0
    for text, ids in zip(strings, tokenizer.encode_batch(strings), strict=True):
        tokens = ids.tolist()
        lost += tokenizer.decode(tokens) != text or not special.isdisjoint(tokens)
    measured("vocab", "random strings that did not come back", lost, at_most=0, note=f"of {STRINGS:,}")


def soup(generator: random.Random) -> Iterator[str]:
    """A few characters from everywhere: half from stretches of trouble, half any code point but surrogates."""
    for _ in range(generator.randrange(12)):
        point = generator.choice((generator.randrange(0x110000), generator.randrange(0x3000)))
        anywhere = chr(point) if not 0xD800 <= point <= 0xDFFF else " "
        yield generator.choice((anywhere, generator.choice(generator.choice(SOUP))))


def test_the_converted_fast_tokenizer_gives_the_same_ids(
    data: Path, base: bytes, extended: bytes, tmp_path: Path, measured: Measured
) -> None:
    """The conversion of the base cuts runs of blanks, and blanks at the beginning, in another way already: lines with
    them are left out."""
    texts = lines(data, ("zh_techdocs", "ru_novels", "en_books"), kept_out=True)
    plain = [line for line in texts if "  " not in line and not line.startswith((" ", "\u2581"))]
    for name, model in (("base", base), ("extended", extended)):
        both = zip(converted(model, tmp_path / name, plain), encoded(model, plain), strict=True)
        other = sum(fast != slow for fast, slow in both)
        measured("vocab", f"lines with other ids when converted, {name}", other, at_most=0, note=f"of {len(plain):,}")


def test_our_own_fast_tokenizer_gives_the_same_ids_on_every_line(
    data: Path, base: bytes, extended: bytes, measured: Measured
) -> None:
    texts = lines(data, (*TEXTS["zh"], *TEXTS["ru"], *UNTOUCHED, "social_emoji", "wiki_zh_ru"))
    for name, model in (("base", base), ("extended", extended)):
        count_other_ids(f"BPE {name}", model, texts, measured)


def count_other_ids(name: str, model: bytes, texts: list[str], measured: Measured) -> None:
    """Lines that hold a U+2581 are left out, and told: it is spelled in bytes here, and a blank there. Lines whose best
    cuts tie are told apart: a Unigram base writes 000 as 00 and 0 or as 0 and 00, and rounding decides."""
    fast = tokenizers.Tokenizer.from_buffer(fast_tokenizer(model))
    fast.encode_special_tokens = True
    plain = [line for line in texts if BLANK not in line]
    both = zip(
        map(np.ndarray.tolist, Tokenizer(model).encode_batch(plain)),
        (found.ids for found in fast.encode_batch_fast(plain, add_special_tokens=False)),
        strict=True,
    )
    differing = [(ours, theirs) for ours, theirs in both if ours != theirs]
    other = sum(sorted(ours) != sorted(theirs) for ours, theirs in differing)
    ties = f", {len(differing) - other} with the same pieces in another order" if len(differing) > other else ""
    runs = sum("  " in line or line.startswith(" ") for line in plain)
    note = (
        f"of {len(plain):,} lines, {runs:,} with runs of blanks; {len(texts) - len(plain)} with U+2581 left out{ties}"
    )
    measured("vocab", f"fast_tokenizer.json, {name}: lines with other ids", other, at_most=0, note=note + ties)


def converted(model: bytes, folder: Path, texts: list[str]) -> list[list[int]]:
    """Ids of the same vocabulary as transformers reads it."""
    from transformers import LlamaTokenizer

    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(model)
    return LlamaTokenizer.from_pretrained(folder)(texts, add_special_tokens=False)["input_ids"]


def encoded(model: bytes, texts: list[str]) -> list[list[int]]:
    return sentencepiece.SentencePieceProcessor(model_proto=model).encode(texts)
