"""Fine-tuning on real text: what small models, pre-trained for minutes, learn beyond a guess that reads nothing.

A BERT (English and Chinese) and a T5 (English) are trained by the stages of a run. The BERT then learns the mood of
comments and whether a sentence is grammatical (sentence tasks), which words had a capital letter (a token task), and
where the answer to a question is (a span task); the T5 learns three tasks at once, one of them a regression. Test
items are every fifth document, question or pair, and are in no training text.

Only the sentence tasks have a target. After a million tokens of pre-training the others come out level with a guess, or
too near to it to judge; they are measured all the same.
"""

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from model.checkpoint.weights import description_digest, load_model
from model.finetune.config import FinetuneConfig
from model.finetune.metrics import main_metric
from model.inference.text_match import best_of
from model.nn.factory import Network
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.sample.config import SampleConfig, Source
from tasks.sample.stage import build_sample
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.open import open_tokenizer
from tasks.train.config import TrainStageConfig
from tasks.train.stage import build_train
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab
from tests.model.finetune.seeds_beside import finetune

pytestmark = pytest.mark.prove_data

GLAD = {"admiration", "amusement", "approval", "excitement", "gratitude", "joy", "love", "optimism", "relief", "pride"}
SAD = {"anger", "annoyance", "disapproval", "disappointment", "disgust", "embarrassment", "fear", "grief", "sadness"}
SIZES = {"layers": 2, "heads": 4, "width": 128}
TOKENS = 1_000_000
ENGLISH_BYTES, CHINESE_BYTES = 4_000_000, 2_000_000
Records = list[dict[str, Any]]


class Tasks:
    """Files of examples, split into what is learnt from and what is tested on."""

    def __init__(self, data: Path, folder: Path) -> None:
        self._data, self._folder = data, folder

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        import gzip

        for part in sorted((self._data / name).parent.glob((self._data / name).name)):
            with gzip.open(part, "rt", encoding="utf-8") as stream:
                yield from map(json.loads, stream)

    def mood(self) -> dict[str, Any]:
        """Glad or sad comments, by GoEmotions' labels."""

        def labelled(comment: dict[str, Any]) -> str | None:
            labels = set(comment.get("labels", ()))
            found = {"glad" for _ in labels & GLAD} | {"sad" for _ in labels & SAD}
            return found.pop() if len(found) == 1 and labels <= GLAD | SAD else None

        records = [
            {"text": comment["text"], "mood": mood}
            for comment in self.lines("social_emoji/part-000.jsonl.gz")
            if (mood := labelled(comment))
        ]
        return self._task("mood", records[:8000], kind="classification", fields=("text",), answer="mood")

    def grammar(self) -> dict[str, Any]:
        """Sentences of BLiMP, each pair on one side."""
        records = [
            {"sentence": item[side], "fine": side == "sentence_good", "pair": item["id"]}
            for item in self.lines("benchmarks/blimp.jsonl.gz")
            for side in ("sentence_good", "sentence_bad")
        ]
        chosen = {"kind": "classification", "fields": ("sentence",), "answer": "fine", "group": "pair"}
        return self._task("grammar", records, per_item=2, **chosen)

    def names(self) -> dict[str, Any]:
        """Sentences in small letters; which words had a capital one, and did not begin the sentence?"""
        records = []
        for sentence in self.sentences(160, of_each=10):
            words = sentence.split()
            tags = ["B-NAME" if place and word[0].isupper() else "O" for place, word in enumerate(words)]
            records.append({"words": [word.lower() for word in words], "tags": tags})
        return self._task("names", records[:4000], kind="tagging", fields=("words",), answer="tags")

    def sentences(self, most: int, of_each: int) -> Iterator[str]:
        """Sentences of at most `most` characters, and a number of each book's chapters."""
        for document in self.lines("en_books/part-000.jsonl.gz"):
            yield from re.findall(rf"(?<=[.!?] )[A-Z][^.!?\n]{{40,{most}}}[.!?]", document["text"])[:of_each]

    def passages(self) -> dict[str, Any]:
        """Questions of CMRC 2018 and DRCD, of which a passage is on one side."""
        items = [item for name in ("cmrc2018", "drcd") for item in self.lines(f"benchmarks/{name}.jsonl.gz")]
        seen: dict[str, int] = {}
        records = [
            {"question": item["question"], "passage": item["passage"], "answers": item["answer"]}
            for item in sorted(items, key=lambda item: seen.setdefault(item["passage"], len(seen)))
        ]
        chosen = {"kind": "span", "fields": ("question", "passage"), "answer": "answers"}
        return self._task("passages", records, group=lambda record: seen[record["passage"]], **chosen)

    def likeness(self) -> dict[str, Any]:
        """Pairs of sentences, of which the second keeps a share of the first one's words: from 1 (none) to 5 (all)."""
        chance = random.Random(5)
        sentences = [sentence.split() for sentence in self.sentences(100, of_each=20)]
        records = []
        for first in chance.sample(sentences, 4000):
            other, share = chance.choice(sentences), chance.random()
            second = [word if chance.random() < share else chance.choice(other) for word in first]
            kept = sum(one == two for one, two in zip(first, second, strict=True)) / len(first)
            records.append({"first": " ".join(first), "second": " ".join(second), "alike": 1 + 4 * kept})
        return self._task("likeness", records, kind="regression", fields=("first", "second"), answer="alike")

    def _task(
        self,
        name: str,
        records: Records,
        *,
        per_item: int = 1,
        group: Callable[[dict[str, Any]], int] | str | None = None,
        **chosen: Any,
    ) -> dict[str, Any]:
        number = group if callable(group) else None
        of = [number(record) if number else place // per_item for place, record in enumerate(records)]
        files = {}
        for split in ("train", "test"):
            some = [record for record, item in zip(records, of, strict=True) if (item % 5 == 0) == (split == "test")]
            files[split] = self._folder / f"{name}-{split}.jsonl"
            files[split].write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in some))
        return {"name": name, **files, **chosen, **({"group": group} if isinstance(group, str) else {})}


class Foundry:
    """Trains a network with the stages of a run."""

    def __init__(self, texts: dict[str, Iterable[str]], root: Path) -> None:
        self._context = RunContext(root, "measured")
        self._root, self._files = root, {}
        for name, some in texts.items():
            self._files[name] = root / f"{name}.jsonl"
            self._files[name].write_text("".join(json.dumps({"text": text}) + "\n" for text in some))

    def train(self, architecture: str, languages: dict[str, float]) -> tuple[Artifact, Tokenizer]:
        """A network that read the languages in these shares, and its vocabulary."""
        sources = tuple(
            Source(name=name, paths=(str(self._files[name]),), weight=weight, language=name)
            for name, weight in languages.items()
        )
        sample = build_sample(self._context, SampleConfig(sources=sources, budget_tokens=10**9))
        special = {"special_tokens": ("[CLS]", "[SEP]", "[MASK]")} if architecture == "bert" else {"sentinels": 100}
        vocab = build_vocab(self._context, sample, VocabConfig.model_validate({"vocab_size": 8000, **special}))
        objective = {"bert": "masked_lm", "t5": "span_corruption"}[architecture]
        length = {"row_length": 128} if architecture == "bert" else {"input_length": 128}
        chunk = ChunkConfig.model_validate(
            {"objective": objective, "budget_tokens": TOKENS, "max_epochs": 8, "weights": languages, "workers": 1}
            | length
        )
        rows = build_chunk(self._context, sample, vocab, chunk)
        settings = {
            "model": {"architecture": architecture, "context": 128, **SIZES},
            "batch_rows": 16,
            "micro_batch_rows": 16,
            "threads": 1,
            "checkpoint_steps": 10_000,
            "schedule": {"kind": "linear", "peak_lr": 2e-3, "end_lr": 0.0},
        }
        config = TrainStageConfig.model_validate(settings)
        trained = build_train(self._context, rows, vocab, config, lambda message: None)
        return trained, open_tokenizer(vocab)


@pytest.fixture(scope="module")
def tasks(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Tasks:
    return Tasks(data, tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def foundry(corpora: Any, tmp_path_factory: pytest.TempPathFactory) -> Foundry:
    def some(names: tuple[str, ...], most: int) -> Iterator[str]:
        size = 0
        for name in names:
            of_this = 0
            for text in corpora.documents(name, kept_out=False):
                of_this += len(text.encode())
                if of_this < most / len(names):
                    yield text
        assert size <= most

    return Foundry(
        {
            "en": some(("en_books", "en_textbook_guides", "social_emoji"), ENGLISH_BYTES),
            "zh": some(("wiki_zh_ru", "zh_techdocs"), CHINESE_BYTES),
        },
        tmp_path_factory.mktemp("foundry"),
    )


def taught(
    trained: Artifact | None, network: Network, tokenizer: Tokenizer, out: Path, *tasks: dict[str, Any], **settings: Any
) -> dict[str, Any]:
    config = FinetuneConfig.model_validate({"tasks": tasks, **settings})
    parent = description_digest(trained.path) if trained is not None else "untrained"
    return finetune(network, parent, config, tokenizer, out, identity=parent, log=print)


def reported(found: dict[str, Any], task: str) -> tuple[float, float]:
    """The main measure on test items, and a guess's."""
    kind = next(one["kind"] for one in found["tasks"] if one["name"] == task)
    main = main_metric(kind, found["scores"]["test"][task])
    return found["scores"]["test"][task][main], found["scores"]["guess"]["test"][task][main]


@pytest.fixture(scope="module")
def bert(foundry: Foundry) -> tuple[Artifact, Network, Tokenizer]:
    trained, tokenizer = foundry.train("bert", {"en": 0.6, "zh": 0.4})
    return trained, load_model(trained.path, tokenizer.digest), tokenizer


@pytest.mark.parametrize(
    ("task", "settings", "beyond"),
    [
        ("mood", {"epochs": 3}, 0.08),
        ("grammar", {"epochs": 4}, 0.08),
        ("names", {"epochs": 8, "learning_rate": 5e-4}, None),
        ("passages", {"epochs": 4, "batch_size": 16, "learning_rate": 1e-3}, None),
    ],
)
def test_a_bert_is_taught(
    task: str, settings: dict[str, Any], beyond: float | None, bert: Any, tasks: Tasks, tmp_path: Path, measured: Any
) -> None:
    found = taught(*bert, tmp_path / "out", getattr(tasks, task)(), **settings)
    value, guess = reported(found, task)
    note = f"a guess that reads nothing: {guess:.3f}"
    measure = main_metric(found["tasks"][0]["kind"], found["scores"]["test"][task])
    if task == "passages":
        guess = beginnings(tasks.passages())
        note = f"the passage's beginning, as long as answers are: {guess:.3f}"
    at_least = None if beyond is None else guess + beyond
    measured("finetune", f"BERT, {task}, {measure}", value, at_least=at_least, note=note)


def test_a_t5_is_taught_three_tasks_at_once(foundry: Foundry, tasks: Tasks, tmp_path: Path, measured: Any) -> None:
    trained, tokenizer = foundry.train("t5", {"en": 1.0})
    three = (tasks.mood(), tasks.grammar(), tasks.likeness())
    found = taught(trained, load_model(trained.path), tokenizer, tmp_path / "out", *three, epochs=3, mixing_cap=4000)
    for task in ("mood", "grammar", "likeness"):
        value, guess = reported(found, task)
        measured("finetune", f"T5, three tasks, {task}", value, note=f"a guess that reads nothing: {guess:.3f}")


def beginnings(task: dict[str, Any]) -> float:
    """F1 of what a passage begins with, as many characters as an answer has on average."""
    records = [json.loads(line) for line in task["test"].read_text().splitlines()]
    length = round(sum(len(record["answers"][0]) for record in records) / len(records))
    return sum(best_of(one["passage"][:length], one["answers"], chinese=True)[1] for one in records) / len(records)
