"""Looking at vocabularies."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.common import DEFAULT_ROOT, Json, Root, RunId, console, print_json, tell_run, told_errors


def tokens(
    text: Annotated[str, typer.Argument(help="What to write in tokens.")],
    root: Root = DEFAULT_ROOT,
    run_id: RunId = None,
    as_json: Json = False,
) -> None:
    """Show a text in the tokens of a run's vocabulary; where that extends a base, before and after.

    Pieces alternate in colour; in a pipe each ends in |. `[UNK]` stands, in red, before text that its token loses.
    """
    with told_errors():
        from flows.models.tokenizers import pieces_of
        from flows.runs.lineage import artifacts_reaching, open_run

        record = open_run(root, run_id, needs="vocab")
        views = pieces_of(artifacts_reaching("vocab", record, root)["vocab"], text)
        tell_run(record)
        if as_json:
            print_json([{key: view[key] for key in ("title", "pieces", "ids", "unknown")} for view in views])
            return
        from flows.inspection.terminal import print_views

        print_views(views, console(), full=True)


def bases(
    text: Annotated[
        Path, typer.Argument(metavar="FILE", help="Path of a file of plain text, such as the models will read.")
    ],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="BASE...",
            help="Vocabularies (.model, tokenizer.json, vocab.txt), folders with some, or folders of runs or of their"
            " vocab artifacts.",
        ),
    ],
    score_bytes: Annotated[
        int,
        typer.Option(min=0, help="Where weights lie beside a vocabulary: bytes of the text to score; 0 for none."),
    ] = 50_000,
    as_json: Json = False,
) -> None:
    """Compare released bases on a text of yours, the fewest tokens first: a help to choose one.

    A folder with a model's weights (safetensors) beside its vocabulary is also scored: bits per byte of the text before
    any training, which can be compared across vocabularies.
    """
    with told_errors():
        from flows.models.tokenizers import compare_tokenizers
        from flows.reports.terminal import tokenizers_table

        found = compare_tokenizers(text, files, score_bytes)
        if as_json:
            print_json(found)
        else:
            console().print(tokenizers_table(found))
            for line in found:
                if line["note"]:
                    console().print(f"{line['path']}: no bits per byte: {line['note']}", style="yellow", markup=False)
