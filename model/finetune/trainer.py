"""One training of a pupil: epochs over its examples, and the weights after the best of them.

A task file and a trained model in, a fine-tuned model out: the same bytes for the same input.

Each seed that is through is kept beside the result until all are, so that an interrupted run goes on at the next one.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model.checkpoint.run_folder import DESCRIPTION
from model.checkpoint.weights import describe_model
from model.code_digest import code_digest
from model.config.machine import INSTRUCTION_SET, describe_part
from model.config.options import ScheduleConfig
from model.digests import digest_bytes, digest_file
from model.engines.runtime import seed_dropout
from model.errors import InputError, Numerics
from model.files import replace_durably, sync_file
from model.finetune.config import FinetuneConfig, Task
from model.finetune.data import Example, Truncation, check_labels, epoch_order, held_out, label_set, read_examples
from model.finetune.metrics import guesses, main_measure, score
from model.finetune.models import Labels, Pupil, make_pupil, task_description
from model.finetune.output import FINETUNED, description_text, write_result
from model.finetune.tokenizer import Vocabulary
from model.nn.factory import Network
from model.optim.schedules import learning_rate

Scores = dict[str, dict[str, float]]
"""Measures by task."""

Said = dict[str, dict[str, int]]
"""How often each label was answered, by task."""

BASE_WIDTH = 768
"""Of BERT-base, which BERT's learning rates are for."""

MOST_RATE = 1e-3


@dataclass(frozen=True)
class Learnt:
    """What a seed came to."""

    epoch: int
    """The best one, from 1."""
    development: Scores
    weights: Mapping[str, Tensor]


def peak_rate(config: FinetuneConfig, width: int, *, head: bool) -> float:
    """The highest learning rate: as asked, or what suits a network of this width, with a head (BERT) or none (T5)."""
    if config.learning_rate is not None:
        return config.learning_rate
    return min(MOST_RATE, (3e-5 if head else 3e-4) * BASE_WIDTH / width)


def train_pupil(
    pupil: Pupil,
    development: Sequence[Sequence[Example]],
    config: FinetuneConfig,
    seed: int,
    tell: Callable[[str], None],
) -> Learnt:
    """Train for all epochs and keep the weights after the one whose score on `development` is best.

    The score is the mean over tasks of the main measure of each; of equals the first epoch is kept. Raises Numerics for
    a loss that is no number.
    """
    modules = pupil.modules()
    optimizer = make_optimizer(modules, config.weight_decay)
    orders = [epoch_order(pupil.counts, config.mixing_cap, seed, epoch) for epoch in range(config.epochs)]
    steps = [-(-len(order) // config.batch_size) for order in orders]
    peak = peak_rate(config, pupil.network.config.width, head=pupil.head is not None)
    schedule = ScheduleConfig(kind="linear", peak_lr=peak, end_lr=0.0, warmup_share=config.warmup_share)
    step = 0
    best: Learnt | None = None
    for epoch, order in enumerate(orders):
        modules.train()
        losses = []
        for batch in range(steps[epoch]):
            rate = learning_rate((step + 0.5) / sum(steps), schedule)
            for group in optimizer.param_groups:
                group["lr"] = rate
            seed_dropout(seed, step, 0)
            numbers = order[batch * config.batch_size : (batch + 1) * config.batch_size].tolist()
            loss = pupil.loss(numbers)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(modules.parameters(), config.clip_norm)
            losses.append(float(loss.detach()))
            if not torch.isfinite(norm) or not losses[-1] < float("inf"):
                raise Numerics(
                    f"step {step} of fine-tuning, seed {seed}: the loss is {losses[-1]}, and the gradient's norm"
                    f" {float(norm)}. Lower learning_rate ({peak:g})"
                )
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
        modules.eval()
        scores = score_tasks(pupil, config, development)
        tell(
            f"seed {seed}, epoch {epoch + 1} of {config.epochs}: loss {sum(losses) / len(losses):.3f};"
            f" held out: {told(config, scores)}"
        )
        if best is None or overall(config, scores) > overall(config, best.development):
            weights = {name: tensor.detach().cpu().clone() for name, tensor in modules.state_dict().items()}
            best = Learnt(epoch + 1, scores, weights)
    assert best is not None, "there is at least one epoch"
    return best


def score_tasks(
    pupil: Pupil,
    config: FinetuneConfig,
    splits: Sequence[Sequence[Example]],
    truncations: Sequence[Truncation] | None = None,
    said: Said | None = None,
) -> Scores:
    """Measures of each task that has examples; `truncations` hear what of these is not read, `said` how often each
    label of a classification was answered."""
    scores = {}
    for number, (task, examples) in enumerate(zip(config.tasks, splits, strict=True)):
        if examples:
            truncation = truncations[number] if truncations is not None else Truncation()
            answers = pupil.answers(number, examples, truncation)
            scores[task.name] = score(task, answers, examples)
            if said is not None and task.kind == "classification":
                said[task.name] = dict(sorted(Counter(map(str, answers)).items()))
    return scores


def overall(config: FinetuneConfig, scores: Scores) -> float:
    """Mean over tasks of the main measure of each."""
    found = [scores[task.name][main_measure(task.kind, scores[task.name])] for task in config.tasks]
    return sum(found) / len(found)


def told(config: FinetuneConfig, scores: Scores) -> str:
    """The main measure of each task, in words."""
    kinds = {task.name: task.kind for task in config.tasks}
    mains = {name: main_measure(kinds[name], found) for name, found in scores.items()}
    return ", ".join(f"{name} {mains[name]} {found[mains[name]]:.3f}" for name, found in scores.items())


def make_optimizer(modules: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """AdamW as BERT's program has it: epsilon 1e-6, no decay of norms and biases."""
    named = list(modules.named_parameters())
    decayed = [parameter for name, parameter in named if parameter.dim() >= 2]
    plain = [parameter for name, parameter in named if parameter.dim() < 2]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.999), eps=1e-6, fused=True)


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
        "instruction_set": describe_part(INSTRUCTION_SET, os.environ),
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
