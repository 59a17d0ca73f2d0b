"""Which dedup artifact a recipe means by a word: a run's, a folder, or an identity under the root."""

import json
from collections.abc import Sequence
from pathlib import Path

from model.errors import RecipeError
from tasks.artifact import Artifact

STAGE = "dedup"


def find_earlier(words: Sequence[str], root: Path) -> list[Artifact]:
    """The dedup artifacts that a recipe names: by run id, by folder, or by identity (or its beginning) under `root`."""
    return [_find(word, root) for word in words]


def _find(word: str, root: Path) -> Artifact:
    artifact = Artifact.open(_folder(word, root))
    if artifact.stage != STAGE:
        raise RecipeError(
            f"dedup.against names {word}, which the stage `{artifact.stage}` made; only artifacts of `{STAGE}` hold an"
            f" index. It may be the folder beside it, under artifacts/{STAGE}/."
        )
    return artifact


def _folder(word: str, root: Path) -> Path:
    record = root / "runs" / word / "run.json"
    if record.is_file():
        stages = {entry["stage"]: entry for entry in json.loads(record.read_text())["stages"]}
        if "path" not in stages.get(STAGE, {}):
            raise RecipeError(f"dedup.against names the run {word}, which ended before `{STAGE}`; name another.")
        return Path(stages[STAGE]["path"])
    if "/" in word or Path(word).exists():
        return Path(word)
    standing = sorted(path.name for path in (root / "artifacts" / STAGE).glob("*") if "." not in path.name)
    found = [name for name in standing if name.startswith(word)]
    if len(found) != 1:
        raise RecipeError(
            f"dedup.against names `{word}`: no run of that id, and {len(found)} dedup artifacts under {root} begin so"
            f" (there: {', '.join(standing) or 'none'}). Name a run (see `bessemer ls`), a dedup artifact's folder, or"
            f" an identity."
        )
    return root / "artifacts" / STAGE / found[0]
