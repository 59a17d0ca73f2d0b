"""How long rows of span corruption are: raw tokens, and the inputs and targets that they become.

Raffel et al. 2020 (T5), section 3.1.4 and the function `random_spans_helper` of their program: a share of the tokens
goes, in spans of a mean length; each span leaves a sentinel in the input and stands behind it in the target; both end
with the end-of-text token. Halves are rounded to the even number. Plain arithmetic, so that settings may use it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lengths:
    """What a row of raw tokens becomes: noise tokens in spans, encoder inputs and decoder targets with their eos."""

    noise: int
    spans: int
    inputs: int
    targets: int


def corrupted_lengths(raw: int, density: float = 0.15, mean_span: float = 3.0) -> Lengths:
    """How many tokens of `raw` go, in how many spans, and what comes of it; 568: 85 noise tokens in 28 spans, 512
    inputs and 114 targets. At least one token goes and one stays; spans never touch."""
    length = max(raw, 2)
    noise = min(max(round(density * length), 1), length - 1)
    spans = min(max(round(noise / mean_span), 1), noise, length - noise)
    return Lengths(noise, spans, raw - noise + spans + 1, noise + spans + 1)


def raw_length(inputs: int, density: float = 0.15, mean_span: float = 3.0) -> int:
    """The largest number of raw tokens whose encoder inputs fill no more than `inputs` (512: 568)."""
    raw = inputs
    while corrupted_lengths(raw + 1, density, mean_span).inputs <= inputs:
        raw += 1
    while raw > 1 and corrupted_lengths(raw, density, mean_span).inputs > inputs:
        raw -= 1
    return raw
