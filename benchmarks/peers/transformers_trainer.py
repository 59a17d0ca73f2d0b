"""Hugging Face's Trainer on the same network and rows, in its own environment: python ... (eager | compiled) SETTING"""

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from setting import BETAS, CLIP, EPS, LEARNING_RATE, Watch, chosen
from torch.utils.data import Dataset, SequentialSampler
from transformers import AutoModelForPreTraining, Trainer, TrainerCallback, TrainingArguments


def as_transformers(rows: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Return rows under the names that the classes of `transformers` read; what does not count has the label -100."""
    found = {name: torch.from_numpy(values) for name, values in rows.items()}
    if "tokens_BL" in found:
        labels = found["tokens_BL"].clone()
        # The model shifts them itself. The first is predicted from nothing, and yet the Trainer divides by it.
        labels[:, 0] = -100
        return {"input_ids": found["tokens_BL"], "labels": labels}
    if "decoder_inputs_BU" in found:
        return {
            "input_ids": found["inputs_BT"],
            "decoder_input_ids": found["decoder_inputs_BU"],
            "labels": found["targets_BU"],
        }
    labels = torch.full_like(found["inputs_BT"], -100).scatter(1, found["positions_BM"], found["targets_BM"])
    return {
        "input_ids": found["inputs_BT"],
        "token_type_ids": found["token_types_BT"],
        "labels": labels,
        # There 0 says that the second sentence follows.
        "next_sentence_label": 1 - found["is_next_B"],
    }


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows as the Trainer wants them."""

    def __init__(self, rows: dict[str, torch.Tensor]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows["input_ids"])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: values[index] for name, values in self._rows.items()}


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
        """Record the loss that is logged behind each step."""
        del args, state, control, named
        if logs and "loss" in logs:
            self._watch.step_done(float(logs["loss"]))


def main() -> None:
    name, setting = chosen()
    torch.set_num_threads(setting.threads)
    network = AutoModelForPreTraining.from_pretrained(Path(setting.folder) / "transformers", dtype=torch.float32)
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
        trainer = InOrder(network, arguments, train_dataset=Rows(as_transformers(setting.rows())))
        trainer.add_callback(Clock(watch))
        trainer.train()
    watch.report()


main()
