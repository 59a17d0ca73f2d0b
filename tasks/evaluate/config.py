"""Settings of the evaluation: what is measured, on how much, and how answers are compared."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from model.config import EXPERT, RUNTIME, Reach
from tasks.common.config import StrictConfig


class GateConfig(StrictConfig):
    """The forgetting gate: bits per byte of held-out text that a base model knew, under the model that continued from
    it.

    New rows take probability from old ones, so that the old language gets worse even where no old weight changes. A run
    that the gate stops ends as failed, with its scores written, before a next run continues from its model.
    """

    sources: tuple[str, ...] = Field(min_length=1)
    """Sources of text that the base model knew: both models score their held-out text."""
    max_rise: Annotated[float, RUNTIME] = Field(default=0.02, ge=0, allow_inf_nan=False)
    """Share by which the base model's bits per byte may rise on each of these sources."""
    base_model: Annotated[Path | None, RUNTIME, EXPERT] = None
    """Folder of the base model of training; `train.base_model` by default."""


NumberOfShots = Annotated[int, Field(ge=0)]
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
"""The metrics that each form may declare as primary, its default first."""


class Scoring(StrictConfig):
    """How the items of one benchmark are requested and scored; what is left out follows from the items."""

    form: Form | None = None
    """choice: the likeliest choice after the context. pairs: the likeliest of whole texts. partial: the beginning,
    of several, after which the same ending is likeliest. cloze: whether the likeliest tokens spell the answer. With
    the others the model generates text: generation (exact match), extraction (exact match and F1), translation (chrF
    and BLEU), summary (ROUGE). By default choice, or cloze where items have no choices."""
    primary: Primary | None = None
    """The primary metric, declared before the run; by default that of the form, for choices `evaluate.primary`."""
    shots: tuple[NumberOfShots, ...] | None = Field(default=None, min_length=1)
    """Numbers of solved examples, instead of `evaluate.shots`."""
    instruction: str | None = None
    """Text before the examples, instead of `evaluate.instruction`."""
    answer_prompt: str = Field(default="Answer:", min_length=1)
    """Text before a choice for its likelihood without the question, which is divided out (`unconditional`)."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ("\n",)
    """Strings at which generated text is cut off."""
    answer_tokens: int = Field(default=64, ge=1, le=4096)
    """Tokens that may be generated; never more than half of the context."""
    extract: Literal["text", "last_number"] = "text"
    """What is compared of the generated and of the right answer: all, or the last number in it."""
    target: str | None = None
    """Language of the generated text, where it is not the items' own; BLEU splits Chinese and Japanese into
    characters."""

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

    shots: tuple[NumberOfShots, ...] = Field(default=(0, 1, 5), min_length=1)
    """Numbers of solved examples before each item; every number is a run over all items."""
    max_items: int = Field(default=200, ge=1)
    """Items evaluated of each benchmark; of a larger one, a random choice by seed."""
    primary: Annotated[Literal["sum", "chars", "bytes", "unconditional"], EXPERT] = "bytes"
    """How `acc` compares choices unless their benchmark sets it: by log probability (`sum`), divided by the choice's
    characters or UTF-8 bytes, or less its log probability without the question (`unconditional`)."""
    benchmarks: Annotated[dict[str, Scoring], EXPERT] = Field(default_factory=dict)
    """By name: how the items of a benchmark are requested and scored."""
    instruction: Annotated[str, EXPERT] = ""
    """Text before the examples of every prompt."""
    heldout_max_bytes: int = Field(default=200_000, ge=1)
    """Held-out text scored of each source, UTF-8 bytes."""
    hidden_tokens: Annotated[int, EXPERT] = Field(default=2000, ge=1)
    """Tokens of each source that are masked one at a time for the pseudo-bits per byte of a BERT; of more, a random
    choice by seed. Each costs a pass over the context."""
    ngram_tokens: Annotated[int, EXPERT] = Field(default=50_000_000, ge=1, le=10**9)
    """Training tokens on which the 5-gram baseline is counted; of more, those that are read first. 50 million take
    half a minute and 2 GB."""
    earlier: Annotated[tuple[str, ...], RUNTIME, Reach.EARLIER, EXPERT] = ()
    """Earlier runs whose text the model was trained on before: their held-out text is scored too, and an item counts
    as leaked where it leaked in any of them, as clean where all searched for it. A run id, the folder of a
    decontaminate artifact, or its identity; their contents decide the result."""
    gate: GateConfig | None = None
    """The forgetting gate of a GPT that continued from `train.base_model`: by how much bits per byte of text that
    the base knew may rise."""
    bootstrap_rounds: Annotated[int, EXPERT] = Field(default=1000, ge=10, le=100_000)
    """Resamples of the held-out documents from which standard errors are estimated."""
    prompts: tuple[str, ...] = ()
    """Texts that a GPT continues; by default the beginning of one held-out document of each source. BERT and T5 fill
    blanks in these documents instead."""
    temperatures: Annotated[tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...], EXPERT] = (0.0, 0.8)
    """Each prompt is continued once at each temperature; 0 takes the likeliest token."""
    top_p: Annotated[float, EXPERT] = Field(default=0.95, gt=0, le=1)
    """Draw from the smallest set of likeliest tokens whose probabilities sum to this."""
    sample_tokens: Annotated[int, EXPERT] = Field(default=60, ge=1, le=4096)
    """Tokens generated after each prompt; tokens of each text whose blanks are filled."""
    checked_texts: Annotated[int, EXPERT] = Field(default=16, ge=0, le=10_000)
    """Beginnings of held-out documents that a GPT continues, to check its text for invalid UTF-8, repetition, and
    memorised training text."""
    batch_tokens: Annotated[int, EXPERT] = Field(default=8192, ge=1)
    """Held-out tokens scored at once; part of the identity, since sums of other shapes differ in their last bits."""
    threads: Annotated[int, EXPERT] = Field(default=2, ge=1, le=1024)
    """CPU threads of the arithmetic; part of the identity for the same reason."""
    device: Annotated[Literal["cpu", "cuda"], EXPERT] = "cpu"
    """Where the model computes; by default the training's device. On a CUDA device products have the training's
    `dtype`; a CPU computes in float32."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Run seed; decides the choice of items, examples and samples."""
