"""The tables of a run, from its metrics: the terminal, Prefect's artifacts and the model card show the same ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from flows.metrics.formatting import format_count, format_duration, format_language, format_shots
from flows.metrics.heldout import HELDOUT_METRICS, format_heldout_metric, mean_words
from flows.metrics.lines import BenchmarkLine, BitsLine, HeldoutLine, RuleLine, SourceLine, StageLine
from flows.reports.charts.data import PASSED
from flows.reports.charts.scores import MEAN, PREDICTORS, chance_of, score_error, score_tables
from flows.reports.document import Table
from tasks.artifacts.tables.rows import GapRow, ScoreRow
from tasks.execution.outcome import with_short_digests

MAX_RULES = 12


def stages_table(stages: Sequence[StageLine]) -> Table:
    """Return a row for each stage: outcome, time, result, and why it was built or not."""
    rows = [
        (
            line["stage"],
            line["outcome"],
            format_duration(line["seconds"]) if "seconds" in line else None,
            f"{format_count(line['result']['amount'])} {line['result']['unit']}" if "result" in line else "",
            line.get("error") or with_short_digests(line.get("cause", "")),
        )
        for line in stages
    ]
    return Table(("stage", "outcome", "time", "result", "why"), rows, texts=("outcome", "why"))


def funnel_table(lines: Sequence[Mapping[str, Any]]) -> Table | None:
    """Return the documents of each source through the stages; None without documents."""
    if not lines:
        return None
    stages = [stage for stage in PASSED if stage in lines[0]]
    columns = ("source", "read", *(PASSED[stage] for stage in stages), "held out", "kept")
    rows = [
        (
            line["source"],
            *(line[key] for key in ("read", *stages, "held_out")),
            f"{line[stages[-1]] / line['read']:.0%}" if line["read"] else None,
        )
        for line in lines
    ]
    return Table(columns, rows, title="documents")


def sources_table(mixture: Sequence[SourceLine], bits_per_byte: Sequence[BitsLine]) -> Table | None:
    """Return the mixture and the held-out bits per byte by source; None without a mixture."""
    mixed = {line["source"]: line for line in mixture}
    bits = {line["source"]: line for line in bits_per_byte if line.get("model") is not None}
    if not mixed:
        return None
    held_out = ("bits/B", "5-gram", "unigram", "xz") if bits else ()
    rows: list[tuple[object, ...]] = []
    for source in [*mixed, *(source for source in bits if source not in mixed)]:
        cells: tuple[str, ...] = ("", "", "", "")
        if line := mixed.get(source):
            shares = (f"{100 * line[key]:.1f}%" for key in ("planned_share", "realised_share"))
            cells = (*shares, format_count(line["tokens"]), f"{line['epochs']:.2f}")
        rows.append((source, *cells, *(_bits(bits.get(source, {})) if bits else ())))
    note = "all: unweighted mean of the sources; bits per byte on held-out text, lower is better"
    columns = ("source", "planned", "read", "tokens", "epochs", *held_out)
    whole = [number for number, row in enumerate(rows) if row[0] == "all"]
    return Table(columns, rows, title="mixture and held-out text", note=note if whole else "", marked=whole)


def _bits(line: Mapping[str, Any]) -> list[str | None]:
    return [f"{line[who]:.3f}" if line.get(who) is not None else None for who, _ in PREDICTORS]


def bits_table(lines: Sequence[BitsLine]) -> Table | None:
    """Return held-out bits per byte by source, with baselines; None for a model without them."""
    rows = [
        (MEAN if line["source"] == "all" else line["source"], *_bits(line))
        for line in lines
        if line.get("model") is not None
    ]
    columns = ("source", *(name for _, name in PREDICTORS))
    return Table(columns, rows, title="Bits per byte on held-out text; lower is better.") if rows else None


def measures_table(lines: Sequence[HeldoutLine]) -> Table | None:
    """Return the held-out metrics of a BERT or T5 by source; None without them."""
    present = [measure for measure in HELDOUT_METRICS if any(line["metric"] == measure.metric for line in lines)]
    by_source: dict[str, dict[str, str]] = {}
    for line in lines:
        by_source.setdefault(line["source"], {})[line["metric"]] = format_heldout_metric(line)
    rows = [
        (f"all{mean_words(lines)}" if source == "all" else source, *(cells.get(one.metric) for one in present))
        for source, cells in sorted(by_source.items(), key=lambda item: (item[0] == "all", item[0]))
    ]
    return Table(("source", *(measure.words for measure in present)), rows) if rows else None


def scores_table(scores: Sequence[ScoreRow], gaps: Sequence[GapRow] = ()) -> Table | None:
    """Return the main metric of each benchmark and number of shots, on all, clean and leaked items, and chance."""
    rows = [
        (
            f"{found.task}, {format_shots(line.shots)}",
            found.metric,
            *(_score(line.cells.get(subset)) for subset in ("all", "clean", "leaked")),
            None if (chance := chance_of(line.cells.values())) is None else f"{100 * chance:.1f}",
        )
        for found in score_tables(scores, gaps)
        for line in found.lines
    ]
    columns = ("benchmark", "metric", "all items", "clean", "leaked", "chance")
    title = (
        "Benchmarks, ± 1.96 standard errors, with the number of items: all items, items that do not occur in the"
        " training text (clean), and items that do (leaked)."
    )
    return Table(columns, rows, title=title, texts=("metric",)) if rows else None


def _score(row: ScoreRow | None) -> str | None:
    if row is None or row["value"] is None:
        return None
    return f"{100 * row['value']:.1f}{score_error(row)} ({row['n']:,})"


def removed_table(lines: Sequence[RuleLine]) -> Table | None:
    """Return the rules that dropped most documents; None where none dropped any."""
    ordered = sorted(lines, key=lambda line: -line["documents"])
    rows = [(f"{line['stage']}: {line['rule']}", line["documents"]) for line in ordered[:MAX_RULES]]
    rest = ordered[MAX_RULES:]
    rows += [(f"{len(rest)} more rules", sum(line["documents"] for line in rest))] if rest else []
    return Table(("rule", "documents"), rows, title="Documents dropped by rule:") if rows else None


def leaks_table(lines: Sequence[BenchmarkLine]) -> Table | None:
    """Return benchmark items by state; None without benchmarks."""
    columns = ("benchmark", "items", "leaked", "still in the text", "clean", "too short to match")
    rows = [
        (line["benchmark"], line["items"], line["leaked"], line["remains"], line["clean"], line["unmatchable"])
        for line in lines
    ]
    return Table(columns, rows, title="Benchmark items found in the training text:") if rows else None


def recall_table(planted: Mapping[str, Any]) -> Table | None:
    """Return the recall of near-duplicate search by similarity, on injected copies, with the recall that the LSH bands
    let expect; None where none were injected."""
    rows = [
        (f"{low:g} to {high:g}", pairs, found, _share(found / pairs if pairs else None), _share(expected))
        for low, high, pairs, found, expected in planted.get("bins", ())
    ]
    title = "Injected copies found, by similarity:"
    columns = ("similarity", "injected", "found", "recall", "expected")
    return Table(columns, rows, title=title) if any(row[1] for row in rows) else None


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"


def language_table(found: Mapping[str, float]) -> Table | None:
    """Return tokens per character by language; None without languages."""
    rows = [(format_language(language), f"{value:.3f}") for language, value in found.items()]
    return Table(("language", "tokens per character"), rows) if rows else None
