"""Lengths of rows of T5's objectives: raw tokens, and the inputs and targets made of them.

Raffel et al. 2020, sections 3.1.4, 3.2.4 and 3.3, and the function `random_spans_helper` of their program. Halves are
rounded to even. Plain arithmetic, so that configuration can import it.
"""

from dataclasses import dataclass
from typing import Literal

Denoising = Literal[
    "random_spans",
    "iid_spans",
    "iid_drop",
    "bert_style",
    "mass_style",
    "deshuffling",
    "prefix_lm",
    "language_model",
]
"""How the encoder's input and the decoder's target are made from a text; table 3 of the paper shows each."""


@dataclass(frozen=True)
class Lengths:
    """Token counts of a corrupted row; inputs and targets each include their end-of-text token."""

    noise: int
    """Corrupted tokens; 0 where the objective has no rate."""
    sentinels: int
    """Different sentinels: one for each span, or a single one that masks all."""
    inputs: int
    """Tokens that the encoder reads; at most, for `prefix_lm`."""
    targets: int
    """Tokens that the decoder writes; at most, for `prefix_lm`."""


def corrupted_lengths(
    raw: int, density: float = 0.15, mean_span: float = 3.0, kind: Denoising = "random_spans"
) -> Lengths:
    """Return the lengths that `raw` tokens become.

    568 tokens of `random_spans` have 85 noise tokens in 28 spans, and become 512 inputs and 114 targets. At least one
    token is corrupted and at least one is kept; a text of one token stays as it is. Spans never touch.
    """
    if kind == "deshuffling":
        return Lengths(0, 0, raw + 1, raw + 1)
    if kind == "language_model":
        return Lengths(0, 0, 1, raw + 1)
    if kind in ("bert_style", "mass_style"):
        return Lengths(_noise(raw, density), 1, raw + 1, raw + 1)
    if raw < 2:
        return Lengths(0, 0, raw + 1, 1)
    if kind == "prefix_lm":
        # The prefix has 1 to raw - 1 tokens.
        return Lengths(0, 0, raw, raw)
    noise = _noise(raw, density)
    kept = raw - noise
    if kind == "random_spans":
        spans = min(max(round(noise / mean_span), 1), noise, kept)
        return Lengths(noise, spans, kept + spans + 1, noise + spans + 1)
    if kind == "iid_spans":
        spans = min(max(round(expected_runs(noise, kept)), 1), noise, kept + 1)
        return Lengths(noise, spans, kept + spans + 1, noise + spans + 1)
    return Lengths(noise, 0, kept + 1, noise + 1)


def _noise(raw: int, density: float) -> int:
    return min(max(round(density * raw), 1), raw - 1) if raw > 1 else 0


def expected_runs(noise: int, kept: int) -> float:
    """Return the expected number of runs that noise tokens form where all places are equally likely: each begins a run
    unless another precedes it."""
    return noise * (kept + 1) / (noise + kept)


def raw_length(inputs: int, density: float = 0.15, mean_span: float = 3.0, kind: Denoising = "random_spans") -> int:
    """Return the largest number of raw tokens whose encoder inputs are at most `inputs` (512: 568); for
    `language_model`, whose encoder reads nothing, those whose targets are."""

    def length(raw: int) -> int:
        lengths = corrupted_lengths(raw, density, mean_span, kind)
        return lengths.targets if kind == "language_model" else lengths.inputs

    raw = inputs
    while length(raw + 1) <= inputs:
        raw += 1
    while raw > 1 and length(raw) > inputs:
        raw -= 1
    return raw
