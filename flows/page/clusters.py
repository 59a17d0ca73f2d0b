"""Duplicates as a reader can judge them: the largest clusters, and the difference within pairs.

A cluster is a kept document with those that were removed in its favour.
"""

import difflib
import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.page.excerpts import masked
from flows.some_parts import some_parts
from tasks.artifact import Artifact
from tasks.tables import read_table

MOST_CLUSTERS, MOST_PAIRS = 4, 4
"""The largest clusters, and pairs that were only just alike enough."""
MOST_WORDS = 260
"""Of each text that are compared."""
AROUND = 12
"""Words that stay around a difference."""
WORD = re.compile(r"\s+|\w+|[^\w\s]")
SAME, LEFT_OUT, REMOVED, KEPT = "same", "left out", "removed", "kept"


def duplicate_pairs(artifacts: dict[str, Artifact]) -> list[dict[str, Any]]:
    """Clusters, the largest first, then near pairs, the least alike first: `documents` in the cluster, rule, true
    similarity, both ids, sources and paths, and `parts` of the removed document's text beside the kept one's.

    A part is (kind, text); kinds are `same`, `left out` (of what is the same), `removed` and `kept`.
    """
    if "dedup" not in artifacts or "clean" not in artifacts:
        return []
    clusters: dict[str, list[dict[str, Any]]] = {}
    for part, path in some_parts(artifacts["dedup"].files("ledger")):
        for row in _removals(read_table(path)):
            clusters.setdefault(row["survivor"], []).append({**row, "part": part})
    ordered = sorted(clusters.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    chosen = [min(rows, key=_least_alike) for _, rows in ordered[:MOST_CLUSTERS]]
    rest = [min(rows, key=_least_alike) for _, rows in ordered[MOST_CLUSTERS:]]
    near = sorted((row for row in rest if row["jaccard"] < 1), key=_least_alike)
    chosen += near[:MOST_PAIRS]
    wanted = {row["doc_id"] for row in chosen} | {bytes.fromhex(row["survivor"]) for row in chosen}
    texts = _texts(artifacts["clean"], wanted)
    found: list[dict[str, Any]] = []
    for row in chosen:
        mine, other = texts.get(row["doc_id"]), texts.get(bytes.fromhex(row["survivor"]))
        if mine is not None and other is not None:
            found.append(
                {
                    "documents": len(clusters[row["survivor"]]) + 1,
                    "rule": row["rule"],
                    "jaccard": row["jaccard"],
                    "removed": _named(mine),
                    "kept": _named(other),
                    "parts": difference(mine["text"], other["text"]),
                }
            )
    return found


def _removals(ledger: pa.Table) -> Iterator[dict[str, Any]]:
    for row in ledger.filter(pc.equal(ledger.column("action"), "drop")).to_pylist():
        evidence = json.loads(row["evidence"] or "{}")
        # The survivor of an earlier run is not among this run's documents.
        if "survivor" in evidence and "jaccard" in evidence and "earlier" not in evidence:
            named = {name: evidence[name] for name in ("survivor", "jaccard")}
            yield {"doc_id": row["doc_id"], "rule": row["rule"], **named}


def _least_alike(row: dict[str, Any]) -> tuple[float, bytes]:
    return row["jaccard"], row["doc_id"]


def _texts(clean: Artifact, wanted: set[bytes]) -> dict[bytes, dict[str, Any]]:
    ids = pa.array(sorted(wanted), pa.binary(16))
    found: dict[bytes, dict[str, Any]] = {}
    for _, path in some_parts(clean.files("documents")):
        table = read_table(path).select(["doc_id", "source", "origin", "text"])
        for row in table.filter(pc.is_in(table.column("doc_id"), value_set=ids)).to_pylist():
            found[row["doc_id"]] = row
    return found


def _named(row: dict[str, Any]) -> dict[str, str]:
    return {"doc_id": row["doc_id"].hex(), "source": row["source"], "path": row["origin"]["path"]}


def difference(removed: str, kept: str) -> list[tuple[str, str]]:
    """What stands in one text and not in the other, word by word, in the first MOST_WORDS words of each; stretches that
    are the same are shortened to the words around a difference."""
    mine, other = ([*WORD.findall(masked(text))][:MOST_WORDS] for text in (removed, kept))
    matcher = difflib.SequenceMatcher(None, mine, other, autojunk=False)
    codes = matcher.get_opcodes()
    parts: list[tuple[str, str]] = []
    for number, (kind, begin, end, other_begin, other_end) in enumerate(codes):
        if kind == "equal":
            parts += _shortened(mine[begin:end], first=number == 0, last=number == len(codes) - 1)
            continue
        if end > begin:
            parts.append((REMOVED, "".join(mine[begin:end])))
        if other_end > other_begin:
            parts.append((KEPT, "".join(other[other_begin:other_end])))
    return parts


def _shortened(words: list[str], *, first: bool, last: bool) -> list[tuple[str, str]]:
    before = 0 if first else 2 * AROUND
    after = 0 if last else 2 * AROUND
    if first and last:
        # Nothing differs in what was compared: its beginning says what it is.
        before = 4 * AROUND
    if len(words) <= before + after:
        return [(SAME, "".join(words))]
    left = len(words) - before - after
    told = (LEFT_OUT, f"… {sum(not word.isspace() for word in words[before : before + left]):,} words the same …")
    ends = [(SAME, "".join(words[:before])), told, (SAME, "".join(words[len(words) - after :]) if after else "")]
    return [part for part in ends if part[1]]
