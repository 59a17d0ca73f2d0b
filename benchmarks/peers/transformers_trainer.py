"""Hugging Face's Trainer on the same network and rows, in its own environment: python ... (eager | compiled) SETTING"""

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from setting import BETAS, CLIP, EPS, LEARNING_RATE, Watch, chosen
from torch.utils.data import Dataset, SequentialSampler
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows as the Trainer wants them; the model shifts the labels itself."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        labels = self._rows[index].clone()
        # It is predicted from nothing, and yet the Trainer divides by it.
        labels[0] = -100
        return {"input_ids": self._rows[index], "labels": labels}


class InOrder(Trainer):
    """Reads rows as they lie."""

    def _get_train_sampler(self, *arguments: Any, **named: Any) -> SequentialSampler:
        del arguments, named
        return SequentialSampler(self.train_dataset)  # pyright: ignore[reportArgumentType]


class Clock(TrainerCallback):
    """Hears of each step and its loss."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
        """A loss is logged behind each step."""
        del args, state, control, named
        if logs and "loss" in logs:
            self._watch.step_done(float(logs["loss"]))


def main() -> None:
    name, setting = chosen()
    torch.set_num_threads(setting.threads)
    network = AutoModelForCausalLM.from_pretrained(Path(setting.folder) / "transformers", dtype=torch.float32)
    watch = Watch(setting)
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=setting.batch_rows,
            max_steps=setting.steps,
            learning_rate=LEARNING_RATE,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            adam_epsilon=EPS,
            weight_decay=0.0,
            max_grad_norm=CLIP,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=setting.device == "cpu",
            bf16=setting.dtype == "bfloat16",
            torch_compile=name == "compiled",
            seed=1,
        )
        trainer = InOrder(network, arguments, train_dataset=Rows(torch.from_numpy(setting.rows())))
        trainer.add_callback(Clock(watch))
        trainer.train()
    watch.tell()


main()
