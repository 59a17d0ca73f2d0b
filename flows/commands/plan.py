"""`bessemer init`, `check`, `plan` and `estimate`: a first recipe, what its text is like, what a run would build and
cost."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.common import (
    DEFAULT_ROOT,
    Json,
    Limit,
    RecipeName,
    Root,
    Settings,
    Untrusted,
    console,
    of_home,
    print_found,
    share,
)

if TYPE_CHECKING:
    from rich.console import Console

    from flows.planning.calculator import PlanOptions


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of your own text.")],
    output: Annotated[Path, typer.Option(callback=of_home, help="The recipe to write.")] = Path("recipe.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing recipe.")] = False,
    base_model: Annotated[
        Path | None,
        typer.Option(callback=of_home, help="The folder of a published model (Llama, Qwen, ...) to train further."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Write every key with its help, not only what is set.")] = False,
    unpack: Annotated[
        bool,
        typer.Option(
            "--unpack", help="First unpack archives, JSON, mail, notebooks, EPUB and subtitles into FOLDER/unpacked."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Scan a folder of your own text and write a short recipe for it, which runs unchanged.

    Reads the beginnings of some files for formats, sizes, fields, encodings and languages, and lists what cannot be
    read. Each subfolder becomes a source, more than ten small ones together. Vocabulary, network and budget follow
    from the amount of text; with --base-model the first two are that model's.
    """
    from flows.inspection.all_keys import write_recipe
    from flows.inspection.recipe_writer import scan_remarks, write_short_recipe
    from flows.inspection.scan import check_folder, scan_folder
    from flows.inspection.sizes import read_base_model
    from flows.inspection.terminal import print_scan, scan_values
    from model.errors import InputError, RecipeError
    from model.files import write_atomically

    check_folder(folder)
    if output.exists() and not force:
        raise RecipeError(f"--output {output} exists already; name another file, or overwrite it with --force")
    if unpack:
        from flows.inspection.unpack import UNPACKED, unpack_archives
        from tasks.common.text import counted

        if unpacked := unpack_archives(folder):
            print(f"unpacked {counted(len(unpacked), 'file')} into {folder / UNPACKED}", file=sys.stderr)
    base = None if base_model is None else read_base_model(base_model)
    survey = scan_folder(folder)
    text = (write_recipe if every else write_short_recipe)(survey, output.stem, base)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, text.encode())
    except OSError as error:
        raise InputError(f"--output {output}: cannot be written ({error.strerror})") from error
    remarks = scan_remarks(survey, base)
    found = {**scan_values(survey), "remarks": remarks, "recipe": str(output)}
    print_found(found, as_json, lambda shown: print_scan(survey, output, remarks, shown))


def check(
    recipe: RecipeName,
    root: Root = DEFAULT_ROOT,
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
) -> None:
    """Read a sample of each source of a recipe and show what a run would make of it, before anything is built.

    Shows fields that no record has, encodings, kinds of text, languages, and for each cleaning rule what it would drop,
    with documents to read. Reads at most 64 MB, however large the sources are. Exit code 3 if a source or benchmark
    cannot be read.
    """
    from flows.planning.check import check_recipe, print_check
    from flows.recipe.load import open_recipe
    from model.errors import InputError
    from model.kernel_cache import reporting_compilation

    waits = "compiling kernels, once after an installation: up to a minute"
    with reporting_compilation(lambda: print(waits, file=sys.stderr, flush=True)):
        found = check_recipe(open_recipe(recipe, root, settings or ()))
    sources = [{**asdict(source), "dropped_bytes": source.dropped_bytes} for source in found.sources]
    values = {"sources": sources, "benchmarks": found.benchmark_problem, "export": found.export_remark}
    values["losses"] = found.losses
    print_found(values, as_json, lambda shown: print_check(found, shown))
    if not found.is_well:
        raise typer.Exit(InputError.exit_code)


def plan(
    recipe: RecipeName,
    root: Root = DEFAULT_ROOT,
    limit: Limit = "100%",
    settings: Settings = None,
    untrusted: Untrusted = None,
    every: Annotated[bool, typer.Option("--all", help="Show every difference of a stage, not only the first.")] = False,
    as_json: Json = False,
) -> None:
    """Show which stages `run` would build and which it would reuse, with the first cause of each, and build nothing.

    A stage after one that will be built may still be reused: its identity has the content of its input, and a rebuild
    may give the same bytes. Of a shrunk twin (--set scale=tiny) it first shows the settings that differ from the
    recipe.
    """
    from flows.planning.explain import MEASURED, kept_aggregates, print_forecasts, print_sizes
    from flows.planning.explain import forecast_stages as foresee
    from flows.recipe.load import open_recipe, without_scale
    from flows.recipe.scales import changed_sizes

    given = settings or ()
    chosen = open_recipe(recipe, root, given, share(limit))
    if not as_json and without_scale(given) != list(given):
        print_sizes(changed_sizes(open_recipe(recipe, root, without_scale(given), share(limit)), chosen), console())
    forecasts = foresee(chosen, root)

    def show(shown: "Console") -> None:
        from rich.markup import escape

        from flows.planning.preconditions import export_remark

        print_forecasts(forecasts, shown, every=every)
        for run, what in kept_aggregates(chosen, root).items():
            shown.print(f"kept of {run}: {', '.join(what)}" if run != MEASURED else f"{run}: {', '.join(what)}")
        if remark := export_remark(chosen):
            shown.print(f"[yellow]![/] {escape(remark)}", soft_wrap=True)

    print_found(forecasts, as_json, show)


def estimate(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped one; without it, a calculator."),
    ] = None,
    root: Root = DEFAULT_ROOT,
    pilot: Annotated[str, typer.Option(help="Share of the recipe's text that the pilot runs on.")] = ("1%"),
    hardware: Annotated[
        str, typer.Option(help="v100, a100, a100-40gb, h100, h200, tpu-v4, tpu-v5e, tpu-v5p, or this (measured).")
    ] = "this",
    devices: Annotated[int | None, typer.Option(min=1, help="How many of them.")] = None,
    days: Annotated[float | None, typer.Option(min=0.0, help="Days that training may take.")] = None,
    mfu: Annotated[str | None, typer.Option(help="Share of the peak that training reaches, e.g. 40%.")] = None,
    hour_price: Annotated[float | None, typer.Option(min=0.0, help="Price of one device for an hour.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Calculator: tokens read, e.g. 300B.")] = None,
    parameters: Annotated[str | None, typer.Option(help="Calculator: parameters, e.g. 100B.")] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Calculator: counts attention, with the next two.")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Calculator: d_model.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Calculator: tokens that attention sees.")] = None,
    layout: Annotated[
        bool, typer.Option("--layout", help="Only start the recipe's ranks dry, and search a layout for --hardware.")
    ] = False,
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
) -> None:
    """Estimate what a recipe will cost, and how large a model its data and your hours are enough for.

    Runs a pilot, 1% of every source, from sample to chunk, and scales up what it measured: documents, tokens, disk,
    memory, hours; then the training's FLOPs, time, memory and price on the named hardware. If none of the text is on
    this machine yet, the mixture is planned from the sizes that the sources state: bessemer estimate gpt3.

    With --layout it starts ranks of the recipe's layout in this process, without devices, other ranks or memory, and
    counts what each holds and sends. With --hardware it searches data x tensor x pipeline x micro-batch for the
    cheapest layout that fits: bessemer estimate yalm_100b --layout --hardware a100 --devices 800.

    Without a recipe it is a calculator: it computes whichever of --tokens, --parameters, --devices, --days and --mfu is
    missing. The published numbers of YaLM-100B imply 12.8% MFU, 13.1% with attention counted:

    \b
    bessemer estimate --tokens 300B --parameters 100B --hardware a100
        --devices 800 --days 65 --layers 80 --width 10240 --context 1024
    """
    from flows.planning.calculator import PlanOptions, calculate
    from flows.planning.terminal import print_training
    from flows.recipe.counts import parse_count

    options = PlanOptions(
        hardware=hardware,
        devices=devices,
        days=days,
        mfu=None if mfu is None else share(mfu, "--mfu"),
        price=hour_price,
        tokens=parse_count(tokens, "--tokens") if tokens is not None else None,
        parameters=parse_count(parameters, "--parameters") if parameters is not None else None,
        layers=layers,
        width=width,
        context=context,
    )
    if recipe is not None:
        if layout:
            _estimate_layout(recipe, root, options, settings or (), as_json)
            return
        _estimate_recipe(recipe, root, share(pilot, "--pilot"), options, settings or (), as_json)
        return
    found = calculate(options)
    print_found(found, as_json, lambda shown: print_training(found, shown))


def _estimate_layout(name: str, root: Path, options: "PlanOptions", settings: Sequence[str], as_json: bool) -> None:
    from flows.planning.cost_model import THIS
    from flows.planning.layout_search import layout_section
    from flows.planning.terminal import print_layouts
    from flows.recipe.load import open_recipe

    device = None if options.hardware.lower() == THIS else options.device()
    found = layout_section(open_recipe(name, root, settings), device, options.devices)
    print_found(found, as_json, lambda shown: print_layouts(found, shown))


def _estimate_recipe(
    name: str, root: Path, pilot_share: float, options: "PlanOptions", settings: Sequence[str], as_json: bool
) -> None:
    from flows.planning.pilot import PilotBars
    from flows.planning.plan import has_local_text, plan_from_declared_sizes, plan_recipe, print_declared_sizes
    from flows.planning.terminal import print_plan
    from flows.recipe.load import open_recipe
    from flows.runs.record import check_writable

    recipe = open_recipe(name, root, settings)
    if not has_local_text(recipe.sample):
        declared = plan_from_declared_sizes(recipe, options)
        print_found(declared, as_json, lambda shown: print_declared_sizes(declared, shown))
        return
    check_writable(root)
    with PilotBars(console(stderr=True)) as bars:
        found = plan_recipe(recipe, root, pilot_share, options, bars)
    print_found(found, as_json, lambda shown: print_plan(found, shown))
