"""Bessemer's native engine: python ours.py (eager | compiled | rung's name) SETTING"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from collections.abc import Callable
from pathlib import Path

import torch
from setting import BETAS, CLIP, EPS, LEARNING_RATE, Setting, Watch, chosen

from model.checkpoint.weights import load_model
from model.config.options import ClipConfig, OptimizerConfig, ScheduleConfig
from model.config.train import TrainConfig, TrainerRun
from model.data.loader import CausalBatch, MaskedBatch, SpanBatch
from model.distributed.process_group import SINGLE_PROCESS
from model.engines import make_engine
from model.engines.products import fastest_products
from model.engines.runtime import seed_dropout
from model.optim.schedules import StepSchedule

BATCHES = {"gpt": CausalBatch, "bert": MaskedBatch, "t5": SpanBatch}


def train_config(name: str, setting: Setting) -> TrainConfig:
    """What all contenders have in common, in our words; `name` is eager or compiled."""
    return TrainConfig(
        batch_rows=setting.batch_rows,
        micro_batch_rows=setting.batch_rows,
        dtype=setting.dtype,
        threads=setting.threads,
        compile=name == "compiled",
        optimizer=OptimizerConfig(beta1=BETAS[0], beta2=BETAS[1], eps=EPS, weight_decay=0.0),
        clip=ClipConfig(max_norm=CLIP),
        schedule=ScheduleConfig(kind="constant", peak_lr=LEARNING_RATE, warmup_share=0.0),
        **({"device": "cuda"} if setting.device == "cuda" else {}),
    )


def make_step(name: str, setting: Setting) -> Callable[[int], float]:
    """Return a function that makes step N of a race and returns its loss."""
    device = torch.device(setting.device)
    network = load_model(Path(setting.folder) / "ours").train().to(device)
    run = TrainerRun(
        sequences=(),
        order=Path(),
        out=Path(),
        # No token of the rows: nothing is padding.
        pad=network.config.vocab_size,
        tokenizer_digest="rows",
        model=network.config,
        train=train_config(name, setting),
    )
    engine = make_engine(run, network, SINGLE_PROCESS)
    kind, rows = BATCHES[network.config.architecture], setting.rows()

    def step(number: int = 0) -> float:
        batch = kind(**{name: torch.from_numpy(values) for name, values in setting.batch(rows, number).items()})
        seed_dropout(1, number, 0)
        return engine.step(batch, StepSchedule(LEARNING_RATE, CLIP, 1)).loss

    return step


def main() -> None:
    name, setting = chosen()
    torch.set_num_threads(setting.threads)
    step, watch = make_step(name, setting), Watch(setting)
    with fastest_products():
        for number in range(setting.steps):
            watch.step_done(step(number))
    watch.report()


if __name__ == "__main__":
    main()
