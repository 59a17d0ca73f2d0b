"""Rows, tokenizer and network must agree before a step is made; each contradiction names who and the cure."""

from model.config import TrainerRun
from model.data import SequenceReader
from model.errors import InputError
from model.row_format import RowFormat


def check_rows(data: SequenceReader, run: TrainerRun) -> None:
    """Raises InputError where the sequences are not what the run's network reads, or ORDER asks for nothing.

    Sequences that say nothing of their rows are believed, but for the length of rows.
    """
    if data.row_format is not None:
        _check_format(data.row_format, run)
    if data.row_length != run.model.context + 1:
        raise InputError(
            f"sequences have rows of {data.row_length} tokens, but a model of context {run.model.context} needs"
            f" {run.model.context + 1}. Leave chunk.row_length out; train.model.context decides it. Run again from"
            f" chunk."
        )
    if data.positions == 0:
        raise InputError(f"{run.order} asks for no row at all; there is nothing to train on. Look at chunk's report.")


def _check_format(rows: RowFormat, run: TrainerRun) -> None:
    if rows.objective != "causal_lm":
        raise InputError(
            f"the sequences were laid out for {rows.objective}, and the network (gpt) is trained on causal_lm alone."
            f" Leave chunk.objective out, and run again from chunk."
        )
    if rows.tokenizer_digest != run.tokenizer_digest:
        raise InputError(
            f"the sequences were made with the tokenizer {rows.tokenizer_digest}, and this run's tokenizer is"
            f" {run.tokenizer_digest}; the same ids mean other text. Run again from chunk, so that this run's tokenizer"
            f" writes the sequences."
        )
    if rows.vocab_size != run.model.vocab_size:
        raise InputError(
            f"the sequences are written in {rows.vocab_size} pieces, and the network has rows for"
            f" {run.model.vocab_size}. Leave train.model.vocab_size out, and the network takes the vocabulary's size."
        )
    if rows.pad != run.pad or run.eos not in (None, rows.eos):
        raise InputError(
            f"the sequences are padded with {rows.pad} and close documents with {rows.eos}; this run says {run.pad} and"
            f" {run.eos}. Run again from chunk."
        )
