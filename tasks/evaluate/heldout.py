"""Held-out text that is scored, and its tokens: documents of each source in a random order, up to a limit of bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables.files import read_table
from tasks.common.numeric import seed64, unit_interval
from tasks.tokenizer.base import Tokenizer


@dataclass(frozen=True)
class HeldoutDocument:
    """A held-out document, or a segment of one, that is scored."""

    doc_id: bytes
    piece: int
    text: str
    language: str | None


def heldout_documents(
    decontaminated: Sequence[Artifact], max_bytes: int, seed: int
) -> dict[str, list[HeldoutDocument]]:
    """Return source -> the text held out of it in any of the runs, in a random order by id, up to `max_bytes`.

    What several runs held out counts once, as the first of them has it. The last text of a source is truncated at a
    character boundary; a source of which nothing is left is absent.
    """
    held: dict[str, dict[tuple[bytes, int], HeldoutDocument]] = {}
    draw = seed64(seed, "evaluate", "heldout")
    for path in (path for artifact in decontaminated for path in artifact.files("heldout")):
        for row in read_table(path, ["doc_id", "piece", "source", "text", "lang"]).to_pylist():
            found = HeldoutDocument(row["doc_id"], row["piece"], row["text"], row["lang"])
            held.setdefault(row["source"], {}).setdefault((found.doc_id, found.piece), found)
    drawn = {
        source: sorted(mine.values(), key=lambda one: (unit_interval(one.doc_id, draw), one.doc_id, one.piece))
        for source, mine in sorted(held.items())
    }
    return {source: chosen for source, mine in drawn.items() if (chosen := _within(mine, max_bytes))}


def _within(drawn: Sequence[HeldoutDocument], max_bytes: int) -> list[HeldoutDocument]:
    chosen: list[HeldoutDocument] = []
    left = max_bytes
    for one in drawn:
        if left <= 0:
            break
        if cut := one.text.encode()[:left].decode(errors="ignore"):
            chosen.append(replace(one, text=cut))
        left -= len(one.text.encode())
    return chosen


@dataclass(frozen=True)
class EncodedSource:
    """The held-out documents of one source, and their tokens: `ids` and `lengths` have an array for each document."""

    name: str
    documents: Sequence[HeldoutDocument]
    ids: Sequence[np.ndarray]
    lengths: Sequence[np.ndarray]
    """UTF-8 bytes of text that each token covers."""
    unknown: int
    """Tokens whose text is lost, so that the source has no bits per byte."""

    @property
    def sizes(self) -> np.ndarray:
        """UTF-8 bytes of each document, i64[documents]."""
        return np.array([len(one.text.encode()) for one in self.documents], dtype=np.int64)

    @property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return sum(map(len, self.ids))

    def describe(self) -> str:
        """Return bytes and tokens for the notes of scores."""
        return f"{int(self.sizes.sum())} bytes, {self.tokens} tokens"


def encode_sources(tokenizer: Tokenizer, documents: Mapping[str, Sequence[HeldoutDocument]]) -> list[EncodedSource]:
    """Return the tokens of all held-out `documents`, source -> documents in the order in which they were drawn."""
    sources: list[EncodedSource] = []
    for name, mine in documents.items():
        encoded = list(tokenizer.encode_batch_with_borders(one.text for one in mine))
        ids = [row for row, _ in encoded]
        unknown = sum(int((row == tokenizer.unk).sum()) for row in ids)
        sources.append(EncodedSource(name, mine, ids, [np.diff(borders) for _, borders in encoded], unknown))
    return sources
