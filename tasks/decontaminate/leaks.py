"""From hits to leaks: what is evidence, which item leaked where, and the rows of LEAKS.

A shared n-gram is evidence unless it is common in the corpus (licence texts, boilerplate) or the template of its
benchmark. Where a document contains nearly all of a text, common n-grams count as well: an item does not become clean
by being copied often. Texts in scripts without spaces need 40 characters or half of the text, as 13 are a phrase.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.artifacts.schema import LEAKS
from tasks.decontaminate.benchmarks import Item
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.ngrams import I64, Patterns
from tasks.decontaminate.scan import Hits

LEAKED, CLEAN, UNMATCHABLE = "leaked", "clean", "unmatchable"
VERBATIM, NGRAM, SHORT = "verbatim", "ngram", "short"
COMMON, TEMPLATE = "common", "template"


@dataclass(frozen=True)
class Region:
    """A range of a document that one item shares; bytes of the document's text, half-open."""

    item: int
    start: int
    end: int
    matched: int
    """Distinct patterns of the item's text within the range."""
    total: int
    """Distinct patterns of that text."""
    form: str


@dataclass(frozen=True)
class Evidence:
    """Which patterns are not evidence by themselves."""

    common: npt.NDArray[np.bool_]
    """n-grams in too many documents of the run."""
    template: npt.NDArray[np.bool_]
    """Patterns in too many items of one benchmark."""

    @property
    def weak(self) -> npt.NDArray[np.bool_]:
        """Return the patterns of either kind."""
        return self.common | self.template


def document_frequency(hits: Hits, patterns: Patterns) -> I64:
    """Return the number of documents of `hits` that contain each pattern."""
    pairs = np.unique(hits.row * max(1, len(patterns)) + hits.pattern)
    return np.bincount(pairs % max(1, len(patterns)), minlength=len(patterns)).astype(np.int64)


def weigh_evidence(
    patterns: Patterns,
    frequency: I64,
    documents: int,
    template: npt.NDArray[np.bool_],
    config: DecontaminateConfig,
) -> Evidence:
    """Find the patterns that are common in the whole run; short texts, matched as a whole, are never common."""
    common = frequency > max(config.common_documents, config.common_share * documents)
    return Evidence(common & ~patterns.whole_texts(), template)


def find_leaks(
    patterns: Patterns, hits: Hits, evidence: Evidence, config: DecontaminateConfig
) -> dict[int, list[Region]]:
    """Return document (as counted by `hits.row`) -> its leaked regions by (start, end, item).

    Clean documents are absent.
    """
    leaks: dict[int, list[Region]] = {}
    weak = evidence.weak
    documents, firsts = np.unique(hits.row, return_index=True)
    bounds = [*firsts.tolist(), len(hits)]
    for number, document in enumerate(documents.tolist()):
        of_document = slice(bounds[number], bounds[number + 1])
        regions = _document_leaks(patterns, hits, of_document, weak, config)
        if regions:
            leaks[document] = regions
    return leaks


def _document_leaks(
    patterns: Patterns, hits: Hits, of_document: slice, weak: npt.NDArray[np.bool_], config: DecontaminateConfig
) -> list[Region]:
    found = hits.pattern[of_document]
    distinct = np.unique(found)
    begin = patterns.posting_start[distinct]
    counts = patterns.posting_start[distinct + 1] - begin
    postings = np.repeat(begin - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    owners, held = patterns.posting_text[postings], np.repeat(distinct, counts)
    texts, matched = np.unique(owners, return_counts=True)
    contained = (matched >= config.contained_share * patterns.totals[texts]) & ~patterns.short[texts]
    has_strong = np.isin(texts, owners[~weak[held]])
    by_item: dict[int, list[Region]] = {}
    for index in np.flatnonzero(contained | has_strong).tolist():
        text = int(texts[index])
        of_text = owners == text
        match = _TextMatch(patterns, hits, text, held[of_text], patterns.posting_word[postings[of_text]], config)
        occurrences = np.flatnonzero(np.isin(found, held[of_text])) + of_document.start
        regions = match.regions(occurrences, weak, contained=bool(contained[index]))
        by_item.setdefault(int(patterns.text_item[text]), []).extend(regions)
    together = [region for regions in by_item.values() for region in _outermost(regions)]
    return sorted(together, key=lambda region: (region.start, region.end, region.item))


@dataclass(frozen=True)
class _TextMatch:
    """One text of an item in one document: the patterns that both contain, and their positions in the text."""

    patterns: Patterns
    hits: Hits
    text: int
    held: I64
    words: npt.NDArray[np.int32]
    config: DecontaminateConfig

    def regions(self, occurrences: I64, weak: npt.NDArray[np.bool_], *, contained: bool) -> list[Region]:
        """Return the runs of hits at `occurrences`; hits join where at most an n-gram of other words is between."""
        patterns, hits = self.patterns, self.hits
        whole = bool(patterns.short[self.text])
        needed = 0
        if patterns.unsegmented[self.text] and not whole:
            # Half of an item is a leak, half of its question alone is not: that may be a name of 13 characters.
            share = 0.5 if patterns.is_first_text(self.text) else self.config.contained_share
            enough = self._covered(self.held) >= share * patterns.text_words[self.text]
            needed = 0 if enough else self.config.unspaced_chars
        ends = hits.word[occurrences] + patterns.lengths[hits.pattern[occurrences]]
        gaps = np.arange(1, occurrences.size)
        if not whole:
            gaps = np.flatnonzero(hits.word[occurrences][1:] - ends[:-1] > self.config.ngram) + 1
        total = int(patterns.totals[self.text])
        found: list[Region] = []
        for run in np.split(occurrences, gaps):
            distinct = np.unique(hits.pattern[run])
            if (weak[distinct].all() and not contained) or (needed and self._covered(distinct) < needed):
                continue
            matched = int(distinct.size)
            found.append(
                Region(
                    item=int(patterns.text_item[self.text]),
                    start=int(hits.start[run].min()),
                    end=int(hits.end[run].max()),
                    matched=matched,
                    total=total,
                    form=SHORT if whole else VERBATIM if matched == total else NGRAM,
                )
            )
        return found

    def _covered(self, distinct: I64) -> int:
        """Return how many words of the text some of its patterns cover."""
        starts = np.sort(self.words[np.searchsorted(self.held, distinct)])
        return int(np.minimum(np.diff(starts), self.config.ngram).sum()) + self.config.ngram


def _outermost(regions: list[Region]) -> list[Region]:
    """Return an item's regions without those within another: a question within its passage and question."""
    kept: list[Region] = []
    for region in sorted(regions, key=lambda region: (region.start, -region.end, region.total)):
        if not kept or region.end > kept[-1].end:
            kept.append(region)
    return kept


def leaks_table(
    items: Sequence[Item],
    patterns: Patterns,
    leaks: Mapping[int, Sequence[Region]],
    doc_ids: npt.NDArray[np.uint8],
    remains: bool,
) -> pa.Table:
    """Return LEAKS: a row per leaked region, and one for every clean or unmatchable item, in order of the items."""
    totals = patterns.item_totals(len(items))
    found: dict[int, list[tuple[int, Region]]] = {}
    for document in sorted(leaks):
        for region in leaks[document]:
            found.setdefault(region.item, []).append((document, region))
    rows: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        total = int(totals[number])
        named = {"benchmark": item.benchmark, "item_id": item.item_id}
        for document, region in found.get(number, ()):
            rows.append(
                {
                    **named,
                    "total": region.total,
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
            rows.append({**named, "total": total, "state": state, "form": "", "matched": 0, "remains": False})
    return pa.Table.from_pylist(rows, schema=LEAKS)


def benchmark_facts(
    items: Sequence[Item], patterns: Patterns, leaks: Mapping[int, Sequence[Region]], remains: bool
) -> dict[str, dict[str, int]]:
    """Count the items of each benchmark by state; an item counts once however many documents contain it."""
    leaked = {region.item for regions in leaks.values() for region in regions}
    totals = patterns.item_totals(len(items))
    facts: dict[str, Counter[str]] = {}
    for number, item in enumerate(items):
        counts = facts.setdefault(item.benchmark, Counter(items=0, leaked=0, clean=0, unmatchable=0, remains=0))
        counts["items"] += 1
        state = LEAKED if number in leaked else CLEAN if totals[number] else UNMATCHABLE
        counts[state] += 1
        counts["remains"] += state == LEAKED and remains
    return {name: dict(counts) for name, counts in facts.items()}
