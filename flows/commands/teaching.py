"""Teaching a trained model a task, and asking it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.models import Model
from flows.commands.options import DEFAULT_ROOT, Json, Root
from flows.commands.output import print_json, told_errors


def finetune(
    model: Model,
    task: Annotated[
        Path,
        typer.Option(
            "--task", metavar="FILE.toml", help="What to learn from, as above; docs/using_models.md tells more."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the result; ROOT/finetuned/FILE by default. Never written over.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Teach a trained BERT or T5 a task with labelled examples.

    A BERT learns one: a label or number for a text or a pair, a label for each word, or an answer in a passage. A T5
    learns several at once, as text. The least that a task file says:

    \b
    [[tasks]]
    name = "mood"
    kind = "classification"    # regression, tagging, span; a T5 also text
    train = "train.jsonl"      # JSON lines, beside this file
    test = "test.jsonl"        # scored once, at the end; may be left out
    fields = ["sentence"]      # what is read, in this order
    answer = "label"           # what is to be said

    A tenth of the training examples is held out and chooses the epoch; test items choose nothing. The same model, files
    and settings give the same bytes; a run that was stopped goes on at the seed where it was. Above the tasks may stand
    epochs, seeds, learning_rate, batch_size, dropout, max_length and others.
    """
    with told_errors():
        from flows.finetuning import teach
        from model.finetune.telling import told_result
        from model.precision import denormals_flushed

        with denormals_flushed():
            folder, found = teach(root, model, task, out)
        if as_json:
            print_json({"folder": str(folder), **found})
            return
        print("\n".join([*told_result(found), f"written: {folder}"]))


def predict(
    model: Annotated[str, typer.Argument(help="Folder that `bessemer finetune` wrote.")],
    records: Annotated[
        Path | None, typer.Argument(metavar="[FILE.jsonl]", help="Records with the fields that the task reads.")
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option("--field", metavar="NAME=TEXT", help="A field of one record given here.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Which task, where the model learnt several.")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Tell of each label how sure the model is, as ANSWER_probabilities.")
    ] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of JSON lines.")] = False,
) -> None:
    """Answer records with a fine-tuned model: JSON lines in, the same lines with the answer out.

    `bessemer predict bessemer-data/finetuned/mood --field sentence="What a fine day"` answers one.
    """
    with told_errors():
        from flows.finetuning import answered, fields_given, read_records
        from model.errors import InputError

        if (records is None) == (not field):
            raise InputError("give a file of records, or the fields of one with --field NAME=TEXT")
        given = read_records(records) if records is not None else [fields_given(field or [])]
        found = answered(root, model, task, given, probabilities=probabilities)
        if as_json:
            print_json(found)
            return
        for record in found:
            print(json.dumps(record, ensure_ascii=False))
