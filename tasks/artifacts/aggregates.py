"""Aggregates: what a stage decides from all documents together, measured anew or kept from an earlier run.

The rates of sources, how common the words of benchmarks are, a trained classifier and the vocabulary depend on every
document of a run, so that one more document may change what happens to all others. With `keep = RUN` in the recipe they
are those of that run, and each decision is a function of one document, or of the documents that it was compared with.

An aggregate counts in a stage's identity by a digest of its own: from whichever run an equal one is kept, and with
whatever documents it was measured, the artifacts are the same.
"""

from pathlib import Path

from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.references import resolve_artifacts
from tasks.artifacts.remote.metadata import read_record

LATEST = "latest:"
"""Before a recipe's name: its last run that has the stage."""

SETTING = "keep"


def kept_artifact(reference: str | None, root: Path, stage: str) -> Artifact | None:
    """Return the artifact of `stage` whose aggregate is kept, or None where it is to be measured.

    `reference` is None, a run, an artifact's folder or identity, or `latest:NAME` for the last run of a recipe, which
    is None before its first run. Raises RecipeError for an unknown run or one that ended before the stage.
    """
    if reference is not None and reference.startswith(LATEST):
        reference = _last_run(root, reference.removeprefix(LATEST), stage)
    return None if reference is None else resolve_artifacts([reference], root, stage, SETTING)[0]


def _last_run(root: Path, name: str, stage: str) -> str | None:
    found: list[tuple[float, str]] = []
    for path in (root / "runs").glob("*/run.json"):
        record = read_record(path)
        stages = {entry["stage"] for entry in record["stages"] if "path" in entry}
        if record["recipe_name"] == name and stage in stages:
            found.append((record["started"], record["run_id"]))
    return max(found)[1] if found else None


def digest_of_table(artifact: Artifact, table: str) -> str:
    """Return the digest of the only file of a table. Raises InputError where the artifact has no such table."""
    digests = [record.digest for record in artifact.records if record.table == table]
    if len(digests) != 1:
        raise InputError(
            f"keep: {artifact.path} of the stage `{artifact.stage}` holds no {table} to keep. Name a run that measured"
            f" one, or leave `keep` out of the recipe."
        )
    return digests[0]
