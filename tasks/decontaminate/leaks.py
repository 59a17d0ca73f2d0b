"""From hits to leaks: what is evidence, which item leaked where, and what LEAKS says of every item.

A shared n-gram is evidence unless it is common in the corpus (licence texts, boilerplate) or the template of its
benchmark. Where a document holds nearly all of an item, common n-grams count as well: an item does not become clean by
being copied often. Items in scripts without blanks need a long run or half of the item, as 13 characters are a phrase.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.items import Item
from tasks.decontaminate.patterns import I64, Patterns
from tasks.decontaminate.scan import Hits
from tasks.schema import LEAKS

LEAKED, CLEAN, UNMATCHABLE = "leaked", "clean", "unmatchable"
VERBATIM, NGRAM, SHORT = "verbatim", "ngram", "short"
COMMON, TEMPLATE = "common", "template"


@dataclass(frozen=True)
class Region:
    """One stretch of a document that one item shares; bytes of the document's text, half-open."""

    item: int
    start: int
    end: int
    matched: int
    """Distinct patterns of the item within the stretch."""
    form: str


def weak_patterns(
    patterns: Patterns, hits: Hits, documents: int, template: npt.NDArray[np.bool_], config: DecontaminateConfig
) -> tuple[npt.NDArray[np.bool_], I64]:
    """(patterns that are no evidence by themselves, number of documents that hold each pattern).

    `hits.row` counts documents through the whole run; short items, found as a whole, are always evidence.
    """
    pairs = np.unique(hits.row * max(1, len(patterns)) + hits.pattern)
    frequency = np.bincount(pairs % max(1, len(patterns)), minlength=len(patterns)).astype(np.int64)
    whole = patterns.short[patterns.posting_item[patterns.posting_start[:-1]]]
    common = frequency > max(config.common_documents, config.common_share * documents)
    return (common & ~whole) | template, frequency


def find_leaks(
    patterns: Patterns, hits: Hits, weak: npt.NDArray[np.bool_], config: DecontaminateConfig
) -> dict[int, list[Region]]:
    """Document (as counted by `hits.row`) -> its leaked stretches by (start, end, item); clean documents are absent."""
    leaks: dict[int, list[Region]] = {}
    documents, firsts = np.unique(hits.row, return_index=True)
    bounds = [*firsts.tolist(), len(hits)]
    for number, document in enumerate(documents.tolist()):
        here = slice(bounds[number], bounds[number + 1])
        regions = _document_leaks(patterns, hits, here, weak, config)
        if regions:
            leaks[document] = sorted(regions, key=lambda region: (region.start, region.end, region.item))
    return leaks


def _document_leaks(
    patterns: Patterns, hits: Hits, here: slice, weak: npt.NDArray[np.bool_], config: DecontaminateConfig
) -> list[Region]:
    found = hits.pattern[here]
    distinct = np.unique(found)
    begin = patterns.posting_start[distinct]
    counts = patterns.posting_start[distinct + 1] - begin
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    owners = patterns.posting_item[np.repeat(begin, counts) + within]
    held = np.repeat(distinct, counts)
    items, matched = np.unique(owners, return_counts=True)
    contained = matched >= config.contained_share * patterns.totals[items]
    has_strong = np.isin(items, owners[~weak[held]])
    regions: list[Region] = []
    for index in np.flatnonzero(contained | has_strong).tolist():
        item = int(items[index])
        mine = np.flatnonzero(np.isin(found, held[owners == item])) + here.start
        regions += _item_regions(patterns, hits, mine, item, bool(contained[index]), weak, config)
    return regions


def _item_regions(
    patterns: Patterns,
    hits: Hits,
    mine: I64,
    item: int,
    contained: bool,
    weak: npt.NDArray[np.bool_],
    config: DecontaminateConfig,
) -> list[Region]:
    """Stretches of an item's hits, joined where at most an n-gram's length of other words lies between."""
    words, lengths = hits.word[mine], patterns.lengths[hits.pattern[mine]]
    if patterns.unspaced[item] and not patterns.short[item] and not _enough_characters(patterns, words, item, config):
        return []
    gaps = np.flatnonzero(words[1:] - (words[:-1] + lengths[:-1]) > config.ngram) + 1
    if patterns.short[item]:
        gaps = np.arange(1, mine.size)
    regions = []
    for stretch in np.split(mine, gaps):
        stretch_patterns = np.unique(hits.pattern[stretch])
        if not contained and weak[stretch_patterns].all():
            continue
        matched = int(stretch_patterns.size)
        whole = VERBATIM if matched == patterns.totals[item] else NGRAM
        regions.append(
            Region(
                item=item,
                start=int(hits.start[stretch].min()),
                end=int(hits.end[stretch].max()),
                matched=matched,
                form=SHORT if patterns.short[item] else whole,
            )
        )
    return regions


def _enough_characters(patterns: Patterns, words: I64, item: int, config: DecontaminateConfig) -> bool:
    """Whether an unbroken run reaches `unspaced_run` words, or the runs together reach half of the item."""
    breaks = np.flatnonzero(np.diff(words) != 1) + 1
    runs = np.diff(np.concatenate([[0], breaks, [words.size]])) + config.ngram - 1
    return bool(runs.max() >= config.unspaced_run or 2 * runs.sum() >= patterns.item_words[item])


def leaks_table(
    items: Sequence[Item],
    patterns: Patterns,
    leaks: Mapping[int, Sequence[Region]],
    doc_ids: npt.NDArray[np.uint8],
    remains: bool,
) -> pa.Table:
    """LEAKS: a row per leaked stretch, and one for every clean or unmatchable item, in order of the items."""
    found: dict[int, list[tuple[int, Region]]] = {}
    for document in sorted(leaks):
        for region in leaks[document]:
            found.setdefault(region.item, []).append((document, region))
    rows: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        total = int(patterns.totals[number])
        common = {"benchmark": item.benchmark, "item_id": item.item_id, "total": total}
        for document, region in found.get(number, ()):
            rows.append(
                {
                    **common,
                    "state": LEAKED,
                    "form": region.form,
                    "doc_id": doc_ids[document].tobytes(),
                    "piece": 0,
                    "start": region.start,
                    "end": region.end,
                    "matched": region.matched,
                    "remains": remains,
                }
            )
        if number not in found:
            state = CLEAN if total else UNMATCHABLE
            rows.append({**common, "state": state, "form": "", "matched": 0, "remains": False})
    return pa.Table.from_pylist(rows, schema=LEAKS)


def benchmark_facts(
    items: Sequence[Item], patterns: Patterns, leaks: Mapping[int, Sequence[Region]], remains: bool
) -> dict[str, dict[str, int]]:
    """Items of each benchmark by state; an item counts once however many documents hold it."""
    leaked = {region.item for regions in leaks.values() for region in regions}
    facts: dict[str, Counter[str]] = {}
    for number, item in enumerate(items):
        counts = facts.setdefault(item.benchmark, Counter(items=0, leaked=0, clean=0, unmatchable=0, remains=0))
        counts["items"] += 1
        state = LEAKED if number in leaked else CLEAN if patterns.totals[number] else UNMATCHABLE
        counts[state] += 1
        counts["remains"] += state == LEAKED and remains
    return {name: dict(counts) for name, counts in facts.items()}
