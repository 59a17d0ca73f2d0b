"""What held-out text says of networks that do not predict each next token, in words: BERT's and T5's own measures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measure:
    """A metric of SCORES on held-out text, and the figure that a guess by frequency reaches."""

    metric: str
    words: str
    baseline: str = ""
    baseline_words: str = ""
    is_share: bool = False

    def told(self, value: float) -> str:
        """`2.310`, or `31.2%` where it is a share."""
        return f"{value:.1%}" if self.is_share else f"{value:.3f}"


MEASURES = (
    Measure("pseudo_bits_per_byte", "pseudo-bits per byte"),
    Measure("masked_nats_per_token", "nats per hidden token", "unigram_masked_nats_per_token", "by frequency"),
    Measure(
        "masked_accuracy",
        "hidden tokens told rightly",
        "frequent_token_accuracy",
        "the most frequent one",
        is_share=True,
    ),
    Measure("next_accuracy", "pairs told rightly", "majority_next_accuracy", "the more frequent answer", is_share=True),
    Measure("target_nats_per_token", "nats per target of the decoder"),
    Measure(
        "target_bits_per_byte",
        "bits per byte of the text that the decoder writes",
        "unigram_target_bits_per_byte",
        "by frequency",
    ),
)
OF_METRIC = {measure.metric: measure for measure in MEASURES}


def measured(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of SCORES about held-out text -> a line a measure and source, each measure's `all` last: `value`, `stderr`,
    `n`, `note`, and the `baseline`'s value."""
    values = {(row["task"], row["metric"]): row["value"] for row in rows}
    lines = [
        {
            "metric": measure.metric,
            "source": row["task"].partition("/")[2],
            **{key: row[key] for key in ("value", "stderr", "n", "note")},
            "baseline": values.get((row["task"], measure.baseline)),
        }
        for measure in MEASURES
        for row in rows
        if row["metric"] == measure.metric
    ]
    return sorted(lines, key=lambda line: ([*OF_METRIC].index(line["metric"]), line["source"] == "all", line["source"]))


def line_told(line: dict[str, Any]) -> str:
    """`31.2% (the most frequent one 7.4%)`; a dash without a value."""
    measure = OF_METRIC[line["metric"]]
    if line["value"] is None:
        return "-"
    beside = f" ({measure.baseline_words} {measure.told(line['baseline'])})" if line["baseline"] is not None else ""
    return f"{measure.told(line['value'])}{beside}"


def whole_told(lines: Sequence[dict[str, Any]]) -> str:
    """The means of the sources in one sentence; empty without any."""
    return ", ".join(
        f"{OF_METRIC[line['metric']].words} {line_told(line)}"
        for line in lines
        if line["source"] == "all" and line["value"] is not None
    )
