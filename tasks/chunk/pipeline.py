"""The chunk stage from end to end: tokenize parts, pack rows source by source, plan the mixture, write the order."""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from model.data.schema import ORDER
from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.results import ChunkResult, MixedSource, OrderSize, RowFacts
from tasks.artifacts.tables.columns import token_rows
from tasks.artifacts.tables.files import read_table, table_file_name, write_run_table, write_table
from tasks.artifacts.tables.map_parts import map_parts
from tasks.artifacts.tables.schema import SPANS
from tasks.artifacts.workspace import Unit, Workspace
from tasks.chunk.config import SLOTS, ChunkConfig
from tasks.chunk.heldout import write_heldout
from tasks.chunk.mixture import Mixture, plan_mixtures, whole_mixture
from tasks.chunk.order import SourceReads, order_batches, plan_parts
from tasks.chunk.packing import PackedRows, best_fit_rows, concat_rows
from tasks.chunk.row_formats import row_format
from tasks.chunk.sentence_pairs import PairFormat, PairPacker
from tasks.chunk.sequences import SequenceWriter
from tasks.chunk.slots import SlotPlan, SlotReads, SlotSource, plan_slots, slots_table
from tasks.chunk.stable_rows import StableSource
from tasks.chunk.tokenize import (
    TABLE,
    TokenBytes,
    TokenFile,
    group_into_windows,
    read_blocks,
    token_files,
    tokenize_part,
)
from tasks.common.numeric import seed64
from tasks.common.work import Executor
from tasks.tokenizer.base import Tokenizer, token_dtype
from tasks.tokenizer.open import open_tokenizer

ORDER_UNIT = "order"

ROWS = "rows"

Reads = SourceReads | SlotReads

UNIGRAM = pa.schema([pa.field("token", pa.uint32(), nullable=False), pa.field("count", pa.int64(), nullable=False)])
"""Occurrences of each id in what ORDER reads, repetitions included, padding not; a row for every id."""


@dataclass
class SourceCounts:
    """Counts of the rows of one source."""

    rows: int = 0
    real: int = 0
    """Tokens that are not padding."""
    counted: int = 0
    """Tokens of the budget in one reading."""
    labels: Counter[str] = field(default_factory=Counter)
    """Rows of pairs by the kind of their second segment."""
    slot_source: SlotSource | None = None
    """What decides the slots of the rows in a stable order, whose last row is the blank one."""

    @property
    def filled_rows(self) -> int:
        """Rows without the blank one."""
        return self.rows - (self.slot_source is not None)


def chunk_documents(
    documents: Artifact,
    vocab: Artifact,
    config: ChunkConfig,
    workspace: Workspace,
    executor: Executor,
    kept: Mapping[str, SlotPlan] | None = None,
) -> StageReport:
    """Write SEQUENCES, SPANS, ORDER, the unigram counts, and rows of held-out text; `kept` are the numbers of a stable
    order by source.

    Raises InputError when the vocabulary lacks what the objective needs, a source has no weight or no row, or nothing
    can be read; Bug when tokens do not cover a text.
    """
    tokenizer = open_tokenizer(vocab, config.objective)
    layout = row_format(tokenizer, config)
    scratch = workspace.within(TABLE)
    report = map_parts(scratch, documents, functools.partial(tokenize_part, tokenizer=tokenizer), executor)
    files = token_files([scratch.file(record.name) for record in scratch.records()], documents.files("documents"))
    writer = SequenceWriter(workspace, workspace.scratch(ROWS), config.row_length, config.part_bytes, layout)
    packed_sources: dict[str, SourceCounts] = {}
    kept = kept or {}
    for source in sorted({*report.sources, *kept}):
        counts = packed_sources[source] = SourceCounts()
        packed_rows = (
            _pack_stably(files, source, tokenizer, config, writer.rows, counts, kept.get(source))
            if config.packing == "stable"
            else _pack_source(files, source, tokenizer, config, writer.rows, counts.labels)
        )
        for packed in packed_rows:
            writer.add(source, packed)
            counts.rows += len(packed.rows)
            counts.real += int(packed.real.sum())
            counts.counted += int(packed.counted.sum())
    counted = writer.finish()
    _check_sources(packed_sources, report, config, kept)
    available = {source: rows.counted for source, rows in packed_sources.items()}
    mixtures = plan_mixtures(available, config)
    slot_sources = {
        source: packed.slot_source for source, packed in packed_sources.items() if packed.slot_source is not None
    }
    if slot_sources:
        in_slots = plan_slots(mixtures, slot_sources, counted, config.seed, kept)
        write_run_table(workspace, SLOTS, slots_table(in_slots[-1]))
        parts: Sequence[Sequence[Reads]] = in_slots
    else:
        rows = {source: packed.rows for source, packed in packed_sources.items()}
        parts = plan_parts(mixtures, rows, counted, config.seed)
    with workspace.unit(ORDER_UNIT) as unit:
        _write_order(unit, parts)
        written = [workspace.file(name) for name in writer.names]
        write_table(unit, "unigram", _count_tokens(written, parts[-1], tokenizer.vocab_size, tokenizer.pad))
    write_heldout(documents, tokenizer, layout, config, workspace)
    report.facts = _result(config, mixtures, parts, packed_sources, report, writer.spans).facts()
    return report


def _pack_source(
    files: Sequence[TokenFile],
    source: str,
    tokenizer: Tokenizer,
    config: ChunkConfig,
    first_row: int,
    labels: Counter[str],
) -> Iterator[PackedRows]:
    """Yield all rows of one source in order, packed as configured; `labels` counts the kinds of pairs."""
    token_bytes = TokenBytes.of(tokenizer)
    if config.objective == "masked_lm":
        key = seed64(config.seed, "chunk", "pairs", source)
        packer = PairPacker(PairFormat.of(tokenizer, config), token_bytes, first_row, key)
        yield from packer.rows(group_into_windows(read_blocks(files, source, with_texts=True)))
        labels.update(packer.labels)
    elif config.packing == "best_fit":
        blocks = group_into_windows(read_blocks(files, source))
        yield from best_fit_rows(blocks, config.row_length, token_bytes, tokenizer.pad, first_row)
    else:
        uncounted = config.row_length - config.most_tokens
        blocks = read_blocks(files, source)
        yield from concat_rows(blocks, config.row_length, token_bytes, tokenizer.pad, first_row, uncounted)


def _pack_stably(
    files: Sequence[TokenFile],
    source: str,
    tokenizer: Tokenizer,
    config: ChunkConfig,
    first_row: int,
    counts: SourceCounts,
    kept: SlotPlan | None,
) -> Iterator[PackedRows]:
    """Yield the rows of one source by document, then its blank row; `counts` gets what decides their slots."""
    buckets = None if kept is None else kept.buckets
    packed = StableSource(files, source, config.row_length, config.tombstones, buckets)
    yield from packed.rows(TokenBytes.of(tokenizer), tokenizer.pad, first_row)
    counts.slot_source = SlotSource(first_row, packed.written, packed.absent, packed.buckets)
    none = np.zeros(1, dtype=np.int64)
    blank = np.full((1, config.row_length), tokenizer.pad, token_dtype(tokenizer.vocab_size))
    yield PackedRows(blank, none, none, SPANS.empty_table())


def _check_sources(
    packed_sources: dict[str, SourceCounts], report: StageReport, config: ChunkConfig, kept: Mapping[str, SlotPlan]
) -> None:
    """Raise InputError for a source without a token to predict, unless its slots are kept, which then stay empty."""
    for source, rows in packed_sources.items():
        if source in kept:
            continue
        weight = max([config.weights.get(source, 0), *(phase.weights.get(source, 0) for phase in config.phases)])
        if not rows.counted and weight > 0:
            raise InputError(
                f"chunk: source `{source}` has a weight of {weight:g} and"
                f" {report.source(source).documents_out:,} documents, and they give no sequence with a token to"
                f" predict: their texts are empty. Give it the weight 0, or check what the earlier stages left of it"
                f" (`bessemer data peek`)."
            )


def _write_order(unit: Unit, parts: Sequence[Sequence[Reads]]) -> None:
    name = table_file_name("order")
    rows = 0
    with pa.OSFile(str(unit.path(name)), "wb") as sink, pa.ipc.new_file(sink, ORDER) as writer:
        for batch in order_batches(parts):
            writer.write_batch(batch)
            rows += batch.num_rows
    unit.add_file(name, table="order", rows=rows)


def _count_tokens(parts: Sequence[Path], planned: Sequence[Reads], vocab_size: int, pad: int) -> pa.Table:
    """Return the unigram table of what is read of the SEQUENCES files `parts`."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for first, tokens in _read_rows(parts):
        for source in planned:
            begin = max(first, source.first_row)
            end = min(first + len(tokens), source.first_row + source.rows)
            if begin >= end:
                continue
            mine = tokens[begin - first : end - first]
            times = source.times_read(begin - source.first_row, end - source.first_row)
            for often in np.unique(times[times > 0]):
                counts += often * np.bincount(mine[times == often].reshape(-1), minlength=vocab_size)
    counts[pad] = 0
    return pa.table({"token": np.arange(vocab_size, dtype=np.uint32), "count": counts}, schema=UNIGRAM)


def _read_rows(parts: Sequence[Path]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (id of the first row, tokens [R, L]) of every record batch."""
    for path in parts:
        for batch in read_table(path).to_batches():
            yield batch.column("row")[0].as_py(), token_rows(batch)


def _result(
    config: ChunkConfig,
    mixtures: Sequence[Mixture],
    parts: Sequence[Sequence[Reads]],
    packed_sources: dict[str, SourceCounts],
    report: StageReport,
    segments: int,
) -> ChunkResult:
    mixture, planned = whole_mixture(mixtures), parts[-1]
    rows = sum(source.filled_rows for source in packed_sources.values())
    real = sum(source.real for source in packed_sources.values())
    read = sum(source.tokens for source in planned)
    blank = sum(one.blank for one in planned if isinstance(one, SlotReads))
    labels = sum((source.labels for source in packed_sources.values()), Counter[str]())
    order: OrderSize = {
        "reads": sum(source.reads for source in planned),
        "tokens": read,
        "asked_tokens": mixture.budget,
    }
    if config.packing == "stable":
        order["blank"] = blank
    packed: RowFacts = {
        "objective": config.objective,
        "packing": "pairs" if config.objective == "masked_lm" else config.packing,
        "row_length": config.row_length,
        "rows": rows,
    }
    if config.objective == "span_corruption":
        packed["denoising"] = config.denoising
    if config.whole_words:
        packed["whole_words"] = True
    if labels:
        packed["labels"] = dict(sorted(labels.items()))
    return ChunkResult(
        mixture=_mixture_facts(mixture, planned, packed_sources, read, config.row_length, report),
        padding_share=_padding_share(rows, real, config.row_length),
        order=order,
        rows=packed,
        spans={"segments": segments},
        phases=_phases(mixtures, parts) if len(mixtures) > 1 else None,
    )


def _phases(mixtures: Sequence[Mixture], parts: Sequence[Sequence[Reads]]) -> list[dict[str, Any]]:
    """Return where each part of the order begins and what it reads, by source."""
    found: list[dict[str, Any]] = []
    begin = 0
    for mixture, planned, before in zip(mixtures, parts, [None, *parts[:-1]], strict=True):
        earlier = {one.source: (one.tokens, one.reads) for one in before or ()}
        tokens = {one.source: one.tokens - earlier.get(one.source, (0, 0))[0] for one in planned}
        reads = {one.source: one.reads - earlier.get(one.source, (0, 0))[1] for one in planned}
        found.append(
            {
                "begin": begin,
                "reads": sum(reads.values()),
                "tokens": sum(tokens.values()),
                "asked_tokens": mixture.budget,
                "sources": {
                    name: {"weight": mixture.weights[name], "reads": reads[name], "tokens": tokens[name]}
                    for name in tokens
                },
            }
        )
        begin += sum(reads.values())
    return found


def _mixture_facts(
    mixture: Mixture,
    planned: Sequence[Reads],
    packed_sources: dict[str, SourceCounts],
    read: int,
    row_length: int,
    report: StageReport,
) -> dict[str, MixedSource]:
    """Return the table of GPT-3's section 2.2 for this run: source, documents, tokens, weight, epochs planned and
    realised."""
    table: dict[str, MixedSource] = {}
    for source in planned:
        name, rows = source.source, packed_sources[source.source]
        table[name] = {
            "documents": report.source(name).documents_out,
            "tokens": rows.real,
            "rows": rows.filled_rows,
            "padding_share": _padding_share(rows.filled_rows, rows.real, row_length),
            "weight": mixture.weights[name],
            "planned_share": mixture.planned[name],
            "realised_share": source.tokens / read,
            "reads": source.reads,
            "planned_epochs": mixture.targets[name] / rows.counted if rows.counted else 0.0,
            "epochs": source.tokens / rows.counted if rows.counted else 0.0,
        }
    return table


def _padding_share(rows: int, real: int, row_length: int) -> float:
    return (rows * row_length - real) / (rows * row_length) if rows else 0.0
