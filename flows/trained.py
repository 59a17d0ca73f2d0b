"""A trained model with its vocabulary, found by run, by artifact, or by the folder that fine-tuning or export wrote."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.lineage import open_run, run_artifacts
from flows.published_model import open_published_model, tasks_in
from model.errors import InputError
from model.published.files import is_published
from tasks.artifact import Artifact
from tasks.artifacts.manifest import MANIFEST
from tasks.open_tokenizer import load_tokenizer, open_tokenizer

if TYPE_CHECKING:
    from model.networks import Network
    from tasks.tokenizer import Tokenizer

FINETUNED = "finetuned"
"""Entry of `model.json` that only a fine-tuned model has."""


@dataclass(frozen=True)
class Trained:
    """A trained model with its vocabulary."""

    folder: Path
    network: "Network"
    tokenizer: "Tokenizer"
    description: dict[str, Any]
    """The contents of `model.json`; of a folder of `transformers`, the tasks that it names under `FINETUNED`."""


def find_model(root: Path, model: str) -> tuple[Artifact, Artifact]:
    """The MODEL and TOKENIZER artifacts of a run, or of a MODEL folder under the same root."""
    folder = Path(model)
    if (folder / MANIFEST).exists():
        trained = Artifact.open(folder)
        parent = trained.manifest["parents"].get("vocab")
        if parent is None:
            raise InputError(f"model {model}: this is an artifact of the stage `{trained.stage}`, not a model")
        return trained, Artifact.open(folder.parent.parent / parent["stage"] / parent["identity"])
    artifacts = run_artifacts(open_run(root, model, needs="train"))
    if "train" not in artifacts:
        raise InputError(f"model {model}: this run ended before training; choose another with `bessemer ls`")
    return artifacts["train"], artifacts["vocab"]


def open_trained(root: Path, model: str) -> Trained:
    """The model of a run, of an artifact's folder, or of a folder that holds its vocabulary beside it, be it one that
    `transformers` reads."""
    from model.weights import DESCRIPTION, WEIGHTS, describe_model, load_model
    from tasks.tokenizer import DESCRIPTION_FILE, MODEL_FILES

    folder = Path(model)
    if os.sep in model and not folder.exists():
        raise InputError(f"there is no folder {model}. Name one that holds a model, or a run; `bessemer ls` lists runs")
    if is_published(folder):
        network, tokenizer = open_published_model(folder)
        tasks = tasks_in(folder)
        return Trained(folder, network, tokenizer, {FINETUNED: tasks} if tasks else {})
    if (folder / DESCRIPTION_FILE).is_file() and not (folder / MANIFEST).exists():
        files = [folder / name for name in MODEL_FILES.values() if (folder / name).is_file()]
        if len(files) != 1:
            raise InputError(
                f"{folder} holds a {DESCRIPTION_FILE} and {len(files)} vocabularies, where one of"
                f" {', '.join(MODEL_FILES.values())} was expected: no folder that `bessemer finetune` wrote, or a part"
                f" of one. Name such a folder, or a run"
            )
        tokenizer = load_tokenizer(files[0], folder / DESCRIPTION_FILE)
    else:
        trained, vocab = find_model(root, model)
        trained.file(DESCRIPTION)
        folder, tokenizer = trained.file(WEIGHTS).parent, open_tokenizer(vocab)
    return Trained(folder, load_model(folder, tokenizer.digest), tokenizer, describe_model(folder))


def write_vocabulary(folder: Path, tokenizer: "Tokenizer") -> None:
    """The two files of a vocabulary, so that the model in `folder` needs no artifact of its run."""
    from tasks.tokenizer import DESCRIPTION_FILE, MODEL_FILES

    (folder / MODEL_FILES[tokenizer.kind]).write_bytes(tokenizer.model)
    description = json.dumps(tokenizer.description(), indent=1, sort_keys=True) + "\n"
    (folder / DESCRIPTION_FILE).write_text(description)
