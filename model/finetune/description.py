"""What a fine-tuned model says of itself: the entry `finetuned` of its `model.json`, and of its artifact's manifest."""

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from model.finetune.config import Kind

FINETUNED = "finetuned"
"""The entry's key."""

Scores = dict[str, dict[str, float]]
"""Metrics by task."""

AnswerCounts = dict[str, dict[str, int]]
"""Number of answers with each label, by task."""


class TaskDescription(TypedDict):
    """What answering a task needs of its settings (`config.Task`)."""

    name: str
    kind: "Kind"
    fields: list[str]
    answer: str
    start: str | None
    smallest: float
    largest: float
    step: float
    decoding: Literal["constrained", "free"]
    labels: list[str]


class TemplateDescription(TypedDict):
    """A chat template in Jinja, and the special tokens that it writes."""

    source: str
    bos_token: str
    eos_token: str


class ChatDescription(TemplateDescription):
    """What a chat with the model needs: the template, and the id that ends answers."""

    end: int


class SeedScores(TypedDict):
    """The best epoch of a seed, and its scores."""

    seed: int
    epoch: int
    development: Scores
    test: Scores


class SeedResult(SeedScores):
    """All that is kept of a seed until the best is known."""

    said: AnswerCounts
    state: dict[str, float]
    chat: ChatDescription | None
    not_read: dict[str, dict[str, str]]
    weights_digest: str


class ResultScores(SeedScores):
    """The scores of the seed that is kept, of guessing, and of all seeds."""

    said: AnswerCounts
    guess: dict[str, Scores]
    """By split."""
    seeds: list[SeedScores]


class Lengths(TypedDict):
    """Settings that decide how an example becomes rows, in training and in use."""

    max_length: int | None
    max_answer: int
    max_question: int
    stride_share: float


class FinetuneDescription(TypedDict):
    """Tasks and scores of a fine-tuned model, and what it was made from."""

    identity: str
    parent: str
    """Digest of the model before."""
    tasks: list[TaskDescription]
    lengths: Lengths
    settings: dict[str, object]
    """All others."""
    chat: NotRequired[ChatDescription]
    state: dict[str, float]
    """What the task model learnt besides weights."""
    not_read: dict[str, dict[str, str]]
    """Examples left out or cut, in words, by split and task."""
    scores: ResultScores
