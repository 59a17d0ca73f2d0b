"""A task file and a trained model in, a fine-tuned model out: the same bytes for the same input.

Each seed that is through is kept beside the result until all are, so that an interrupted run goes on at the next one.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from model.code_digest import code_digest
from model.durable import replace_durably, sync_file
from model.errors import InputError
from model.finetune.config import FinetuneConfig, Task
from model.finetune.examples import Example, check_labels, label_set, read_examples
from model.finetune.holding_out import held_out
from model.finetune.metrics import guesses, score
from model.finetune.pupils import Labels, make_pupil, task_description
from model.finetune.result import FINETUNED, description_text, write_result
from model.finetune.training import Said, Scores, overall, peak_rate, score_tasks, told, train_pupil
from model.finetune.truncation import Truncation
from model.finetune.vocabulary import Vocabulary
from model.machine import INSTRUCTION_SET, part
from model.networks import Network
from model.reading import digest_bytes, digest_file
from model.weights import DESCRIPTION, describe_model

LENGTHS = ("max_length", "max_answer", "max_question", "stride_share")
"""Settings that decide how a text is read, in training as later."""


@dataclass(frozen=True)
class Splits:
    """Examples of each task: learnt from, held out to choose the epoch, and scored at the end."""

    learnt: list[list[Example]]
    development: list[list[Example]]
    test: list[list[Example]]


def finetune(
    trained: Network,
    parent: str,
    config: FinetuneConfig,
    vocabulary: Vocabulary,
    out: Path,
    *,
    tell: Callable[[str], None],
    beside: Callable[[Path], None] = lambda folder: None,
) -> dict[str, Any]:
    """Teach `trained` (whose digest is `parent`) the tasks and publish the best seed in the folder `out`.

    Returns what `model.json` says under `finetuned`. `tell` hears the progress in lines; `beside` writes what else
    belongs into the folder. Raises InputError for examples that are wrong, and where `out` holds something else.
    """
    identity = _identity(parent, config, vocabulary)
    if out.exists():
        return _standing(out, identity, tell)
    splits = read_splits(config)
    labels = labels_of(config, splits)
    work = _work_folder(out, identity, tell)
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(config.threads)
    try:
        found = [
            _seed(work, seed, trained, config, labels, splits, vocabulary, tell, number == 0)
            for number, seed in enumerate(config.seeds)
        ]
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_num_threads(before[1])
    best = max(found, key=lambda one: overall(config, one["development"]))
    description = {
        "identity": identity,
        "parent": parent,
        "tasks": [task_description(task, labels[task.name]) for task in config.tasks],
        "lengths": config.model_dump(mode="json", include=set(LENGTHS)),
        "settings": {
            **config.model_dump(mode="json", exclude={"tasks", "threads", *LENGTHS}),
            "learning_rate": peak_rate(config, trained.config.width, head=trained.config.architecture == "bert"),
        },
        "state": best["state"],
        "not_read": best["not_read"],
        "scores": {
            **{name: best[name] for name in ("seed", "epoch", "development", "test")},
            "said": best["said"],
            "guess": _guess_scores(config, splits),
            "seeds": [{name: one[name] for name in ("seed", "epoch", "development", "test")} for one in found],
        },
    }
    weights = load_file(work / _weights_name(best["seed"]))
    told_of_model = {"tokenizer_digest": vocabulary.digest, FINETUNED: description}
    dropped = trained.config.model_copy(update={"dropout": config.dropout})
    write_result(out, dropped, weights, told_of_model, beside)
    shutil.rmtree(work)
    return description


def read_splits(config: FinetuneConfig) -> Splits:
    """The examples of all tasks; InputError names the file and line of one that is wrong."""
    splits = Splits([], [], [])
    for task in config.tasks:
        examples = read_examples(task.train, task)
        if task.development is not None:
            learnt, development = examples, read_examples(task.development, task)
        else:
            learnt, development = held_out(examples, config.development_share, task)
        splits.learnt.append(learnt)
        splits.development.append(development)
        splits.test.append(read_examples(task.test, task) if task.test is not None else [])
    return splits


def labels_of(config: FinetuneConfig, splits: Splits) -> Labels:
    """The labels of each task that has some; InputError where an example has another."""
    labels: dict[str, tuple[str, ...]] = {}
    for number, task in enumerate(config.tasks):
        labels[task.name] = ()
        if task.kind not in ("classification", "tagging"):
            continue
        labels[task.name] = label_set(task, [*splits.learnt[number], *splits.development[number]])
        for path, split in (
            (task.train, splits.learnt),
            (task.development or task.train, splits.development),
            (task.test or task.train, splits.test),
        ):
            check_labels(task, labels[task.name], split[number], path)
    return labels


def _seed(
    work: Path,
    seed: int,
    trained: Network,
    config: FinetuneConfig,
    labels: Labels,
    splits: Splits,
    vocabulary: Vocabulary,
    tell: Callable[[str], None],
    first: bool,
) -> dict[str, Any]:
    """What one seed came to: from the work folder where it is through, or trained now."""
    record, weights = work / f"seed-{seed}.json", work / _weights_name(seed)
    if record.is_file():
        found = json.loads(record.read_text())
        if weights.is_file() and digest_file(weights) == found["weights_digest"]:
            tell(f"seed {seed} was trained before: {told(config, found['development'])}")
            return found
    pupil = make_pupil(trained, config, labels, vocabulary, seed)
    cut = {split: [Truncation() for _ in config.tasks] for split in ("learnt", "test")}
    pupil.learn_from(splits.learnt, cut["learnt"])
    for task, count, left_out in zip(config.tasks, pupil.counts, cut["learnt"], strict=True):
        if not count:
            raise InputError(f"task {task.name}: nothing of {task.train} can be learnt from: {left_out.told()}")
    if first:
        _tell_sizes(config, splits, cut["learnt"], tell)
    learnt = train_pupil(pupil, splits.development, config, seed, tell)
    pupil.modules().load_state_dict(learnt.weights)
    said: Said = {}
    test = score_tasks(pupil, config, splits.test, cut["test"], said)
    untested = [[] if test else held for test, held in zip(splits.test, splits.development, strict=True)]
    score_tasks(pupil, config, untested, said=said)
    save_file(dict(learnt.weights), weights)
    sync_file(weights)
    found = {
        "seed": seed,
        "epoch": learnt.epoch,
        "development": learnt.development,
        "test": test,
        "said": said,
        "state": pupil.state,
        "not_read": {
            split: {task.name: one.told() for task, one in zip(config.tasks, some, strict=True) if one.examples}
            for split, some in cut.items()
        },
        "weights_digest": digest_file(weights),
    }
    replace_durably(record, description_text(found).encode())
    return found


def _tell_sizes(config: FinetuneConfig, splits: Splits, cut: Sequence[Truncation], tell: Callable[[str], None]) -> None:
    for number, task in enumerate(config.tasks):
        held = "held out" if task.development is None else "to choose the epoch"
        tell(
            f"{task.name}: {len(splits.learnt[number]):,} examples to learn from, {len(splits.development[number]):,}"
            f" {held}, {len(splits.test[number]):,} to test; {cut[number].told()}"
        )


def _guess_scores(config: FinetuneConfig, splits: Splits) -> dict[str, Scores]:
    """What a guess that reads nothing reaches on held-out and test examples."""
    found: dict[str, Scores] = {"development": {}, "test": {}}
    for number, task in enumerate(config.tasks):
        for split, examples in (("development", splits.development[number]), ("test", splits.test[number])):
            if examples:
                answers = guesses(task, splits.learnt[number], examples)
                found[split][task.name] = score(task, answers, examples)
    return found


def _identity(parent: str, config: FinetuneConfig, vocabulary: Vocabulary) -> str:
    """Digest of all that decides the result; files count by their bytes, not by their names."""
    tasks = [
        {
            **task.model_dump(mode="json", exclude={"train", "development", "test"}),
            "files": {name: _file_digest(task, name) for name in ("train", "development", "test")},
        }
        for task in config.tasks
    ]
    whole = {**config.model_dump(mode="json"), "tasks": tasks}
    whole |= {
        "parent": parent,
        "vocabulary": vocabulary.digest,
        "code": code_digest(),
        "instruction_set": part(INSTRUCTION_SET, os.environ),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }
    return digest_bytes(json.dumps(whole, sort_keys=True).encode())


def _file_digest(task: Task, name: str) -> str | None:
    path = getattr(task, name)
    if path is None:
        return None
    if not path.is_file():
        raise InputError(f"task {task.name}: there is no file {path}, which the task file names as `{name}`")
    return digest_file(path)


def _standing(out: Path, identity: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """What stands in `out` where it is what would be made now; InputError where it is anything else."""
    found = describe_model(out).get(FINETUNED, {}) if (out / DESCRIPTION).is_file() else {}
    if found.get("identity") != identity:
        raise InputError(
            f"{out} exists and holds something else than this model with this task file gives. Name another folder with"
            f" --out, or remove it"
        )
    tell(f"{out} stands already, made from the same model, examples and settings; nothing is done")
    return found


def _work_folder(out: Path, identity: str, tell: Callable[[str], None]) -> Path:
    """The folder of an unfinished run of this identity, emptied where it is of another."""
    work = out.with_name(f".{out.name}.unfinished")
    mark = work / "identity"
    if work.is_dir() and (not mark.is_file() or mark.read_text() != identity):
        tell(f"{work} is of a run with other examples or settings, and is begun anew")
        shutil.rmtree(work)
    os.makedirs(work, exist_ok=True)
    replace_durably(mark, identity.encode())
    return work


def _weights_name(seed: int) -> str:
    return f"seed-{seed}.safetensors"
