"""What can be chosen about rows and the order in which they are read."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.config import RUNTIME, StrictConfig

MOST_EPOCHS = 16.0
"""Here one more epoch adds exp(-15 / 15.39) of what new text would (Muennighoff et al. 2023, arXiv 2305.16264)."""


class ChunkConfig(StrictConfig):
    """Settings of packing and mixing."""

    row_length: int = Field(default=257, ge=2, le=2**20)
    """Tokens in a row: the model's context and one more, since inputs and targets are shifted by one."""
    packing: Literal["concat"] = "concat"
    """How documents fill rows: `concat` lays them end to end and cuts at the row length."""
    budget_tokens: int = Field(default=10_000_000, ge=1, le=10**15)
    """Tokens that training predicts in all, repetitions included; a row counts `row_length` - 1."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Source -> its share of the tokens read; any positive numbers; empty: by the size of the sources."""
    temperature: float | None = Field(default=None, ge=1, le=100)
    """Without weights: shares in proportion to tokens ^ (1 / temperature); null and 1 are by size."""
    max_epochs: float = Field(default=4.0, gt=0, le=1000)
    """Most times that a source may be read; what it cannot give goes to the others by weight."""
    allow_many_epochs: bool = False
    """Whether `max_epochs` may be above 16, where one more epoch is worth less than two fifths of new text."""
    part_bytes: int = Field(default=64 * 2**20, ge=2**12, le=2**30)
    """Size of one file of SEQUENCES, bytes of tokens; this much stands in memory."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Run seed, decides the order of rows."""
    workers: Annotated[int, RUNTIME] = Field(default=2, ge=1, le=1024)
    """Parts that are tokenized at the same time."""

    @model_validator(mode="after")
    def _budget_pays_for_a_row(self) -> "ChunkConfig":
        if self.budget_tokens < self.row_length - 1:
            raise ValueError(
                f"budget_tokens {self.budget_tokens} is less than one row of {self.row_length - 1} predicted tokens;"
                f" raise the budget or lower train.model.context"
            )
        return self

    @model_validator(mode="after")
    def _many_epochs_are_meant(self) -> "ChunkConfig":
        if self.max_epochs > MOST_EPOCHS and not self.allow_many_epochs:
            raise ValueError(
                f"max_epochs = {self.max_epochs:g} reads the same text more than {MOST_EPOCHS:g} times, where one more"
                f" epoch adds less than two fifths of what new text would; if that is meant, set"
                f" allow_many_epochs = true"
            )
        return self
