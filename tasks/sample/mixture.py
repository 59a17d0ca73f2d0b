"""The mixture: what training reads of each source, and how much of the source to keep for that.

Weights are shares of training tokens (GPT-3, Brown et al. 2020, table 2.2). A source that its share would repeat more
than `max_epochs` times gives what it has, and the rest goes to the others in proportion to their weights: the
weight-preserving form of UniMax (Chung et al. 2023, arXiv 2304.09151), whose own flat budgets would ignore them. The
stage keeps `slack` times the wanted tokens of every source, since cleaning and deduplication remove some.

The size of a source's text is estimated without reading all of it (`text_bytes`): the readers measure the bytes of text
for each stored byte, which depend on compression and on other fields, at the beginning of some files.
"""

from collections.abc import Iterator, Mapping

from tasks.artifacts.results import PlannedSource
from tasks.common.numeric import apportion
from tasks.sample.bounded_reader import spread
from tasks.sample.config import GOOD_EPOCHS, ONE_DOCUMENT_A_FILE, SampleConfig, Source
from tasks.sample.discovery import InputFile, SourceFiles
from tasks.sample.readers.files import read_records
from tasks.sample.readers.records import Record

ROUNDING_TOLERANCE = 0.05
"""Weights whose sum differs from 1 by less than this are rounded shares."""

MOST_FILES = 8
"""Files of a source that are measured, in addition to the largest ones."""

SAMPLE_BYTES = 256 * 1024
"""Stored bytes measured in each of them."""

MAX_LOOK_BYTES = 256 * 1024**2
"""Stored bytes without a record, and unpacked bytes, after which measuring a file ends."""


def plan_mixture(
    config: SampleConfig, listings: list[SourceFiles], kept: Mapping[str, int] | None = None
) -> dict[str, PlannedSource]:
    """Return the plan of every source from its files, or from `kept`: bytes of text by source, as an earlier run
    measured them."""
    sizes: dict[str, int] = {}
    for listing in listings:
        known = (kept or {}).get(listing.source.name)
        sizes[listing.source.name] = text_bytes(listing) if known is None else known
    files = {listing.source.name: len(listing.files) for listing in listings}
    return plan_from_sizes(config, sizes, files)


def plan_from_sizes(
    config: SampleConfig, sizes: Mapping[str, int], files: Mapping[str, int]
) -> dict[str, PlannedSource]:
    """Return the plan from UTF-8 bytes of text and numbers of files by source; those with `tokens` may be absent."""
    available: dict[str, int] = {}
    for source in config.sources:
        tokens_per_byte = config.tokens_per_byte.get(source.name, 1 / config.bytes_per_token)
        available[source.name] = max(1, source.tokens or round(sizes.get(source.name, 0) * tokens_per_byte))
    weights = _weights(config, available)
    limits = {name: int(config.max_epochs * tokens) for name, tokens in available.items()}
    targets = apportion(config.budget_tokens, weights, limits)
    plans: dict[str, PlannedSource] = {}
    for source in config.sources:
        name = source.name
        # Only a phase of training reads a source of weight 0; how much of it is not sample's to know.
        kept = 1.0 if source.weight == 0 else targets[name] * config.slack / available[name]
        rate = min(1.0, kept, config.limit)
        plans[name] = PlannedSource(
            files=files.get(name, 0),
            bytes=sizes.get(name, 0),
            weight=weights[name],
            target_tokens=targets[name],
            available_tokens=available[name],
            rate=rate,
            epochs=targets[name] / available[name],
            asked_epochs=weights[name] * config.budget_tokens / available[name],
            slack=rate * available[name] / targets[name] if targets[name] else 0.0,
        )
    return plans


def _weights(config: SampleConfig, available: Mapping[str, int]) -> dict[str, float]:
    if config.temperature is None:
        shares = {source.name: source.weight or 0.0 for source in config.sources}
    else:
        shares = {name: tokens ** (1 / config.temperature) for name, tokens in available.items()}
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()}


def mixture_remarks(config: SampleConfig, plans: Mapping[str, PlannedSource]) -> list[str]:
    """Return warnings about the plan: sources limited by the cap, much repetition, a budget that is not met."""
    remarks = [*_rounding_remarks(config, plans)]
    for name, plan in plans.items():
        if plan["asked_epochs"] > config.max_epochs:
            remarks.append(
                f"{name}: its weight asks for {plan['asked_epochs']:.2f} epochs, limited by max_epochs ="
                f" {config.max_epochs:g}; the missing tokens go to the others by weight"
            )
        elif plan["epochs"] > GOOD_EPOCHS:
            remarks.append(f"{name}: {plan['epochs']:.2f} epochs; repetition is almost as good as new text up to 4")
    given = sum(plan["target_tokens"] for plan in plans.values())
    if given < config.budget_tokens:
        remarks.append(
            f"all sources together give {given:,} of the {config.budget_tokens:,} tokens of the budget within"
            f" max_epochs = {config.max_epochs:g}"
        )
    return remarks


def _rounding_remarks(config: SampleConfig, plans: Mapping[str, PlannedSource]) -> Iterator[str]:
    """Yield what rounding of shares means for the epochs, if the weights nearly sum to 1."""
    weights = {source.name: source.weight for source in config.sources if source.weight}
    total = sum(weights.values())
    if config.temperature is not None or not ROUNDING_TOLERANCE > abs(total - 1) > 1e-9:
        return
    digits = max(len(f"{weight:.12f}".rstrip("0").partition(".")[2]) for weight in weights.values())
    name = min(weights, key=lambda name: weights[name])
    half = 0.5 * 10**-digits / weights[name]
    low, high = ((1 + sign * half) * plans[name]["asked_epochs"] for sign in (-1, 1))
    yield (
        f"the weights add up to {total:g}, as rounded shares do. Each is divided by that, so that epochs are"
        f" {abs(1 - 1 / total):.1%} {'lower' if total > 1 else 'higher'} than weight x budget / tokens; and half a unit"
        f" of their last digit is up to {half:.0%} of a share: {name} {low:.2f} to {high:.2f} epochs"
    )


def text_bytes(listing: SourceFiles) -> int:
    """Return the estimated UTF-8 bytes of text in all files of the source; exact for plain text.

    Files that will be rejected have none: the largest are measured one by one, so that none of them is extrapolated
    from the others."""
    most = listing.source.max_file_bytes
    plain = sum(max(0, file.size) for file in listing.files if _is_plain(file) and file.size <= most)
    wrapped = [file for file in listing.files if not _is_plain(file) and file.size > 0]
    by_size = sorted(wrapped, key=lambda file: file.size, reverse=True)
    largest = {id(file) for file in by_size[:MOST_FILES]}
    text = sum(_text_of([file], listing) for file in wrapped if id(file) in largest)
    return plain + text + _text_of([file for file in wrapped if id(file) not in largest], listing)


def _text_of(files: list[InputFile], listing: SourceFiles) -> int:
    """Return the estimated bytes of text in `files`, from the beginning of some."""
    text = stored = 0
    for file in spread(files, MOST_FILES):
        sample_text, sample_stored = _sample_beginning(file, listing.source)
        text += sample_text
        stored += sample_stored
    return round(text * sum(file.size for file in files) / stored) if stored else 0


def _is_plain(file: InputFile) -> bool:
    return file.format in ONE_DOCUMENT_A_FILE and file.compression is None


class _LimitReached(Exception):
    """Raised when no record was found for so long that measuring ends."""


def _sample_beginning(file: InputFile, source: Source) -> tuple[int, int]:
    """Return (bytes of text, stored bytes they came from) at the beginning of a file.

    A reader announces a block before it yields the block's records, so text counts up to the last announcement unless
    the file ends.
    """
    text = announced = found_at = 0
    settled = (0, 0)
    if file.compression is not None:
        source = source.model_copy(update={"max_unpacked_bytes": min(MAX_LOOK_BYTES, source.max_unpacked_bytes)})

    def on_bytes(count: int) -> None:
        nonlocal announced, settled
        settled = (text, announced)
        announced += count
        if announced - found_at > MAX_LOOK_BYTES:
            raise _LimitReached

    try:
        for found in read_records(file, source, 0, on_bytes):
            found_at = announced
            if isinstance(found, Record):
                text += len(found.text) if found.text.isascii() else len(found.text.encode())
            if settled[1] >= SAMPLE_BYTES:
                return settled
    except _LimitReached:
        pass
    return text, announced
