"""Using a trained model.

Published networks, and trained ones for other programs.

Teaching a trained model a task, and asking it.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from flows.commands.common import DEFAULT_ROOT, Json, Root, console, print_json, told_errors
from flows.commands.reports import Licence

Model = Annotated[
    str,
    typer.Argument(
        help="Run id or its beginning, `latest`, `current`, a model's folder (artifacts/train/ID), or one that"
        " `finetune` or `export` wrote."
    ),
]


def generate(
    model: Model,
    prompt: Annotated[
        str, typer.Option(help="Text to continue; ___, [MASK] or <extra_id_0> is a hole that T5 and BERT fill.")
    ] = "",
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens to write, in each hole of a T5's prompt.")] = 100,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")] = 0.8,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Keep the likeliest tokens of this total probability.")
    ] = 0.95,
    top_k: Annotated[int | None, typer.Option(min=1, help="Keep this many of the likeliest tokens.")] = None,
    samples: Annotated[int, typer.Option(min=1, max=1000, help="Texts to write from the one seed.")] = 1,
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 1,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Let a trained model write: a GPT goes on, a T5 fills holes or goes on, a BERT fills holes.

    `bessemer generate latest --prompt "Once upon a time"` continues a text. With a T5,
    `--prompt "Paris is the ___ of France and ___ of Texas."` writes a span into each hole; with a BERT each hole is one
    token, and its likeliest fillings are told. A fine-tuned T5 answers what its task's prefix asks.
    """
    with told_errors():
        from flows.models.generate import goes_on, write_text
        from flows.models.load import open_trained
        from model.inference.generate import Sampling

        sampling = Sampling(temperature, top_p, top_k, seed)
        trained = open_trained(root, model)
        tell = _say_nothing if as_json else _say
        written = []
        for sample in range(samples):
            tell(f"[{sample + 1}]\n" if samples > 1 else "")
            tell(prompt if goes_on(trained, prompt) else "")
            written.append(write_text(trained, prompt, sampling, tokens=tokens, sample=sample, tell=tell))
            tell("\n")
            if not as_json:
                _tell_holes(written[-1].holes)
        if as_json:
            texts = [{"text": one.text, **({"holes": one.holes} if one.holes else {})} for one in written]
            print_json({"prompt": prompt, **texts[0], **({"samples": texts} if samples > 1 else {})})


def harness(
    model: Model,
    tasks: Annotated[list[str], typer.Argument(help="Names of tasks, as their YAML files give them.")],
    folder: Annotated[Path, typer.Option(help="Folder with the YAML files of the tasks; their data are local files.")],
    shots: Annotated[int | None, typer.Option(min=0, help="Examples before each item, instead of the task's.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Items of each task.")] = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Score a GPT with EleutherAI's lm-evaluation-harness (the extra `lmeval`), on tasks of a folder, offline."""
    with told_errors():
        import importlib.util

        from model.errors import RecipeError

        if importlib.util.find_spec("lm_eval") is None:
            raise RecipeError(
                "harness: the package lm-eval is not installed. Install the extra `lmeval`, or take the scores of the"
                " evaluate stage, which need nothing more."
            )
        from flows.models.harness import harness_scores
        from flows.models.load import open_trained

        found = harness_scores(open_trained(root, model), folder, tasks, shots=shots, limit=limit)
        if as_json:
            print_json(found)
            return
        for task, figures in found.items():
            for metric, value in figures.items():
                if isinstance(value, float):
                    typer.echo(f"{task}  {metric.partition(',')[0]}  {value:.4f}")


def _say(text: str) -> None:
    """Text on stdout as it comes."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _say_nothing(_: str) -> None:
    """JSON is printed whole."""


def _tell_holes(holes: tuple[dict[str, Any], ...]) -> None:
    """What else a BERT would put into each hole, on stderr."""
    for number, hole in enumerate(holes, 1):
        if "likeliest" in hole:
            others = ", ".join(f"{one['text']} {one['probability']:.2f}" for one in hole["likeliest"])
            typer.secho(f"hole {number}: {others}", dim=True, err=True)


def presets(as_json: Json = False) -> None:
    """List the published networks that `train.model.preset` knows, and what training each one takes.

    Parameters are counted with the published vocabulary; a run's own may have fewer rows. Memory is that of weights,
    gradients and AdamW's moments, over all ranks; activations come besides.
    """
    with told_errors():
        from flows.planning.machine_speed import preset_costs

        costs = list(preset_costs())
        if as_json:
            print_json([asdict(cost) for cost in costs])
            return
        from rich.table import Table

        table = Table(box=None)
        table.add_column("preset")
        table.add_column("architecture")
        for title in ("parameters", "GB to train", "GFLOPs a token"):
            table.add_column(title, justify="right")
        for cost in costs:
            memory, work = cost.training_bytes / 1e9, cost.flops_a_token / 1e9
            table.add_row(cost.name, cost.architecture, f"{cost.parameters:,}", f"{memory:,.1f}", f"{work:,.2f}")
        console().print(table)


def export(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    form: Annotated[
        Literal["transformers"], typer.Option("--format", help="For which program: `transformers`.")
    ] = "transformers",
    licence: Licence = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Write a trained model with its vocabulary for Hugging Face's `transformers`, which computes the same logits.

    A GPT becomes a GPT-2, OPT, LLaMA or GPT-NeoX, whichever has its choices; where none has, what stands in the way is
    said, and what to train instead. The default network needs `train.model.embedding_norm = false`. The model card lies
    beside it as README.md.
    """
    with told_errors():
        from flows.models.export import export_transformers

        assert form == "transformers", "typer lets nothing else through"
        class_name = export_transformers(root, model, folder, licence)
        if as_json:
            print_json({"folder": str(folder), "class": class_name})
        else:
            typer.echo(f"{folder}: load it with transformers.{class_name}.from_pretrained and AutoTokenizer")


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
        from flows.models.finetune import finetune_model
        from model.engines.runtime import denormals_flushed
        from model.finetune.output import told_result

        with denormals_flushed():
            folder, found = finetune_model(root, model, task, out)
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
        from flows.models.finetune import answered, parse_fields, read_records
        from model.errors import InputError

        if (records is None) == (not field):
            raise InputError("give a file of records, or the fields of one with --field NAME=TEXT")
        given = read_records(records) if records is not None else [parse_fields(field or [])]
        found = answered(root, model, task, given, probabilities=probabilities)
        if as_json:
            print_json(found)
            return
        for record in found:
            print(json.dumps(record, ensure_ascii=False))
