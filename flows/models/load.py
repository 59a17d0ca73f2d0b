"""Find a trained model: that of a run, an artifact, a fine-tuned folder, or a folder of `transformers`."""

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flows.runs.lineage import open_run, run_artifacts
from model.checkpoint.run_folder import DESCRIPTION, WEIGHTS
from model.digests import digest_file
from model.errors import InputError
from model.files import link_or_copy, make_folders, sync_directory, sync_file
from model.model_files import SETTINGS, is_published
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.manifest import MANIFEST
from tasks.models.load import ModelSource, Trained, load_source
from tasks.tokenizer.base import DESCRIPTION_FILE


def find_model(root: Path, model: str) -> tuple[Artifact, Artifact]:
    """Return the MODEL and TOKENIZER artifacts of a run, or of a MODEL folder under the same root."""
    folder = Path(model).resolve()
    if (folder / MANIFEST).exists():
        trained = Artifact.open(folder)
        parent = manifest_of(trained)["parents"].get("vocab")
        if parent is None:
            raise InputError(f"model {model}: this is an artifact of the stage `{trained.stage}`, not a model")
        return trained, Artifact.open(folder.parent.parent / parent["stage"] / parent["identity"])
    artifacts = run_artifacts(open_run(root, model, needs="train"))
    if "train" not in artifacts:
        raise InputError(f"model {model}: this run ended before training; choose another with `bessemer runs list`")
    return artifacts["train"], artifacts["vocab"]


def find_source(root: Path, model: str) -> ModelSource:
    """Return where the model of a run, of an artifact, or of a folder is; InputError where there is none."""
    folder = Path(model).resolve()
    if os.sep in model and not folder.exists():
        raise InputError(
            f"there is no folder {model}. Name a model's folder, or a run; `bessemer runs list` lists runs"
        )
    if (folder / MANIFEST).exists():
        artifact = Artifact.open(folder)
        if artifact.stage in ("finetune", "export"):
            return _with_vocabulary(artifact)
    elif is_published(folder) or (folder / DESCRIPTION_FILE).is_file():
        return ModelSource(folder)
    else:
        try:
            record = open_run(root, model, needs="train")
        except InputError as error:
            problem = f"there is no folder {model}, and no run"
            if folder.exists():
                problem = f"{model} is no folder of a model, since it has neither {SETTINGS} nor {MANIFEST}, and no run"
            raise InputError(f"{problem}: {error}") from error
        artifacts = run_artifacts(record)
        if "finetune" in artifacts:
            return _with_vocabulary(artifacts["finetune"])
    trained, vocab = find_model(root, model)
    for name in (DESCRIPTION, WEIGHTS):
        trained.file(name)
    return ModelSource(trained.path, trained, vocab)


def _with_vocabulary(artifact: Artifact) -> ModelSource:
    for record in artifact.records:
        artifact.file(record.name)
    return ModelSource(artifact.path, artifact)


def open_trained(root: Path, model: str) -> Trained:
    """Load the model of a run, of an artifact, or of a folder with its tokenizer, be it of `transformers`."""
    return load_source(find_source(root, model))


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder that takes the place of `folder`, new or empty, at the end of the block: whole or not at
    all."""
    make_folders(folder.parent)
    staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield staged
        staged.chmod(0o755)  # mkdtemp gives access to the owner only.
        if folder.exists():
            folder.rmdir()
        staged.rename(folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    sync_directory(folder.parent)


def holds(folder: Path, files: Mapping[str, str], more: Collection[str] = ()) -> bool:
    """Return whether a folder holds exactly the files of these digests, and those named besides."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    return names == {*files, *more} and all(digest_file(folder / name) == digest for name, digest in files.items())


def copy_files(artifact: Artifact, folder: Path) -> None:
    """Put the files of an artifact into a folder: weights as links, others, which people edit, as copies."""
    for record in artifact.records:
        if record.name.endswith(".safetensors"):
            link_or_copy(artifact.file(record.name), folder / record.name)
        else:
            shutil.copyfile(artifact.file(record.name), folder / record.name)
            sync_file(folder / record.name)
