"""`bessemer data`: what stages did to documents, steps, benchmark items and text."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.common import (
    DEFAULT_ROOT,
    CommandGroup,
    Json,
    Root,
    Run,
    RunId,
    Verbose,
    Yes,
    of_home,
    print_found,
    print_run_header,
    utf8,
)

if TYPE_CHECKING:
    from rich.console import Console

data = typer.Typer(
    name="data",
    cls=CommandGroup,
    help="Documents and tokens of a run: what each stage did to them, and why.",
    no_args_is_help=True,
)


@data.command()
def peek(
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="sample, clean, dedup, decontaminate, vocab or chunk.")],
    root: Root = DEFAULT_ROOT,
    run_id: RunId = None,
    count: Annotated[int, typer.Option("-n", min=1, help="How many to show.")] = 5,
    source: Annotated[str | None, typer.Option(help="Only documents of this source.")] = None,
    rule: Annotated[str | None, typer.Option(help="Only what this edit or rule changed, e.g. --rule emoji.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of documents.")] = 1,
    full: Annotated[bool, typer.Option("--full", help="Whole texts.")] = False,
    as_json: Json = False,
) -> None:
    """Show a few documents before and after a stage of a run.

    sample: as read; clean: what edits changed and what rules dropped; dedup: a duplicate next to the kept document;
    decontaminate: the cut in its context, with the item; vocab: text in tokens; chunk: a sequence, its documents, and
    the network's input and target (hidden tokens red, their replacements green). Red was removed, green was added, cyan
    is in both; in a pipe [-red-], {+green+} and <cyan>.
    """
    from flows.inspection.preview import NOTHING, VIEWS
    from flows.inspection.preview import peek as look
    from flows.inspection.preview_rows import Selection
    from flows.inspection.terminal import print_views
    from flows.runs.lineage import artifacts_with_stage, open_run
    from model.data.without_pandas import leave_out_pandas
    from model.errors import RecipeError

    if stage == "train":
        raise RecipeError("peek train: `bessemer data step RUN N` shows what a training step read")
    if stage == "evaluate":
        raise RecipeError(
            "peek evaluate: its artifact holds scores and samples of text, not the model's pick for each item;"
            " `bessemer runs report RUN` shows them"
        )
    leave_out_pandas()
    record = open_run(root, run_id)
    artifacts = artifacts_with_stage(stage, record, root) if stage in VIEWS else {}
    views = look(artifacts, stage, Selection(count, seed, source, rule))
    print_run_header(record)

    def show(shown: "Console") -> None:
        print_views(views, shown, full=full)
        if not views:
            shown.print(f"{stage} {NOTHING[stage]}{f' of the source {source}' if source else ''}", markup=False)

    print_found(views, as_json, show)


MOST_LIVES = 5


@data.command()
def history(
    document: Annotated[
        str, typer.Argument(metavar="DOCUMENT", help="Document id (or its beginning), or a part of its path.")
    ],
    root: Root = DEFAULT_ROOT,
    run_id: RunId = None,
    as_json: Json = False,
) -> None:
    """Show a document's history: its file and record, and the steps that trained on it or the rule that removed it."""
    from flows.runs.document_history import histories_of
    from flows.runs.lineage import open_run, run_artifacts, run_that_trained
    from flows.runs.record import RUNNING, root_option, state_of
    from flows.runs.run_documents import documents_by_file, find_documents, rejects_of
    from flows.runs.unsampled_files import explain_passed_over, explain_unsampled, listed_files
    from model.data.without_pandas import leave_out_pandas
    from model.errors import InputError
    from tasks.common.text import counted

    leave_out_pandas()
    record = open_run(root, run_id)
    artifacts = run_artifacts(record)
    found = find_documents(artifacts, document)
    rejects = rejects_of(artifacts, document)
    others: list[str] = []
    if not found and not rejects:
        files = listed_files(root, record["run_id"], document, artifacts["sample"])
        by_file = documents_by_file(artifacts, [(one.file.source, one.file.relative) for one in files])
        found = [doc_id for of_file in by_file.values() for doc_id in of_file]
        others = [
            explain_unsampled(one, artifacts["sample"])
            for one in files
            if not by_file[one.file.source, one.file.relative]
        ]
        if not files:
            others = explain_passed_over(root, record["run_id"], document)
        if not files and not others:
            raise InputError(
                f"data history {document}: run {record['run_id']} sampled no document of this id or path and"
                f" rejected no record of it, and no source lists such a file. Give the beginning of an id or a part"
                f" of the file's path, or name another run with --run."
            )
    ended = state_of(record) != RUNNING
    lives = histories_of(artifacts, found[:MOST_LIVES], ended=ended)
    print_run_header(record)

    def show(shown: "Console") -> None:
        from flows.reports.terminal import print_document_history, print_rejected_record

        if run_id is None and (trained := run_that_trained(root, record)):
            words = f"{shlex.quote(document)} --run {trained}{root_option(root)}"
            hint = f"this run did not train; the latest that did: bessemer data history {words}"
            shown.print(hint, style="dim", markup=False, soft_wrap=True)
        for sentence in others:
            shown.print(sentence, markup=False)
        for life in lives:
            print_document_history(life, shown)
        for reject in rejects[:MOST_LIVES]:
            print_rejected_record(reject, shown)
        hidden = (("document", len(found) - MOST_LIVES), ("rejected record", len(rejects) - MOST_LIVES))
        if more := " and ".join(counted(count, f"more {what}") for what, count in hidden if count > 0):
            shown.print(f"... and {more}; give a longer id or path, or --json", markup=False)

    print_found({"documents": lives, "rejects": rejects, "others": others}, as_json, show)


@data.command()
def forget(
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="DOC", help="Document ids (or beginnings), or parts of paths.")
    ] = None,
    source: Annotated[list[str] | None, typer.Option(help="All documents of this source; repeatable.")] = None,
    file: Annotated[list[str] | None, typer.Option(help="All records of this file; repeatable.")] = None,
    licence: Annotated[list[str] | None, typer.Option(help="All sources of this licence; repeatable.")] = None,
    promote: Annotated[
        bool, typer.Option("--promote", help="Let near-duplicates that were dropped take a document's place.")
    ] = False,
    refill: Annotated[
        bool, typer.Option("--refill", help="Let other rows take the free places in the order; leaves no tombstones.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what it would do; train and remove nothing.")] = False,
    yes: Yes = False,
    check: Annotated[
        Path | None,
        typer.Option(
            callback=of_home, help="Say whether this certificate names the texts in the files DOC; remove nothing."
        ),
    ] = None,
    salt: Annotated[str, typer.Option(help="The salt that was shown with the certificate, for --check.")] = "",
    root: Root = DEFAULT_ROOT,
    run_id: RunId = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train a run's model as if documents had never been there, and delete what the run holds of them.

    First the data stages are built without them, and the plan names what saw them and the step from which training is
    repeated: the last of `train.lasting_checkpoints` before their first use. Then the model is trained, the artifacts
    and pages of the run before are overwritten and removed, and a certificate is written to `forgotten/`. Killed at any
    point, the same command without arguments goes on. With --json nothing is asked, and without --yes the plan is all.
    """
    from flows.commands.forgetting import carry_out, plan_values, print_certified, print_plan
    from flows.nightly.history import list_nights
    from flows.removal.affected import Request, find_leaving, recipe_without, with_files
    from flows.removal.carry_out import decide, read_pending
    from flows.removal.replay import build_data, changed_sources, plan_replay
    from flows.runs.lineage import open_run, run_artifacts
    from flows.runs.record import recipe_of
    from model.errors import InputError

    if check is not None:
        print_certified(check, salt, [Path(text) for text in documents or ()], as_json)
        return
    pending = read_pending(root)
    named = Request(
        tuple(documents or ()), tuple(source or ()), tuple(file or ()), tuple(licence or ()), promote, refill
    )
    if pending is not None:
        if named != Request():
            raise InputError(
                f"data forget: the removal from the run {pending.before} has not ended. Run `bessemer data forget`"
                f" without arguments to end it, then ask again."
            )
        carry_out(root, pending, as_json, verbose)
        return
    record = open_run(root, run_id, needs="evaluate")
    before, recipe = run_artifacts(record), recipe_of(root / "runs" / record["run_id"])
    leaving = find_leaving(root, record["run_id"], before, recipe, named)
    # Of other runs only the digest of all files is kept.
    files = next((night.files for night in list_nights(root) if night.run_id == record["run_id"]), {})
    without = recipe_without(with_files(recipe, files), record["run_id"], before, leaving, named)
    after = build_data(without, root)
    replay = plan_replay(before, after["chunk"], without.train)
    changed = changed_sources(before["sample"], after["sample"])
    print_run_header(record)
    # One of the two, since each asks an object store what it keeps.
    values = plan_values(root, leaving, replay, without, changed) if as_json else None
    if not as_json:
        print_plan(root, leaving, named, replay, without, changed)
    if plan or not (yes or (not as_json and typer.confirm("Train again and delete?"))):
        print_found(values, as_json)
        return
    decided = decide(root, record["run_id"], without, before["sample"], leaving, named, replay)
    carry_out(root, decided, as_json, verbose, values)


@data.command()
def step(
    run_id: Run,
    number: Annotated[int, typer.Argument(metavar="N", help="Step number; the first is 0.")],
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """List the documents that a training step read, with some of their text."""
    from flows.reports.terminal import print_step
    from flows.runs.lineage import open_run, run_artifacts
    from flows.runs.run_documents import step_of
    from model.data.without_pandas import leave_out_pandas

    leave_out_pandas()
    record = open_run(root, run_id, needs="train")
    found = step_of(run_artifacts(record), number)
    print_run_header(record)
    print_found(found, as_json, lambda shown: print_step(found, record["run_id"], root, shown))


@data.command()
def leaks(
    benchmarks: Annotated[
        list[str] | None, typer.Argument(metavar="BENCHMARK", help="Benchmarks whose items to list.")
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only items that are leaked, clean or unmatchable; repeatable.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    run_id: RunId = None,
    as_json: Json = False,
) -> None:
    """List benchmark items as leaked (and where), clean or unmatchable; without a benchmark's name, count them."""
    from flows.metrics.run_metrics import leaks as count_states
    from flows.reports.terminal import STATES, format_item_states, list_items
    from flows.runs.lineage import open_run, run_artifacts
    from model.data.without_pandas import leave_out_pandas
    from model.errors import RecipeError
    from tasks.artifacts.results import DecontaminateResult

    unknown = sorted(set(state or ()) - set(STATES))
    if unknown:
        raise RecipeError(f"--state {unknown[0]}: an item is one of {', '.join(STATES)}")
    leave_out_pandas()
    record = open_run(root, run_id, needs="decontaminate")
    artifacts = run_artifacts(record)
    counts = count_states(DecontaminateResult.of(artifacts["decontaminate"].report))
    names = benchmarks or ([line["benchmark"] for line in counts] if state or as_json else [])
    items = list_items(artifacts, names, state or list(STATES))
    print_run_header(record)

    def show(shown: "Console") -> None:
        from flows.reports.tables import leaks_table
        from flows.reports.terminal import print_benchmark_item

        if not names:
            shown.print(table.rich() if (table := leaks_table(counts)) else "the run checked no benchmarks")
            return
        for item in items:
            print_benchmark_item(item, shown)
        shown.print(format_item_states(items))

    print_found({"benchmarks": counts, "items": items}, as_json, show)


@data.command()
def tokens(
    text: Annotated[str, typer.Argument(metavar="TEXT", callback=utf8, help="The text to tokenize.")],
    root: Root = DEFAULT_ROOT,
    run_id: RunId = None,
    as_json: Json = False,
) -> None:
    """Show a text in the tokens of a run's vocabulary; if it extends a base, before and after.

    Tokens alternate in colour; in a pipe each ends in |. A red `[UNK]` precedes text that the unknown token loses.
    """
    from flows.inspection.terminal import print_views
    from flows.models.tokenizers import tokens_of_text
    from flows.runs.lineage import artifacts_with_stage, open_run

    record = open_run(root, run_id, needs="vocab")
    views = tokens_of_text(artifacts_with_stage("vocab", record, root)["vocab"], text)
    print_run_header(record)
    shown_keys = ("title", "pieces", "ids", "unknown")
    found = [{key: view[key] for key in shown_keys} for view in views]
    print_found(found, as_json, lambda shown: print_views(views, shown, full=True))


@data.command()
def tokenizers(
    text: Annotated[
        Path, typer.Argument(metavar="FILE", help="Path of a file of plain text, such as the models will read.")
    ],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="BASE",
            help="Vocabularies (.model, tokenizer.json, vocab.txt), folders with some, or folders of runs or of their"
            " vocab artifacts.",
        ),
    ],
    score_bytes: Annotated[
        int, typer.Option(min=0, help="Bytes of the text to score with folders that have weights; 0 for none.")
    ] = 50_000,
    as_json: Json = False,
) -> None:
    """Compare released tokenizers on a text of yours, the fewest tokens first.

    A folder that also has a model's weights (safetensors) is scored too: bits per byte of the text before any training,
    which can be compared across vocabularies.
    """
    from flows.models.tokenizers import compare_tokenizers
    from flows.reports.terminal import tokenizers_table

    found = compare_tokenizers(text, files, score_bytes)

    def show(shown: "Console") -> None:
        shown.print(tokenizers_table(found).rich())
        for line in found:
            if line["note"]:
                shown.print(f"{line['path']}: no bits per byte: {line['note']}", style="yellow", markup=False)

    print_found(found, as_json, show)
