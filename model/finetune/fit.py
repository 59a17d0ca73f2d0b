"""Train one seed over several epochs and keep the best one, which is chosen by scores on held-out examples."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.config.options import ScheduleConfig
from model.engines.runtime import seed_dropout
from model.errors import Numerics
from model.finetune.chat import GPTTaskModel
from model.finetune.config import FinetuneConfig
from model.finetune.data import Example, Truncation, interleave
from model.finetune.description import AnswerCounts, Scores
from model.finetune.metrics import main_metric, score
from model.finetune.models import TaskModel
from model.optim.optimizers import AdamW, set_learning_rate
from model.optim.schedules import learning_rate

BASE_RATES = {"bert": 5e-5, "gpt": 3e-5, "t5": 3e-4}
"""Peak learning rates at BASE_WIDTH. BERT's is the highest of its paper (Devlin et al. 2019, section A.3): a network of
width 128 that had read a million tokens learnt grammaticality to 57.7% with 3e-5 and to 60.8% with 5e-5 (2,680 test
items, guessing gives 50%; `tests/prove_data/test_finetuning.py`)."""

BASE_WIDTH = 768
"""Width of BERT-base, which BERT's learning rates are for."""

MOST_RATE = 1e-3


@dataclass(frozen=True)
class FitResult:
    """The result of training with one seed."""

    epoch: int
    """The best epoch, from 1."""
    development: Scores
    weights: Mapping[str, Tensor]


def fit(
    task_model: TaskModel,
    development: Sequence[Sequence[Example]],
    config: FinetuneConfig,
    seed: int,
    log: Callable[[str], None],
) -> FitResult:
    """Train for all epochs and return the weights after the one whose score on `development` is best.

    The score is the mean over tasks of the main metric of each; of equal ones the first epoch is kept. Raises Numerics
    for a loss or gradient norm that is not finite.
    """
    modules = task_model.modules()
    optimizer = make_optimizer(modules, config.weight_decay)
    examples = sum(min(count, config.mixing_cap) for count in task_model.counts)
    steps = config.epochs * -(-examples // config.batch_size)
    peak = peak_rate(config, task_model.network.config.width, task_model.network.config.architecture)
    schedule = ScheduleConfig(kind="linear", peak_lr=peak, end_lr=0.0, warmup_share=config.warmup_share)
    step = 0
    best: FitResult | None = None
    for epoch in range(config.epochs):
        order = interleave(task_model.counts, config.mixing_cap, seed, epoch)
        modules.train()
        losses = []
        for begin in range(0, examples, config.batch_size):
            rate = learning_rate((step + 0.5) / steps, schedule)
            set_learning_rate(optimizer.param_groups, rate)
            seed_dropout(seed, step, 0)
            loss = task_model.loss(order[begin : begin + config.batch_size].tolist())
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
        scores = score_tasks(task_model, config, development)
        log(
            f"seed {seed}, epoch {epoch + 1} of {config.epochs}: loss {sum(losses) / len(losses):.3f};"
            f" held out: {format_scores(config, scores)}"
        )
        if best is None or overall_score(config, scores) > overall_score(config, best.development):
            weights = {name: tensor.detach().cpu().clone() for name, tensor in modules.state_dict().items()}
            best = FitResult(epoch + 1, scores, weights)
    assert best is not None, "there is at least one epoch"
    return best


def peak_rate(config: FinetuneConfig, width: int, architecture: str) -> float:
    """Return the peak learning rate: the configured one, or the default for this width and architecture.

    Adapters, which begin at zero, have a higher default than the weights of a BERT or GPT.
    """
    if config.learning_rate is not None:
        return config.learning_rate
    base = 3e-4 if config.lora is not None else BASE_RATES[architecture]
    return min(MOST_RATE, base * BASE_WIDTH / width)


def make_optimizer(modules: nn.Module, weight_decay: float) -> AdamW:
    """Return AdamW as in BERT's program: epsilon 1e-6, no weight decay of norms and biases."""
    trained = [parameter for parameter in modules.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trained if parameter.dim() >= 2]
    plain = [parameter for parameter in trained if parameter.dim() < 2]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return AdamW(groups, lr=0.0, betas=(0.9, 0.999), eps=1e-6, fused=True)


def score_tasks(
    task_model: TaskModel,
    config: FinetuneConfig,
    splits: Sequence[Sequence[Example]],
    truncations: Sequence[Truncation] | None = None,
    counts: AnswerCounts | None = None,
) -> Scores:
    """Return the metrics of each task that has examples.

    Counts what is not read in `truncations`, and the answers with each label of a classification in `counts`.
    """
    scores = {}
    for number, (task, examples) in enumerate(zip(config.tasks, splits, strict=True)):
        if examples:
            truncation = truncations[number] if truncations is not None else Truncation()
            if isinstance(task_model, GPTTaskModel):
                scores[task.name] = task_model.scores(examples, truncation)
                continue
            answers = task_model.answers(number, examples, truncation)
            scores[task.name] = score(task, answers, examples)
            if counts is not None and task.kind == "classification":
                counts[task.name] = dict(sorted(Counter(map(str, answers)).items()))
    return scores


def overall_score(config: FinetuneConfig, scores: Scores) -> float:
    """Return the mean over tasks of the main metric of each."""
    found = [scores[task.name][main_metric(task.kind, scores[task.name])] for task in config.tasks]
    return sum(found) / len(found)


def format_scores(config: FinetuneConfig, scores: Scores) -> str:
    """Return a phrase with the main metric of each task."""
    kinds = {task.name: task.kind for task in config.tasks}
    mains = {name: main_metric(kinds[name], found) for name, found in scores.items()}
    return ", ".join(f"{name} {mains[name]} {found[mains[name]]:.3f}" for name, found in scores.items())
