"""Format numbers and texts for people: durations, counts, sizes and times; evidence of the ledger; labels of Plotly,
which reads HTML in them; and the Markdown of tables and code.
"""

import html
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from flows.metrics.escaping import escaped

SHORT_ID = 12
"""Characters of an id that distinguish the documents of a run."""

UNKNOWN_LANGUAGE = "unknown"
"""Language of documents that name none, in the vocabulary's comparison."""

SHOT_WORDS = {0: "zero-shot", 1: "one-shot"}

LOSS_UNITS = {
    "masked_lm": "nats (hidden tokens plus sentence pairs)",
    "span_corruption": "nats a target of the decoder",
}
"""Unit of the training loss by objective; `nats a token` for the others."""


def format_duration(seconds: float) -> str:
    """Return a duration such as `0.4 s`, `12 s`, `3 min 20 s`, `5 h 2 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_count(number: float) -> str:
    """Return a count such as `8,120`, `12.3K`, `1.2M`, `4.0B`."""
    # What would be rounded to a thousand of a unit is one of the next.
    for least, unit, letter in ((999.95e9, 1e12, "T"), (999.95e6, 1e9, "B"), (999.95e3, 1e6, "M"), (1e4, 1e3, "K")):
        if number >= least:
            return f"{number / unit:.1f}{letter}"
    return f"{number:,.0f}"


def format_bytes(number: float) -> str:
    """Return bytes as `812 B`, `1.2 MB`."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= 0.99995 * unit:
            return f"{number / unit:.1f} {name}"
    return f"{number:.0f} B"


def format_share(part: float, whole: float, digits: int) -> str:
    """Return a percentage; `<1%` or `<0.1%` for less than that, so that nothing that is there reads as none."""
    least = 10.0 ** -(2 + digits)
    return f"<{least:.{digits}%}" if part / whole < least else f"{part / whole:.{digits}%}"


def format_time(seconds: float | None) -> str:
    """Return UTC date and time of seconds since 1970; a dash for None."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds)) if seconds else "-"


def format_language(language: str) -> str:
    """Return a language as documents name it; `not given` for those that name none."""
    return "not given" if language == UNKNOWN_LANGUAGE else language


def format_shots(shots: int) -> str:
    """Return `zero-shot`, `one-shot`, `5-shot`."""
    return SHOT_WORDS.get(shots, f"{shots}-shot")


def count_outcomes(stages: Iterable[Mapping[str, Any]]) -> str:
    """Return the outcomes of the stages of a run's record: `2 built, 6 reused`."""
    counts = Counter(entry["outcome"] for entry in stages)
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


def loss_unit(rows: Mapping[str, Any]) -> str:
    """Return the unit of a training loss, given the description of chunk's rows."""
    return LOSS_UNITS.get(rows.get("objective", ""), "nats a token")


def describe_rows(found: Mapping[str, Any]) -> str:
    """Return what chunk's rows are: `causal_lm in 12,300 rows of 257 tokens, best_fit, 0.12% padding`."""
    how = found.get("denoising", "whole words" if found.get("whole_words") else "")
    text = (
        f"{found['objective']}{f' ({how})' if how else ''} in {found['rows']:,} rows of {found['row_length']:,} tokens,"
        f" {found['packing']}, {found['padding_share']:.2%} padding"
    )
    labels = found.get("labels", {})
    if not labels:
        return text
    shares = {name: labels.get(name, 0) / max(1, found["rows"]) for name in ("next", "not_next", "single")}
    return (
        f"{text}; the second segment follows the first in {shares['next']:.1%}, is of another document in"
        f" {shares['not_next']:.1%}, is missing in {shares['single']:.1%}"
    )


def describe_evidence(evidence: str | None) -> str:
    """Return a ledger row's evidence: `in favour of 3f0c81d2a9b4 · similarity 0.912`; unchanged if it is no JSON."""
    try:
        named = json.loads(evidence or "")
    except json.JSONDecodeError:
        return evidence or ""
    return " · ".join(_evidence_parts(named)) if isinstance(named, dict) else str(evidence)


def _evidence_parts(named: dict[str, Any]) -> list[str]:
    rest = dict(named)
    parts: list[str] = []
    if "survivor" in rest:
        parts.append(f"in favour of {rest.pop('survivor')[:SHORT_ID]}")
    if "earlier" in rest:
        parts.append(f"which the earlier dedup artifact {rest.pop('earlier')[:SHORT_ID]} holds")
    if "jaccard" in rest:
        parts.append(f"similarity {rest.pop('jaccard'):.3f}")
    if "benchmark" in rest and "item_id" in rest:
        parts.append(f"item {rest.pop('item_id')} of {rest.pop('benchmark')}")
    if "start" in rest and "end" in rest:
        parts.append(f"bytes {rest.pop('start'):,} to {rest.pop('end'):,}")
    return parts + [f"{key.replace('_', ' ')} {value}" for key, value in rest.items()]


def strict_json(value: Any, default: Callable[[Any], Any] | None = None, **options: Any) -> str:
    """Return a value as JSON, NaN and infinities as null: JSON has none, and browsers and others refuse them."""
    finite = json.loads(json.dumps(value, default=default), parse_constant=lambda name: None)
    return json.dumps(finite, **options)


def shorten(text: str, characters: int) -> str:
    """Return the text, cut to this many characters with an ellipsis where it is longer."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def plot_text(value: object) -> str:
    """Return a text in one short line for Plotly, with HTML escaped."""
    return html.escape(shorten(" ".join(str(value).split()), 40), quote=False)


def plot_labels(values: Iterable[object]) -> list[str]:
    """Return the labels of an axis by `plot_text`, each another: Plotly draws lines of one label over each other."""
    found: dict[str, None] = {}
    for value in values:
        label, number = plot_text(value), 1
        while label in found:
            number += 1
            label = f"{plot_text(value)} ({number})"
        found[label] = None
    return [*found]


LONGEST_NUMBER = 16

_ACTIVE = re.compile(r"[\\`*\[\]|~@]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""Characters that Markdown acts on. An underscore within a word is not one of them (CommonMark 6.2, rules 2 and 6);
bare addresses become links in GitHub's dialect (section 6.9), which Prefect's UI reads."""


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]], texts: Collection[str] = ()) -> str:
    """Return a table; the first column and those in `texts` are aligned left, the others, numbers, right."""
    marks = [":--" if number == 0 or column in texts else "--:" for number, column in enumerate(columns)]
    lines = [columns, marks, *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape_markdown(words: object) -> str:
    """Return text from data or a recipe as Markdown that shows it literally: no HTML, link, emphasis or table row."""
    text = escaped(" ".join(str(words).split()))
    return html.escape(_ACTIVE.sub(r"\\\g<0>", text), quote=False)


def markdown_code(words: object) -> str:
    """Return inline code: paths and commands that are copied literally."""
    text = escaped(" ".join(str(words).split()))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"`{text}`" if fence == "`" else f"{fence} {text} {fence}"


def format_cell(value: object) -> str:
    """Return what a table shows for a value: whole numbers with separators, a dash for None."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _cell(value: object) -> str:
    words = escape_markdown(format_cell(value))
    # A short number keeps its unit on its line.
    return words.replace(" ", "\N{NO-BREAK SPACE}") if len(words) <= LONGEST_NUMBER else words


def describe_model(model: Mapping[str, Any], training: Mapping[str, Any]) -> str:
    """Return `A GPT of 0.9M parameters, trained on 2.0M tokens`, without what is unknown."""
    kind = model["architecture"].upper() if model.get("architecture") else "language model"
    size = f" of {format_count(model['parameters'])} parameters" if model.get("parameters") else ""
    read = f", trained on {format_count(training['tokens'])} tokens" if training and training["tokens"] else ""
    return f"A {kind}{size}{read}"


def format_model(model: Mapping[str, Any]) -> str:
    """Return architecture and parameters, such as `gpt 0.9M`; the architecture alone where parameters are unknown."""
    parameters = "" if model["parameters"] is None else f" {format_count(model['parameters'])}"
    return f"{model['architecture'] or '-'}{parameters}"
