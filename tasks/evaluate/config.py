"""What is measured, on how much, and how answers are compared."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from model.config import RUNTIME, Reach
from tasks.common.config import StrictConfig


class GateConfig(StrictConfig):
    """What a model that went on from another must still know: bits per byte of held-out text beside its base model's.

    New rows take probability from old ones, so that the old language gets worse even where no old weight moves. A run
    behind the gate ends as failed, with its scores written, before a next run goes on from its model.
    """

    sources: tuple[str, ...] = Field(min_length=1)
    """Sources in what the base model knew: their held-out text is scored by both models."""
    max_rise: Annotated[float, RUNTIME] = Field(default=0.02, ge=0, allow_inf_nan=False)
    """Share of the base model's bits per byte by which each of these may rise."""
    base_model: Annotated[Path | None, RUNTIME] = None
    """Folder of the model that training went on from; `train.base_model` by default."""


Form = Literal["choice", "pairs", "partial", "cloze", "generation", "extraction", "translation", "summary"]
Primary = Literal[
    "bytes", "sum", "chars", "unconditional", "exact", "f1", "sentence_chrf", "rouge_l", "rouge_1", "rouge_2"
]
PRIMARY_METRICS: dict[str, tuple[str, ...]] = {
    "choice": ("bytes", "sum", "chars", "unconditional"),
    "pairs": ("sum", "bytes", "chars"),
    "partial": ("sum",),
    "cloze": ("exact",),
    "generation": ("exact",),
    "extraction": ("f1", "exact"),
    "translation": ("sentence_chrf",),
    "summary": ("rouge_l", "rouge_1", "rouge_2"),
}
"""What each form may declare as primary, its default first."""


class Scoring(StrictConfig):
    """How the items of one benchmark are asked and answers scored; what is left out follows from the items."""

    form: Form | None = None
    """choice: the likeliest choice after the context. pairs: the likeliest of whole texts. partial: after which of
    several beginnings the same ending is likeliest. cloze: whether the likeliest tokens spell the answer. The others
    let the model write: generation (exact match), extraction (exact match and F1), translation (chrF and BLEU), summary
    (ROUGE). By default choice, or cloze where items have no choices."""
    primary: Primary | None = None
    """The figure that counts, declared before the run; by default that of the form, of choices `evaluate.primary`."""
    shots: tuple[int, ...] | None = Field(default=None, min_length=1)
    """Numbers of solved examples, instead of `evaluate.shots`."""
    instruction: str | None = None
    """Text before the examples, instead of `evaluate.instruction`."""
    answer_prompt: str = Field(default="Answer:", min_length=1)
    """What stands before a choice whose likelihood without the question is divided out (`unconditional`)."""
    stop: tuple[str, ...] = ("\n",)
    """Strings at which what the model writes is cut off."""
    answer_tokens: int = Field(default=64, ge=1, le=4096)
    """Tokens that it may write; never more than half of its context."""
    extract: Literal["text", "last_number"] = "text"
    """What of the written and of the right answer is compared: all, or the last number in it."""
    target: str | None = None
    """Language that is written, where it is not the items' own; BLEU cuts Chinese and Japanese by their characters."""

    @model_validator(mode="after")
    def _primary_is_one_of_the_form(self) -> "Scoring":
        if self.primary is not None:
            form = self.form or ("choice" if self.primary != "exact" else "cloze")
            if self.primary not in PRIMARY_METRICS[form]:
                raise ValueError(
                    f"primary = {self.primary} is not a metric of {form}; take {', '.join(PRIMARY_METRICS[form])}"
                )
        return self


class EvaluateConfig(StrictConfig):
    """Settings of the evaluation."""

    shots: tuple[int, ...] = Field(default=(0, 1, 5), min_length=1)
    """Numbers of solved examples before each item; every number is a run over all items."""
    max_items: int = Field(default=200, ge=1)
    """Items evaluated of each benchmark; of a larger one, a random choice by seed."""
    primary: Literal["sum", "chars", "bytes", "unconditional"] = "bytes"
    """How `acc` compares choices where their benchmark says nothing else: by log probability (`sum`), divided by the
    choice's characters or UTF-8 bytes, or less its log probability without the question (`unconditional`)."""
    benchmarks: dict[str, Scoring] = Field(default_factory=dict)
    """By name: how the items of a benchmark are asked and scored."""
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
    earlier: Annotated[tuple[str, ...], RUNTIME, Reach.EARLIER] = ()
    """Earlier runs whose text the model has learnt before: what they held out is scored too, and an item counts as
    leaked where it leaked in any of them. A run id, the folder of a decontaminate artifact, or its identity; their
    contents decide the result."""
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
    checked_texts: int = Field(default=16, ge=0, le=10_000)
    """Beginnings of held-out documents that a GPT continues, so that what it writes is checked for bytes that are no
    text, for repetition, and for what it has by heart."""
    batch_tokens: int = Field(default=8192, ge=1)
    """Held-out tokens scored at once; part of the identity, since sums of other shapes end in other last bits."""
    threads: int = Field(default=2, ge=1, le=1024)
    """CPU threads of the arithmetic; part of the identity for the same reason."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Run seed, decides the choice of items, examples and samples."""
