"""The stages of a run: which of them it was asked for, what became of each, and which artifacts are still there."""

from pathlib import Path
from typing import cast

from flows.metrics.lines import SourceAmounts, StageAmount, StageLine
from flows.recipe.stages import AFTERWARDS, STAGES
from flows.runs.record import RUNNING, RunData, stage_paths, state_of
from model.errors import InputError, IntegrityError
from tasks.artifacts import results
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.published import is_set_aside
from tasks.artifacts.report import StageReport

SKIPPED, UNDER_WAY, TO_COME = "skipped", "under way", "to come"


def stage_results(record: RunData, artifacts: dict[str, Artifact], reports: dict[str, StageReport]) -> list[StageLine]:
    """Return a line for each stage in order."""
    entries = {entry["stage"]: entry for entry in record["stages"]}
    ahead = _outcomes_ahead(record)
    missing = missing_artifacts(record)
    found: list[StageLine] = []
    for stage in stages_of(record):
        entry = entries.get(stage, {"stage": stage, "outcome": ahead.get(stage, SKIPPED)})
        known = {
            key: entry.get(key)
            for key in ("stage", "outcome", "seconds", "cause", "identity", "content", "error")
            if entry.get(key) is not None
        }
        line = cast(StageLine, known)
        if stage in artifacts:
            line["built_seconds"] = manifest_of(artifacts[stage])["timings"]["seconds"]
            line["bytes"] = manifest_of(artifacts[stage])["bytes"]
            line["by_source"] = _by_source(reports[stage])
            line["result"] = stage_result(stage, artifacts[stage], reports[stage])
        elif stage in missing:
            line["error"] = missing[stage]
        found.append(line)
    return found


def _outcomes_ahead(record: RunData) -> dict[str, str]:
    """Return the outcomes of stages that a running run has yet to build: the first is under way, others to come."""
    if state_of(record) != RUNNING:
        return {}
    done = {entry["stage"] for entry in record["stages"]}
    left = [stage for stage in asked_stages(record) if stage not in done]
    return {stage: TO_COME if number else UNDER_WAY for number, stage in enumerate(left)}


def asked_stages(record: RunData) -> tuple[str, ...]:
    """Return the stages up to the last one that the run was asked for."""
    stages, selection = stages_of(record), record.get("asked", {})
    last = selection.get("only") or selection.get("until") or stages[-1]
    return stages[: stages.index(last) + 1]


def stages_of(record: RunData) -> tuple[str, ...]:
    """Return the stages of the pipeline, or the one of a run that begins with a trained model."""
    only = record.get("asked", {}).get("only")
    return (only,) if only in AFTERWARDS else STAGES


def _by_source(report: StageReport) -> dict[str, SourceAmounts]:
    return {
        source: {
            "documents_in": counts.documents_in,
            "documents_out": counts.documents_out,
            "bytes_out": counts.bytes_out,
        }
        for source, counts in sorted(report.sources.items())
    }


def stage_result(stage: str, artifact: Artifact, report: StageReport) -> StageAmount:
    """Return the result of a stage as `amount` and `unit`, in the unit natural to the stage."""
    if stage == "vocab":
        return {"amount": results.VocabResult.of(report).vocabulary["pieces"], "unit": "pieces"}
    if stage == "chunk":
        return {"amount": artifact.rows("sequences"), "unit": "rows"}
    if stage == "train":
        return {"amount": results.TrainResult.of(report).training["steps"], "unit": "steps"}
    if stage == "evaluate":
        return {"amount": artifact.rows("scores"), "unit": "scores"}
    if stage == "finetune":
        return {"amount": len(results.FinetuneResult.of(report).finetuned["scores"]["seeds"]), "unit": "seeds"}
    if stage == "export":
        return {"amount": len(artifact.records), "unit": "files"}
    return {"amount": report.total().documents_out, "unit": "documents"}


def open_artifacts(record: RunData) -> dict[str, Artifact]:
    """Return the artifacts of a run by stage, for the stages whose artifact still exists."""
    found = {stage: _open_if_present(path) for stage, path in stage_paths(record).items()}
    return {stage: artifact for stage, artifact in found.items() if artifact is not None}


def missing_artifacts(record: RunData) -> dict[str, str]:
    """Return a sentence by stage, for the stages of a run whose artifact no longer exists."""
    missing: dict[str, str] = {}
    for stage, path in stage_paths(record).items():
        if _open_if_present(path) is None:
            aside = sorted(other.name for other in path.parent.glob(f"{path.name}.*") if is_set_aside(other))
            moved = f"; set aside as {', '.join(aside)}" if aside else ""
            missing[stage] = f"its artifact {path} no longer exists{moved}"
    return missing


def _open_if_present(path: Path) -> Artifact | None:
    try:
        return Artifact.open(path)
    except (InputError, IntegrityError):
        return None
