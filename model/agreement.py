"""Rows, tokenizer and network must agree before a step is made; each contradiction names who and the cure."""

from model.architecture import OBJECTIVE_OF, BERTConfig, GPTConfig
from model.config import TrainerRun
from model.data import SequenceReader
from model.errors import InputError
from model.row_format import RowFormat
from model.span_lengths import raw_length


def check_rows(data: SequenceReader, run: TrainerRun) -> None:
    """Raises InputError where the sequences are not what the run's network reads, or ORDER asks for nothing.

    Sequences that say nothing of their rows are believed, but for the length of rows.
    """
    if data.row_format is not None:
        _check_format(data.row_format, run)
    needed = _row_length(data.row_format, run)
    if data.row_length != needed:
        raise InputError(
            f"sequences have rows of {data.row_length} tokens, but a {run.model.architecture} of context"
            f" {run.model.context} needs {needed}. Leave chunk.row_length and chunk.input_length out;"
            f" train.model.context decides them. Run again from chunk."
        )
    if data.positions == 0:
        raise InputError(f"{run.order} asks for no row at all; there is nothing to train on. Look at chunk's report.")


def _row_length(rows: RowFormat | None, run: TrainerRun) -> int:
    context = run.model.context
    if isinstance(run.model, GPTConfig):
        return context + 1
    if isinstance(run.model, BERTConfig):
        return context
    if rows is None:
        return raw_length(context)
    return raw_length(context, rows.noise_density, rows.mean_noise_span, rows.denoising)


def _check_format(rows: RowFormat, run: TrainerRun) -> None:
    objective = OBJECTIVE_OF[run.model.architecture]
    if rows.objective != objective:
        raise InputError(
            f"the sequences were laid out for {rows.objective}, and the network ({run.model.architecture}) is trained"
            f' on {objective}. Set chunk.objective = "{objective}" and run again from chunk, or choose another'
            f" train.model.architecture."
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
