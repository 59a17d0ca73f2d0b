"""The decontaminate stage: scan part by part, decide globally, cut part by part, measure recall.

Hits of each part are scratch files and output parts are units, so a killed build resumes where it was; the decisions
between them need all parts (how common an n-gram is, which documents are held out), are deterministic and are made
again.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model.errors import Bug
from model.file_content import Content
from tasks.artifacts.artifact import Artifact, artifact_at
from tasks.artifacts.report import StageReport
from tasks.artifacts.results import DecontaminateResult
from tasks.artifacts.tables.columns import binary_rows, numbered_values, text_buffers
from tasks.artifacts.tables.files import read_table, write_run_table
from tasks.artifacts.tables.map_parts import map_parts, unit_name, work_on_missing
from tasks.artifacts.workspace import Workspace
from tasks.common.work import Executor, Work
from tasks.decontaminate.benchmarks import Item, items_table, read_items
from tasks.decontaminate.config import HELDOUT_DRAW, RARITY, DecontaminateConfig
from tasks.decontaminate.heldout import HeldoutDraw, choose_heldout, draws_table, read_draws
from tasks.decontaminate.leaks import (
    COMMON,
    TEMPLATE,
    Rarity,
    Region,
    count_items,
    find_leaks,
    keep_rarity,
    leaks_table,
    matchable_items,
    measure_rarity,
    rarity_table,
)
from tasks.decontaminate.ngrams import ItemIndex, build_index
from tasks.decontaminate.normalize import words_as_written
from tasks.decontaminate.recall import choose_hosts, make_controls, measure_search
from tasks.decontaminate.rewrite import Decisions, remaining_ngrams, rewrite_part
from tasks.decontaminate.scan import Stretches, scan_texts
from tasks.decontaminate.seeds import I64, LONG_SPAN

LISTED_NGRAMS = 50


@dataclass(frozen=True)
class _Corpus:
    """What decisions need of every document, in input order; row r of part p is at first_row[p] + r."""

    first_row: I64
    doc_ids: npt.NDArray[np.uint8]
    sizes: I64
    source_names: list[str]
    sources: npt.NDArray[np.int32]
    """The number of each document's source in `source_names`."""
    match_files: list[Path]
    rarity: Rarity

    def rows_of_part(self, index: int) -> tuple[int, int]:
        """Return the first row of a part, and the one after its last."""
        return int(self.first_row[index]), int(self.first_row[index + 1])


def decontaminate(
    documents: Artifact,
    config: DecontaminateConfig,
    contents: Mapping[Path, Content],
    workspace: Workspace,
    executor: Executor,
    kept: Artifact | None = None,
    kept_heldout: Artifact | None = None,
) -> StageReport:
    """Cut, drop or flag what the benchmarks share with DOCUMENTS, and set the held-out split aside.

    `contents` are the contents of the benchmarks' files; `kept` is the artifact whose RARITY is used, `kept_heldout`
    the one whose HELDOUT_DRAW is. The bytes are the same for any number of workers. Raises InputError for a benchmark
    that is missing, empty or lacks a field, before any document is read.
    """
    items = read_items(config.benchmarks, contents)
    index = build_index(items, config)
    corpus = _scan_corpus(documents, index, config, workspace, executor)
    if kept is not None:
        corpus = replace(corpus, rarity=keep_rarity(kept.table(RARITY), index, corpus.rarity))
    leaks = _find_corpus_leaks(corpus, index)
    draws = {} if kept_heldout is None else read_draws(kept_heldout.table(HELDOUT_DRAW))
    leak_free = np.ones(corpus.sizes.size, np.bool_)
    leak_free[list(leaks)] = False
    heldout, drawn = _heldout_rows(corpus, leak_free, config, draws)
    decisions = Decisions(dict(enumerate(items)), leaks, heldout)
    report = map_parts(
        workspace,
        documents,
        functools.partial(rewrite_part, config),
        executor,
        about=lambda part: (decisions.between(*corpus.rows_of_part(part)),),
    )
    remains = remaining_ngrams(report)
    matchable = matchable_items(index, config)
    write_run_table(workspace, "items", items_table(items))
    write_run_table(workspace, RARITY, rarity_table(corpus.rarity, index))
    write_run_table(workspace, HELDOUT_DRAW, draws_table(drawn))
    write_run_table(workspace, "leaks", leaks_table(items, matchable, leaks, corpus.doc_ids, remains))
    hosts = _host_texts(documents, corpus, leak_free, config)
    controls = make_controls(items, index, matchable, hosts, config)
    report.facts = DecontaminateResult(
        benchmarks=count_items(items, matchable, leaks, frozenset(item for _, item in remains)),
        common_ngrams=_frequent_weak_seeds(items, index, corpus.rarity),
        forms=dict(sorted(Counter(region.form for regions in leaks.values() for region in regions).items())),
        leaked_documents=len(leaks),
        planted=measure_search(controls, items, index, corpus.rarity, config),
    ).facts()
    return report


def _scan_corpus(
    documents: Artifact, index: ItemIndex, config: DecontaminateConfig, workspace: Workspace, executor: Executor
) -> _Corpus:
    names = documents.names("documents")
    scanning = workspace.within("hits")
    parts = len(names)
    work = Work(
        functools.partial(_scan_part, documents.path, index, config, scanning.for_worker()),
        name=names.__getitem__,
        arguments=lambda part: (names[part],),
    )
    work_on_missing(work, parts, scanning, executor, lambda done: workspace.advance(done, parts, "parts scanned"))
    files = [scanning.file(_matches_name(part)) for part in range(parts)]
    doc_ids, sizes, sources = [np.empty((0, 16), np.uint8)], [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    numbers: dict[str, int] = {}
    seen: list[tuple[I64, I64]] = []
    for file in files:
        with np.load(file) as part:
            renumber = [numbers.setdefault(str(name), len(numbers)) for name in part["source_names"]]
            doc_ids.append(part["doc_ids"])
            sizes.append(part["sizes"])
            sources.append(np.array(renumber, np.int32)[part["sources"]])
            seen.append((part["seeds"], part["documents"]))
    all_sizes = np.concatenate(sizes)
    return _Corpus(
        first_row=np.cumsum([0, *(part.size for part in sizes[1:])]),
        doc_ids=np.concatenate(doc_ids),
        sizes=all_sizes,
        source_names=list(numbers),
        sources=np.concatenate(sources),
        match_files=files,
        rarity=measure_rarity(seen, all_sizes.size, config),
    )


def _scan_part(
    documents: Path, index: ItemIndex, config: DecontaminateConfig, scanning: Workspace, part: int, name: str
) -> None:
    table = read_table(artifact_at(documents).file(name))
    if any(table.column("piece").to_pylist()):
        raise Bug(f"decontaminate: {documents / name} holds pieces; documents can be cut into pieces only once")
    data, offsets = text_buffers(table.column("text"))
    found = scan_texts(data, offsets, index, config)
    sources, names = numbered_values(table.column("source"))
    with scanning.unit(unit_name(part)) as unit:
        np.savez(
            unit.path(_matches_name(part)),
            stretches=found.stretches.stacked(),
            seeds=found.seeds,
            documents=found.documents,
            doc_ids=binary_rows(table.column("doc_id")),
            sizes=np.diff(offsets),
            sources=sources,
            source_names=np.array(names, dtype=np.str_),
        )
        unit.add_file(_matches_name(part))


def _matches_name(part: int) -> str:
    return f"{unit_name(part)}.npz"


def _find_corpus_leaks(corpus: _Corpus, index: ItemIndex) -> dict[int, list[Region]]:
    """Return leaks of all parts, documents numbered through the run; one part's matches are in memory at a time."""
    leaks: dict[int, list[Region]] = {}
    for first, file in zip(corpus.first_row.tolist(), corpus.match_files, strict=False):
        with np.load(file) as part:
            found = find_leaks(index, Stretches(*part["stretches"]), corpus.rarity)
        leaks.update({first + row: regions for row, regions in found.items()})
    return leaks


def _heldout_rows(
    corpus: _Corpus, leak_free: npt.NDArray[np.bool_], config: DecontaminateConfig, kept: Mapping[str, HeldoutDraw]
) -> tuple[frozenset[int], list[HeldoutDraw]]:
    """Return the rows that are held out, and the draw of each source; draws of sources without a document are those
    kept."""
    chosen: set[int] = set()
    draws = dict(kept)
    for number, source in enumerate(corpus.source_names):
        rows = np.flatnonzero(corpus.sources == number)
        mine = corpus.doc_ids[rows], corpus.sizes[rows], source, leak_free[rows], config, kept.get(source)
        held, draws[source] = choose_heldout(*mine)
        chosen.update(rows[held].tolist())
    return frozenset(chosen), [draws[source] for source in sorted(draws)]


def _host_texts(
    documents: Artifact, corpus: _Corpus, leak_free: npt.NDArray[np.bool_], config: DecontaminateConfig
) -> list[str]:
    hosts = choose_hosts(corpus.doc_ids, corpus.sizes, leak_free, config.planted_per_form, config.seed)
    parts = np.searchsorted(corpus.first_row, hosts, side="right") - 1
    names = documents.names("documents")
    texts: list[str] = []
    for part in np.unique(parts).tolist():
        rows = hosts[parts == part] - corpus.first_row[part]
        table = read_table(documents.file(names[part]), ["text"])
        texts += table.column("text").take(pa.array(rows)).to_pylist()
    return texts


def _frequent_weak_seeds(items: Sequence[Item], index: ItemIndex, rarity: Rarity) -> list[dict[str, Any]]:
    """Return the most frequent n-grams of the run that are not evidence by themselves, with words and counts."""
    template = index.places[rarity.seeds] < 0
    weak = np.flatnonzero(template | (rarity.documents > rarity.limit))
    order = np.lexsort((weak, -rarity.documents[weak]))[:LISTED_NGRAMS]
    return [
        {
            "text": _seed_text(items, index, int(rarity.seeds[number])),
            "documents": int(rarity.documents[number]),
            "why": TEMPLATE if template[number] else COMMON,
        }
        for number in weak[order].tolist()
    ]


def _seed_text(items: Sequence[Item], index: ItemIndex, seed: int) -> str:
    """Return the words of a seed, as they are in the first text that has it, in lower case."""
    place = int(index.places[seed])
    place = (~place if place < 0 else place) >> 1
    part = int(np.searchsorted(index.part_first, place, side="right")) - 1
    item = int(np.searchsorted(index.item_first, part, side="right")) - 1
    words = words_as_written(items[item].searched[part - int(index.item_first[item])].text)
    first = place - int(index.part_first[part])
    return " ".join(words[first : first + LONG_SPAN])
