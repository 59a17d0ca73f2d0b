"""One part of dedup's output: its documents without copies and cut passages, its ledger, its rows of the INDEX.

What was decided over the whole corpus comes to a part as its own fates alone, so that a part can be written on another
machine.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import blake3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus, text_column
from tasks.dedup.cuts import NOTHING_OF_ITS_OWN, REPEATED_LINE, REPEATED_SUBSTRING, CutPlan, without
from tasks.dedup.earlier import UNCUT
from tasks.dedup.index import index_table
from tasks.dedup.survivors import Fates
from tasks.ledger import CUT, DROP, LedgerRows
from tasks.parts import PartResult
from tasks.report import StageReport

STAGE = "dedup"
EXACT_DUPLICATE = "exact_duplicate"
NEAR_DUPLICATE = "near_duplicate"
OF_EARLIER = "_of_earlier"
"""Ending of the rule where the document that stays is one of an earlier run."""


@dataclass(frozen=True)
class Cut:
    """A passage that goes: a range of UTF-8 bytes of the document, where it stays, and by which rule."""

    start: int
    end: int
    survivor: str
    """doc_id of the document in which the passage stays, hexadecimal."""
    rule: str


@dataclass(frozen=True)
class PartFates:
    """What was decided about the documents of one part, by their row in it."""

    removed: Mapping[int, tuple[str, float, str]]
    """Rule, true similarity and evidence of each duplicate."""
    cuts: Mapping[int, Sequence[Cut]]
    emptied: frozenset[int]
    """Rows of which the cuts would leave nothing."""
    signatures: Path
    """Those of the part, (rows, signature length), as numpy has them."""


def fates_of_part(corpus: Corpus, fates: Fates, plan: CutPlan, index: int) -> PartFates:
    """The fates of this run's part `index`."""
    part = corpus.earlier_parts + index
    begin, end = int(corpus.first_row[part]), int(corpus.first_row[part + 1])
    removed = np.flatnonzero(fates.survivor[begin:end] >= 0).tolist()
    return PartFates(
        removed={row: _removal(corpus, fates, begin + row) for row in removed},
        cuts={
            row - begin: [
                Cut(start, stop, corpus.doc_ids[first].tobytes().hex(), rule) for start, stop, first, rule in found
            ]
            for row in plan.rows_between(begin, end)
            if (found := plan.of(row))
        },
        emptied=frozenset(np.flatnonzero(plan.emptied[begin:end]).tolist()),
        signatures=corpus.signature_files[part],
    )


def filter_part(config: DedupConfig, table: pa.Table, index: int, fates: PartFates) -> PartResult:
    """Tables documents, ledger and index of one part, and the whole texts of documents that were cut."""
    del index
    ledger, report = LedgerRows(STAGE), StageReport()
    texts = text_column(table)
    doc_ids, sources = table.column("doc_id").to_pylist(), table.column("source").to_pylist()
    sizes = pc.binary_length(texts).to_pylist()
    stays = np.ones(table.num_rows, np.bool_)
    cut_rows: list[int] = []
    remains: list[bytes] = []
    for row, (doc_id, source, size) in enumerate(zip(doc_ids, sources, sizes, strict=True)):
        counts = report.source(source)
        counts.documents_in += 1
        counts.bytes_in += size
        cuts = fates.cuts.get(row, ())
        if row in fates.removed:
            rule, jaccard, evidence = fates.removed[row]
            counts.dropped[rule] += 1
            ledger.add(
                doc_id=doc_id,
                action=DROP,
                rule=rule,
                value=jaccard,
                limit=config.threshold,
                bytes_in=size,
                bytes_out=0,
                evidence=evidence,
            )
            stays[row] = False
            continue
        if row in fates.emptied:
            counts.dropped[NOTHING_OF_ITS_OWN] += 1
            ledger.add(
                doc_id=doc_id,
                action=DROP,
                rule=NOTHING_OF_ITS_OWN,
                bytes_in=size,
                bytes_out=0,
                evidence=json.dumps({"survivor": cuts[0].survivor, "passages": len(cuts)}),
            )
            stays[row] = False
            continue
        if cuts:
            remains.append(without(texts[row].as_py().encode(), [(cut.start, cut.end) for cut in cuts]))
            cut_rows.append(row)
            size = _tell_cuts(ledger, doc_id, size, cuts, config)
            counts.edited["cut"] += 1
        counts.documents_out += 1
        counts.pieces_out += 1
        counts.bytes_out += size
    mask = pa.array(stays)
    tables = {
        "documents": _with_texts(table, cut_rows, remains).filter(mask),
        "ledger": ledger.table(),
        "index": index_table(
            table.column("doc_id").filter(mask),
            table.column("text_digest").filter(mask),
            _signatures(fates.signatures)[stays],
        ),
    }
    if cut_rows:
        tables[UNCUT] = table.select(["doc_id", "text"]).take(pa.array(cut_rows, pa.int64()))
    return PartResult(tables, report)


def _signatures(path: Path) -> npt.NDArray[np.uint32]:
    return np.load(path, mmap_mode="r")


def _removal(corpus: Corpus, fates: Fates, row: int) -> tuple[str, float, str]:
    """Rule, true similarity and evidence of a duplicate's removal."""
    survivor, jaccard = int(fates.survivor[row]), float(fates.jaccard[row])
    evidence: dict[str, object] = {"survivor": corpus.doc_ids[survivor].tobytes().hex(), "jaccard": round(jaccard, 6)}
    rule = EXACT_DUPLICATE if fates.exact[row] else NEAR_DUPLICATE
    if survivor < corpus.earlier:
        rule += OF_EARLIER
        evidence["earlier"] = corpus.earlier_identity(survivor)
    return rule, jaccard, json.dumps(evidence)


def _tell_cuts(ledger: LedgerRows, doc_id: bytes, size: int, cuts: Sequence[Cut], config: DedupConfig) -> int:
    """A ledger row for each cut; returns the bytes that remain."""
    left = size
    limits = {REPEATED_SUBSTRING: config.repeated_bytes, REPEATED_LINE: None}
    for cut in cuts:
        after = left - (cut.end - cut.start)
        ledger.add(
            doc_id=doc_id,
            action=CUT,
            rule=cut.rule,
            value=cut.end - cut.start,
            limit=limits[cut.rule],
            bytes_in=left,
            bytes_out=after,
            evidence=json.dumps({"survivor": cut.survivor, "start": cut.start, "end": cut.end}),
        )
        left = after
    return left


def _with_texts(table: pa.Table, rows: list[int], texts: list[bytes]) -> pa.Table:
    """The table with other texts (and their digests) in the given rows."""
    if not rows:
        return table
    mask = np.zeros(table.num_rows, np.bool_)
    mask[rows] = True
    columns = {
        "text": pa.array([text.decode() for text in texts], pa.large_string()),
        "text_digest": pa.array([blake3.blake3(text).digest(length=16) for text in texts], pa.binary(16)),
    }
    for name, values in columns.items():
        replaced = pc.replace_with_mask(table.column(name).combine_chunks(), pa.array(mask), values)
        table = table.set_column(table.column_names.index(name), table.schema.field(name), replaced)
    return table
