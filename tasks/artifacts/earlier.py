"""Which artifact of an earlier run a recipe means by a word: a run's, a folder, or an identity under the root."""

from collections.abc import Sequence
from pathlib import Path

from model.errors import RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.remote.metadata import read_record


def find_earlier(words: Sequence[str], root: Path, stage: str, setting: str) -> list[Artifact]:
    """The artifacts of `stage` that a recipe names: by run id, by folder, or by identity (or its beginning) under
    `root`. `setting` is where it names them, for errors."""
    return [_find(word, root, stage, setting) for word in words]


def _find(word: str, root: Path, stage: str, setting: str) -> Artifact:
    artifact = Artifact.open(_folder(word, root, stage, setting))
    if artifact.stage != stage:
        raise RecipeError(
            f"{setting} names {word}, which the stage `{artifact.stage}` made; only artifacts of `{stage}` hold what it"
            f" takes. It may be the folder beside it, under artifacts/{stage}/."
        )
    return artifact


def _folder(word: str, root: Path, stage: str, setting: str) -> Path:
    record = root / "runs" / word / "run.json"
    if record.is_file():
        stages = {entry["stage"]: entry for entry in read_record(record)["stages"]}
        if "path" not in stages.get(stage, {}):
            raise RecipeError(f"{setting} names the run {word}, which ended before `{stage}`; name another.")
        return Path(stages[stage]["path"])
    if "/" in word or Path(word).exists():
        return Path(word)
    standing = sorted(path.name for path in (root / "artifacts" / stage).glob("*") if "." not in path.name)
    found = [name for name in standing if name.startswith(word)]
    if len(found) != 1:
        raise RecipeError(
            f"{setting} names `{word}`: no run of that id, and {len(found)} {stage} artifacts under {root} begin so"
            f" (there: {', '.join(standing) or 'none'}). Name a run (see `bessemer runs list`), a {stage} artifact's"
            " folder,"
            f" or an identity."
        )
    return root / "artifacts" / stage / found[0]
