"""Fine-tune a model: one training for each seed, each over several epochs; the best seed's best epoch is published.

Equal input gives equal bytes. Each finished seed is stored in a folder of the caller, so that an interrupted run
goes on with the next seed.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors.torch import load_file, save_file

from model.digests import digest_file
from model.engines.products import fastest_products
from model.engines.runtime import deterministic_kernels
from model.errors import InputError
from model.files import replace_durably, sync_file
from model.finetune.chat import GPTTaskModel
from model.finetune.chat_template import ChatTemplate
from model.finetune.config import FinetuneConfig, Task
from model.finetune.data import (
    Example,
    Truncation,
    check_labels,
    label_set,
    read_examples,
    split_validation,
)
from model.finetune.description import (
    FINETUNED,
    AnswerCounts,
    FinetuneDescription,
    Lengths,
    Scores,
    SeedResult,
    SeedScores,
)
from model.finetune.fit import fit, format_scores, overall_score, peak_rate, score_tasks
from model.finetune.lora import merged_weights
from model.finetune.metrics import baseline_answers, score
from model.finetune.models import Labels, build_task_model, dropout_of, task_description
from model.finetune.output import OF_LABELS, write_result
from model.finetune.tokenizer import Vocabulary
from model.inference.device import choose_device, trained_with, training_on
from model.nn.factory import Network


@dataclass(frozen=True)
class Splits:
    """Examples of each task: for training, for choosing the epoch, and for scoring at the end."""

    train: list[list[Example]]
    development: list[list[Example]]
    test: list[list[Example]]


@dataclass(frozen=True)
class Job:
    """What the trainings of all seeds share."""

    work: Path
    trained: Network
    config: FinetuneConfig
    labels: Labels
    splits: Splits
    vocabulary: Vocabulary
    template: ChatTemplate | None
    log: Callable[[str], None]


def finetune(
    trained: Network,
    parent: str,
    config: FinetuneConfig,
    vocabulary: Vocabulary,
    work: Path,
    out: Path,
    *,
    identity: str,
    log: Callable[[str], None],
    template: ChatTemplate | None = None,
    trained_on: dict[str, Any] | None = None,
) -> FinetuneDescription:
    """Fine-tune `trained` (whose digest is `parent`) on the tasks and write the best seed into the folder `out`.

    `work` is the folder of finished seeds, of these arguments alone. `template` is the chat template of the model's
    tokenizer, if any, and `trained_on` the device and type of its training, which the result keeps, and in which it is
    fine-tuned. `identity` is that of the result. Returns the entry `finetuned` of `model.json`. `log` gets lines of
    progress. Raises InputError for invalid examples, RecipeError where the machine lacks the device.
    """
    training = {"train": trained_on or {}}
    device = choose_device(config.device, training)
    dtype = trained_with(training)["dtype"]
    # Products in float16 need a scaled loss, which is not worth it for so short a training.
    computed = {"train": {"dtype": "float32" if dtype == "float16" else dtype}}
    config = config.model_copy(update={"device": device})
    splits = read_splits(config)
    labels = task_labels(config, splits)
    job = Job(work, trained, config, labels, splits, vocabulary, template, log)
    with deterministic_kernels(config.threads), training_on(device, computed), fastest_products():
        found = [_train_seed(job, seed) for seed in config.seeds]
    best = max(found, key=lambda one: overall_score(config, one["development"]))
    description: FinetuneDescription = {
        "identity": identity,
        "parent": parent,
        "tasks": [task_description(task, labels[task.name]) for task in config.tasks],
        "lengths": cast(Lengths, config.model_dump(include=set(Lengths.__annotations__))),
        "settings": {
            **config.model_dump(mode="json", exclude={"tasks", "threads", *Lengths.__annotations__}),
            "learning_rate": peak_rate(config, trained.config.width, trained.config.architecture),
            "dropout": dropout_of(config, trained),
        },
        "state": best["state"],
        "not_read": best["not_read"],
        "scores": {
            **_scores_of(best),
            "said": best["said"],
            "guess": _baseline_scores(config, splits),
            "seeds": [_scores_of(one) for one in found],
        },
    }
    if best["chat"] is not None:
        description["chat"] = best["chat"]
    weights = load_file(work / _weights_name(best["seed"]))
    network = trained.config.model_copy(update={"dropout": dropout_of(config, trained)})
    write_result(out, network, weights, {"tokenizer_digest": vocabulary.digest, FINETUNED: description, **training})
    return description


def _scores_of(one: SeedResult) -> SeedScores:
    return {"seed": one["seed"], "epoch": one["epoch"], "development": one["development"], "test": one["test"]}


def split_digest(task: Task, name: str) -> str | None:
    """Return the digest of a file of a task, None where it names none; InputError for a missing file."""
    path = getattr(task, name)
    if path is None:
        return None
    if not path.is_file():
        raise InputError(f"task {task.name}: there is no file {path}, which the task file names as `{name}`")
    return digest_file(path)


def read_splits(config: FinetuneConfig) -> Splits:
    """Return the examples of all tasks; InputError names the file and line of an invalid one."""
    splits = Splits([], [], [])
    for task in config.tasks:
        examples = read_examples(task.train, task)
        if task.development is not None:
            learnt, development = examples, read_examples(task.development, task)
        else:
            learnt, development = split_validation(examples, config.development_share, task)
        splits.train.append(learnt)
        splits.development.append(development)
        splits.test.append(read_examples(task.test, task) if task.test is not None else [])
    return splits


def task_labels(config: FinetuneConfig, splits: Splits) -> Labels:
    """Return the labels of each task, empty for tasks without; InputError where an example has another label."""
    labels: dict[str, tuple[str, ...]] = {}
    for number, task in enumerate(config.tasks):
        labels[task.name] = ()
        if task.kind not in OF_LABELS:
            continue
        labels[task.name] = label_set(task, splits.train[number], splits.development[number])
        for path, split in (
            (task.train, splits.train),
            (task.development or task.train, splits.development),
            (task.test or task.train, splits.test),
        ):
            check_labels(task, labels[task.name], split[number], path)
    return labels


def _train_seed(job: Job, seed: int) -> SeedResult:
    """Return the record of one seed: from the work folder where it is finished, or trained now."""
    config, splits = job.config, job.splits
    record, weights = job.work / f"seed-{seed}.json", job.work / _weights_name(seed)
    if record.is_file():
        known: SeedResult = json.loads(record.read_text())
        if weights.is_file() and digest_file(weights) == known["weights_digest"]:
            job.log(f"seed {seed} was trained before: {format_scores(config, known['development'])}")
            return known
    task_model = build_task_model(job.trained, config, job.labels, job.vocabulary, seed, job.template)
    task_model.modules().to(config.device)
    cut = {split: [Truncation() for _ in config.tasks] for split in ("learnt", "test")}
    task_model.prepare(splits.train, cut["learnt"])
    for task, count, left_out in zip(config.tasks, task_model.counts, cut["learnt"], strict=True):
        if not count:
            raise InputError(
                f"task {task.name}: no example of {task.train} can be used for training: {left_out.describe()}"
            )
    if seed == config.seeds[0]:
        _log_sizes(job, cut["learnt"])
        if isinstance(task_model, GPTTaskModel):
            by = "the chat template of the model's tokenizer" if task_model.template == job.template else "words"
            without = "" if job.template else ", since the model's tokenizer has no chat template"
            job.log(f"messages become text by {by}{without}")
            for scored in filter(None, (splits.development[0], splits.test[0])):
                # An error that would else end the run after an epoch, or after all.
                task_model.scored_rows(scored, Truncation())
    learnt = fit(task_model, splits.development, config, seed, job.log)
    task_model.modules().load_state_dict(learnt.weights)
    counts: AnswerCounts = {}
    test = score_tasks(task_model, config, splits.test, cut["test"], counts)
    untested = [[] if test else held for test, held in zip(splits.test, splits.development, strict=True)]
    score_tasks(task_model, config, untested, counts=counts)
    save_file(merged_weights(task_model.modules()), weights)
    sync_file(weights)
    found: SeedResult = {
        "seed": seed,
        "epoch": learnt.epoch,
        "development": learnt.development,
        "test": test,
        "said": counts,
        "state": task_model.state,
        "chat": task_model.description() if isinstance(task_model, GPTTaskModel) else None,
        "not_read": {
            split: {task.name: one.describe() for task, one in zip(config.tasks, some, strict=True) if one.examples}
            for split, some in cut.items()
        },
        "weights_digest": digest_file(weights),
    }
    replace_durably(record, (json.dumps(found, indent=1, sort_keys=True) + "\n").encode())
    return found


def _log_sizes(job: Job, cut: Sequence[Truncation]) -> None:
    splits = job.splits
    for number, task in enumerate(job.config.tasks):
        held = "held out" if task.development is None else "to choose the epoch"
        job.log(
            f"{task.name}: {len(splits.train[number]):,} training examples, {len(splits.development[number]):,}"
            f" {held}, {len(splits.test[number]):,} to test; {cut[number].describe()}"
        )


def _weights_name(seed: int) -> str:
    return f"seed-{seed}.safetensors"


def _baseline_scores(config: FinetuneConfig, splits: Splits) -> dict[str, Scores]:
    """Return the baseline's metrics on held-out and test examples."""
    found: dict[str, Scores] = {"development": {}, "test": {}}
    for number, task in enumerate(config.tasks):
        for split, examples in (("development", splits.development[number]), ("test", splits.test[number])):
            if task.kind == "chat":
                found[split][task.name] = {}
            elif examples:
                answers = baseline_answers(task, splits.train[number], examples)
                found[split][task.name] = score(task, answers, examples)
    return found
