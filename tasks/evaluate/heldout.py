"""Held-out text that is scored: documents of each source in a random order, up to a limit of bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables.files import read_table
from tasks.common.numeric import seed64, unit_interval


@dataclass(frozen=True)
class HeldoutDocument:
    """A held-out document, or a segment of one, that is scored."""

    doc_id: bytes
    piece: int
    text: str
    language: str | None


Documents = Mapping[str, Sequence[HeldoutDocument]]
"""Source -> its documents, in the order in which they were drawn."""


def heldout_documents(
    decontaminated: Sequence[Artifact], max_bytes: int, seed: int
) -> dict[str, list[HeldoutDocument]]:
    """Return source -> the text held out of it in any of the runs, in a random order by id, up to `max_bytes`.

    The last text of a source is truncated at a character boundary.
    """
    drawn: dict[str, list[tuple[float, HeldoutDocument]]] = {}
    draw = seed64(seed, "evaluate", "heldout")
    for path in (path for artifact in decontaminated for path in artifact.files("heldout")):
        for row in read_table(path, ["doc_id", "piece", "source", "text", "lang"]).to_pylist():
            found = HeldoutDocument(row["doc_id"], row["piece"], row["text"], row["lang"])
            drawn.setdefault(row["source"], []).append((unit_interval(row["doc_id"], draw), found))
    return {
        source: _within(sorted(mine, key=lambda one: (one[0], one[1].doc_id, one[1].piece)), max_bytes)
        for source, mine in sorted(drawn.items())
    }


def _within(drawn: Sequence[tuple[float, HeldoutDocument]], max_bytes: int) -> list[HeldoutDocument]:
    chosen: list[HeldoutDocument] = []
    left = max_bytes
    for _, one in drawn:
        cut = one.text.encode()[:left].decode(errors="ignore")
        if not cut:
            continue
        chosen.append(replace(one, text=cut))
        left -= len(one.text.encode())
        if left <= 0:
            break
    return chosen
