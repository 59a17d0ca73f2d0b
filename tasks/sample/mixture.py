"""How much of each source to keep so that the mixture's token budget can be met.

A source needs weight x budget tokens. The stage keeps that many bytes times a slack for what later stages remove; the
rate is that against the bytes the source's files hold. Compressed files count with their stored size, which is less
than their text, so the rate errs towards keeping more.
"""

from dataclasses import asdict, dataclass
from typing import Any

from tasks.sample.config import SampleConfig
from tasks.sample.discovery import SourceFiles


@dataclass(frozen=True)
class SourcePlan:
    """One line of the mixture table; `rate` is the share of documents to keep, `epochs` how often training would
    read the source's text to meet its target."""

    files: int
    bytes: int
    weight: float
    target_tokens: int
    available_tokens: int
    rate: float
    epochs: float


def plan_mixture(config: SampleConfig, listings: list[SourceFiles]) -> dict[str, SourcePlan]:
    """The plan of every source, weights normalised to sum 1."""
    total = sum(source.weight for source in config.sources)
    plans: dict[str, SourcePlan] = {}
    for listing in listings:
        weight = listing.source.weight / total
        target = weight * config.budget_tokens
        available_bytes = max(1, listing.bytes)
        wanted_bytes = target * config.bytes_per_token * config.slack
        plans[listing.source.name] = SourcePlan(
            files=len(listing.files),
            bytes=listing.bytes,
            weight=weight,
            target_tokens=round(target),
            available_tokens=round(available_bytes / config.bytes_per_token),
            rate=min(1.0, wanted_bytes / available_bytes, config.limit),
            epochs=target * config.bytes_per_token / available_bytes,
        )
    return plans


def plan_as_json(plans: dict[str, SourcePlan]) -> dict[str, dict[str, Any]]:
    """The plan as JSON values, the report's `mixture_plan`."""
    return {name: asdict(plan) for name, plan in plans.items()}
