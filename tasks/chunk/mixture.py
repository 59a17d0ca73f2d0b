"""How many tokens training reads of each source: weights, a budget, and a cap on repetition.

Weights are shares of training tokens, not of documents (Brown et al. 2020, table 2.2). A source whose share would
repeat it more than `max_epochs` times is read that often, and the surplus goes to the others by weight (UniMax, Chung
et al. 2023).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from model.errors import InputError
from tasks.chunk.config import ChunkConfig
from tasks.common.numeric import apportion

_SUBTOKENS = 10**9
"""Parts of a token in which planned shares are counted."""


LAST_SHARE = 0.1
"""Share of the order that sources which may leave are read in, where it holds them."""


@dataclass(frozen=True)
class Mixture:
    """What is planned to be read: by source in sorted order of names, in tokens."""

    available: dict[str, int]
    """Tokens in one reading of the source."""
    weights: dict[str, float]
    """Weights that sum to 1 over the sources that exist."""
    planned: dict[str, float]
    """Shares of all that is read, after the cap on repetition."""
    targets: dict[str, int]
    """Tokens to read, repetitions included; whole rows come close to them."""
    limits: dict[str, int]
    """Most tokens that may be read."""
    budget: int
    """Tokens requested; more than the sum of `targets` where the cap limits all sources."""

    @property
    def total(self) -> int:
        """Tokens to read of all sources."""
        return sum(self.targets.values())


def plan_mixture(
    available: Mapping[str, int],
    weights: Mapping[str, float],
    budget: int,
    max_epochs: float,
    temperature: float | None = None,
    read: Mapping[str, int] | None = None,
) -> Mixture:
    """Divide `budget` tokens among the sources; without weights by their tokens ^ (1 / temperature).

    `read` are tokens that were read before, which count towards `max_epochs`.

    Raises InputError for a source without a weight, when all weights are 0, or when nothing can be read.
    """
    available = dict(sorted(available.items()))
    chosen = {source: float(weights[source]) for source in available if source in weights} if weights else {}
    if weights:
        for source in available:
            if source not in chosen:
                raise InputError(
                    f"chunk: there are documents of the source `{source}`, and chunk.weights names only"
                    f" {', '.join(sorted(weights))}. Give `{source}` a weight (0 leaves it out)."
                )
    else:
        chosen = {source: count ** (1 / (temperature or 1.0)) for source, count in available.items()}
    total = sum(chosen.values())
    if total <= 0:
        raise InputError(
            "chunk: there is nothing to read: no source has both text and a weight above 0. Check what the earlier"
            " stages kept (`bessemer runs list`)."
        )
    before = read or {}
    limits = {source: max(0, int(max_epochs * count) - before.get(source, 0)) for source, count in available.items()}
    targets = apportion(budget, chosen, limits)
    if not any(targets.values()):
        where = " in a phase whose sources were read so often before it" if before else ""
        raise InputError(f"chunk: max_epochs = {max_epochs} does not allow a single token{where}; raise it")
    subtokens = apportion(budget * _SUBTOKENS, chosen, {source: limit * _SUBTOKENS for source, limit in limits.items()})
    planned = {source: share / sum(subtokens.values()) for source, share in subtokens.items()}
    shares = {source: weight / total for source, weight in chosen.items()}
    return Mixture(available, shares, planned, targets, limits, budget)


def plan_mixtures(available: Mapping[str, int], config: ChunkConfig) -> list[Mixture]:
    """Return the mixture of the main part of the order and those of its phases, as `plan_mixture` does."""
    if config.read_last:
        return _read_last(available, config)
    budget = config.budget_tokens - sum(phase.tokens for phase in config.phases)
    mixtures = [plan_mixture(available, config.weights, budget, config.max_epochs, config.temperature)]
    for phase in config.phases:
        weights = {source: phase.weights.get(source, 0.0) for source in available}
        read = whole_mixture(mixtures).targets
        mixtures.append(plan_mixture(available, weights, phase.tokens, config.max_epochs, read=read))
    return mixtures


def _read_last(available: Mapping[str, int], config: ChunkConfig) -> list[Mixture]:
    """Return the mixtures of a main part without the sources of `config.read_last`, and of a last part with all theirs.

    Each source is read as much in all as in an order of one part. Raises InputError where that leaves no row before the
    last part.
    """
    whole = plan_mixture(available, config.weights, config.budget_tokens, config.max_epochs, config.temperature)
    late = sum(whole.targets.get(source, 0) for source in config.read_last)
    last = max(late, round(LAST_SHARE * whole.total))
    if whole.total - last < config.most_tokens:
        raise InputError(
            f"chunk: the sources that may_leave ({', '.join(config.read_last)}) have {late:,} of {whole.total:,}"
            f" tokens, and are read last, which leaves no row of {config.most_tokens} tokens before them. Take"
            f" `may_leave` off some of them."
        )
    share = (last - late) / (whole.total - late)
    early = {name: 0 if name in config.read_last else tokens for name, tokens in whole.targets.items()}
    mixed = {
        name: tokens if name in config.read_last else early[name] * share for name, tokens in whole.targets.items()
    }
    main = plan_mixture(available, early, whole.total - last, config.max_epochs)
    return [main, plan_mixture(available, mixed, last, config.max_epochs, read=main.targets)]


def whole_mixture(mixtures: Sequence[Mixture]) -> Mixture:
    """Return what is planned of all parts of the order together; shares are means by the tokens of the parts."""
    if len(mixtures) == 1:
        return mixtures[0]
    first, budget, total = mixtures[0], sum(part.budget for part in mixtures), sum(part.total for part in mixtures)
    return Mixture(
        first.available,
        {name: sum(part.weights[name] * part.budget for part in mixtures) / budget for name in first.available},
        {name: sum(part.planned[name] * part.total for part in mixtures) / total for name in first.available},
        {name: sum(part.targets[name] for part in mixtures) for name in first.available},
        first.limits,
        budget,
    )
