"""Train a vocabulary on sampled text: SentencePiece BPE or Unigram, byte-level BPE, or WordPiece. The same text gives
the same file.

SentencePiece with two threads writes another file than with one (measured, version 0.2.3), so that the number of
threads is fixed at one and is no setting. It normalises nothing and falls back to bytes.

Byte-level BPE (Radford et al. 2019, GPT-2) encodes any text in its 256 bytes. The merges of the library `tokenizers` do
not depend on its number of threads (tested), and other programs read its `tokenizer.json`.

The library's WordPiece trainer (Devlin et al. 2019) numbers characters, and joins pairs of equal counts, in the order
of a hash table that differs from process to process: two runs gave two vocabularies. Given all characters beforehand,
in a fixed order, it gave the same bytes in every run and with any number of threads.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from model.errors import Bug, InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.results import UnknownShares, VocabResult, Vocabulary
from tasks.artifacts.workspace import Workspace
from tasks.tokenizer.base import BOS, EOS, PAD, UNK, Tokenizer
from tasks.tokenizer.json_format import to_json_bytes
from tasks.tokenizer.model_file import BLANK, read_model, write_model
from tasks.tokenizer.open import tokenizer_of
from tasks.tokenizer.wordpiece import INSIDE, SPECIAL_TOKENS, word_piece_engine
from tasks.vocab.candidates import MAX_SIZE_IN_ERROR, characters_to_cover
from tasks.vocab.comparison import MEASURED_BYTES
from tasks.vocab.config import MIN_VOCABULARY, VocabConfig
from tasks.vocab.corpus import bytes_by_source, count_sources, plan_bytes, sample_texts, train_on_lines
from tasks.vocab.output import UNIT, write_tokenizer
from tasks.vocab.special_tokens import add_controls, add_special_tokens, break_special_names, check_special

PROGRESS_BYTES = 1 << 20
"""Progress is reported each time so many more bytes were sampled."""
BYTE_LEVEL_SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<pad>")
"""In the order of their ids, the same as in a SentencePiece vocabulary trained here."""
MIN_PAIR_COUNT = 2
"""A pair that occurs once is not merged."""
MAX_TEXT_CHARACTERS = 1 << 16
"""Longer texts are split: one without whitespace would be a single word, and the time grows with the square of a
word's length."""
MIN_SIZE_IN_ERROR = re.compile(r"smaller than required_chars\. (\d+) vs (\d+)")


def train_vocabulary(documents: Artifact, config: VocabConfig, workspace: Workspace) -> StageReport:
    """Train and write the vocabulary's own file and `tokenizer.json`.

    Raises InputError when the text cannot give `vocab_size` tokens or its characters alone need more.
    """
    finished = workspace.finished(UNIT)
    if finished is not None:
        return finished
    counted = count_sources(documents)
    sizes = bytes_by_source(counted)
    plan = plan_bytes(sizes, config.weights, config.max_bytes)
    sampled: Counter[str] = Counter()
    measured: dict[str, list[str]] = {}

    def sample() -> Iterable[str]:
        for source, text in sample_texts(documents, sizes, plan, config.seed):
            if sampled[source] < MEASURED_BYTES:
                measured.setdefault(source, []).append(text[:MEASURED_BYTES])
            reported = sampled.total() // PROGRESS_BYTES
            sampled[source] += len(text.encode())
            if sampled.total() // PROGRESS_BYTES > reported:
                workspace.advance(sampled.total(), sum(plan.values()), "bytes")
            yield text

    other_kinds = {"byte_level": train_byte_level, "wordpiece": train_wordpiece}
    train = other_kinds.get(config.model_type, train_sentencepiece)
    tokenizer = tokenizer_of(train(sample(), config))
    check_special(tokenizer, config.special_names)
    per_token, unknown = measure_tokens(tokenizer, measured)
    with workspace.unit(UNIT) as unit:
        write_tokenizer(unit, tokenizer)
        unit.report = counted
        made: Vocabulary = {
            "pieces": tokenizer.vocab_size,
            "model_type": config.model_type,
            "sampled_bytes": dict(sorted(sampled.items())),
            "bytes_per_token": per_token,
            **unknown,
        }
        unit.report.facts = VocabResult(made).facts()
    return unit.report


def train_sentencepiece(texts: Iterable[str], config: VocabConfig) -> bytes:
    """Return the bytes of a SentencePiece model with exactly `config.vocab_size` tokens."""
    try:
        model = train_on_lines(
            break_special_names(texts, config.special_names),
            model_type=config.model_type,
            vocab_size=config.trained_pieces,
            character_coverage=config.character_coverage,
            split_digits=config.split_digits,
            byte_fallback=True,
            allow_whitespace_only_pieces=True,
            hard_vocab_limit=True,
            required_chars=BLANK,  # Text with few spaces would have no piece for them.
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            pad_id=PAD,
        )
    except RuntimeError as error:
        raise _explain_failure(error, config) from error
    parsed = read_model(model)
    parsed.trainer_spec.ClearField("required_chars")  # Where spaces are frequent, the model is as without it.
    add_controls(parsed, config.special_names)
    parsed.trainer_spec.vocab_size = len(parsed.pieces)
    return write_model(parsed)


def _explain_failure(error: RuntimeError, config: VocabConfig) -> Exception:
    text = str(error)
    special = len(config.special_names)
    if match := MAX_SIZE_IN_ERROR.search(text):
        return _too_few_tokens(config, int(match[1]) + special)
    if match := MIN_SIZE_IN_ERROR.search(text):
        least = int(match[2]) + special
        return InputError(
            f"vocab: vocab.vocab_size is {config.vocab_size}, and the characters of the sampled text with the special"
            f" and byte tokens alone need {least}. Set vocab.vocab_size = {least} or more, or lower"
            f" vocab.character_coverage (now {config.character_coverage}) so that rare characters are spelled in bytes."
        )
    if "sentences_.empty()" in text:
        return InputError("vocab: the sampled documents have no text, so there is nothing to train on")
    return Bug(f"vocab: SentencePiece failed to train: {text}")


def _too_few_tokens(config: VocabConfig, most: int) -> InputError:
    smaller = f"Set vocab.vocab_size = {most} or less, or add text"
    advice = smaller if most - len(config.special_names) >= MIN_VOCABULARY else "Add text"
    return InputError(
        f"vocab: vocab.vocab_size is {config.vocab_size}, and the sampled text gives {most} tokens at most. {advice}"
        f" (vocab.max_bytes is {config.max_bytes})."
    )


def train_byte_level(texts: Iterable[str], config: VocabConfig) -> bytes:
    """Return the bytes of a `tokenizer.json` with `config.vocab_size` tokens; raise InputError where the text gives
    fewer."""
    engine = tokenizers.Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    engine.pre_tokenizer = pre_tokenizers.Sequence([digits, words]) if config.split_digits else words
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.trained_pieces,
        min_frequency=MIN_PAIR_COUNT,
        special_tokens=list(BYTE_LEVEL_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(split_long_texts(break_special_names(texts, config.special_names)), trainer)
    if config.special_names:
        engine.add_special_tokens(list(config.special_names))
    pieces = engine.get_vocab_size()
    if pieces < config.vocab_size:
        raise _too_few_tokens(config, pieces)
    return (engine.to_str() + "\n").encode()


def train_wordpiece(texts: Iterable[str], config: VocabConfig) -> bytes:
    """Return the bytes of a `tokenizer.json` with `config.vocab_size` tokens; raise InputError where the text gives
    fewer, or where its characters alone are more."""
    engine = word_piece_engine({}, lowercase=config.lowercase, split_digits=config.split_digits)
    normalised = [engine.normalizer.normalize_str(text) for text in split_long_texts(texts)]
    counts = Counter[str]()
    for text in normalised:
        counts.update(text)
    counts = Counter({character: count for character, count in counts.items() if not character.isspace()})
    frequent = counts.most_common()
    known = {character for character, _ in frequent[: characters_to_cover(counts, config.character_coverage)]}
    rare = re.compile(f"[{re.escape(''.join(sorted(counts.keys() - known)))}]") if len(known) < len(counts) else None
    names = config.special_names
    training_texts = list(break_special_names((rare.sub(" ", text) if rare else text for text in normalised), names))
    alphabet = _alphabet(training_texts, engine.pre_tokenizer)
    least = len(SPECIAL_TOKENS) + len(alphabet) + len(names)
    if least > config.vocab_size:
        raise InputError(
            f"vocab: vocab.vocab_size is {config.vocab_size}, and the characters of the sampled text with the special"
            f" tokens alone need {least}. Set vocab.vocab_size = {least} or more, or lower vocab.character_coverage"
            f" (now {config.character_coverage}); words with rarer characters become [UNK]."
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size - len(names),
        min_frequency=MIN_PAIR_COUNT,
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        continuing_subword_prefix=INSIDE,
        show_progress=False,
    )
    engine.train_from_iterator(training_texts, trainer)
    vocabulary = json.loads(engine.to_str())["model"]["vocab"]
    pieces = len(vocabulary) + len(names)
    if pieces < config.vocab_size:
        raise _too_few_tokens(config, pieces)
    trained = word_piece_engine(vocabulary, lowercase=config.lowercase, split_digits=config.split_digits)
    parsed = json.loads(trained.to_str())
    add_special_tokens(parsed, names)
    return to_json_bytes(parsed)


def _alphabet(texts: Iterable[str], splitter: tokenizers.pre_tokenizers.PreTokenizer) -> list[str]:
    """Return the characters that begin words, and with WordPiece's prefix those that occur inside words."""
    beginning, inside, seen = set[str](), set[str](), set[str]()
    for text in texts:
        words = set(text.split()) - seen
        seen |= words
        for word in words:
            for part, _ in splitter.pre_tokenize_str(word):
                beginning.update(part)
                inside.update(part[1:])
    return [*sorted(beginning), *(INSIDE + character for character in sorted(inside))]


def split_long_texts(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts in parts of at most MAX_TEXT_CHARACTERS characters."""
    for text in texts:
        for start in range(0, len(text), MAX_TEXT_CHARACTERS):
            yield text[start : start + MAX_TEXT_CHARACTERS]


def measure_tokens(tokenizer: Tokenizer, texts: Mapping[str, Sequence[str]]) -> tuple[dict[str, float], UnknownShares]:
    """Return by source the UTF-8 bytes of its texts per token, 0 where there is no text, and `unknown_share`, the share
    of unknown tokens; nothing of that for a vocabulary that has no unknown text."""
    per_token, unknown = dict[str, float](), dict[str, float]()
    for source, documents in sorted(texts.items()):
        ids = np.concatenate([np.zeros(0, dtype=np.int32), *tokenizer.encode_batch(documents)])
        size = sum(len(text.encode()) for text in documents)
        per_token[source] = round(size / len(ids), 4) if len(ids) else 0.0
        unknown[source] = round(float((ids == tokenizer.unk).mean()), 6) if len(ids) else 0.0
    return per_token, {} if tokenizer.exact else {"unknown_share": unknown}
