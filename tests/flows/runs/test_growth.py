"""Artifacts of ten thousand parts and roots of hundreds of artifacts are opened, listed, verified and collected in
seconds of processor time: nothing is looked for by going through all the rest."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flows.runs.record import list_runs
from flows.upkeep.gc import delete, plan
from flows.upkeep.verify import verify
from model.checksummed_json import write_sealed
from model.digests import digest_bytes
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.identity import FORMAT, Identity
from tasks.artifacts.manifest import MANIFEST, content_digest, parent_entries, rows_by_table, write_manifest
from tasks.artifacts.published import artifacts_under
from tasks.artifacts.reuse import explain_miss
from tasks.artifacts.tables.files import table_file_name
from tasks.artifacts.workspace import FileRecord
from tasks.common.code_fingerprint import Code

CHAIN = ("sample", "clean", "dedup", "decontaminate")


def one_row() -> bytes:
    """An Arrow file of one row."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema({"text": pa.string()})) as writer:
        writer.write_table(pa.table({"text": ["ingot"]}))
    return sink.getvalue().to_pybytes()


BYTES = one_row()
LONG_AGO = 1_700_000_000


def publish(root: Path, stage: str, number: int, parts: int, parents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """An artifact of `parts` parts and as many ledgers, as if it had been built."""
    code = Code("0" * 32, (), {f"tasks.module{index}:work": "0" * 32 for index in range(400)})
    contents = {name: parent["content"] for name, parent in parents.items()}
    identity = Identity(stage, code, {"number": number}, contents, {"python": "3.11"})
    folder = root / "artifacts" / stage / identity.key
    folder.mkdir(parents=True)
    digest = digest_bytes(BYTES)
    records = [
        FileRecord(table_file_name(table, f"{index:05d}"), table, 1, len(BYTES), digest)
        for table in ("documents", "ledger")
        for index in range(parts)
    ]
    records.sort(key=lambda record: record.name)
    for record in records:
        (folder / record.name).write_bytes(BYTES)
        os.utime(folder / record.name, (LONG_AGO, LONG_AGO))
    manifest = {
        "format": FORMAT,
        "stage": stage,
        "identity": identity.key,
        "identity_parts": identity.parts(),
        "content": content_digest(records),
        "files": [asdict(record) for record in records],
        "rows": rows_by_table(records),
        "bytes": len(BYTES) * len(records),
        "parents": parent_entries(parents),
        "report": {"sources": {}, "facts": {}},
    }
    write_manifest(folder, manifest)
    os.utime(folder / MANIFEST, (LONG_AGO, LONG_AGO))
    return manifest


def take(seconds: float, work: Callable[[], Any]) -> Any:
    """What `work` gives; it may take so many seconds of processor time."""
    began = time.process_time()
    result = work()
    took = time.process_time() - began
    assert took < seconds, f"{took:.2f} s"
    return result


def test_the_files_of_a_table_are_found_by_name(tmp_path: Path) -> None:
    """A thousand that were each looked for among two thousand took 3 s of processor time; ten times as many, 5 min."""
    publish(tmp_path, "clean", 0, 1000, {})
    (folder,) = (tmp_path / "artifacts" / "clean").iterdir()
    artifact = take(0.5, lambda: Artifact.open(folder))
    assert len(take(1.5, lambda: artifact.files("documents"))) == 1000
    assert take(0.2, lambda: artifact.rows("ledger")) == 1000


@pytest.mark.prove
def test_ten_thousand_parts_and_four_hundred_artifacts(tmp_path: Path) -> None:
    for run in range(100):
        entries, made = [], {}
        for stage in CHAIN:
            made = publish(tmp_path, stage, run, 10_000 if run == 99 else 5, {"documents": made} if made else {})
            path = tmp_path / "artifacts" / stage / made["identity"]
            entries.append({"stage": stage, "identity": made["identity"], "path": str(path), "outcome": "built"})
        run_id = f"20260101T{run // 60:02d}{run % 60:02d}00Z-{run:06x}"
        folder = tmp_path / "runs" / run_id
        folder.mkdir(parents=True)
        record = {"run_id": run_id, "recipe_name": "ore", "state": "completed", "stages": entries, "notes": []}
        write_sealed(folder / "run.json", record)
    runs = take(1.0, lambda: list_runs(tmp_path))
    largest = Artifact.open(Path(runs[-1]["stages"][1]["path"]))
    assert len(take(3.0, lambda: largest.files("documents"))) == 10_000
    assert (
        take(1.0, lambda: explain_miss(tmp_path, Identity("clean", Code("1" * 32, (), {}), {}, {}, {}))).nearest
        is not None
    )
    quick = take(6.0, lambda: verify(artifacts_under(tmp_path), quick=True))
    assert (quick.artifacts, quick.trusted, quick.damages) == (400, 2 * (40_000 + 99 * 4 * 5), ())
    deep = take(20.0, lambda: verify(artifacts_under(tmp_path)))
    assert (deep.files, deep.damages) == (quick.trusted, ())
    collected = take(2.0, lambda: plan(tmp_path, keep_last=1))
    assert (len(collected.artifacts), collected.kept) == (99 * 4, 4)
    take(5.0, lambda: delete(tmp_path, collected))
    assert len(artifacts_under(tmp_path)) == 4
    emptied = take(2.0, lambda: plan(tmp_path, keep_last=0))
    take(10.0, lambda: delete(tmp_path, emptied))
    assert artifacts_under(tmp_path) == []
