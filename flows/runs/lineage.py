"""Find runs and their artifacts, the documents of a run, what a training step read, and which network a run trains.

All functions read the artifacts of one run and recompute nothing. `flows.runs.document_history` follows one document
through the stages.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from safetensors import SafetensorError

from flows.runs.model_registry import CURRENT, current_run
from flows.runs.record import RECORD, list_runs, read_recipe, warn_once
from model.checkpoint.metrics import final_rows, final_steps
from model.checkpoint.run_folder import DESCRIPTION, WEIGHTS
from model.errors import InputError, IntegrityError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.remote.metadata import read_record
from tasks.artifacts.tables import read_table

EXCERPT_CHARS = 160

LATEST = "latest"


def open_run(root: Path, run_id: str | None, needs: str = "sample") -> dict[str, Any]:
    """Return the record of a run by its id or a unique beginning of it.

    Without an id, or for `latest`, it is the latest run that has the stage `needs`; for `current` that of the current
    model. Raises InputError where there is none.
    """
    if run_id == CURRENT:
        run_id = current_run(root)
    runs = list_runs(root)
    run_id = None if run_id == LATEST else run_id
    if run_id is None:
        runs = [run for run in runs if _has_stage(run, needs)]
    if not runs:
        raise InputError(
            f"{root} holds no run that got past the stage `{needs}` yet; start one with"
            f" `bessemer run RECIPE --root {root}`, or name the root of your runs with --root"
        )
    if run_id is None:
        return runs[-1]
    found = [run for run in runs if run["run_id"].startswith(run_id)]
    if not found and (root / "runs" / run_id / RECORD).is_file():
        return read_record(root / "runs" / run_id / RECORD)
    if len(found) != 1:
        known = ", ".join(run["run_id"] for run in runs[-5:])
        problem = "no run" if not found else f"{len(found)} runs"
        latest = f"the latest are {known}" if len(runs) > 1 else f"the only one is {known}"
        raise InputError(f"{problem} under {root} with an id that begins `{run_id}`; {latest}")
    return found[0]


def run_that_trained(root: Path, record: dict[str, Any]) -> str | None:
    """Return the id of the latest run that trained, where the run of `record` did not; else None."""
    if _has_stage(record, "train"):
        return None
    return next((run["run_id"] for run in reversed(list_runs(root)) if _has_stage(run, "train")), None)


def _has_stage(record: dict[str, Any], stage: str) -> bool:
    return any(entry["stage"] == stage and "path" in entry for entry in record["stages"])


def run_artifacts(run: dict[str, Any]) -> dict[str, Artifact]:
    """Return the artifacts of a run by stage, for the stages that have one."""
    return {entry["stage"]: Artifact.open(Path(entry["path"])) for entry in run["stages"] if "path" in entry}


def find_documents(artifacts: dict[str, Artifact], wanted: str) -> list[bytes]:
    """Return the ids of sampled documents whose hexadecimal id begins with `wanted`, or whose path contains it."""
    sample = need_stage(artifacts, "sample")
    # `data step` and LEAKS name a piece as ID/N; a history is of the whole document.
    beginning, slash, piece = wanted.partition("/")
    wanted = beginning if slash and piece.isdigit() else wanted
    is_hex = len(wanted) >= 4 and all(character in "0123456789abcdef" for character in wanted.lower())
    by_id: list[bytes] = []
    by_path: list[bytes] = []
    for batch in parts_of(sample, "documents", ["doc_id", "origin"]):
        ids = batch.column("doc_id").to_pylist()
        if is_hex:
            by_id += [doc_id for doc_id in ids if doc_id.hex().startswith(wanted.lower())]
        paths = pc.struct_field(batch.column("origin"), "path")
        by_path += [ids[i] for i in pc.indices_nonzero(pc.match_substring(paths, wanted)).to_pylist()]
    return by_id or by_path


def documents_by_file(artifacts: dict[str, Artifact], files: Collection[tuple[str, str]]) -> dict[Any, list[bytes]]:
    """Return, for each (source, path within it) of `files`, the ids of the documents sampled from that file."""
    found: dict[Any, list[bytes]] = {file: [] for file in files}
    for batch in parts_of(need_stage(artifacts, "sample"), "documents", ["doc_id", "source", "origin"]):
        paths = pc.struct_field(batch.column("origin"), "path")
        here = pc.is_in(paths, value_set=pa.array({path for _, path in files}, paths.type))
        for row in batch.filter(here).to_pylist():
            if (row["source"], row["origin"]["path"]) in found:
                found[row["source"], row["origin"]["path"]].append(row["doc_id"])
    return found


def rejects_of(artifacts: dict[str, Artifact], wanted: str) -> list[dict[str, Any]]:
    """Return the rejected records whose path contains `wanted`."""
    found: list[dict[str, Any]] = []
    for table in parts_of(need_stage(artifacts, "sample"), "rejects", None):
        mask = pc.match_substring(table.column("path"), wanted)
        found += table.filter(mask).to_pylist()
    return found


def step_of(artifacts: dict[str, Artifact], step: int) -> dict[str, Any]:
    """Return what one training step read: its loss, and every document segment in its rows with some text."""
    train, chunk = need_stage(artifacts, "train"), need_stage(artifacts, "chunk")
    steps = final_steps(train.table("steps"))
    mine = steps.filter(pc.equal(steps.column("step"), step)).to_pylist()
    if not mine:
        last = pc.max(steps.column("step")).as_py()
        first = pc.min(steps.column("step")).as_py()
        raise InputError(f"step {step}: the run trained steps {first} to {last}; they are counted from 0")
    metrics = final_rows(train.table("metrics"), steps)
    metric = metrics.filter(pc.equal(metrics.column("step"), step)).to_pylist()
    order = chunk.table("order")
    reads = [
        pair
        for entry in mine
        for pair in order.slice(entry["pos_start"], entry["pos_end"] - entry["pos_start"]).to_pylist()
    ]
    segments = _segments(chunk, sorted({read["row"] for read in reads}))
    texts = _texts(need_stage(artifacts, "decontaminate"), {(s["doc_id"], s["piece"]) for s in segments})
    origins = _origins(need_stage(artifacts, "sample"), {s["doc_id"] for s in segments})
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
    """Return id, source and file of the documents in the rows at the positions [begin, end) of ORDER, each once, in
    their order there."""
    chunk = need_stage(artifacts, "chunk")
    rows = sorted(set(chunk.table("order").column("row").slice(begin, end - begin).to_pylist()))
    ids = list(dict.fromkeys(segment["doc_id"] for segment in _segments(chunk, rows)))
    origins = _origins(need_stage(artifacts, "sample"), set(ids))
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
    for table in parts_of(documents, "documents", ["doc_id", "piece", "text"]):
        for row in table.filter(pc.is_in(table.column("doc_id"), value_set=ids)).to_pylist():
            texts[row["doc_id"], row["piece"]] = row["text"].encode()
    return texts


def _origins(sample: Artifact, wanted: set[bytes]) -> dict[bytes, tuple[str, str]]:
    ids = pa.array(sorted(wanted), pa.binary(16))
    found: dict[bytes, tuple[str, str]] = {}
    for table in parts_of(sample, "documents", ["doc_id", "source", "origin"]):
        for row in table.filter(pc.is_in(table.column("doc_id"), value_set=ids)).to_pylist():
            found[row["doc_id"]] = (row["source"], row["origin"]["path"])
    return found


def need_stage(artifacts: dict[str, Artifact], stage: str) -> Artifact:
    """Return the artifact of a stage; raise InputError where the run ended before it."""
    if stage not in artifacts:
        raise InputError(
            f"this run has no artifact of the stage `{stage}`; it ended before it (see `bessemer runs list`)"
        )
    return artifacts[stage]


def parts_of(artifact: Artifact, table: str, columns: list[str] | None) -> Iterator[pa.Table]:
    """Yield the parts of a table, one in memory at a time; all columns for None."""
    for path in artifact.files(table):
        rows = read_table(path)
        yield rows if columns is None else rows.select(columns)


def artifacts_with_stage(stage: str, run: dict[str, Any], root: Path) -> dict[str, Artifact]:
    """Return the artifacts of a run that has one of `stage`; else raise InputError, which names the latest that has."""
    if _has_stage(run, stage):
        return run_artifacts(run)
    others = [other["run_id"] for other in list_runs(root) if _has_stage(other, stage)]
    hint = f"the latest that has one is {others[-1]}: --run {others[-1]}" if others else "no run has one"
    raise InputError(
        f"the run {run['run_id']} has no artifact of the stage `{stage}`; it ended before it (`bessemer runs list`)."
        f" Under {root} {hint}"
    )


def model_of(record: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return `architecture` and `parameters` of a run's model; None for what is not known yet, or no longer exists."""
    trained = (entry["path"] for entry in record["stages"] if entry["stage"] == "train" and "path" in entry)
    path = Path(next(trained, ""))
    if (path / DESCRIPTION).is_file() and (path / WEIGHTS).is_file():
        try:
            config = json.loads((path / DESCRIPTION).read_text())["config"]
            return {"architecture": config.get("architecture", "gpt"), "parameters": count_parameters(path / WEIGHTS)}
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            warn_once(f"{path} is damaged ({error}); `bessemer store verify` names the damage and how to set it aside")
    try:
        network = read_recipe(root / "runs" / record["run_id"]).get("train", {}).get("model", {})
    except IntegrityError as error:
        warn_once(str(error))
        network = {}
    return {"architecture": network.get("architecture"), "parameters": None}


def count_parameters(path: Path) -> int:
    """Return the number of parameters in a file of safetensors, from its header."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118  # no mapping
