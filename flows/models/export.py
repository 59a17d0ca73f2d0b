"""Export a trained model with its tokenizer and model card to a folder that `transformers` loads."""

import json
import tempfile
from pathlib import Path
from typing import Any

from flows.models.load import copy_files, find_source, holds, new_folder
from flows.runs.record import RunData
from model.errors import InputError, RecipeError
from model.finetune.description import FINETUNED
from model.model_files import read_json
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.results import ExportResult
from tasks.models.export import ExportConfig, OfPublished, chat_of, of_published, tokenizer_class, write_tokenizer
from tasks.models.load import ModelSource, open_source

RECORD = "export.json"
"""What was exported, with which options, and the digests of all files."""


def prepare_export(
    root: Path, model: str, licence: str | None, config: ExportConfig
) -> tuple[ModelSource, ExportConfig, str | None, OfPublished]:
    """Return the model of a run or folder, the settings of its export, the model card of the run that trained it, and
    what is taken over from a published model.

    `licence` is the licence declared for the model. Raises InputError for a model that cannot be exported, and
    RecipeError where no class of `transformers` computes the network, or where the licence conflicts with those of the
    text.
    """
    from flows.reports.model_card import find_model_run, model_card
    from model.huggingface.registry import fitting_family

    source = find_source(root, model)
    stored = open_source(source)
    if FINETUNED in stored.description and stored.config.architecture == "bert":
        raise InputError(
            f"export: the model in {stored.folder} is a fine-tuned BERT, whose task head cannot be exported. Export"
            f" the model that it was fine-tuned from."
        )
    is_finetuned = source.artifact is not None and source.artifact.stage != "train"
    record = None if is_finetuned else find_model_run(root, model, stored.folder)
    if licence is not None:
        _check_licence(root, record, model, licence)
    class_name, card = fitting_family(stored.config).class_name, None
    if record is not None:
        with tempfile.TemporaryDirectory() as folder:
            write_tokenizer(Path(folder), stored.tokenizer, context=stored.config.context, chat=chat_of(stored))
            loaded_by = tokenizer_class(Path(folder), class_name)
        card = model_card(record, root, licence, class_name, loaded_by)
    return source, config, card, of_published(source)


def check_target(folder: Path) -> None:
    """Raise InputError where a folder holds something that is no export."""
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or (folder / RECORD).is_file())):
        raise _occupied(folder)


def write_export(artifact: Artifact, folder: Path) -> bool:
    """Put the files of an export and `export.json` into a new folder, which appears complete or not at all; return
    False where it holds this export already, and is left as it is.

    Raises InputError where the folder holds anything else.
    """
    found = ExportResult.of(artifact.report).exported
    files = {record.name: record.digest for record in artifact.records}
    if folder.exists():
        if _is_export(folder, files):
            return False
        if not folder.is_dir() or any(folder.iterdir()):
            raise _occupied(folder)
    params = manifest_of(artifact)["identity_parts"]["params"]
    of_model = manifest_of(artifact)["parents"].get("model")
    record: dict[str, Any] = {
        "artifact": f"{of_model['stage']}/{of_model['identity']}" if isinstance(of_model, dict) else None,
        "export": f"{artifact.stage}/{artifact.identity}",
        "asked": {"model": found["model"], "class": found["class"], **params},
        "files": files,
    }
    with new_folder(folder) as staged:
        copy_files(artifact, staged)
        (staged / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return True


def _occupied(folder: Path) -> InputError:
    return InputError(
        f"export: {folder} exists and is not empty; nothing was written, since it is not this model's export with"
        f" these options. Name a new folder."
    )


def _is_export(folder: Path, files: dict[str, str]) -> bool:
    """Return whether a folder holds the files of an export, with the bytes that were written."""
    written = read_json(folder / RECORD).get("files") if (folder / RECORD).is_file() else None
    return written == files and holds(folder, files, [RECORD])


def _check_licence(root: Path, record: RunData | None, model: str, licence: str) -> None:
    """Raise RecipeError where the declared licence conflicts with those of the text, or these are unknown."""
    from flows.reports.model_card_facts import card_facts, check_licence

    if record is None:
        raise RecipeError(
            f"export --licence {licence}: no run under {root} trained {model}, so the licences of its text are not"
            f" known. Export it without --licence, which grants nothing, or name the run that trained it."
        )
    check_licence(licence, card_facts(record, root).licences)
