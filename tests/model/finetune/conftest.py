"""A vocabulary whose tokens are words, and files of examples that can be learnt from one word."""

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from model.config.network import BERTConfig, T5Config
from model.finetune.config import FinetuneConfig, Task
from model.nn.factory import make_network

WORDS = ["tin", "copper", "iron", "steel", "coal", "ore", "slag", "flux", "lead", "zinc", "brass", "bronze"]
SIGNS = [
    "classification",
    "regression",
    "span",
    "text",
    "question:",
    "what",
    "follows",
    "passage:",
    "text:",
    "yes",
    "no",
]
NUMBERS = [f"{tenths / 10:.1f}" for tenths in range(10, 51)]


class WordVocabulary:
    """Each word is a token, which covers the blanks before it; a word that is not known is id 5."""

    def __init__(self) -> None:
        self.pad, self.eos, self.cls, self.sep, unknown = 0, 1, 2, 3, 5
        self.begin = -1
        self._words = ["<pad>", "</s>", "[CLS]", "[SEP]", "[MASK]", "<unk>", *WORDS, *SIGNS, *NUMBERS]
        self._ids = {word: number for number, word in enumerate(self._words)}
        self._unknown = unknown
        self.vocab_size = len(self._words)
        self.digest = "words"
        self.special_names = {word: number for number, word in enumerate(self._words[:6])}

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(word, self._unknown) for word in text.split()]

    encode_following = encode

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        ends = [len(text[: match.end()].encode()) for match in re.finditer(r"\S+", text)]
        return np.array(self.encode(text), dtype=np.int32), np.array([0, *ends], dtype=np.int64)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return " ".join(self._words[int(token)] for token in ids if int(token) > 5)

    decode_following = decode


@pytest.fixture(scope="session")
def vocabulary() -> WordVocabulary:
    return WordVocabulary()


@pytest.fixture(scope="session")
def sentences() -> Callable[[int], list[list[str]]]:
    """So many sentences of eight different metals, the same each time."""

    def draw(count: int) -> list[list[str]]:
        chance = random.Random(3)
        return [chance.sample(WORDS, 8) for _ in range(count)]

    return draw


@pytest.fixture(scope="session")
def examples_of(sentences: Callable[[int], list[list[str]]]) -> Callable[[str, int], list[dict[str, object]]]:
    """Records of a kind of task: is there tin in a sentence, how many of four metals, which words end in n, where tin
    is."""

    def make(kind: str, count: int) -> list[dict[str, object]]:
        some = sentences(count)
        if kind == "classification":
            return [{"text": " ".join(one), "answer": "yes" if "tin" in one else "no"} for one in some]
        if kind == "regression":
            return [{"text": " ".join(one), "answer": 1 + sum(w in WORDS[:4] for w in one)} for one in some]
        if kind == "tagging":
            return [{"text": one, "answer": ["B-N" if word[-1] == "n" else "O" for word in one]} for one in some]
        assert kind == "span"
        return [{"question": "what", "text": " ".join(one), "answer": "tin"} for one in some if "tin" in one]

    return make


@pytest.fixture
def task_of(tmp_path: Path, examples_of) -> Callable[..., Task]:
    """A task of a kind with its file written; keywords replace its fields."""

    def make(kind: str, count: int = 160, **fields: object) -> Task:
        path = tmp_path / f"{kind}-{count}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in examples_of(kind, count)))
        names = ("question", "text") if kind == "span" else ("text",)
        values = {"name": kind, "kind": kind, "train": path, "fields": names, "answer": "answer", **fields}
        return Task.model_validate(values)

    return make


@pytest.fixture(scope="session")
def bert(vocabulary: WordVocabulary):
    """A small BERT that was never trained."""
    sizes = {"vocab_size": vocabulary.vocab_size, "context": 24, "layers": 1, "heads": 2, "width": 32}
    return make_network(BERTConfig.model_validate(sizes)).initialise(1).eval()


@pytest.fixture(scope="session")
def t5(vocabulary: WordVocabulary):
    """A small T5 that was never trained."""
    sizes = {"vocab_size": vocabulary.vocab_size, "context": 32, "layers": 1, "heads": 2, "width": 32}
    return make_network(T5Config.model_validate(sizes)).initialise(1).eval()


@pytest.fixture(scope="session")
def config() -> Callable[..., FinetuneConfig]:
    """Settings for networks this small; the tasks come first, keywords replace them."""

    def make(*tasks: Task, **settings: object) -> FinetuneConfig:
        values = {"learning_rate": 5e-3, "epochs": 6, "threads": 1, "dropout": 0.0, **settings}
        return FinetuneConfig.model_validate({"tasks": tasks, **values})

    return make
