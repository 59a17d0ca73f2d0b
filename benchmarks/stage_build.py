"""Builds one data stage as a run does, in a process of its own, and prints what came of it as JSON.

    python stage_build.py STAGE ROOT PARENT SETTINGS WORKERS

STAGE is sample, clean, dedup or decontaminate, SETTINGS its configuration as JSON, and PARENT the folder of the
artifact that it reads (`-` for sample). Printed are `artifact` (its folder), `identity`, `digests` (of every
deterministic file by name), `documents` and `bytes` that came in, documents that came `out`, `seconds` of processor
time of this process alone, and `peak_bytes`.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from measuring import peak_bytes

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext

STAGES = ("sample", "clean", "dedup", "decontaminate")
WORKERS = {"sample": "workers", "clean": "workers", "dedup": "threads", "decontaminate": "workers"}
"""How each stage's configuration calls its workers."""


def build(stage: str, context: RunContext, parent: Path, settings: dict[str, Any]) -> Artifact:
    """Build the stage's artifact under `context`."""
    if stage == "sample":
        from tasks.sample.config import SampleConfig
        from tasks.sample.stage import build_sample

        return build_sample(context, SampleConfig.model_validate(settings))
    documents = Artifact.open(parent)
    if stage == "clean":
        from tasks.clean.config import CleanConfig
        from tasks.clean.stage import build_clean

        return build_clean(context, documents, CleanConfig.model_validate(settings))
    if stage == "dedup":
        from tasks.dedup.config import DedupConfig
        from tasks.dedup.stage import build_dedup

        return build_dedup(context, documents, DedupConfig.model_validate(settings))
    from tasks.decontaminate.config import DecontaminateConfig
    from tasks.decontaminate.stage import build_decontaminate

    return build_decontaminate(context, documents, DecontaminateConfig.model_validate(settings))


def main(stage: str, root: str, parent: str, settings: str, workers: str) -> None:
    chosen = json.loads(settings)
    if stage in WORKERS:
        chosen[WORKERS[stage]] = int(workers)
    began = time.process_time()
    artifact = build(stage, RunContext(Path(root), "measured"), Path(parent), chosen)
    seconds = time.process_time() - began
    total = artifact.report.total()
    result = {
        "artifact": str(artifact.path),
        "identity": artifact.identity,
        "digests": {record.name: record.digest for record in artifact.records if record.deterministic},
        "documents": total.documents_in,
        "bytes": total.bytes_in,
        "out": total.documents_out,
        "seconds": seconds,
        "peak_bytes": peak_bytes(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
