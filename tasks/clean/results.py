"""The output of one part: kept documents, ledger rows and counts, collected batch by batch."""

import itertools
from collections import Counter

import numpy as np
import pyarrow as pa

from tasks.artifacts.report import StageReport
from tasks.artifacts.results import CleanResult
from tasks.artifacts.tables.ledger import DROP, EDIT, clip_bytes
from tasks.artifacts.tables.map_parts import PartResult
from tasks.artifacts.tables.schema import DOCUMENTS, LEDGER
from tasks.clean.batch import DocumentBatch, Texts
from tasks.clean.document import KINDS, Verdicts
from tasks.clean.rules import RULES

MIN_LANGUAGE_CONFIDENCE = RULES["language_confidence"].limit
"""Confidence from which an identified language is written into the document's `lang`."""


class PartTables:
    """The tables and the report of one part."""

    def __init__(self, documents: pa.Table) -> None:
        self._documents = documents
        self._report = StageReport()
        self._kept: list[np.ndarray] = []
        self._text = bytearray()
        self._sizes: list[np.ndarray] = []
        self._languages: list[str | None] = []
        self._found = CleanResult()
        self._kinds: list[np.ndarray] = []
        self._digests: dict[int, bytes] = {}
        self._ledger: list[pa.RecordBatch] = []

    def add(self, batch: DocumentBatch, verdicts: Verdicts, digests: dict[int, bytes]) -> None:
        """Add the next batch and what was decided about it; `digests` are those of edited texts, by row."""
        kept = np.flatnonzero(verdicts.is_kept)
        texts = batch.texts
        sizes = texts.sizes
        self._kept.append(batch.first + kept)
        self._keep_texts(texts, kept)
        self._sizes.append(sizes[kept])
        self._languages += [_known_language(batch, row) for row in kept.tolist()]
        self._kinds.append(batch.contexts.text_kinds[kept])
        self._digests.update((batch.first + row, digest) for row, digest in digests.items())
        self._count(batch, verdicts, sizes)
        self._count_kinds(batch, verdicts, sizes)
        self._write_ledger(batch, verdicts, sizes)

    def result(self) -> PartResult:
        """Return DOCUMENTS, LEDGER and the report."""
        self._found.languages.update(Counter(language or "?" for language in self._languages))
        self._report.facts = self._found.facts()
        ledger = pa.Table.from_batches(self._ledger, LEDGER).combine_chunks()
        return PartResult({"documents": self._kept_documents(), "ledger": ledger}, self._report)

    def _keep_texts(self, texts: Texts, kept: np.ndarray) -> None:
        """Append texts to the buffer; runs that are contiguous in the batch are copied at once."""
        begins, ends = texts.begins[kept], texts.ends[kept]
        breaks = np.flatnonzero(begins[1:] != ends[:-1]) + 1
        for first, end in itertools.pairwise((0, *breaks.tolist(), len(kept))):
            if end:
                self._text += texts.data[begins[first] : ends[end - 1]].data

    def _count(self, batch: DocumentBatch, verdicts: Verdicts, sizes: np.ndarray) -> None:
        sources = np.array(batch.contexts.sources)
        for source in dict.fromkeys(batch.contexts.sources):
            of_source = sources == source
            kept = of_source & verdicts.is_kept
            counts = self._report.source(source)
            counts.documents_in += int(of_source.sum())
            counts.bytes_in += int(batch.sizes[of_source].sum())
            counts.documents_out += int(kept.sum())
            counts.bytes_out += int(sizes[kept].sum())
            rules, documents = np.unique(verdicts.rules[of_source & ~kept], return_counts=True)
            counts.dropped.update({verdicts.names[rule]: int(n) for rule, n in zip(rules, documents, strict=True)})
            for row, edits in verdicts.edits.items():
                if kept[row]:
                    counts.edited.update(edits)

    def _count_kinds(self, batch: DocumentBatch, verdicts: Verdicts, sizes: np.ndarray) -> None:
        """Add the bytes of each kind; documents that a deny-list drops have none."""
        kinds, is_kept = batch.contexts.text_kinds, verdicts.is_kept
        for counted, chosen, size in (
            (self._found.kind_bytes_read, kinds >= 0, batch.sizes),
            (self._found.kind_bytes_kept, is_kept, sizes),
            (self._found.kind_bytes_dropped, ~is_kept & (kinds >= 0), batch.sizes),
        ):
            for kind in np.unique(kinds[chosen]).tolist():
                name = KINDS[kind]
                counted[name] = counted.get(name, 0) + int(size[chosen & (kinds == kind)].sum())

    def _write_ledger(self, batch: DocumentBatch, verdicts: Verdicts, sizes: np.ndarray) -> None:
        is_drop = ~verdicts.is_kept
        is_row = is_drop.copy()
        is_row[list(verdicts.edits)] = True
        rows = np.flatnonzero(is_row)
        if not len(rows):
            return
        dropped = is_drop[rows]
        evidence = {row: clip_bytes(text) for row, text in verdicts.evidence.items()}
        names = (*verdicts.names, None)
        columns = {
            "doc_id": batch.rows.column("doc_id").take(pa.array(rows)),
            "piece": batch.rows.column("piece").take(pa.array(rows)),
            "stage": ["clean"] * len(rows),
            "action": [DROP if is_dropped else EDIT for is_dropped in dropped.tolist()],
            "rule": [
                names[rule] or "+".join(verdicts.edits[row])
                for row, rule in zip(rows.tolist(), verdicts.rules[rows].tolist(), strict=True)
            ],
            "value": _or_null(verdicts.values[rows]),
            "limit": _or_null(verdicts.limits[rows]),
            "bytes_in": batch.sizes[rows],
            "bytes_out": np.where(dropped, 0, sizes[rows]),
            "evidence": [evidence.get(row) for row in rows.tolist()],
        }
        arrays = [pa.array(columns[field.name], field.type) for field in LEDGER]
        self._ledger.append(pa.RecordBatch.from_arrays(arrays, schema=LEDGER))

    def _kept_documents(self) -> pa.Table:
        kept = pa.array(np.concatenate([np.zeros(0, np.int64), *self._kept]))
        others = self._documents.drop_columns(["text", "lang", "text_kind"]).take(kept)
        digests = others.column("text_digest")
        if self._digests:
            digests = pa.array(
                [
                    self._digests.get(row, digest)
                    for row, digest in zip(kept.to_pylist(), digests.to_pylist(), strict=True)
                ],
                DOCUMENTS.field("text_digest").type,
            )
        kinds = np.concatenate([np.zeros(0, np.int32), *self._kinds])
        columns = {
            **{name: others.column(name) for name in others.column_names},
            "text": self._text_column(),
            "text_digest": digests,
            "text_kind": pa.DictionaryArray.from_arrays(pa.array(kinds, pa.int32(), mask=kinds < 0), list(KINDS)),
            "lang": pa.array(self._languages, pa.string()).dictionary_encode().cast(DOCUMENTS.field("lang").type),
        }
        return pa.Table.from_arrays([columns[name] for name in DOCUMENTS.names], schema=DOCUMENTS)

    def _text_column(self) -> pa.Array:
        bounds = np.concatenate(([0], *self._sizes)).cumsum().astype(np.int64)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self._text)]
        texts = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)
        return texts.cast(pa.large_string())


def _known_language(batch: DocumentBatch, row: int) -> str | None:
    given = batch.contexts.given[row]
    if given is not None:
        return given
    found = batch.contexts.identified_language(row)
    return found[0] if found is not None and found[1] >= MIN_LANGUAGE_CONFIDENCE else None


def _or_null(values: np.ndarray) -> pa.Array:
    return pa.array(values.astype(np.float32), pa.float32(), mask=np.isnan(values))
