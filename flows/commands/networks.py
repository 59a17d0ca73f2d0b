"""Published networks, and trained ones for other programs."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.commands.cards import Licence
from flows.commands.models import Model
from flows.commands.options import DEFAULT_ROOT, Json, Root
from flows.commands.output import console, print_json, told_errors


def presets(as_json: Json = False) -> None:
    """List the published networks that `train.model.preset` knows, and what training each one takes.

    Parameters are counted with the published vocabulary; a run's own may have fewer rows. Memory is that of weights,
    gradients and AdamW's moments, over all ranks; activations come besides.
    """
    with told_errors():
        from model.presets.counting import preset_costs

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
        from flows.exporting import export_transformers

        assert form == "transformers", "typer lets nothing else through"
        class_name = export_transformers(root, model, folder, licence)
        if as_json:
            print_json({"folder": str(folder), "class": class_name})
        else:
            typer.echo(f"{folder}: load it with transformers.{class_name}.from_pretrained and AutoTokenizer")
