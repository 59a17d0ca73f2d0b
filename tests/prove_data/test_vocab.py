"""A released base extended with real text: nothing dead, nothing moved, nothing lost, fewer tokens for fewer rows."""

import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers

from tasks.tokenizer.model_file import UNIGRAM, read_model
from tasks.tokenizer.sentencepiece import BLANK, SentencePieceTokenizer
from tasks.vocab.base import prepare_base
from tasks.vocab.bpe import bare_processor, unreachable_tokens
from tasks.vocab.candidates import train_candidates
from tasks.vocab.comparison import compare_vocabularies
from tasks.vocab.config import VocabConfig
from tasks.vocab.extenders import extend_to
from tasks.vocab.output import fast_tokenizer
from tasks.vocab.scripts import SCRIPTS

CHINESE, RUSSIAN = SCRIPTS["zh"], SCRIPTS["ru"]

pytestmark = pytest.mark.prove_data

Measured = Callable[..., None]
ROWS = {"zh": 8000, "ru": 8000}
TEXTS = {"zh": ("zh_techdocs", "zh_classic_prose"), "ru": ("ru_techdocs", "ru_novels")}
"""What each script's rows are found in; every fifth document is kept out."""
UNTOUCHED = ("en_books", "en_techdocs_md", "en_speech_drama", "it_techdocs", "readme_changelog_md")
LANGUAGES = {
    "zh": (*TEXTS["zh"], "zh_poetry"),
    "ru": TEXTS["ru"],
    "zh and ru, encyclopaedia": ("wiki_zh_ru",),
    "en": ("en_books", "en_techdocs_md", "en_speech_drama"),
    "it": ("it_techdocs",),
    "code": ("readme_changelog_md",),
}
STRINGS = 1_000_000
ROUNDING = 1e-3
"""Of float32 on sums of scores of a few thousand, which long lines reach."""
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
def extended(corpora: Any, base: bytes) -> bytes:
    model = base
    for name, rows in ROWS.items():
        runs = [run for text in corpora.documents(*TEXTS[name], kept_out=False) for run in SCRIPTS[name].runs(text)]
        donor = train_candidates(lambda runs=runs: runs, rows + 2000, 0.9995)
        model = extend_to(model, donor, SCRIPTS[name], rows, lambda runs=runs: runs).model
    return model


def test_every_row_is_emitted_and_the_base_stays(base: bytes, extended: bytes, measured: Measured) -> None:
    old, new = ([(p.piece, p.score, p.type) for p in read_model(model).pieces] for model in (base, extended))
    measured(
        "vocab", "added pieces never emitted", len(unreachable_tokens(extended)), at_most=0, note=f"{len(new)} pieces"
    )
    assert len(new) == len(old) + sum(ROWS.values())
    assert new[: len(old)] == old


def test_text_without_the_new_scripts_keeps_its_ids(
    corpora: Any, base: bytes, extended: bytes, measured: Measured
) -> None:
    before, after = SentencePieceTokenizer(base), SentencePieceTokenizer(extended)
    old = [line for line in corpora.lines(*UNTOUCHED) if not CHINESE.occurs_in(line) and not RUSSIAN.occurs_in(line)]
    moved = sum(
        one.tolist() != other.tolist()
        for one, other in zip(before.encode_batch(old), after.encode_batch(old), strict=True)
    )
    measured("vocab", "lines of old text with other ids", moved, at_most=0, note=f"of {len(old):,} lines en, it, code")


@pytest.mark.parametrize("name", ROWS)
def test_new_text_takes_fewer_tokens(name: str, corpora: Any, base: bytes, extended: bytes, measured: Measured) -> None:
    script = SCRIPTS[name]
    for folder in TEXTS[name]:
        runs = [run for text in corpora.documents(folder, kept_out=True) for run in script.runs(text)]
        characters = sum(map(len, runs))
        before, after = (sum(map(len, bare_processor(model).encode(runs))) / characters for model in (base, extended))
        what = f"tokens per character of {folder}, extended by base"
        measured("vocab", what, after / before, at_most=0.8, note=f"{before:.3f} -> {after:.3f}")


def test_a_unigram_base_of_t5s_shape(corpora: Any, tmp_path: Path, measured: Measured) -> None:
    """T5's own vocabulary is not at hand: one of its shape is trained here, with 100 sentinels and 28 spare rows."""
    english, model, path = corpora.lines("en_books"), io.BytesIO(), tmp_path / "spiece.model"
    options = {"model_type": "unigram", "vocab_size": 8000, "normalization_rule_name": "nmt_nfkc"}
    options |= {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(english[::2]), model_writer=model, num_threads=1, minloglevel=2, **options
    )
    path.write_bytes(model.getvalue())
    base = prepare_base(VocabConfig(base=path, normaliser="none", sentinels=100, embedding_rows=8128))
    runs = [run for text in corpora.documents("zh_techdocs", kept_out=False) for run in CHINESE.runs(text)]
    grown = extend_to(base, train_candidates(lambda: runs, 10_000, 0.9995), CHINESE, 8000, lambda: runs)
    dead = len(set(unreachable_tokens(grown.model)) - set(unreachable_tokens(base)))
    measured("vocab", "T5-shaped: pieces never emitted", dead, at_most=0, note=f"{len(grown.added)} added")
    theirs, ours = (
        sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes()),
        SentencePieceTokenizer(grown.model),
    )
    known = [line for line, ids in zip(english, theirs.encode(english), strict=True) if theirs.unk_id() not in ids]
    normal = [line for line in known if theirs.normalize(line) == "\u2581" + line.replace(" ", "\u2581")]
    moved = sum(ours.encode(line) != ids for line, ids in zip(normal, theirs.encode(normal), strict=True))
    note = f"of {len(normal):,} lines that its normaliser leaves alone"
    measured("vocab", "T5-shaped: lines of old text with other ids", moved, at_most=0, note=note)
    count_other_ids("Unigram base", base, english, measured)
    count_other_ids("Unigram extended", grown.model, [*english, *corpora.lines("zh_techdocs", "wiki_zh_ru")], measured)
    chinese = list(corpora.documents("zh_techdocs", kept_out=True))
    lost = sum(ours.decode(ours.encode(text)) != text for text in chinese)
    measured("vocab", "T5-shaped: Chinese documents that did not come back", lost, at_most=0, note=f"of {len(chinese)}")


def test_the_table(
    data: Path, corpora: Any, base: bytes, extended: bytes, tabled: Callable[..., None], measured: Measured
) -> None:
    """The base, ours, and what Chinese-LLaMA's script makes of the same base with its released donor."""
    models = [base, extended, with_their_donor(base, data)]
    texts = {language: list(corpora.documents(*names, kept_out=True)) for language, names in LANGUAGES.items()}
    pairs = [compare_vocabularies(base, model, texts, [CHINESE, RUSSIAN]) for model in models]
    strings = ["".join(soup(generator)) for generator in [random.Random(1)] for _ in range(STRINGS)]
    lost = [lost_strings(model, strings) for model in models]
    sizes = [len(read_model(model).pieces) for model in models]
    dead = [set(unreachable_tokens(model)) for model in models]
    old = {piece.piece for piece in read_model(base).pieces}
    unused = [unused_pieces(model, sizes[0], texts_of_all(corpora)) for model in models]
    lines = [["rows added", "", *(f"{size - sizes[0]:,}" for size in sizes)]]
    for language in LANGUAGES:
        reported = [pair[language] for pair in pairs]
        for what, key in (("tokens a character", "tokens_per_character"), ("tokens a word", "tokens_per_word")):
            if reported[0][key] is not None:
                lines.append([what, language, *(f"{line[key][1]:.3f}" for line in reported)])
        lines.append(["share of byte tokens", language, *(f"{line['byte_share'][1]:.1%}" for line in reported)])
        changed = (f"{line['moved_lines']:,} of {line['untouched_lines']:,}" for line in reported)
        lines.append(["old lines with other ids", language, *changed])
    lines.append(["added pieces never emitted", "", *(f"{len(found - old):,}" for found in dead)])
    lines.append(["base pieces never emitted", "", *(f"{len(found & old):,}" for found in dead)])
    lines.append(["added pieces never used in the corpora", "", *(f"{count:,}" for count in unused)])
    lines.append([f"of {STRINGS:,} random strings lost", "", *(f"{count:,}" for count in lost)])
    plain = [line for text in texts["zh"] + texts["ru"] + texts["en"] for line in text.split("\n") if BLANK not in line]
    other = [len(other_ids(model, plain)) for model in models]
    lines.append(["lines with other ids as tokenizer.json", "", *(f"{count:,} of {len(plain):,}" for count in other)])
    title = "Mistral's vocabulary extended to Chinese and Russian"
    tabled(title, ["measure", "language", "before", "after", "Chinese-LLaMA's script"], lines)
    measured("vocab", "random strings that did not come back", lost[1], at_most=0, note=f"of {STRINGS:,}")
    measured("vocab", "pieces never emitted, added and base", len(dead[1]), at_most=0)
    measured("vocab", "added pieces never used in the corpora", unused[1], at_most=0.01 * (sizes[1] - sizes[0]))
    assert other[:2] == [0, 0]
    assert not any(pairs[1][language]["moved_lines"] for language in LANGUAGES)


def with_their_donor(base: bytes, data: Path) -> bytes:
    """Every piece of the donor that the base lacks, at score 0, as `merge_tokenizers.py` appends them."""
    merged, known = read_model(base), {piece.piece for piece in read_model(base).pieces}
    for piece in read_model((data / "tokenizers" / "chinese_llama_sp_zh_20k.model").read_bytes()).pieces:
        if piece.piece not in known:
            merged.pieces.add(piece=piece.piece, score=0.0)
    return merged.SerializeToString()


def lost_strings(model: bytes, strings: list[str]) -> int:
    """Strings that did not come back, or that gave a special token."""
    tokenizer = SentencePieceTokenizer(model)
    special, lost = set(tokenizer.special), 0
    for text, ids in zip(strings, tokenizer.encode_batch(strings), strict=True):
        tokens = ids.tolist()
        lost += tokenizer.decode(tokens) != text or not special.isdisjoint(tokens)
    return lost


def texts_of_all(corpora: Any) -> Iterator[str]:
    return corpora.documents(*(name for names in LANGUAGES.values() for name in names))


def unused_pieces(model: bytes, first: int, texts: Iterator[str]) -> int:
    """Pieces from the id `first` on that no text takes."""
    tokenizer = SentencePieceTokenizer(model)
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for ids in tokenizer.encode_batch(texts):
        counts += np.bincount(ids, minlength=len(counts))
    return int((counts[first:] == 0).sum())


def soup(generator: random.Random) -> Iterator[str]:
    """A few characters from everywhere: half from stretches of trouble, half any code point but surrogates."""
    for _ in range(generator.randrange(12)):
        point = generator.choice((generator.randrange(0x110000), generator.randrange(0x3000)))
        anywhere = chr(point) if not 0xD800 <= point <= 0xDFFF else " "
        yield generator.choice((anywhere, generator.choice(generator.choice(SOUP))))


def test_the_converted_fast_tokenizer_gives_the_same_ids(
    corpora: Any, base: bytes, extended: bytes, tmp_path: Path, measured: Measured
) -> None:
    """The conversion of the base cuts runs of blanks, and blanks at the beginning, in another way already: lines with
    them are left out."""
    texts = corpora.lines("zh_techdocs", "ru_novels", "en_books", kept_out=True)
    plain = [line for line in texts if "  " not in line and not line.startswith((" ", "\u2581"))]
    for name, model in (("base", base), ("extended", extended)):
        both = zip(converted(model, tmp_path / name, plain), encoded(model, plain), strict=True)
        other = sum(fast != slow for fast, slow in both)
        measured("vocab", f"lines with other ids when converted, {name}", other, at_most=0, note=f"of {len(plain):,}")


def test_our_own_fast_tokenizer_gives_the_same_ids_on_every_line(
    corpora: Any, base: bytes, extended: bytes, measured: Measured
) -> None:
    texts = corpora.lines(*TEXTS["zh"], *TEXTS["ru"], *UNTOUCHED, "social_emoji", "wiki_zh_ru")
    for name, model in (("base", base), ("extended", extended)):
        count_other_ids(f"BPE {name}", model, texts, measured)


def count_other_ids(name: str, model: bytes, texts: list[str], measured: Measured) -> None:
    """Lines that hold a U+2581 are left out, and counted: it is bytes here, and a blank there. Lines whose best
    cuts tie by their scores are counted apart, for there rounding decides (float32 here, float64 there): a Unigram base
    writes 000 as 00 and 0 or as 0 and 00."""
    plain = [line for line in texts if BLANK not in line]
    differing = other_ids(model, plain)
    parsed = read_model(model)
    scores = np.array([piece.score for piece in parsed.pieces], dtype=np.float64)
    unigram = parsed.trainer_spec.model_type == UNIGRAM
    tied = sum(unigram and abs(scores[ours].sum() - scores[theirs].sum()) < ROUNDING for ours, theirs in differing)
    other = len(differing) - tied
    ties = f", {tied} with two cuts of the same score" if tied else ""
    runs = sum("  " in line or line.startswith(" ") for line in plain)
    note = f"of {len(plain):,} lines, {runs:,} with runs of blanks; {len(texts) - len(plain)} with U+2581 left out"
    measured("vocab", f"fast_tokenizer.json, {name}: lines with other ids", other, at_most=0, note=note + ties)


def other_ids(model: bytes, texts: list[str]) -> list[tuple[list[int], list[int]]]:
    """Ids of ours and of the `tokenizer.json` where they differ."""
    fast = tokenizers.Tokenizer.from_buffer(fast_tokenizer(model))
    fast.encode_special_tokens = True
    both = zip(
        map(np.ndarray.tolist, SentencePieceTokenizer(model).encode_batch(texts)),
        (found.ids for found in fast.encode_batch_fast(texts, add_special_tokens=False)),
        strict=True,
    )
    return [(ours, theirs) for ours, theirs in both if ours != theirs]


def converted(model: bytes, folder: Path, texts: list[str]) -> list[list[int]]:
    """Ids of the same vocabulary as transformers reads it."""
    from transformers import LlamaTokenizer

    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(model)
    return LlamaTokenizer.from_pretrained(folder)(texts, add_special_tokens=False)["input_ids"]


def encoded(model: bytes, texts: list[str]) -> list[list[int]]:
    return sentencepiece.SentencePieceProcessor(model_proto=model).encode(texts)
