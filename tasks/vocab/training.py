"""Training the vocabulary: one thread, identity normaliser, byte fallback; the same text gives the same file.

SentencePiece with two threads writes another file than with one (measured, version 0.2.3), so the number of threads
is fixed here and is no setting.
"""

import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece

from model.errors import Bug, InputError
from tasks.artifact import Artifact
from tasks.open_tokenizer import tokenizer_of
from tasks.report import StageReport
from tasks.sentencepiece_tokenizer import SentencePieceTokenizer
from tasks.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from tasks.vocab.base import read_model, write_model
from tasks.vocab.config import VocabConfig
from tasks.vocab.sampling import bytes_by_source, count_documents, planned_bytes, sampled_texts, training_lines
from tasks.vocab.specials import add_controls, check_special, cut_apart
from tasks.vocab.training_bytes import train_merges
from tasks.vocab.training_words import train_word_pieces
from tasks.vocab.writing import UNIT, write_tokenizer
from tasks.workspace import Workspace

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
