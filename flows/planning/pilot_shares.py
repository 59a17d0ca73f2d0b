"""How much of each source a pilot takes: the share asked for, and never so little that it tells nothing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.recipe import Recipe
from flows.survey.record_counts import StoredFile, count_records
from tasks.sample.config import SampleConfig
from tasks.sample.discovery import SourceFiles
from tasks.sample.mixture import plan_mixture

LEAST_DOCUMENTS = 300
"""Documents of a source at least: a rule that drops a tenth is then known to 3 points either way."""
BYTES_PER_PIECE = 200
"""Stored bytes of the whole pilot for each piece of the vocabulary; on less, tokens per byte mislead."""


@dataclass(frozen=True)
class PilotShare:
    """What a pilot takes of one source, as shares (0 to 1)."""

    of_selected: float
    """Of the documents that the recipe would select."""
    recipe_rate: float
    """The share of all documents that the recipe would select."""
    text_bytes: int
    """Bytes of text in the source's files."""
    raised: bool
    """Whether that is more than was asked for, because the source or the whole is small."""

    @property
    def of_all(self) -> float:
        """Of all documents in the files."""
        return self.of_selected * self.recipe_rate


def pilot_shares(recipe: Recipe, listings: list[SourceFiles], share: float) -> dict[str, PilotShare]:
    """Source -> what the pilot takes of it."""
    plans = plan_mixture(recipe.sample, listings)
    selected = sum(plan.rate * plan.bytes for plan in plans.values())
    least_share = min(1.0, BYTES_PER_PIECE * recipe.vocab.pieces_to_find / max(1.0, selected))
    shares: dict[str, PilotShare] = {}
    for listing in listings:
        name = listing.source.name
        # What lies elsewhere is not looked at beforehand; its pilot is then decided by the share alone.
        files = [
            StoredFile(file.path, file.format, file.compression, file.size)
            for file in listing.files
            if isinstance(file.path, Path)
        ]
        documents = count_records(files).records * plans[name].rate
        enough_documents = LEAST_DOCUMENTS / max(1.0, documents) if files else 0.0
        least = min(1.0, max(least_share, enough_documents))
        shares[name] = PilotShare(max(share, least), plans[name].rate, plans[name].bytes, least > share)
    return shares


def pilot_sample(config: SampleConfig, listings: list[SourceFiles], shares: Mapping[str, PilotShare]) -> SampleConfig:
    """The sample stage's settings under which each source is kept at its pilot's rate.

    The stage keeps weight x budget tokens of a source; here a token is a byte, the budget is the pilot's bytes, and a
    source's weight is its share of them.
    """
    wanted = {listing.source.name: shares[listing.source.name] for listing in listings}
    kept = {name: share.of_all * max(1, share.text_bytes) for name, share in wanted.items()}
    budget = sum(kept.values())
    sources = tuple(
        source.model_copy(update={"weight": kept[source.name] / budget, "tokens": None}) for source in config.sources
    )
    return config.model_copy(
        update={
            "sources": sources,
            "budget_tokens": math.ceil(budget),
            "bytes_per_token": 1.0,
            "tokens_per_byte": {},
            "temperature": None,
            "slack": 1.0,
            "limit": 1.0,
            "normalise_weights": True,
        }
    )
