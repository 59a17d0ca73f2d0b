"""Settings of the train stage: those of the trainer and the network, and the timeouts of the launcher."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from model.config import EXPERT, RUNTIME
from model.config.network import GPTConfig, NetworkConfig
from model.config.rules import check_consistency
from model.config.train import TrainConfig
from tasks.common.config import StrictConfig


class TrainStageConfig(StrictConfig, TrainConfig):
    """All settings of `model.config.train.TrainConfig`, and those below."""

    model: NetworkConfig = GPTConfig()
    """The network; its `vocab_size` is taken from the vocabulary when left out."""
    base_model: Annotated[Path | None, RUNTIME] = None
    """Folder of a trained model to start from: the train artifact of an earlier run, or a copy of its `model.json`
    and `model.safetensors`, or a published GPT-2, OPT, LLaMA, GPT-NeoX, BERT or T5 (`config.json` and safetensors).
    Its vocabulary must be this run's, or the one that `vocab.base` extends; settings that `train.model` leaves out
    are those of the model. Its content, not its path, is part of the identity."""
    max_seconds: Annotated[float | None, RUNTIME, EXPERT] = Field(default=None, gt=0)
    """Seconds after which training is stopped with a checkpoint; none by default."""
    stop_seconds: Annotated[float, RUNTIME, EXPERT] = Field(default=120.0, gt=0)
    """Seconds that the trainer gets to write a checkpoint when it is stopped."""

    def identity_params(self) -> dict[str, Any]:
        """Return the fields that decide the result, as plain JSON values."""
        return {name: value for name, value in super().identity_params().items() if name not in self.without_effect}

    def trainer_config(self) -> TrainConfig:
        """Return the trainer's part of these settings."""
        return TrainConfig.model_validate({name: getattr(self, name) for name in TrainConfig.model_fields})

    @model_validator(mode="after")
    def _network_and_training_go_together(self) -> "TrainStageConfig":
        check_consistency(self.model, self)
        return self

    @model_validator(mode="after")
    def _new_rows_have_a_base(self) -> "TrainStageConfig":
        for name in ("new_rows", "trainable"):
            if self.base_model is None and getattr(self, name) != TrainConfig.model_fields[name].default:
                raise ValueError(f"`{name}` applies only to a base model; set `base_model`, or leave `{name}` out")
        return self
