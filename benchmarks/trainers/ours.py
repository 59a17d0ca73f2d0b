"""Bessemer's native engine: python ours.py (eager | compiled | rung's name) SETTING"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from setting import BETAS, CLIP, EPS, LEARNING_RATE, Setting, Watch, chosen

from benchmarks.rows import run_without_rows
from model.checkpoint.weights import load_model
from model.config.fields import Dtype
from model.config.options import ClipConfig, OptimizerConfig, ScheduleConfig
from model.config.train import TrainConfig
from model.data.loader import CausalBatch, MaskedBatch, SpanBatch
from model.distributed.process_group import SINGLE_PROCESS
from model.engines import make_engine
from model.engines.base import Reading
from model.engines.products import fastest_products
from model.engines.runtime import seed_dropout
from model.optim.schedules import StepSchedule

BATCHES = {"gpt": CausalBatch, "bert": MaskedBatch, "t5": SpanBatch}


def train_config(name: str, setting: Setting) -> TrainConfig:
    """Return what all contenders have in common, in our words; `name` is eager or compiled, or without determinism
    compiled_fast."""
    return TrainConfig(
        batch_rows=setting.batch_rows,
        micro_batch_rows=setting.batch_rows,
        dtype=cast(Dtype, setting.dtype),
        threads=setting.threads,
        compile=name.startswith("compiled"),
        optimizer=OptimizerConfig(beta1=BETAS[0], beta2=BETAS[1], eps=EPS, weight_decay=0.0),
        clip=ClipConfig(max_norm=CLIP),
        schedule=ScheduleConfig(kind="constant", peak_lr=LEARNING_RATE, warmup_share=0.0),
        **({"device": "cuda", "deterministic": name != "compiled_fast"} if setting.device == "cuda" else {}),
    )


def make_step(name: str, setting: Setting) -> Callable[..., Reading]:
    """Return a function that launches step N of a race and returns what waits for its numbers."""
    device = torch.device(setting.device)
    network = load_model(Path(setting.folder) / "ours").train().to(device)
    # No token of the rows: nothing is padding.
    run = run_without_rows(network.config, train_config(name, setting), pad=network.config.vocab_size)
    engine = make_engine(run, network, SINGLE_PROCESS)
    kind = BATCHES[network.config.architecture]
    rows = {name: torch.from_numpy(values) for name, values in setting.rows().items()}
    if setting.device == "cuda":
        rows = {name: tensor.pin_memory() for name, tensor in rows.items()}

    def step(number: int = 0) -> Reading:
        seed_dropout(1, number, 0)
        engine.begin(kind(**setting.batch(rows, number)), StepSchedule(LEARNING_RATE, CLIP, 1))
        return engine.finish()

    return step


def main() -> None:
    name, setting = chosen()
    torch.set_num_threads(setting.threads)
    step, watch = make_step(name, setting), Watch(setting)
    unread: list[Reading] = []
    with fastest_products(cast(Dtype, setting.dtype)):
        for number in range(setting.steps):
            unread.append(step(number))
            # A device computes this step meanwhile.
            if setting.device == "cpu" or number:
                watch.step_done(unread.pop(0)().loss)
    for reading in unread:
        watch.step_done(reading().loss)
    watch.report()


if __name__ == "__main__":
    main()
