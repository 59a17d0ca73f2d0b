"""New rows in a trained model, on real text: a small English model whose vocabulary is extended by Russian.

The base has read English and a little Russian, which its English vocabulary spells in bytes. Then its vocabulary gets
Russian pieces, and their rows alone learn Russian. What counts is what that does to both languages, in bits per byte of
text that was kept out; those do not depend on the vocabulary.
"""

import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from model.checkpoint.weights import load_model
from model.inference.scoring import text_nats
from model.nn.gpt import GPT
from model.train.initial_weights import initial_network
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.sample.config import SampleConfig, Source
from tasks.sample.stage import build_sample
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.open import open_tokenizer
from tasks.train.config import TrainStageConfig
from tasks.train.run import trainer_run
from tasks.train.stage import build_train
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab

pytestmark = pytest.mark.prove_data

CORPORA = {"en": "en_books", "ru": "ru_novels"}
MOST_BYTES = {"en": 4_000_000, "ru": 2_000_000}
KEPT_OUT_BYTES = 60_000
PIECES, NEW = 2048, 1000
CONTEXT, BATCH = 128, 16
BASE_STEPS, STEPS = 600, 300
REPLAY = "mean, half of the rows English"
MOST_LOST = {("mean", 0): 0.02, ("mean", STEPS): 0.05, (REPLAY, STEPS): 0.02}
"""Share of the base's bits per byte by which English may grow."""
TRAIN = {
    "model": {"context": CONTEXT, "layers": 3, "heads": 4, "width": 128},
    "batch_rows": BATCH,
    "micro_batch_rows": BATCH,
    "checkpoint_steps": 1000,
}


@dataclass(frozen=True)
class Bits:
    """Bits per byte of kept-out text."""

    english: float
    russian: float


def texts(data: Path, language: str, kept_out: bool) -> Iterator[str]:
    """The training documents of a language up to its bytes, or every fifth document that is none of them."""
    most, size = KEPT_OUT_BYTES if kept_out else MOST_BYTES[language], 0
    with gzip.open(next((data / CORPORA[language]).glob("*.jsonl.gz")), "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if (number % 5 == 0) == kept_out and size < most:
                text = json.loads(line)["text"][: most - size]
                size += len(text.encode())
                yield text


class Foundry:
    """Builds what the proof needs with the stages of a run."""

    def __init__(self, data: Path, root: Path) -> None:
        self.context = RunContext(root, "measured")
        self._files = {}
        for language in CORPORA:
            self._files[language] = root / f"{language}.jsonl"
            lines = [json.dumps({"text": text}) for text in texts(data, language, kept_out=False)]
            self._files[language].write_text("\n".join(lines))

    def documents(self, **weights: float) -> Artifact:
        sources = tuple(
            Source(name=name, paths=(str(self._files[name]),), weight=weight, language=name)
            for name, weight in weights.items()
        )
        return build_sample(self.context, SampleConfig(sources=sources, budget_tokens=10**9))

    def sequences(self, documents: Artifact, vocab: Artifact, steps: int, **weights: float) -> Artifact:
        config = ChunkConfig(row_length=CONTEXT + 1, budget_tokens=steps * BATCH * CONTEXT, weights=weights)
        return build_chunk(self.context, documents, vocab, config)

    def train(self, sequences: Artifact, vocab: Artifact, **settings: object) -> Artifact:
        config = TrainStageConfig.model_validate({**TRAIN, **settings})
        return build_train(self.context, sequences, vocab, config, lambda message: None)


@pytest.fixture(scope="module")
def bits(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Bits]:
    """(how new rows start, steps of training them) -> bits per byte; the base itself is ("base", 0)."""
    home = tmp_path_factory.mktemp("new-rows")
    foundry = Foundry(data, home)
    kept_out = {language: list(texts(data, language, kept_out=True)) for language in CORPORA}

    def score(network: GPT, vocab: Artifact) -> Bits:
        tokenizer = open_tokenizer(vocab)
        return Bits(*(bits_per_byte(network, tokenizer, kept_out[language]) for language in ("en", "ru")))

    english, mixed, russian = foundry.documents(en=1.0), foundry.documents(en=0.9, ru=0.1), foundry.documents(ru=1.0)
    vocab = build_vocab(foundry.context, english, VocabConfig(vocab_size=PIECES))
    base = foundry.train(foundry.sequences(mixed, vocab, BASE_STEPS, en=0.9, ru=0.1), vocab)
    grown = build_vocab(foundry.context, russian, VocabConfig(base=vocab.path / "tokenizer.model", extend={"ru": NEW}))
    found = {("base", 0): score(load_model(base.path), vocab)}
    alone = foundry.sequences(russian, grown, STEPS)
    both = foundry.documents(en=0.5, ru=0.5)
    replayed = foundry.sequences(both, grown, STEPS, en=0.5, ru=0.5)
    for start in ("mean", "mean_noise", "random"):
        settings = {"base_model": base.path, "new_rows": start, "trainable": "new_rows"}
        run = trainer_run(alone, grown, TrainStageConfig.model_validate({**TRAIN, **settings}), home)
        found[start, 0] = score(initial_network(run, resumes=False).network, grown)
        found[start, STEPS] = score(load_model(foundry.train(alone, grown, **settings).path), grown)
        if start == "mean":
            found[REPLAY, STEPS] = score(load_model(foundry.train(replayed, grown, **settings).path), grown)
    return found


def bits_per_byte(network: GPT, tokenizer: Tokenizer, kept_out: list[str]) -> float:
    nats = text_nats(network, [tokenizer.encode(text) for text in kept_out], tokenizer.eos)
    return sum(nats) / math.log(2) / sum(len(text.encode()) for text in kept_out)


def test_rows_that_start_as_means_leave_english_nearly_as_it_was(bits: dict[tuple[str, int], Bits], measured) -> None:
    base = bits["base", 0]
    lost = {key: now.english / base.english - 1 for key, now in bits.items()}
    for (start, steps), now in bits.items():
        note = f"English {now.english:.3f}, Russian {now.russian:.3f} bits a byte"
        at_most = MOST_LOST.get((start, steps))
        measured(
            "train", f"English lost, {start}, {steps} steps", round(lost[start, steps], 4), at_most=at_most, note=note
        )
    ratio = lost["random", 0] / lost["mean", 0]
    measured("train", "English lost at the start, random / mean", round(ratio, 2), at_least=2)


def test_new_rows_alone_learn_the_new_language(bits: dict[tuple[str, int], Bits], measured) -> None:
    for start in ("mean", "mean_noise", "random", REPLAY):
        gained = 1 - bits[start, STEPS].russian / bits["base", 0].russian
        measured("train", f"Russian gained, {start}, {STEPS} steps", round(gained, 4), at_least=0.15)
