"""Settings of fine-tuning as frozen models; a task file in TOML holds one `FinetuneConfig`."""

import difflib
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from model.config import RUNTIME, BaseConfig
from model.errors import InputError, RecipeError

Kind = Literal["classification", "regression", "tagging", "span", "text", "chat"]


MOST_STEPS = 10_000
"""Of a `regression` as text."""


class Task(BaseConfig):
    """One task: where its examples are and what their fields mean."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    """Name of the task; a T5 reads it at the beginning of each text."""
    kind: Kind
    """Kind of answer: `classification` one of several labels, `regression` a number, `tagging` a label for each word
    (BERT only), `span` a part of the last field or nothing, `text` any text (T5 only), `chat` the assistant's messages
    of a conversation (GPT only)."""
    train: Annotated[Path, RUNTIME]
    """JSON lines (.jsonl or .jsonl.gz) with the training examples."""
    development: Annotated[Path | None, RUNTIME] = None
    """Examples that choose the epoch; by default a share of `train` is held out."""
    test: Annotated[Path | None, RUNTIME] = None
    """Examples that are scored once, at the end."""
    fields: tuple[str, ...] = Field(min_length=1, max_length=8)
    """Names of the input fields, in order: one text, or two for a pair; question and passage of a `span`; the list of
    words of a `tagging`; by default `messages` of a `chat`, a list of {"role", "content"}. A T5 reads any number."""
    answer: str
    """Name of the field with the answer: a label, a number, a list of labels; of a `span` the text, or a list of
    correct texts, empty where the passage has no answer. A `chat` needs none: its answers are messages."""
    start: str | None = None
    """`span`: name of the field with the character offset, from 0, at which the first answer begins in the passage;
    examples with another text there are left out. By default the first occurrence of the answer is used."""
    group: str | None = None
    """Name of a field that groups examples: those of a group are held out together. By default the passage of a `span`
    and the texts of other kinds, so that equal ones are never on both sides of the split."""
    labels: tuple[str, ...] = ()
    """All labels; by default those that occur in `train`."""
    smallest: float = Field(default=1.0, allow_inf_nan=False)
    """`regression` as text: the least number."""
    largest: float = Field(default=5.0, allow_inf_nan=False)
    """`regression` as text: the greatest number, a whole number of steps above `smallest`."""
    step: float = Field(default=0.2, gt=0, allow_inf_nan=False)
    """`regression` as text: numbers are rounded to multiples of this above `smallest` (Raffel et al. 2020, section 2.4:
    21 strings from 1.0 to 5.0)."""
    decoding: Literal["constrained", "free"] = "constrained"
    """`constrained`: a T5 may write only a label or number of this task. `free`: it may write anything, and other text
    counts as wrong."""

    @model_validator(mode="before")
    @classmethod
    def _chats_have_messages(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("kind") == "chat":
            return {"fields": ("messages",), "answer": "answer", **values}
        return values

    @model_validator(mode="after")
    def _fields_fit_the_kind(self) -> "Task":
        if self.kind == "span" and len(self.fields) != 2:
            raise ValueError(f"span: fields = {list(self.fields)} must be two, the question and the passage")
        if self.kind != "span" and self.start is not None:
            raise ValueError(f"start = {self.start!r} is for spans, and kind is {self.kind}; leave start out")
        if self.kind == "chat" and len(self.fields) != 1:
            raise ValueError(f"chat: fields = {list(self.fields)} must be one, the list of messages")
        if self.kind == "tagging" and len(self.fields) != 1:
            raise ValueError(f"tagging: fields = {list(self.fields)} must be one, the list of words")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels = {list(self.labels)} must differ")
        if self.largest <= self.smallest:
            raise ValueError(f"largest {self.largest:g} must be above smallest {self.smallest:g}")
        if (self.largest - self.smallest) / self.step > MOST_STEPS:
            raise ValueError(
                f"step {self.step:g} makes more than {MOST_STEPS:,} numbers from smallest {self.smallest:g} to largest"
                f" {self.largest:g}, each of which is a text that may be written; choose a larger step"
            )
        if Decimal(str(self.smallest)) + self.steps * Decimal(str(self.step)) != Decimal(str(self.largest)):
            raise ValueError(
                f"largest {self.largest:g} is not a whole number of steps {self.step:g} above smallest"
                f" {self.smallest:g}, so that it could not be written; the nearest that is, is"
                f" {self.smallest + self.steps * self.step:g}"
            )
        return self

    @property
    def steps(self) -> int:
        """Number of steps from the least number to the greatest, of a `regression` as text."""
        return max(1, round((self.largest - self.smallest) / self.step))


class LoRAConfig(BaseConfig):
    """Low-rank adapters (Hu et al. 2021): matrices keep their weights, and learn the product of two narrow ones."""

    r: int = Field(default=8, ge=1, le=1024)
    """Rank: columns of the one and rows of the other."""
    alpha: float = Field(default=16.0, gt=0)
    """The product counts alpha / r times."""
    targets: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Matrices of each block that have an adapter, such as `attention_query` and `attention_value`, those of the paper;
    all by default."""


SPLITS = ("train", "development", "test")
"""Fields of a task that name files, which count by their content."""


class FinetuneConfig(BaseConfig):
    """Tasks, and how they are learnt; defaults are BERT's unless noted."""

    tasks: tuple[Task, ...] = Field(min_length=1)
    """The tasks; a BERT and a GPT learn one, a T5 any number at once."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Highest learning rate. By default 5e-5 for a BERT (its paper: 2e-5 to 5e-5), 3e-5 for a GPT and 3e-4 for a T5 or
    adapters at a width of 768, more for narrower networks in proportion, and at most 1e-3."""
    epochs: int = Field(default=3, ge=1, le=10_000)
    """Passes over the training examples; the weights after the epoch with the best held-out score are kept."""
    batch_size: int = Field(default=32, ge=1)
    """Examples of one step."""
    warmup_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of all steps over which the rate rises; then it falls linearly to zero."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's decay of matrices."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Share of values set to zero while training; 0.1 by default, and of a GPT that of its own training."""
    max_length: int | None = Field(default=None, ge=8)
    """Largest number of tokens of an example; the model's context by default. Longer ones are truncated and counted; a
    `span`'s passage is split into windows instead."""
    max_answer: int = Field(default=30, ge=1)
    """Largest number of tokens of an answer that is extracted or written."""
    max_question: int = Field(default=64, ge=1)
    """`span` with a BERT: largest number of tokens of the question."""
    stride_share: float = Field(default=0.5, gt=0, le=1)
    """`span` with a BERT: distance between windows, as a share of their length (BERT: 128 tokens)."""
    development_share: float = Field(default=0.1, gt=0, lt=1)
    """Share of `train` that is held out to choose the epoch where no `development` is named."""
    mixing_cap: int = Field(default=2**16, ge=1)
    """Largest number of examples of one task in an epoch, with several tasks (examples-proportional mixing, Raffel et
    al. 2020, section 3.5.2)."""
    seeds: Annotated[tuple[int, ...], Field(min_length=1, max_length=100)] = (1,)
    """Each seed trains once, with its own head, order and dropout. The best on held-out examples is kept, all are
    reported."""
    threads: int = Field(default=2, ge=1, le=1024)
    """CPU threads; another number gives other last bits."""
    device: Literal["cpu", "cuda"] | None = None
    """Where it computes; by default where the model was trained, if this machine has that device. On a CUDA device
    products have the type of that training (`train.dtype`); weights, gradients and the optimizer stay float32."""
    lora: LoRAConfig | None = None
    """Train low-rank adapters (a table [lora]), which are added to the weights at the end; by default all weights are
    trained."""
    template: Literal["base", "own"] | None = None
    """`chat`: how messages become text: by the chat template of the model's tokenizer (`base`), or by words, `User:`
    and `Assistant:` (`own`). By default `base` where the tokenizer has one."""

    @model_validator(mode="after")
    def _names_differ(self) -> "FinetuneConfig":
        for what, values in (("tasks' names", [task.name for task in self.tasks]), ("seeds", list(self.seeds))):
            if len(set(values)) < len(values):
                raise ValueError(f"{what} must differ, and are {values}")
        return self


def read_task_file(path: Path) -> FinetuneConfig:
    """Return the configuration in a TOML file, whose paths are relative to its folder.

    Raises InputError without the file, RecipeError where it is no TOML or a key is wrong.
    """
    if not path.is_file():
        raise InputError(f"there is no task file {path}; docs/using_models.md has an example")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        config = FinetuneConfig.model_validate(values)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is no TOML: {error}") from error
    except ValidationError as error:
        raise RecipeError(f"{path}: {_format_errors(error)}") from error
    tasks = tuple(_resolve_paths(path.parent, task) for task in config.tasks)
    return config.model_copy(update={"tasks": tasks})


def _resolve_paths(folder: Path, task: Task) -> Task:
    paths = {name: getattr(task, name) for name in SPLITS}
    return task.model_copy(update={name: folder / path for name, path in paths.items() if path is not None})


def _format_errors(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, one['loc'])) or 'the whole'}: {_problem(one['type'], one['loc'], one['msg'])}"
        for one in error.errors(include_url=False)
    )


def _problem(kind: str, location: tuple[int | str, ...], message: str) -> str:
    if kind != "extra_forbidden":
        return message.removeprefix("Value error, ")
    key, of_task = str(location[-1]), location[0] == "tasks"
    here, there = (Task, FinetuneConfig) if of_task else (FinetuneConfig, Task)
    if location[0] == "lora":
        here, there = LoRAConfig, FinetuneConfig
    if key in there.model_fields:
        return f"unknown key; it belongs {'in' if there is Task else 'above the first'} [[tasks]]"
    close = difflib.get_close_matches(key, here.model_fields, n=1)
    return (
        f"unknown key; did you mean {close[0]}?" if close else f"unknown key; known are {', '.join(here.model_fields)}"
    )
