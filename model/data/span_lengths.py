"""How long rows of T5's objectives are: raw tokens, and the inputs and targets that they become.

Raffel et al. 2020, sections 3.1.4, 3.2.4 and 3.3, and the function `random_spans_helper` of their program. Halves are
rounded to the even number. Plain arithmetic, so that settings may use it.
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
"""How the encoder's input and the decoder's target are made of a text; table 3 of the paper has an example of each."""


@dataclass(frozen=True)
class Lengths:
    """What a row of raw tokens becomes; inputs and targets each with their end-of-text token."""

    noise: int
    """Tokens that are corrupted; 0 where the objective has no rate."""
    sentinels: int
    """Different sentinels: one for each span, or a single one that masks all."""
    inputs: int
    """Tokens that the encoder reads; of `prefix_lm` the most."""
    targets: int
    """Tokens that the decoder writes; of `prefix_lm` the most."""


def corrupted_lengths(
    raw: int, density: float = 0.15, mean_span: float = 3.0, kind: Denoising = "random_spans"
) -> Lengths:
    """What `raw` tokens become; 568 of `random_spans`: 85 noise tokens in 28 spans, 512 inputs and 114 targets.

    Where tokens are corrupted, at least one is and one is not; a text of one token stays as it is. Spans never touch.
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
    """Into how many runs noise tokens fall on average where all places are equally likely: each of them begins a run
    unless another stands before it."""
    return noise * (kept + 1) / (noise + kept)


def raw_length(inputs: int, density: float = 0.15, mean_span: float = 3.0, kind: Denoising = "random_spans") -> int:
    """The largest number of raw tokens whose encoder inputs fill no more than `inputs` (512: 568); of `language_model`,
    where the encoder reads nothing, whose targets fill no more."""

    def filled(raw: int) -> int:
        lengths = corrupted_lengths(raw, density, mean_span, kind)
        return lengths.targets if kind == "language_model" else lengths.inputs

    raw = inputs
    while filled(raw + 1) <= inputs:
        raw += 1
    while raw > 1 and filled(raw) > inputs:
        raw -= 1
    return raw
