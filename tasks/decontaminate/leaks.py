"""From matches to leaks: how rare the shared words are, which item leaked where, and the rows of LEAKS.

A match is evidence by its seeds. One in a single document of the run counts fully, one in more documents less, one in
too many (licence texts, common phrases) or in too many items (stems of exams) not at all. Its words are evidence by the
items that have them: a part of an item that is made of usual words is none. A text that a document contains as a whole
is a leak even so: an item does not become clean by being copied often.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model.kernels import kernel
from tasks.artifacts.results import BenchmarkCounts
from tasks.artifacts.tables.schema import LEAKS
from tasks.common.groups import begins_group, find_sorted
from tasks.decontaminate.benchmarks import Item
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.forms import CHOICE_WORDS, HALF, RUN, SHORT, SIMILAR, TOGETHER, WHOLE
from tasks.decontaminate.ngrams import ItemIndex
from tasks.decontaminate.scan import Stretches
from tasks.decontaminate.seeds import I64, WORD_UNITS, units_of

LEAKED, CLEAN, UNMATCHABLE = "leaked", "clean", "unmatchable"
FORMS = {RUN: "ngram", WHOLE: "verbatim", SIMILAR: "similar", HALF: "half", SHORT: "short", TOGETHER: "together"}
COMMON, TEMPLATE = "common", "template"

NEEDED = {RUN: 2.0, WHOLE: 0.0, SIMILAR: 3.0, HALF: 3.0, SHORT: 0.5, TOGETHER: 0.5}
"""Rare seeds that a match of each form needs; one in a single document counts 1."""

INFORMATION = {RUN: 70.0, WHOLE: 0.0, SIMILAR: 50.0, HALF: 45.0, SHORT: 27.0, TOGETHER: 0.0}
"""Bits that the distinct words of a match need, by how many items have each: stems of exams and definitions are words
of many items, whatever their order. Chosen with 247 flags that were read one by one."""


@dataclass(frozen=True)
class Region:
    """A range of a document that one item shares; bytes of the document's text, half-open."""

    item: int
    start: int
    end: int
    matched: int
    """Words of the item within the range; two characters of scripts without spaces count as 1.3."""
    total: int
    """Words of the item's parts that are within the range."""
    form: str


@dataclass(frozen=True)
class Rarity:
    """In how many documents of the run each seed occurs."""

    seeds: I64
    """Where in `ItemIndex.seeds` the seeds are that occur, ascending."""
    documents: I64
    limit: float
    """Seeds in more documents are common."""

    def weights(self, seeds: I64) -> npt.NDArray[np.float64]:
        """Return the evidence of seeds: 1 in one document, 0 in more than `limit`, in between by the logarithm."""
        at, is_there = find_sorted(self.seeds, seeds)
        documents = np.zeros(seeds.size, np.int64)
        documents[is_there] = self.documents[at[is_there]]
        weights = 1.0 - np.log(np.maximum(documents, 1)) / np.log(self.limit + 1.0)
        return np.where(documents > 0, np.maximum(weights, 0.0), 0.0)

    def with_seen(self, seeds: I64) -> "Rarity":
        """Return the table with `seeds` in one document where they were in none."""
        new = np.setdiff1d(seeds, self.seeds)
        together = np.concatenate([self.seeds, new])
        order = np.argsort(together)
        counts = np.concatenate([self.documents, np.ones(new.size, np.int64)])
        return Rarity(together[order], counts[order], self.limit)


def measure_rarity(found: Sequence[tuple[I64, I64]], documents: int, config: DecontaminateConfig) -> Rarity:
    """Return the table of a run of `documents`, from the (seeds, documents) of its parts."""
    seeds, places = np.unique(np.concatenate([np.empty(0, np.int64), *(s for s, _ in found)]), return_inverse=True)
    counts = np.concatenate([np.empty(0, np.int64), *(d for _, d in found)])
    totals = np.bincount(places, counts, minlength=seeds.size).astype(np.int64)
    return Rarity(seeds, totals, max(config.common_documents, config.common_share * documents))


def rarity_table(rarity: Rarity, index: ItemIndex) -> pa.Table:
    """Return a table as RARITY: the hash of each seed and its documents. The first row is the limit, with hash 0."""
    return pa.table(
        {
            "seed": pa.array(np.append(np.uint64(0), index.seeds[rarity.seeds]), pa.uint64()),
            "documents": pa.array(np.append(rarity.limit, rarity.documents), pa.float64()),
        }
    )


def keep_rarity(table: pa.Table, index: ItemIndex, measured: Rarity) -> Rarity:
    """Return the counts and the limit of RARITY for the seeds of `index`.

    A seed that is not in the table counts as one document where `measured` has it: it is new.
    """
    hashes, documents = table.column("seed").to_numpy()[1:], table.column("documents").to_numpy()
    places, known = find_sorted(index.seeds, hashes)
    counts = documents[1:][known].astype(np.int64)
    return Rarity(places[known], counts, float(documents[0])).with_seen(measured.seeds)


def find_leaks(index: ItemIndex, stretches: Stretches, rarity: Rarity) -> dict[int, list[Region]]:
    """Return document (as counted by `stretches.row`) -> its leaked regions by (start, end, item).

    Clean documents are absent.
    """
    leaks: dict[int, list[Region]] = {}
    bounds = [*np.flatnonzero(begins_group(stretches.match)).tolist(), len(stretches)]
    for begin, end in itertools.pairwise(bounds):
        form, item = int(stretches.form[begin]), int(stretches.item[begin])
        spans = list(zip(stretches.first[begin:end].tolist(), stretches.last[begin:end].tolist(), strict=True))
        seeds = np.unique(np.concatenate([index.seed_places(first, last) for first, last in spans]))
        own = seeds[index.places[seeds] >= 0]
        if not own.size or rarity.weights(own).sum() < NEEDED[form] or (form == WHOLE and is_stem(index, seeds)):
            continue
        places = np.concatenate([np.arange(first, last) for first, last in spans])
        if index.information_of(places) < INFORMATION[form]:
            continue
        parts = np.unique(stretches.part[begin:end]) + index.item_first[item]
        region = Region(
            item=item,
            start=int(stretches.start[begin:end].min()),
            end=int(stretches.end[begin:end].max()),
            matched=int(stretches.units[begin:end].sum()) // WORD_UNITS,
            total=int((index.part_first[parts + 1] - index.part_first[parts]).sum()),
            form=FORMS[form],
        )
        leaks.setdefault(int(stretches.row[begin]), []).append(region)
    for regions in leaks.values():
        regions.sort(key=lambda region: (region.start, region.end, region.item))
    return leaks


def is_stem(index: ItemIndex, seeds: I64) -> bool:
    """Return whether a text with these seeds is the stem of many items: with fewer than three of its own, and half."""
    own = int((index.places[seeds] >= 0).sum())
    return own < min(3, seeds.size / 2)


def matchable_items(index: ItemIndex, config: DecontaminateConfig) -> npt.NDArray[np.bool_]:
    """Return which items can be found at all: with enough words in a part, or in several together, and a seed."""
    found = np.zeros(index.items, np.bool_)
    _mark_matchable(
        index.words, index.part_first, index.part_choice, index.item_first, config.short_words * WORD_UNITS, found
    )
    led = index.places[index.places >= 0] >> 1
    seeded = np.zeros(index.items, np.bool_)
    seeded[np.searchsorted(index.part_first[index.item_first], led, side="right") - 1] = True
    return found & seeded


@kernel
def _mark_matchable(words, part_first, part_choice, item_first, enough, found):
    for item in range(found.size):
        together = parts = 0
        for part in range(item_first[item], item_first[item + 1]):
            units = 0
            for place in range(part_first[part], part_first[part + 1]):
                units += units_of(words[place])
            found[item] |= units >= (CHOICE_WORDS * WORD_UNITS if part_choice[part] else enough)
            together += units
            parts += units > 0
        found[item] |= parts > 1 and together >= enough


def leaks_table(
    items: Sequence[Item],
    matchable: npt.NDArray[np.bool_],
    leaks: Mapping[int, Sequence[Region]],
    doc_ids: npt.NDArray[np.uint8],
    remains: Mapping[tuple[bytes, int], int],
) -> pa.Table:
    """Return LEAKS: a row per leaked region, and one for every clean or unmatchable item, in order of the items.

    `remains` counts by (document id, item) the item's n-grams that the documents put out still hold.
    """
    rows = [(region.item, document, region) for document in sorted(leaks) for region in leaks[document]]
    rows.sort(key=lambda row: row[0])
    leaked = np.zeros(len(items), np.bool_)
    leaked[[item for item, _, _ in rows]] = True
    others = np.flatnonzero(~leaked)
    order = np.argsort(np.concatenate([np.array([item for item, _, _ in rows], np.int64), others]), kind="stable")
    empty = others.size
    ids = [doc_ids[document].tobytes() for _, document, _ in rows]
    numbers = [item for item, _, _ in rows] + others.tolist()
    columns: dict[str, list[Any]] = {
        "benchmark": [items[number].benchmark for number in numbers],
        "item_id": [items[number].item_id for number in numbers],
        "state": [LEAKED] * len(rows) + [CLEAN if able else UNMATCHABLE for able in matchable[others].tolist()],
        "form": [region.form for _, _, region in rows] + [""] * empty,
        "doc_id": [*ids, *[None] * empty],
        "piece": [0] * len(rows) + [None] * empty,
        "start": [region.start for _, _, region in rows] + [None] * empty,
        "end": [region.end for _, _, region in rows] + [None] * empty,
        "matched": [region.matched for _, _, region in rows] + [0] * empty,
        "total": [region.total for _, _, region in rows] + [0] * empty,
        "remains": [remains.get((of, item), 0) for of, (item, _, _) in zip(ids, rows, strict=True)] + [0] * empty,
    }
    return pa.table(columns, schema=LEAKS).take(pa.array(order))


def count_items(
    items: Sequence[Item],
    matchable: npt.NDArray[np.bool_],
    leaks: Mapping[int, Sequence[Region]],
    remaining: frozenset[int],
) -> dict[str, BenchmarkCounts]:
    """Count the items of each benchmark by state; an item counts once however many documents contain it.

    `visible` is the share of items that can be found; `remains` counts leaked items of which some document put out
    holds n-grams.
    """
    leaked = {region.item for regions in leaks.values() for region in regions}
    found: dict[str, BenchmarkCounts] = {}
    for number, item in enumerate(items):
        counts = found.setdefault(
            item.benchmark, {"items": 0, "leaked": 0, "clean": 0, "unmatchable": 0, "remains": 0, "visible": 0.0}
        )
        counts["items"] += 1
        counts[LEAKED if number in leaked else CLEAN if matchable[number] else UNMATCHABLE] += 1
        counts["remains"] += number in remaining
    for counts in found.values():
        counts["visible"] = round(1.0 - counts["unmatchable"] / counts["items"], 4)
    return found
