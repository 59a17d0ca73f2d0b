"""Artifacts of earlier runs that a recipe names, and the aggregates that it keeps of them.

A reference is a run id, a folder, or an identity under the root. Aggregates are what a stage decides from all documents
together, measured anew or kept from an earlier run.

The rates of sources, how common the words of benchmarks are, a trained classifier and the vocabulary depend on every
document of a run, so that one more document may change what happens to all others. With `keep = RUN` in the recipe they
are those of that run, and each decision is a function of one document, or of the documents that it was compared with.

An aggregate counts in a stage's identity by a digest of its own: from whichever run an equal one is kept, and with
whatever documents it was measured, the artifacts are the same.
"""

from collections.abc import Sequence
from pathlib import Path

from model.errors import InputError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.remote.metadata import read_record

LATEST = "latest:"
"""Before a recipe's name: its last run that has the stage."""

SETTING = "keep"


def resolve_artifacts(references: Sequence[str], root: Path, stage: str, setting: str) -> list[Artifact]:
    """Return the artifacts of `stage` that a recipe names: by run id, by folder, or by an identity under `root` or its
    beginning.

    `setting` is the key that names them, for errors. Raises RecipeError if a reference is unknown, ambiguous, or names
    an artifact of another stage."""
    return [_resolve(reference, root, stage, setting) for reference in references]


def _resolve(reference: str, root: Path, stage: str, setting: str) -> Artifact:
    artifact = Artifact.open(_folder(reference, root, stage, setting))
    if artifact.stage != stage:
        raise RecipeError(
            f"{setting} names {reference}, an artifact of the stage `{artifact.stage}`, and needs one of `{stage}`."
            f" Look under artifacts/{stage}/ of the same root."
        )
    return artifact


def _folder(reference: str, root: Path, stage: str, setting: str) -> Path:
    record = root / "runs" / reference / "run.json"
    if record.is_file():
        stages = {entry["stage"]: entry for entry in read_record(record)["stages"]}
        if "path" not in stages.get(stage, {}):
            raise RecipeError(f"{setting} names the run {reference}, which ended before `{stage}`; name another.")
        return Path(stages[stage]["path"])  # pyright: ignore[reportTypedDictNotRequiredAccess]  # it was checked above
    if "/" in reference or Path(reference).exists():
        return Path(reference)
    identities = sorted(path.name for path in (root / "artifacts" / stage).glob("*") if "." not in path.name)
    found = [name for name in identities if name.startswith(reference)]
    if len(found) != 1:
        raise RecipeError(
            f"{setting} names `{reference}`: no run of that id, and {len(found)} {stage} artifacts under {root} begin"
            f" so (there: {', '.join(identities) or 'none'}). Name a run (see `bessemer runs list`), a {stage}"
            f" artifact's folder, or an identity."
        )
    return root / "artifacts" / stage / found[0]


def kept_artifact(reference: str | None, root: Path, stage: str, setting: str = SETTING) -> Artifact | None:
    """Return the artifact of `stage` whose aggregate is kept, or None where it is to be measured; `setting` is the key
    that names it.

    `reference` is None, a run, an artifact's folder or identity, or `latest:NAME` for the last run of a recipe, which
    is None before its first run. Raises RecipeError for an unknown run or one that ended before the stage.
    """
    if reference is not None and reference.startswith(LATEST):
        reference = _last_run(root, reference.removeprefix(LATEST), stage)
    return None if reference is None else resolve_artifacts([reference], root, stage, setting)[0]


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
