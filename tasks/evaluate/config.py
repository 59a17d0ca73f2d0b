"""What is measured, on how much, and how answers are compared."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tasks.config import RUNTIME, StrictConfig


class GateConfig(StrictConfig):
    """What a model that went on from another must still know: bits per byte of held-out text beside its base model's.

    New rows take probability from old ones, so that the old language gets worse even where no old weight moves. A run
    behind the gate ends as failed, with its scores written, before a next run goes on from its model.
    """

    sources: tuple[str, ...] = Field(min_length=1)
    """Sources in what the base model knew: their held-out text is scored by both models."""
    max_rise: float = Field(default=0.02, ge=0, allow_inf_nan=False)
    """Share of the base model's bits per byte by which each of these may rise."""
    base_model: Annotated[Path | None, RUNTIME] = None
    """Folder of the model that training went on from; `train.base_model` by default."""


class EvaluateConfig(StrictConfig):
    """Settings of the evaluation."""

    shots: tuple[int, ...] = Field(default=(0, 1, 5), min_length=1)
    """Numbers of solved examples before each item; every number is a run over all items."""
    max_items: int = Field(default=200, ge=1)
    """Items evaluated of each benchmark; of a larger one, a random choice by seed."""
    primary: Literal["sum", "chars", "bytes"] = "bytes"
    """How `acc` compares choices: by log probability (`sum`), or divided by the choice's characters or UTF-8 bytes."""
    instruction: str = ""
    """Text before the examples of every prompt."""
    heldout_max_bytes: int = Field(default=200_000, ge=1)
    """Held-out text scored of each source, UTF-8 bytes."""
    hidden_tokens: int = Field(default=2000, ge=1)
    """Tokens of each source that are hidden one at a time for the pseudo-bits per byte of a BERT; of more, a random
    choice by seed. Each costs a pass over the context."""
    ngram_tokens: int = Field(default=50_000_000, ge=1, le=10**9)
    """Training tokens that the 5-gram beside the network is counted on; of more, those that are read first. 50 million
    take half a minute and 2 GB."""
    gate: GateConfig | None = None
    """Of a GPT that went on from `train.base_model`: by how much the text that its base knew may get harder for it."""
    stride: int | None = Field(default=None, ge=1)
    """Tokens that the window moves on within a long text; half the model's context by default."""
    bootstrap_rounds: int = Field(default=1000, ge=10, le=100_000)
    """Resamples of the held-out documents from which standard errors are estimated."""
    prompts: tuple[str, ...] = ()
    """Beginnings that a GPT continues; by default the beginning of one held-out document of each source. BERT and T5
    fill holes of these documents instead."""
    temperatures: tuple[float, ...] = (0.0, 0.8)
    """Each prompt is continued once at each temperature; 0 takes the likeliest token."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Smallest set of likeliest tokens to draw from, by their probability together."""
    sample_tokens: int = Field(default=60, ge=1, le=4096)
    """Tokens written after each prompt; tokens of each text whose holes are filled."""
    batch_tokens: int = Field(default=8192, ge=1)
    """Held-out tokens scored at once; part of the identity, since sums of other shapes end in other last bits."""
    threads: int = Field(default=2, ge=1, le=1024)
    """CPU threads of the arithmetic; part of the identity for the same reason."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Run seed, decides the choice of items, examples and samples."""
