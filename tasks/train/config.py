"""What can be chosen about training: the trainer's own settings, the network, and the patience of the launcher."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from model.architecture import GPTConfig, NetworkConfig
from model.config import TrainConfig
from model.hosts_config import HostsConfig
from model.restart_config import RestartsConfig
from model.settings_together import check_together
from tasks.config import RUNTIME, StrictConfig


class TrainStageConfig(StrictConfig, TrainConfig):
    """All settings of `model.config.TrainConfig`, and those below."""

    model: NetworkConfig = GPTConfig()
    """The network; its `vocab_size` is taken from the vocabulary when left out."""
    base_model: Annotated[Path | None, RUNTIME] = None
    """Folder of a trained model to start from: the train artifact of an earlier run, or a copy of its `model.json` and
    `model.safetensors`, or a published GPT-2, OPT, LLaMA, GPT-NeoX, BERT or T5 (`config.json` and safetensors). Its
    vocabulary must be this run's, or the one that `vocab.base` extends; what `train.model` leaves out is as it was
    trained. Its content, not its place, is part of the identity."""
    checkpoint_steps: Annotated[int, RUNTIME] = Field(default=50, ge=1)
    """Optimizer steps between checkpoints; decides how much work a crash costs, and no bit of the result. Only where
    the guard went back and changed a setting does it matter from which of them."""
    keep_checkpoints: Annotated[int, RUNTIME] = Field(default=2, ge=1)
    """Newest checkpoints that are kept while training."""
    pause_share: Annotated[float | None, RUNTIME] = Field(default=None, gt=0, lt=1)
    """Share of all rows after which training pauses with a checkpoint, and the run ends there: neither failed nor at
    its end. Run without it, training goes on to the same bits."""
    hang_seconds: Annotated[float, RUNTIME] = Field(default=300.0, gt=0)
    """Seconds without a finished step after which a rank counts as hung; all are then started again from the last
    checkpoint."""
    start_seconds: Annotated[float, RUNTIME] = Field(default=900.0, gt=0)
    """The same where no steps are made: before the first one, and while a checkpoint or the result is written."""
    restarts: Annotated[RestartsConfig, RUNTIME] = RestartsConfig()
    """What follows where ranks fail."""
    hosts: Annotated[HostsConfig, RUNTIME] = HostsConfig()
    """Machines over which ranks are spread. This one has the address; on each other one, with the same files:
    `bessemer train join`."""
    max_seconds: Annotated[float | None, RUNTIME] = Field(default=None, gt=0)
    """Seconds that training may take before it is stopped with a checkpoint; none by default."""
    stop_seconds: Annotated[float, RUNTIME] = Field(default=120.0, gt=0)
    """Seconds that the trainer gets to write a checkpoint when it is asked to stop."""

    def trainer_config(self) -> TrainConfig:
        """The trainer's part of these settings."""
        return TrainConfig.model_validate({name: getattr(self, name) for name in TrainConfig.model_fields})

    @model_validator(mode="after")
    def _network_and_training_go_together(self) -> "TrainStageConfig":
        check_together(self.model, self)
        return self

    @model_validator(mode="after")
    def _new_rows_have_a_base(self) -> "TrainStageConfig":
        for name in ("new_rows", "trainable"):
            if self.base_model is None and getattr(self, name) != TrainConfig.model_fields[name].default:
                raise ValueError(f"`{name}` speaks of a trained model; name one in `base_model`, or leave `{name}` out")
        return self
