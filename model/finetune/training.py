"""One training of a pupil: epochs over its examples, and the weights after the best of them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.config import ScheduleConfig
from model.dropout import seed_dropout
from model.errors import Numerics
from model.finetune.config import FinetuneConfig
from model.finetune.examples import Example
from model.finetune.metrics import main_measure, score
from model.finetune.mixing import epoch_order
from model.finetune.pupils import Pupil
from model.finetune.truncation import Truncation
from model.schedule import learning_rate

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
