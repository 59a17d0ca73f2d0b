"""Which documents the quality classifier learns from: of each source the same number, chosen by their ids, cleaned."""

import heapq

import numpy as np

from tasks.artifact import Artifact
from tasks.clean.chain import Chain, clean_handful
from tasks.clean.config import CleanConfig, QualityConfig
from tasks.clean.part_rows import handfuls_of
from tasks.clean.presets import PRESETS
from tasks.clean.quality_features import LOOK_BYTES
from tasks.clean.supplied import Supplied
from tasks.clean.verdicts import Verdicts
from tasks.seed import seed64, unit_interval
from tasks.tables import read_table
from tasks.workspace import Workspace


def training_texts(
    documents: Artifact, config: CleanConfig, chosen: QualityConfig, supplied: Supplied, workspace: Workspace
) -> tuple[list[str], list[np.ndarray]]:
    """(source, text after edits) of documents that pass the rules, in order; at most `chosen.documents` of each kind,
    the same number of each source as far as it has them. Of a long text the middle is kept."""
    limits = _limits(documents, chosen)
    seed = seed64(chosen.seed, "clean", "quality sample")
    chains = {name: Chain.of(config, name, supplied) for name in PRESETS}
    sources: list[str] = []
    texts: list[np.ndarray] = []
    files = documents.files("documents")
    for number, path in enumerate(files):
        for handful in handfuls_of(read_table(path), config.emoji):
            rows = [
                row
                for row, doc_id in enumerate(handful.column("doc_id"))
                if unit_interval(doc_id, seed) <= limits[handful.sources[row]]
            ]
            verdicts = Verdicts(len(handful))
            clean_handful(handful, np.array(rows, np.int64), config, chains, verdicts)
            for row in rows:
                if verdicts.stays[row]:
                    sources.append(handful.sources[row])
                    texts.append(middle(handful.texts.raw(row)))
        workspace.advance(number + 1, len(files), "parts read for the quality classifier")
    return sources, texts


def _limits(documents: Artifact, chosen: QualityConfig) -> dict[str, float]:
    """Source -> the largest number in [0, 1) whose documents are taken."""
    seed = seed64(chosen.seed, "clean", "quality sample")
    lowest: dict[str, list[float]] = {}
    known = documents.report.sources
    good = [source for source in known if source in chosen.good]
    rooms = {
        source: -(-chosen.documents // max(1, len(good) if source in good else len(known) - len(good)))
        for source in known
    }
    for path in documents.files("documents"):
        table = read_table(path).select(["doc_id", "source"])
        for doc_id, source in zip(table.column("doc_id").to_pylist(), table.column("source").to_pylist(), strict=True):
            room = rooms.get(source, chosen.documents)
            heap = lowest.setdefault(source, [])
            # A heap of negated numbers has the largest of the lowest ones on top.
            number = -unit_interval(doc_id, seed)
            if len(heap) < room:
                heapq.heappush(heap, number)
            elif number > heap[0]:
                heapq.heapreplace(heap, number)
    return {source: -heap[0] for source, heap in lowest.items()}


def middle(raw: np.ndarray) -> np.ndarray:
    """A copy of the middle of a text that gives the same features as the whole."""
    if len(raw) <= 2 * LOOK_BYTES:
        return raw.copy()
    begin = (len(raw) - LOOK_BYTES) // 2
    even = (len(raw) - LOOK_BYTES) % 2
    return raw[begin - 8 : begin + LOOK_BYTES + 8 + even].copy()
