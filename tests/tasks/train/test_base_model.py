"""A run that goes on from a trained model: with its own vocabulary, an extended one, or one that is none of its own."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.train.config import TrainStageConfig
from tasks.train.launcher import MessageFormatter
from tasks.train.stage import build_train
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab

pytestmark = pytest.mark.usefixtures("forked_trainers")

ENGLISH = [
    f"The converter blows air through melted iron for {number} minutes, and steel remains." for number in range(80)
]
RUSSIAN = [
    f"Конвертер продувает воздух через расплавленный чугун {number} минут, и остаётся сталь." for number in range(80)
]
CONFIG = TrainStageConfig.model_validate(
    {
        "model": {"context": 32, "layers": 1, "heads": 2, "width": 16},
        "batch_rows": 4,
        "micro_batch_rows": 4,
        "threads": 1,
    }
)
NEW = 40


def chunked(context: RunContext, documents: Artifact, vocab: Artifact) -> Artifact:
    return build_chunk(context, documents, vocab, ChunkConfig(row_length=33, budget_tokens=32 * 4 * 6))


def trained(context: RunContext, sequences: Artifact, vocab: Artifact, **settings: object) -> Artifact:
    config = TrainStageConfig.model_validate(CONFIG.model_dump() | settings)
    return build_train(context, sequences, vocab, config, lambda message: None)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> RunContext:
    """A run under one root for all tests, so that what several of them need is built once and then reused."""
    return RunContext(root=tmp_path_factory.mktemp("root"), run_id="20250101T000000Z-abcdef")


@pytest.fixture
def english(context: RunContext, make_documents) -> tuple[Artifact, Artifact, Artifact]:
    """Sequences, vocabulary and model of English text."""
    documents = make_documents([[("en", text) for text in ENGLISH]])
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=340))
    sequences = chunked(context, documents, vocab)
    return sequences, vocab, trained(context, sequences, vocab)


@pytest.fixture
def russian(context: RunContext, make_documents, english) -> tuple[Artifact, Artifact]:
    """Sequences and vocabulary of Russian text, grown from the English one."""
    documents = make_documents([[("ru", text) for text in RUSSIAN]])
    base = english[1].path / "tokenizer.model"
    vocab = build_vocab(context, documents, VocabConfig(base=base, extend={"ru": NEW}))
    return chunked(context, documents, vocab), vocab


def weights(model: Artifact) -> dict[str, torch.Tensor]:
    return load_file(model.file("model.safetensors"))


def test_new_rows_of_an_extended_vocabulary_learn_alone_and_then_all_weights_do(
    context: RunContext, english, russian
) -> None:
    before = weights(english[2])
    first = trained(context, *russian, base_model=english[2].path, trainable="new_rows")
    assert first.report.facts["base_model"] == {
        "weights": json.loads(english[2].file("model.json").read_text())["weights_digest"],
        "new_rows": NEW,
        "start": "mean",
        "without_meaning": 0,
    }
    after = weights(first)
    assert after["embedding.weight"].shape == (340 + NEW, 16)
    assert torch.equal(after["embedding.weight"][:340], before["embedding.weight"])
    assert torch.equal(after["blocks.0.mlp_in.weight"], before["blocks.0.mlp_in.weight"])
    second = trained(context, *russian, base_model=first.path)
    assert "new_rows" not in second.report.facts["base_model"]
    assert weights(second)["blocks.0.mlp_in.weight"].ne(before["blocks.0.mlp_in.weight"]).any()
    losses = [model.table("metrics").column("loss").to_pylist() for model in (first, second)]
    assert losses[1][0] < losses[0][0]


def test_a_base_model_counts_by_its_content_and_not_by_its_place(context: RunContext, english, tmp_path: Path) -> None:
    sequences, vocab, model = english
    on = trained(context, sequences, vocab, base_model=model.path)
    assert not on.reused
    assert on.identity != model.identity
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("model.json", "model.safetensors"):
        shutil.copy(model.path / name, copy / name)
    assert trained(context, sequences, vocab, base_model=copy).reused
    other = trained(context, sequences, vocab, seed=2)
    again = trained(context, sequences, vocab, base_model=other.path)
    assert not again.reused


def test_a_model_of_an_unrelated_vocabulary_is_refused(context: RunContext, make_documents, english, russian) -> None:
    documents = make_documents([[("ru", text) for text in RUSSIAN]])
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=320))
    with pytest.raises(
        InputError, match=r"(?s)was trained with the tokenizer .*extended from no other.*Set vocab\.base"
    ):
        trained(context, chunked(context, documents, vocab), vocab, base_model=english[2].path)
    grown_model = trained(context, *russian)
    with pytest.raises(InputError, match="extended from no other"):
        trained(context, english[0], english[1], base_model=grown_model.path)


def test_rows_of_another_vocabulary_are_refused_by_the_trainer(context: RunContext, english, russian) -> None:
    with pytest.raises(InputError, match=r"(?s)sequences were made with the tokenizer.*Run again from chunk"):
        trained(context, english[0], russian[1])


@pytest.mark.parametrize("missing", ["model.json", "model.safetensors"])
def test_a_folder_without_a_model_is_refused_before_work_begins(
    context: RunContext, english, tmp_path: Path, missing: str
) -> None:
    for name in {"model.json", "model.safetensors"} - {missing}:
        shutil.copy(english[2].path / name, tmp_path / name)
    with pytest.raises(InputError, match=f"train.base_model: .* has no {missing}"):
        trained(replace(context, forced=frozenset({"train"})), *english[:2], base_model=tmp_path)


@pytest.mark.parametrize("setting", [{"trainable": "new_rows"}, {"new_rows": "random"}])
def test_settings_of_new_rows_without_a_base_model_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="applies only to a base model; set `base_model`"):
        TrainStageConfig.model_validate(setting)


def test_the_beginning_is_reported_in_a_sentence() -> None:
    message = {"kind": "event", "event": "base_model", "weights": "ab12"}
    grown = message | {"new_rows": 8000, "start": "mean", "without_meaning": 1234}
    reported = [sentence for one in (message, grown) for sentence in MessageFormatter().format(one)]
    assert reported == [
        "starting from the trained weights ab12",
        "starting from the trained weights ab12, with 8,000 new rows initialised by mean; 1,234 of them have no ids in"
        " the base and start near the mean of all",
    ]
