"""Resolve references of a recipe to artifacts of earlier runs: a run id, a folder, or an identity under the root."""

from collections.abc import Sequence
from pathlib import Path

from model.errors import RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.remote.metadata import read_record


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
