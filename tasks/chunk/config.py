"""Settings of packing, mixture and order."""

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from model.config import EXPERT, RUNTIME, Reach
from model.config.network import Objective
from model.data.span_lengths import Denoising, corrupted_lengths, raw_length
from tasks.common.config import StrictConfig, check_epochs
from tasks.execution.machines import Machines

SLOTS = "slots"
"""The table with the numbers of a stable order, which `keep` names."""
SHORTEST_PAIR_ROW = 8
"""[CLS], two [SEP], and a few tokens for each of two segments."""


class MixturePhase(StrictConfig):
    """The mixture of a last part of ORDER."""

    tokens: int = Field(ge=1)
    """Tokens that it reads."""
    weights: dict[str, Annotated[float, Field(ge=0)]] = Field(min_length=1)
    """Source -> its share of them; sources without one are not read."""


class Tombstone(StrictConfig):
    """The place of a removed document in a stable order."""

    source: str
    """Its source."""
    tokens: int = Field(ge=1)
    """Its tokens, with the end-of-text token."""
    key: str = Field(pattern="^[0-9a-f]{16}$")
    """A hash of its tokens, which decides its bucket and its slots, in hexadecimal digits."""


class ChunkConfig(StrictConfig):
    """Settings of packing and mixing."""

    objective: Objective = "causal_lm"
    """What sequences are laid out for: `causal_lm` predicts each next token (GPT), `masked_lm` masked tokens and
    whether two segments follow each other (BERT), `span_corruption` removed spans, or another target by `denoising`
    (T5). Masking and corruption happen while training reads, anew in each epoch."""
    packing: Literal["concat", "best_fit", "stable"] = "concat"
    """How documents fill sequences: `concat` concatenates them and cuts at the sequence length; `best_fit` cuts only
    documents that are longer than a sequence, and places the others whole where they leave least padding; `stable` also
    keeps sequences and their order almost as they are when a document is added or removed. The last two are for
    `causal_lm`; `masked_lm` pairs sentences instead."""
    keep: Annotated[str | None, RUNTIME, Reach.EARLIER, EXPERT] = None
    """A run whose numbers of slots, buckets and reads of each source are used, so that the source of each position
    stays; null plans them from the mixture. For `packing = "stable"`; with others it has no effect."""
    tombstones: Annotated[tuple[Tombstone, ...], EXPERT] = ()
    """Places of removed documents that stay empty, so that no other position of the order changes; `bessemer data
    forget` writes them."""
    row_length: int = Field(default=257, ge=2, le=2**20)
    """Tokens in a sequence. `causal_lm`: the model's context and one more, since inputs and targets are shifted by
    one; `masked_lm`: the context; `span_corruption`: follows from `input_length`."""
    input_length: int | None = Field(default=None, ge=8, le=2**19)
    """Tokens that the encoder reads in `span_corruption`; sequences are longer by what corruption removes (512:
    568). With `language_model`, where the encoder reads nothing, the tokens that the decoder generates."""
    denoising: Annotated[Denoising, EXPERT] = "random_spans"
    """How `span_corruption` makes the encoder's input and the decoder's target of a text (Raffel et al. 2020, table
    3): `random_spans` and `iid_spans` replace each span by a sentinel, and the decoder generates the spans (spans of
    a mean length, or runs of tokens drawn independently); `iid_drop` removes such tokens without a sentinel, and the
    decoder generates them; `bert_style` masks nine of ten and replaces the tenth by a random token, `mass_style`
    masks all, `deshuffling` shuffles the text, and the decoder generates all of it; `prefix_lm` cuts the text at a
    random position, and the decoder continues it; `language_model` lets the decoder generate all of it from nothing."""
    noise_density: Annotated[float, EXPERT] = Field(default=0.15, gt=0, le=0.5)
    """Share of the tokens that `span_corruption` corrupts; not used by the last three kinds of `denoising`."""
    mean_noise_span: Annotated[float, EXPERT] = Field(default=3.0, ge=1, le=64)
    """Mean length of the spans that `random_spans` removes, tokens. A mean of 1 differs from `iid_spans`: no two
    noise tokens are then adjacent, while of independent ones 15% are."""
    whole_words: Annotated[bool, EXPERT] = False
    """Whether `masked_lm` masks whole words where it masks any of their tokens (BERT's later models): the other
    tokens reveal too much of a word. Sequences are the same; they record which tokens begin a word."""
    budget_tokens: int = Field(default=10_000_000, ge=1, le=10**15)
    """Tokens that training reads in all, repetitions included and padding not: predicted ones in `causal_lm`, those
    of the text in `masked_lm`, raw ones in `span_corruption`."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Source -> its share of the tokens read; any positive numbers; empty: by the size of the sources."""
    phases: Annotated[tuple[MixturePhase, ...], EXPERT] = ()
    """The last parts of ORDER, with a mixture of their own; they follow from `train.phases`."""
    read_last: Annotated[tuple[str, ...], EXPERT] = ()
    """Sources that are read in the last tenth of ORDER alone, or in as much as they need, each as much in all as
    without this, so that their removal repeats no earlier training; they follow from `may_leave` of the sources."""
    temperature: float | None = Field(default=None, ge=1, le=100)
    """Without weights: shares in proportion to tokens ^ (1 / temperature); null and 1 mean by size."""
    max_epochs: float = Field(default=4.0, gt=0, le=1000)
    """Most times that a source may be read; what it cannot give goes to the others by weight."""
    allow_many_epochs: Annotated[bool, RUNTIME, EXPERT] = False
    """Whether `max_epochs` may be above 16, where one more epoch is worth less than two fifths of new text."""
    part_bytes: Annotated[int, EXPERT] = Field(default=64 * 2**20, ge=2**12, le=2**30)
    """Size of one file of SEQUENCES, bytes of tokens; so much is held in memory."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Run seed; decides the order of sequences."""
    workers: Annotated[int, RUNTIME, EXPERT] = Field(default=2, ge=1, le=1024)
    """Parts that are tokenized at the same time."""
    machines: Annotated[Machines, RUNTIME, EXPERT] = Machines()
    """Where parts are processed: on this machine, or on a cluster."""

    @property
    def noise_spans(self) -> int:
        """Sentinels that a full row of `span_corruption` needs: one for each removed span, or one for all."""
        noise = (self.noise_density, self.mean_noise_span, self.denoising)
        return corrupted_lengths(self.row_length, *noise).sentinels

    @property
    def most_tokens(self) -> int:
        """Tokens of the budget that a full row takes."""
        specials = {"causal_lm": 1, "masked_lm": 3, "span_corruption": 0}
        return self.row_length - specials[self.objective]

    @model_validator(mode="before")
    @classmethod
    def _row_length_follows_from_the_input(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("objective") != "span_corruption":
            return values
        given = {
            name: values.get(name, cls.model_fields[name].default)
            for name in ("noise_density", "mean_noise_span", "denoising")
        }
        inputs = values.get("input_length")
        if not isinstance(inputs, int):
            return values
        density, span, kind = given.values()
        numbers = isinstance(density, int | float) and isinstance(span, int | float)
        if not numbers or kind not in get_args(Denoising) or not (inputs >= 8 and 0 < density <= 0.5 and span >= 1):
            return values  # The validation of the fields reports the error.
        raw = raw_length(inputs, density, span, kind)
        if values.get("row_length", raw) != raw:
            raise ValueError(
                f"input_length = {inputs} requires rows of {raw} tokens before corruption, and row_length is"
                f" {values['row_length']}; leave row_length out"
            )
        return {**values, "row_length": raw}

    @model_validator(mode="after")
    def _settings_belong_to_the_objective(self) -> "ChunkConfig":
        if self.objective == "span_corruption" and self.input_length is None:
            raise ValueError("span_corruption needs input_length, the tokens that the encoder reads (T5: 512)")
        if self.objective != "span_corruption" and self.input_length is not None:
            raise ValueError(f"input_length belongs to span_corruption, and the objective is {self.objective}")
        if self.objective != "span_corruption" and self.denoising != "random_spans":
            raise ValueError(
                f"denoising = {self.denoising} belongs to span_corruption, and the objective is {self.objective}"
            )
        if self.objective != "masked_lm" and self.whole_words:
            raise ValueError(f"whole_words belongs to masked_lm, and the objective is {self.objective}; leave it out")
        if self.packing != "concat" and self.objective != "causal_lm":
            raise ValueError(
                f"packing = {self.packing} is for causal_lm, and the objective is {self.objective}; leave it out"
            )
        if self.tombstones and self.packing != "stable":
            raise ValueError(
                f'tombstones belong to packing = "stable", and it is {self.packing}: with it the removal of a document'
                f" changes the order behind it. Leave them out."
            )
        if self.objective == "masked_lm" and self.row_length < SHORTEST_PAIR_ROW:
            raise ValueError(f"row_length {self.row_length} is too short for a pair; set {SHORTEST_PAIR_ROW} or more")
        return self

    @model_validator(mode="after")
    def _the_mixture_fits_the_budget(self) -> "ChunkConfig":
        if self.budget_tokens < self.most_tokens:
            counted = "predicted " if self.objective == "causal_lm" else ""
            raise ValueError(
                f"budget_tokens {self.budget_tokens} is less than one row of {self.most_tokens} {counted}tokens;"
                f" raise the budget or lower train.model.context"
            )
        taken = sum(phase.tokens for phase in self.phases)
        if self.phases and self.budget_tokens - taken < self.most_tokens:
            raise ValueError(
                f"the phases read {taken:,} of budget_tokens {self.budget_tokens:,}, and leave no row of"
                f" {self.most_tokens} tokens before them; give shorter phases"
            )
        if self.read_last and self.phases:
            raise ValueError(
                "sources that may_leave are read in a last part of their own, and train.phases gives another mixture to"
                " the last part; leave `may_leave` out and give these sources a weight in the last phase alone"
            )
        check_epochs(self.max_epochs, allow_many=self.allow_many_epochs)
        return self
