"""Print estimates of the calculator and of recipes in a terminal, in 80 columns."""

import math
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape

from flows.metrics.formatting import format_bytes, format_count, format_duration
from flows.metrics.statistics import Interval
from flows.planning.cost_model import SECONDS_PER_DAY
from flows.planning.layout_search import LayoutSection, StartedLayout, TriedLayout
from flows.planning.values import RecipePlan, TrainingEstimate
from flows.reports.document import PAGE_WIDTH, Styled, Table
from tasks.sample.config import GOOD_EPOCHS

MAX_DAYS_IN_HOURS = 2
"""Days up to which a time is printed in hours."""

MAX_NAME_CHARS = 16


def print_plan(plan: RecipePlan, console: Console) -> None:
    """Print the plan of `plan_recipe`: pilot, stages, sources, training, compute-optimal sizes, warnings."""
    pilot = plan["pilot"]
    documents = sum(source["documents"] for source in pilot["sources"].values())
    console.print(
        f"recipe [bold]{escape(plan['recipe'])}[/]: a pilot of {documents:,} documents took"
        f" {format_duration(pilot['seconds'])}",
        width=PAGE_WIDTH,
    )
    _print_stages(plan, console)
    _print_sources(plan, console)
    print_training(plan["training"], console)
    _print_optimal_sizes(plan, console)
    _print_yields(plan, console)
    for warning in plan["warnings"]:
        console.print(f"[yellow]![/] {escape(warning)}", width=PAGE_WIDTH)


def _print_stages(plan: RecipePlan, console: Console) -> None:
    rows: list[tuple[object, ...]] = []
    for line in plan["stages"]:
        documents, peak, tokens = line["documents"], line["pilot_peak_bytes"], line["tokens"]
        rows.append(
            (
                line["stage"],
                format_count(documents.value),
                _range(documents),
                format_bytes(line["bytes"].value) if tokens is None else f"{format_count(tokens.value)} tok",
                format_bytes(line["disk_bytes"]),
                format_bytes(peak) if peak is not None else None,
                format_duration(line["seconds"]),
            )
        )
    disk, seconds = (sum(line[key] for line in plan["stages"]) for key in ("disk_bytes", "seconds"))
    rows.append(("total", "", "", "", format_bytes(disk), "", format_duration(seconds)))
    columns = ("stage", "documents", "95%", "text", "disk", "memory", "time here")
    console.print(Table(columns, rows, marked=[len(rows) - 1]).rich(PAGE_WIDTH))
    training = plan["disk_of_training"]
    console.print(
        f"[dim]after each stage; memory is the pilot's peak, time is extrapolated at the recipe's workers (sample: only"
        f" reading). Training adds {format_bytes(training['model_bytes'])}, and"
        f" {format_bytes(training['checkpoint_bytes'])} of checkpoints while it runs; evaluate is not included.[/]\n",
        width=PAGE_WIDTH,
    )


def _range(interval: Interval) -> str:
    low, high = interval.low, interval.high
    return f"{format_count(low)}-{format_count(high)}" if low != high else "exact"


def _print_sources(plan: RecipePlan, console: Console) -> None:
    rows = [
        (
            line["source"][:MAX_NAME_CHARS],
            format_count(line["tokens"].value),
            _range(line["tokens"]),
            f"{line['removed_as_duplicates'].value:.0%}",
            f"{line['weight']:.2f}",
            format_count(line["read_tokens"]),
            Styled(f"{line['epochs']:.2f}", "" if (line["wanted_epochs"] or 0) <= GOOD_EPOCHS else "yellow"),
        )
        for line in plan["sources"]
    ]
    columns = ("source", "tokens", "95%", "duplicates", "weight", "read", "epochs")
    console.print(Table(columns, rows).rich(PAGE_WIDTH))
    console.print()


def _print_optimal_sizes(plan: RecipePlan, console: Console) -> None:
    sizes = plan["optimal_sizes"]
    days = sizes["days_for_data"]
    hours = "" if days is None else f";\n{_time(days)} on this hardware"
    rows = [
        (
            "for the data",
            format_count(sizes["parameters_by_data"]),
            f"{format_count(sizes['unique_tokens'])} tokens x {sizes['epochs']:g} epochs, worth"
            f" {format_count(sizes['effective_tokens'])} new ones{hours}",
        )
    ]
    if "bound" in sizes and "parameters_by_hours" in sizes:
        note = f"20 tokens per parameter in {sizes['days']:g} days"
        rows.append(("for the time", format_count(sizes["parameters_by_hours"]), note))
        rows.append(("limited by", sizes["bound"], ""))
    else:
        rows.append(("for the time", "-", "add --days" if days is not None else "name the hardware"))
    _print_rows("optimal size", rows, console)


def _time(days: float) -> str:
    return format_duration(days * SECONDS_PER_DAY) if days < MAX_DAYS_IN_HOURS else f"{days:,.1f} days"


def _print_rows(title: str, rows: Iterable[tuple[str, str, str]], console: Console) -> None:
    notes = [(name, value, Styled(note, "dim")) for name, value, note in rows]
    console.print(Table((title, "", "note"), notes, texts=("note",)).rich(PAGE_WIDTH))
    console.print()


def _print_yields(plan: RecipePlan, console: Console) -> None:
    """Print the measured tokens per byte as lines for the recipe, with which sampling needs less slack."""
    yields = {line["source"]: line["tokens_per_byte"] for line in plan["sources"] if line["tokens_per_byte"]}
    if not yields:
        return
    measured = ", ".join(f'"{name}" = {value:.4g}' for name, value in yields.items())
    console.print("[dim]lines for the recipe's table \\[sample], which need less slack because they are measured[/]")
    console.print(f"slack = 1.2\ntokens_per_byte = {{ {measured} }}\n", markup=False, highlight=False, soft_wrap=True)


def _idle_experts(training: TrainingEstimate) -> str:
    """Return the number of all weights where a token uses only some of them."""
    total = training["total_parameters"]
    return f"that a token uses, of {format_count(total)} with all experts" if total > training["parameters"] else ""


def print_training(training: TrainingEstimate, console: Console) -> None:
    """Print FLOPs, time, speed, cost and memory of one training."""
    tokens, parameters = training["tokens"], training["parameters"]
    rows: list[tuple[str, str, str]] = [
        ("parameters", format_count(parameters), _idle_experts(training)),
        ("tokens", format_count(tokens), f"{tokens / parameters:.3g} per parameter"),
        ("FLOPs", f"{training['flops']:.3g}", f"{training['flops_per_token']:.3g} per token, {training['attention']}"),
    ]
    peak = training["hardware_source"]
    if training["peak_flops"] is not None:
        peak = f"peak {_teraflops(training['peak_flops'])} each, {training['arithmetic']}"
    rows.append(("hardware", f"{training['devices']:g} x {training['hardware']}", peak))
    if training["days"] is not None:
        rows.append(("time", _time(training["days"]), training["origins"]["days"]))
    if training["sustained_flops"] is not None:
        rows.append(("sustained", _teraflops(training["sustained_flops"]), "per device"))
    if training["mfu"] is not None:
        rows.append(("MFU", f"{training['mfu']:.1%}", training["origins"]["mfu"]))
    if training["cost"] is not None:
        hours = f"{_amount(training['device_hours'] or 0.0)} device hours at {training['price']:g}"
        rows.append(("cost", _amount(training["cost"]), hours))
    _print_rows("training", rows, console)
    _print_memory(training, console)


def _amount(number: float) -> str:
    """Return a whole number, or below 10 two digits, so that what costs little does not read as nothing."""
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.2g}"


def _teraflops(flops: float) -> str:
    return f"{flops / 1e12:.3g} TFLOP/s"


def _print_memory(training: TrainingEstimate, console: Console) -> None:
    limit = training["memory_bytes"]
    fits = math.inf if limit is None else limit
    layouts = list(training["memory"].values())
    sizes = {part: [layout.parts[part] for layout in layouts] for part in layouts[0].parts}
    rows: list[tuple[object, ...]] = [
        (part, *("unknown" if size is None else format_bytes(size) for size in found))
        for part, found in sizes.items()
        if any(size is None or size for size in found)
    ]
    cells = [f"{'> ' if layout.total is None else ''}{format_bytes(layout.at_least)}" for layout in layouts]
    red = [layout.at_least > fits for layout in layouts]
    peak = "peak" + ("" if limit is None else f", of {format_bytes(limit)}")
    rows.append((peak, *(Styled(cell, "red" if above else "") for cell, above in zip(cells, red, strict=True))))
    columns = ("memory of a device", *training["memory"])
    console.print(Table(columns, rows, marked=[len(rows) - 1]).rich(PAGE_WIDTH))
    why = {layout.unknown for layout in layouts if layout.total is None}
    notes = [
        "peak: the most at one time, because not all parts are in memory together; weights and gradients are float32",
        "ZeRO has a second copy of its shard of the weights (in optimizer) and starts with the whole network",
        *(f"activations are unknown: {reason}" for reason in sorted(why)),
        *(["red: does not fit"] if any(red) else []),
    ]
    console.print(f"[dim]{'; '.join(notes)}[/]\n", width=PAGE_WIDTH)


def print_layouts(section: LayoutSection, console: Console) -> None:
    """Print `layout_section`: memory and messages of each kind of rank, what micro-batches keep, the search."""
    if section["own"] is not None:
        _print_layout(section["recipe"], section["own"], console)
        kept = [
            (line["rows"], format_bytes(line["recomputed"]), format_bytes(line["whole"])) for line in section["kept"]
        ]
        console.print(Table(("rows of a micro-batch that keeps", "recomputed", "else"), kept).rich(PAGE_WIDTH))
        console.print()
    else:
        console.print(
            f"[dim]train.engine is {section['engine']}, which starts each rank with the whole network; only layouts of"
            f" FSDP, tensor and pipeline parallelism are started dry.[/]\n",
            width=PAGE_WIDTH,
        )
    if section["tried"] and section["memory_bytes"] is not None:
        _print_tried(section["tried"], section["memory_bytes"], console)
    if section["refused"]:
        console.print(f"[dim]not tried: {escape(section['refused'])}[/]", width=PAGE_WIDTH)


def _print_layout(title: str, layout: StartedLayout, console: Console) -> None:
    ranks = layout["ranks"]
    console.print(
        f"[bold]{escape(title)}[/]: {layout['layout']}; micro-batches a step: {layout['micro_batches']}, bubble:"
        f" {layout['bubble']:.1%}",
        width=PAGE_WIDTH,
    )
    sizes = {
        "weights": [rank.weights for rank in ranks],
        "gradients": [rank.gradients for rank in ranks],
        "optimizer": [rank.optimizer for rank in ranks],
        "activations": [rank.activations for rank in ranks],
        "peak": [rank.peak for rank in ranks],
    }
    messages = {
        "all gather": [rank.messages.all_gather for rank in ranks],
        "reduce scatter": [rank.messages.reduce_scatter for rank in ranks],
        "tensor sums": [rank.messages.tensor_sums for rank in ranks],
        "sums": [rank.messages.sums for rank in ranks],
        "sends": [rank.messages.sends for rank in ranks],
    }
    sizes |= {f"{kind} a step": sent for kind, sent in messages.items() if any(sent)}
    rows = [(name, *map(format_bytes, of_ranks)) for name, of_ranks in sizes.items()]
    columns = ("a rank of stage", *(str(rank.stage) for rank in ranks))
    console.print(Table(columns, rows, marked=[4]).rich(PAGE_WIDTH))
    flight = ", ".join(f"{rank.in_flight} x {format_bytes(rank.kept)}" for rank in ranks)
    console.print(
        f"[dim]activations: micro-batches in flight x what each keeps ({flight}); the peak has gathered weights,"
        f" messages and the block that is computed besides; counted on fake ranks in one process[/]\n",
        width=PAGE_WIDTH,
    )


def _print_tried(tried: Sequence[TriedLayout], memory_bytes: float, console: Console) -> None:
    best = tried[0]
    rows = [
        (
            line["layout"],
            Styled(format_bytes(line["peak"]), "" if line["fits"] else "red"),
            f"{line['bubble']:.1%}",
            f"{line['seconds'] / best['seconds']:.2f}",
        )
        for line in tried
    ]
    title = f"layouts for {format_bytes(memory_bytes)}"
    console.print(Table((title, "peak", "bubble", "relative time"), rows, texts=()).rich(PAGE_WIDTH))
    if best["fits"]:
        keys = ", ".join(f"train.{name} = {value}" for name, value in best["settings"].items())
        console.print(f"the cheapest that fits: {keys}", width=PAGE_WIDTH, markup=False, highlight=False)
    else:
        console.print("none of them fits; more devices, or train.recompute = true", width=PAGE_WIDTH)
    console.print(
        "[dim]time: arithmetic at half of the peak, and all messages at the makers' speeds as if nothing were computed"
        " meanwhile; it ranks layouts and is no forecast[/]",
        width=PAGE_WIDTH,
    )
