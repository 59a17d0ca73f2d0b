"""Training the vocabulary: one thread, identity normaliser, byte fallback; the same text gives the same file.

SentencePiece with two threads writes another file than with one (measured, version 0.2.3), so the number of threads
is fixed here and is no setting.

Training a byte-level BPE vocabulary (Radford et al., 2019, GPT-2): its 256 bytes write any text.

The library's merges do not depend on its number of threads (tested); its file is a `tokenizer.json` that other programs
read as it is.

Training a WordPiece vocabulary as BERT's (Devlin et al., 2019), by the library `tokenizers`.

The library's trainer numbers characters, and then joins pairs of equal counts, in the order of a hash table that
differs from process to process: two runs gave two vocabularies. Given all characters beforehand, in a fixed order, it
gave the same bytes in every run and with any number of threads.
"""

import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from model.errors import Bug, InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import Workspace
from tasks.tokenizer.base import BOS, EOS, PAD, UNK, Tokenizer
from tasks.tokenizer.model_file import read_model, write_model
from tasks.tokenizer.open import tokenizer_of
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.tokenizer.wordpiece import INSIDE, SPECIAL_TOKENS, word_piece_engine
from tasks.vocab.candidates import covering
from tasks.vocab.config import VocabConfig
from tasks.vocab.corpus import bytes_by_source, count_documents, planned_bytes, sampled_texts, training_lines
from tasks.vocab.output import UNIT, write_tokenizer
from tasks.vocab.special_tokens import add_controls, add_special_tokens, check_special, cut_apart

MEASURED_BYTES = 1_000_000
"""UTF-8 bytes of each source on which bytes per token are measured."""

TOLD_BYTES = 1 << 20
"""Progress is told each time so many more bytes were sampled."""

_CAN_GIVE = re.compile(r"set it to a value <= (\d+)")

_NEEDS = re.compile(r"smaller than required_chars\. (\d+) vs (\d+)")


def train_vocabulary(documents: Artifact, config: VocabConfig, workspace: Workspace) -> StageReport:
    """Train and write the vocabulary's own file and `tokenizer.json`.

    Raises InputError when the text cannot give `vocab_size` pieces or its characters do not fit into them.
    """
    finished = workspace.finished(UNIT)
    if finished is not None:
        return finished
    counted = count_documents(documents)
    sizes = bytes_by_source(counted)
    plan = planned_bytes(sizes, config.weights, config.max_bytes)
    sampled: Counter[str] = Counter()
    measured: dict[str, list[str]] = {}

    def sample() -> Iterable[str]:
        for source, text in sampled_texts(documents, sizes, plan, config.seed):
            if sampled[source] < MEASURED_BYTES:
                measured.setdefault(source, []).append(text[:MEASURED_BYTES])
            told = sampled.total() // TOLD_BYTES
            sampled[source] += len(text.encode())
            if sampled.total() // TOLD_BYTES > told:
                workspace.advance(sampled.total(), sum(plan.values()), "bytes")
            yield text

    if config.model_type == "byte_level":
        tokenizer = tokenizer_of(train_merges(sample(), config))
    elif config.model_type == "wordpiece":
        tokenizer = tokenizer_of(train_word_pieces(sample(), config))
    else:
        tokenizer = SentencePieceTokenizer(train_pieces(sample(), config))
    check_special(tokenizer, config.special_names)
    with workspace.unit(UNIT) as unit:
        write_tokenizer(unit, tokenizer)
        unit.report = counted
        unit.report.facts["vocabulary"] = {
            "pieces": tokenizer.vocab_size,
            "model_type": config.model_type,
            "sampled_bytes": dict(sorted(sampled.items())),
            "bytes_per_token": {
                source: round(bytes_per_token(tokenizer, texts), 4) for source, texts in sorted(measured.items())
            },
            **unknown_shares(tokenizer, measured),
        }
    return unit.report


def train_pieces(texts: Iterable[str], config: VocabConfig) -> bytes:
    """The bytes of a SentencePiece model with exactly `config.vocab_size` pieces."""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=training_lines(cut_apart(texts, config.special_names)),
            model_writer=model,
            model_type=config.model_type,
            vocab_size=config.trained_pieces,
            character_coverage=config.character_coverage,
            split_digits=config.split_digits,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            max_sentence_length=2**30,
            input_sentence_size=0,
            shuffle_input_sentence=False,
            hard_vocab_limit=True,
            num_threads=1,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            pad_id=PAD,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _told_to_people(error, config) from error
    if not config.special_names:
        return model.getvalue()
    parsed = read_model(model.getvalue())
    add_controls(parsed, config.special_names)
    parsed.trainer_spec.vocab_size = len(parsed.pieces)
    return write_model(parsed)


def bytes_per_token(tokenizer: Tokenizer, texts: list[str]) -> float:
    """UTF-8 bytes of `texts` by the tokens they take; 0 where there is no text."""
    tokens = sum(len(ids) for ids in tokenizer.encode_batch(texts))
    return sum(len(text.encode()) for text in texts) / tokens if tokens else 0.0


def unknown_shares(tokenizer: Tokenizer, texts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """`unknown_share`: source -> share of the tokens that lose what they stand for; nothing where none ever does."""
    if tokenizer.exact:
        return {}
    shares = dict[str, float]()
    for source, documents in sorted(texts.items()):
        ids = np.concatenate([np.zeros(0, dtype=np.int32), *tokenizer.encode_batch(documents)])
        shares[source] = round(float((ids == tokenizer.unk).mean()), 6) if len(ids) else 0.0
    return {"unknown_share": shares}


def _told_to_people(error: RuntimeError, config: VocabConfig) -> Exception:
    text = str(error)
    special = len(config.special_names)
    if match := _CAN_GIVE.search(text):
        most = int(match[1]) + special
        return InputError(
            f"vocab: {config.vocab_size} pieces were asked for, and the sampled text gives {most} at most. Set"
            f" vocab.vocab_size = {most} or less, or bring more text"
            f" (vocab.max_bytes is {config.max_bytes})."
        )
    if match := _NEEDS.search(text):
        least = int(match[2]) + special
        return InputError(
            f"vocab: {config.vocab_size} pieces were asked for, and the characters of the sampled text with the special"
            f" and byte pieces alone need {least}. Set vocab.vocab_size above {least}, or lower"
            f" vocab.character_coverage (now {config.character_coverage}) so that rare characters are spelled in bytes."
        )
    if "sentences_.empty()" in text:
        return InputError("vocab: the sampled documents hold no text at all, so there is nothing to train on")
    return Bug(f"vocab: SentencePiece refused to train: {text}")


BYTE_LEVEL_SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<pad>")
"""In the order of their ids, which are those of a vocabulary of SentencePiece trained here."""

LEAST_COUNT = 2
"""A pair that the text holds once is no piece."""

LONGEST_STRETCH = 1 << 16
"""Characters of a text taken at once: one without blanks would be one word, and time grows with a word's square."""


def train_merges(texts: Iterable[str], config: VocabConfig) -> bytes:
    """The bytes of a `tokenizer.json` with `config.vocab_size` pieces; InputError where the text gives fewer."""
    engine = tokenizers.Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    engine.pre_tokenizer = pre_tokenizers.Sequence([digits, words]) if config.split_digits else words
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.trained_pieces,
        min_frequency=LEAST_COUNT,
        special_tokens=list(BYTE_LEVEL_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(stretches(cut_apart(texts, config.special_names)), trainer)
    if config.special_names:
        engine.add_special_tokens(list(config.special_names))
    pieces = engine.get_vocab_size()
    if pieces < config.vocab_size:
        raise InputError(
            f"vocab: {config.vocab_size} pieces were asked for, and the sampled text gives {pieces} at most. Set"
            f" vocab.vocab_size = {pieces} or less, or bring more text (vocab.max_bytes is {config.max_bytes})."
        )
    return (engine.to_str() + "\n").encode()


def stretches(texts: Iterable[str]) -> Iterator[str]:
    """The texts in stretches of at most LONGEST_STRETCH characters."""
    for text in texts:
        for start in range(0, len(text), LONGEST_STRETCH):
            yield text[start : start + LONGEST_STRETCH]


def train_word_pieces(texts: Iterable[str], config: VocabConfig) -> bytes:
    """The bytes of a `tokenizer.json` with `config.vocab_size` pieces; InputError where the text gives fewer, or where
    its characters alone are more."""
    engine = word_piece_engine({}, lowercase=config.lowercase, split_digits=config.split_digits)
    normalised = [engine.normalizer.normalize_str(text) for text in stretches(texts)]
    counts = Counter[str]()
    for text in normalised:
        counts.update(text)
    counts = Counter({character: count for character, count in counts.items() if not character.isspace()})
    frequent = counts.most_common()
    known = {character for character, _ in frequent[: covering(counts, config.character_coverage)]}
    rare = re.compile(f"[{re.escape(''.join(sorted(counts.keys() - known)))}]") if len(known) < len(counts) else None
    names = [name for name in config.special_names if name not in SPECIAL_TOKENS]
    learnt = list(cut_apart((rare.sub(" ", text) if rare else text for text in normalised), names))
    alphabet = _alphabet(learnt, engine.pre_tokenizer)
    least = len(SPECIAL_TOKENS) + len(alphabet) + len(names)
    if least > config.vocab_size:
        raise InputError(
            f"vocab: {config.vocab_size} pieces were asked for, and the characters of the sampled text with the special"
            f" tokens alone need {least}. Set vocab.vocab_size above {least}, or lower vocab.character_coverage (now"
            f" {config.character_coverage}); words with rarer characters become [UNK]."
        )
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=config.vocab_size - len(names),
        min_frequency=LEAST_COUNT,
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        continuing_subword_prefix=INSIDE,
        show_progress=False,
    )
    engine.train_from_iterator(learnt, trainer)
    vocabulary = json.loads(engine.to_str())["model"]["vocab"]
    pieces = len(vocabulary) + len(names)
    if pieces < config.vocab_size:
        raise InputError(
            f"vocab: {config.vocab_size} pieces were asked for, and the sampled text gives {pieces} at most. Set"
            f" vocab.vocab_size = {pieces} or less, or bring more text (vocab.max_bytes is {config.max_bytes})."
        )
    trained = word_piece_engine(vocabulary, lowercase=config.lowercase, split_digits=config.split_digits)
    parsed = json.loads(trained.to_str())
    add_special_tokens(parsed, names)
    return (json.dumps(parsed, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def _alphabet(texts: Iterable[str], splitter: tokenizers.pre_tokenizers.PreTokenizer) -> list[str]:
    """Characters as they begin words, and with the sign of a piece inside a word those that stand there."""
    beginning, inside, seen = set[str](), set[str](), set[str]()
    for text in texts:
        words = set(text.split()) - seen
        seen |= words
        for word in words:
            for part, _ in splitter.pre_tokenize_str(word):
                beginning.update(part)
                inside.update(part[1:])
    return [*sorted(beginning), *(INSIDE + character for character in sorted(inside))]
