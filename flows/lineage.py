"""The two questions that the ledger answers: what became of a document, and what a training step read.

Both read artifacts of one run only; nothing is recomputed.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.record import list_runs
from model.errors import InputError
from model.kept_rows import kept_rows, kept_steps
from tasks.artifact import Artifact, read_table

EXCERPT_CHARS = 160
LATEST = "latest"
UNDER_WAY = "in progress"
LEDGER_STAGES = ("clean", "dedup", "decontaminate")


def open_run(root: Path, run_id: str | None, needs: str = "sample") -> dict[str, Any]:
    """The record of a run by id (or unique beginning of it); without an id, or for `latest`, the latest that has the
    stage `needs`."""
    runs = list_runs(root)
    run_id = None if run_id == LATEST else run_id
    if run_id is None:
        runs = [run for run in runs if any(entry["stage"] == needs and "path" in entry for entry in run["stages"])]
    if not runs:
        raise InputError(
            f"{root} holds no run that got past the stage `{needs}` yet; start one with"
            f" `bessemer run RECIPE --root {root}`, or name the root of your runs with --root"
        )
    if run_id is None:
        return runs[-1]
    found = [run for run in runs if run["run_id"].startswith(run_id)]
    if len(found) != 1:
        known = ", ".join(run["run_id"] for run in runs[-5:])
        problem = "no run" if not found else f"{len(found)} runs"
        raise InputError(f"{problem} under {root} with an id that begins `{run_id}`; the latest are {known}")
    return found[0]


def run_artifacts(run: dict[str, Any]) -> dict[str, Artifact]:
    """Stage name -> artifact, for the stages of a run that have one."""
    return {entry["stage"]: Artifact.open(Path(entry["path"])) for entry in run["stages"] if "path" in entry}


@dataclass
class Life:
    """A document's life in one run; `events` are in the order of the road."""

    doc_id: str
    source: str
    path: str
    record: int
    byte: int
    excerpt: str
    events: list[dict[str, Any]] = field(default_factory=list)
    fate: str = UNDER_WAY

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return self.__dict__.copy()


def find_documents(artifacts: dict[str, Artifact], wanted: str) -> list[bytes]:
    """Ids of sampled documents whose hexadecimal id begins with `wanted`, or whose path contains it."""
    sample = _need(artifacts, "sample")
    # `step` and LEAKS name a piece as ID/N; a life is told of the whole document.
    beginning, slash, piece = wanted.partition("/")
    wanted = beginning if slash and piece.isdigit() else wanted
    is_hex = len(wanted) >= 4 and all(character in "0123456789abcdef" for character in wanted.lower())
    by_id: list[bytes] = []
    by_path: list[bytes] = []
    for batch in _columns(sample, "documents", ["doc_id", "origin"]):
        ids = batch.column("doc_id").to_pylist()
        if is_hex:
            by_id += [doc_id for doc_id in ids if doc_id.hex().startswith(wanted.lower())]
        paths = pc.struct_field(batch.column("origin"), "path")
        by_path += [ids[i] for i in pc.indices_nonzero(pc.match_substring(paths, wanted)).to_pylist()]
    return by_id or by_path


def documents_by_file(artifacts: dict[str, Artifact], files: Collection[tuple[str, str]]) -> dict[Any, list[bytes]]:
    """(source, path within it) -> ids of the sampled documents of that very file, for each of `files`."""
    found: dict[Any, list[bytes]] = {file: [] for file in files}
    for batch in _columns(_need(artifacts, "sample"), "documents", ["doc_id", "source", "origin"]):
        paths = pc.struct_field(batch.column("origin"), "path")
        here = pc.is_in(paths, value_set=pa.array({path for _, path in files}, paths.type))
        for row in batch.filter(here).to_pylist():
            if (row["source"], row["origin"]["path"]) in found:
                found[row["source"], row["origin"]["path"]].append(row["doc_id"])
    return found


def rejects_of(artifacts: dict[str, Artifact], wanted: str) -> list[dict[str, Any]]:
    """Rejected records whose path contains `wanted`."""
    found: list[dict[str, Any]] = []
    for table in _columns(_need(artifacts, "sample"), "rejects", None):
        mask = pc.match_substring(table.column("path"), wanted)
        found += table.filter(mask).to_pylist()
    return found


def life_of(artifacts: dict[str, Artifact], doc_id: bytes, *, ended: bool = False) -> Life:
    """Everything that happened to a sampled document, from file and record to the steps that trained on it.

    `ended` says that the run goes no further, so that what it kept last is the document's fate.
    """
    life = _life_so_far(artifacts, doc_id)
    if ended and life.fate == UNDER_WAY:
        last = [stage for stage in ("sample", *LEDGER_STAGES) if stage in artifacts][-1]
        life.fate = f"kept in {last}, and the run went no further with it"
    return life


def _life_so_far(artifacts: dict[str, Artifact], doc_id: bytes) -> Life:
    sample = _need(artifacts, "sample")
    row = _row_of(sample, "documents", doc_id)
    if row is None:
        raise InputError(f"document {doc_id.hex()} is not in the sample {sample.identity}")
    origin = row["origin"]
    life = Life(
        doc_id.hex(), row["source"], origin["path"], origin["record"], origin["byte"], row["text"][:EXCERPT_CHARS]
    )
    life.events.append({"stage": "sample", "what": "sampled", "bytes": len(row["text"].encode())})
    for stage in LEDGER_STAGES:
        if stage not in artifacts:
            return life
        for entry in _rows_of(artifacts[stage], "ledger", doc_id):
            event = {"stage": stage, "what": entry["action"], **_told(entry)}
            if stage == "dedup" and isinstance(event.get("evidence"), dict) and "survivor" in event["evidence"]:
                event["survivor"] = _survivor(artifacts[stage], event["evidence"])
            life.events.append(event)
            if entry["action"] in ("drop", "hold_out"):
                verb = "dropped" if entry["action"] == "drop" else "held out for evaluation"
                life.fate = f"{verb} in {stage} by rule `{entry['rule']}`"
        if life.fate != UNDER_WAY:
            return life
    leaks = artifacts["decontaminate"].table("leaks")
    for leak in leaks.filter(pc.equal(leaks.column("doc_id"), pa.scalar(doc_id, pa.binary(16)))).to_pylist():
        life.events.append(
            {"stage": "decontaminate", "what": "leak", **{k: leak[k] for k in ("benchmark", "item_id", "start", "end")}}
        )
    if "chunk" in artifacts:
        _tell_training(life, artifacts, doc_id)
    return life


def _survivor(dedup: Artifact, evidence: dict[str, Any]) -> dict[str, Any]:
    """The document that stays in a duplicate's place: source, path and record; of an earlier run its artifact too."""
    of_earlier = {"earlier": evidence["earlier"]} if "earlier" in evidence else {}
    folder = dedup.path.parent / evidence["earlier"] if of_earlier else dedup.path
    row = None
    if folder.exists():
        row = _row_of(Artifact.open(folder), "documents", bytes.fromhex(evidence["survivor"]))
    if row is None:
        return {"doc_id": evidence["survivor"], **of_earlier}
    origin = row["origin"]
    told = {"source": row["source"], "path": origin["path"], "record": origin["record"]}
    return {"doc_id": evidence["survivor"], **of_earlier, **told, "text": row["text"][:EXCERPT_CHARS]}


def _tell_training(life: Life, artifacts: dict[str, Artifact], doc_id: bytes) -> None:
    spans = _rows_of(artifacts["chunk"], "spans", doc_id)
    rows = np.unique(np.array([span["row"] for span in spans], dtype=np.int64))
    tokens = sum(span["tok_len"] for span in spans)
    life.events.append({"stage": "chunk", "what": "packed", "tokens": tokens, "rows": rows.tolist()})
    if "train" not in artifacts:
        life.fate = "packed"
        return
    order = artifacts["chunk"].table("order").column("row").to_numpy()
    positions = np.flatnonzero(np.isin(order, rows))
    steps = kept_steps(artifacts["train"].table("steps"))
    applied = steps.filter(steps.column("applied"))
    starts, ends = applied.column("pos_start").to_numpy(), applied.column("pos_end").to_numpy()
    which = np.searchsorted(starts, positions, side="right") - 1
    read = which[(which >= 0) & (positions < ends[np.maximum(which, 0)])]
    numbers = np.unique(applied.column("step").to_numpy()[read]).tolist()
    life.events.append({"stage": "train", "what": "trained", "steps": numbers, "reads": len(read)})
    life.fate = (
        f"trained in {len(numbers)} step{'s' if len(numbers) > 1 else ''}"
        if numbers
        else "packed, and not reached by the token budget"
    )


def step_of(artifacts: dict[str, Artifact], step: int) -> dict[str, Any]:
    """What one training step read: its loss, and every document segment in its rows with some text."""
    train, chunk = _need(artifacts, "train"), _need(artifacts, "chunk")
    steps = kept_steps(train.table("steps"))
    mine = steps.filter(pc.equal(steps.column("step"), step)).to_pylist()
    if not mine:
        last = pc.max(steps.column("step")).as_py()
        first = pc.min(steps.column("step")).as_py()
        raise InputError(f"step {step}: the run trained steps {first} to {last}; they are counted from 0")
    metrics = kept_rows(train.table("metrics"), steps)
    metric = metrics.filter(pc.equal(metrics.column("step"), step)).to_pylist()
    order = chunk.table("order")
    reads = [
        pair
        for entry in mine
        for pair in order.slice(entry["pos_start"], entry["pos_end"] - entry["pos_start"]).to_pylist()
    ]
    segments = _segments(chunk, sorted({read["row"] for read in reads}))
    texts = _texts(_need(artifacts, "decontaminate"), {(s["doc_id"], s["piece"]) for s in segments})
    origins = _origins(_need(artifacts, "sample"), {s["doc_id"] for s in segments})
    return {
        "step": step,
        "applied": mine[-1]["applied"],
        "loss": metric[-1]["loss"] if metric else None,
        "rows": len(reads),
        "documents": [
            {
                "row": s["row"],
                "doc_id": s["doc_id"].hex(),
                "piece": s["piece"],
                "source": origins[s["doc_id"]][0],
                "path": origins[s["doc_id"]][1],
                "start": s["start"],
                "end": s["end"],
                "tokens": s["tok_len"],
                "text": texts[s["doc_id"], s["piece"]][s["start"] : s["end"]].decode(errors="replace")[:EXCERPT_CHARS],
            }
            for s in segments
        ],
    }


def documents_at(artifacts: dict[str, Artifact], begin: int, end: int) -> list[tuple[str, str, str]]:
    """Id, source and file of the documents in the rows at the positions [begin, end) of ORDER, each once, in the order
    in which they stand there."""
    chunk = _need(artifacts, "chunk")
    rows = sorted(set(chunk.table("order").column("row").slice(begin, end - begin).to_pylist()))
    ids = list(dict.fromkeys(segment["doc_id"] for segment in _segments(chunk, rows)))
    origins = _origins(_need(artifacts, "sample"), set(ids))
    return [(doc_id.hex(), *origins[doc_id]) for doc_id in ids]


def _segments(chunk: Artifact, rows: list[int]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    wanted = pa.array(rows, pa.int64())
    for path in chunk.files("spans"):
        spans = read_table(path)
        found += spans.filter(pc.is_in(spans.column("row"), value_set=wanted)).to_pylist()
    return sorted(found, key=lambda span: (span["row"], span["tok_start"]))


def _texts(documents: Artifact, wanted: set[tuple[bytes, int]]) -> dict[tuple[bytes, int], bytes]:
    ids = pa.array(sorted({doc_id for doc_id, _ in wanted}), pa.binary(16))
    texts: dict[tuple[bytes, int], bytes] = {}
    for table in _columns(documents, "documents", ["doc_id", "piece", "text"]):
        for row in table.filter(pc.is_in(table.column("doc_id"), value_set=ids)).to_pylist():
            texts[row["doc_id"], row["piece"]] = row["text"].encode()
    return texts


def _origins(sample: Artifact, wanted: set[bytes]) -> dict[bytes, tuple[str, str]]:
    ids = pa.array(sorted(wanted), pa.binary(16))
    found: dict[bytes, tuple[str, str]] = {}
    for table in _columns(sample, "documents", ["doc_id", "source", "origin"]):
        for row in table.filter(pc.is_in(table.column("doc_id"), value_set=ids)).to_pylist():
            found[row["doc_id"]] = (row["source"], row["origin"]["path"])
    return found


def _told(entry: dict[str, Any]) -> dict[str, Any]:
    told = {
        key: entry[key]
        for key in ("rule", "value", "limit", "bytes_in", "bytes_out", "piece")
        if entry[key] is not None
    }
    evidence = entry["evidence"]
    if evidence:
        try:
            told["evidence"] = json.loads(evidence)
        except json.JSONDecodeError:
            told["evidence"] = evidence
    return told


def _need(artifacts: dict[str, Artifact], stage: str) -> Artifact:
    if stage not in artifacts:
        raise InputError(f"this run has no artifact of the stage `{stage}`; it ended before it (see `bessemer ls`)")
    return artifacts[stage]


def _columns(artifact: Artifact, table: str, columns: list[str] | None) -> Iterator[pa.Table]:
    for path in artifact.files(table):
        rows = read_table(path)
        yield rows if columns is None else rows.select(columns)


def _rows_of(artifact: Artifact, table: str, doc_id: bytes) -> list[dict[str, Any]]:
    scalar = pa.scalar(doc_id, pa.binary(16))
    found: list[dict[str, Any]] = []
    for rows in _columns(artifact, table, None):
        found += rows.filter(pc.equal(rows.column("doc_id"), scalar)).to_pylist()
    return found


def _row_of(artifact: Artifact, table: str, doc_id: bytes) -> dict[str, Any] | None:
    rows = _rows_of(artifact, table, doc_id)
    return rows[0] if rows else None
