"""The chunk stage from end to end: tokenize parts, pack rows source by source, plan the mixture, write the order."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from model.schema import sequences_schema
from tasks.artifact import Artifact, read_table
from tasks.chunk.config import ChunkConfig
from tasks.chunk.mixture import Mixture, plan_mixture
from tasks.chunk.order import reading_order
from tasks.chunk.packing import RowPacker, blocks_of
from tasks.chunk.tokenizing import TABLE, token_dtype, tokenize_documents
from tasks.parts import unit_name
from tasks.report import StageReport
from tasks.schema import SPANS
from tasks.tokenizer import Tokenizer
from tasks.workspace import Workspace, table_file_name

ORDER_UNIT = "order"
UNIGRAM = pa.schema([pa.field("token", pa.uint32(), nullable=False), pa.field("count", pa.int64(), nullable=False)])
"""How often each id occurs in what ORDER reads, repetitions counted, padding not; a row for every id."""


def chunk_documents(documents: Artifact, vocab: Artifact, config: ChunkConfig, workspace: Workspace) -> StageReport:
    """Write SEQUENCES, SPANS, ORDER and the unigram counts.

    Raises InputError when a source has no weight or nothing can be read, Bug when tokens do not cover a text.
    """
    tokenizer = Tokenizer.open(vocab)
    scratch = Workspace(workspace.scratch(TABLE), workspace.progress)
    report = tokenize_documents(documents, tokenizer, scratch, config.workers)
    token_files = [scratch.file(record.name) for record in scratch.records()]
    writer = SequenceWriter(workspace, config, tokenizer.vocab_size)
    rows: dict[str, int] = {}
    padding: dict[str, int] = {}
    for source in sorted(report.sources):
        packer = RowPacker(
            config.row_length, tokenizer.piece_lengths, tokenizer.pad, writer.rows, tokenizer.first_lengths
        )
        before = writer.rows
        for path in token_files:
            for block in blocks_of(read_table(path), source):
                packed = packer.add(block)
                writer.add(source, packed.rows, packed.spans)
        writer.add(source, packer.finish(), SPANS.empty_table())
        rows[source], padding[source] = writer.rows - before, packer.padding
    writer.finish()
    mixture = plan_mixture(
        rows, config.weights, config.budget_tokens // (config.row_length - 1), config.max_epochs, config.temperature
    )
    order = reading_order(mixture, config.seed)
    with workspace.unit(ORDER_UNIT) as unit:
        unit.write_table("order", order)
        parts = [workspace.file(name) for name in writer.names]
        unit.write_table("unigram", count_tokens(parts, order, tokenizer.vocab_size, tokenizer.pad))
    total = sum(rows.values()) * config.row_length
    report.facts["mixture"] = mixture_facts(mixture, padding, config.row_length, report)
    report.facts["padding_share"] = sum(padding.values()) / total if total else 0.0
    report.facts["order"] = {"reads": mixture.total_reads, "asked": mixture.asked, "row_tokens": config.row_length - 1}
    report.facts["spans"] = {"segments": writer.spans}
    return report


class SequenceWriter:
    """Gathers rows and their spans into parts of a fixed number of rows, so that layout is a function of the data."""

    def __init__(self, workspace: Workspace, config: ChunkConfig, vocab_size: int) -> None:
        self._workspace = workspace
        self._schema = sequences_schema(config.row_length, vocab_size)
        self._dtype = token_dtype(vocab_size)
        self._length = config.row_length
        self._part_rows = max(1, config.part_bytes // (config.row_length * np.dtype(self._dtype).itemsize))
        self._waiting: list[tuple[str, np.ndarray]] = []
        self._waiting_rows = 0
        self._spans: list[pa.Table] = []
        self.names: list[str] = []
        """Files of SEQUENCES written so far."""
        self.rows = 0
        """Rows taken so far, which is the id of the next one."""
        self.spans = 0
        """Segments taken so far."""

    def add(self, source: str, rows: np.ndarray, spans: pa.Table) -> None:
        """Take rows [R, L] of one source, and spans in order (of these rows or later ones)."""
        if spans.num_rows:
            self._spans.append(spans)
            self.spans += spans.num_rows
        self.rows += len(rows)
        while len(rows):
            taken = rows[: self._part_rows - self._waiting_rows]
            self._waiting.append((source, taken))
            self._waiting_rows += len(taken)
            rows = rows[len(taken) :]
            if self._waiting_rows == self._part_rows:
                self._write()

    def finish(self) -> None:
        """Write what is left as the last part; without any row, one empty part, so that the table exists."""
        if self._waiting_rows or not self.names:
            self._write()

    def _write(self) -> None:
        index = len(self.names)
        first = index * self._part_rows
        name = table_file_name("sequences", unit_name(index))
        spans = pa.concat_tables([SPANS.empty_table(), *self._spans]).combine_chunks()
        mine = int(np.searchsorted(spans.column("row").to_numpy(), first + self._waiting_rows))
        self._spans = [spans.slice(mine)] if mine < spans.num_rows else []
        if self._workspace.finished(unit_name(index)) is None:
            with self._workspace.unit(unit_name(index)) as unit:
                unit.write_table("sequences", self._table(first), name)
                unit.write_table("spans", spans.slice(0, mine), table_file_name("spans", unit_name(index)))
        self.names.append(name)
        self._waiting, self._waiting_rows = [], 0

    def _table(self, first: int) -> pa.Table:
        count = self._waiting_rows
        flat = [rows.reshape(-1).astype(self._dtype, copy=False) for _, rows in self._waiting]
        values = pa.array(np.concatenate([np.zeros(0, self._dtype), *flat]))
        sources = [source for source, rows in self._waiting for _ in range(len(rows))]
        return pa.table(
            {
                "row": np.arange(first, first + count, dtype=np.int64),
                "source": pa.array(sources, pa.string()).dictionary_encode(),
                "tokens": pa.FixedSizeListArray.from_arrays(values, type=self._schema.field("tokens").type),
                "loss_start": np.zeros(count, dtype=np.int32),
            },
            schema=self._schema,
        )


def count_tokens(parts: list[Path], order: pa.Table, vocab_size: int, pad: int) -> pa.Table:
    """The unigram table of what `order` reads from the SEQUENCES files `parts`."""
    reads = np.bincount(order.column("row").to_numpy())
    counts = np.zeros(vocab_size, dtype=np.int64)
    for row, tokens in _rows_of(parts):
        mine = np.zeros(len(tokens), dtype=np.int64)
        known = reads[row : row + len(tokens)]
        mine[: len(known)] = known
        for times in np.unique(mine[mine > 0]):
            counts += times * np.bincount(tokens[mine == times].reshape(-1), minlength=vocab_size)
    counts[pad] = 0
    return pa.table({"token": np.arange(vocab_size, dtype=np.uint32), "count": counts}, schema=UNIGRAM)


def _rows_of(parts: list[Path]) -> Iterator[tuple[int, np.ndarray]]:
    """(id of the first row, tokens [R, L]) of every record batch."""
    for path in parts:
        for batch in read_table(path).to_batches():
            tokens = batch.column("tokens")
            yield batch.column("row")[0].as_py(), tokens.flatten().to_numpy().reshape(len(tokens), -1)


def mixture_facts(
    mixture: Mixture, padding: dict[str, int], row_length: int, report: StageReport
) -> dict[str, dict[str, Any]]:
    """The table of GPT-3's section 2.2 for this run: source, documents, tokens, weight, epochs."""
    return {
        source: {
            "documents": report.source(source).documents_out,
            "tokens": rows * row_length - padding[source],
            "rows": rows,
            "weight": mixture.weights[source],
            "planned_share": mixture.planned[source],
            "realised_share": mixture.reads[source] / mixture.total_reads,
            "reads": mixture.reads[source],
            "epochs": mixture.reads[source] / rows if rows else 0.0,
        }
        for source, rows in mixture.rows.items()
    }
