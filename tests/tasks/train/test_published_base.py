"""A run goes on from a published model's folder: a GPT-2, one with padded rows, a BERT, a T5 with its own head."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.config.network import BERTConfig, GPTConfig, T5Config
from model.errors import InputError, RecipeError
from model.huggingface.io import export_network, open_published, read_published
from model.model_files import published_digest
from model.nn.factory import make_network
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.tokenizer.open import open_tokenizer, tokenizer_of
from tasks.train.base_model import check_base_model, make_starting_model, settings_of_base
from tasks.train.config import TrainStageConfig
from tasks.train.stage import build_train
from tasks.vocab.config import BERT_TOKENS, VocabConfig
from tasks.vocab.stage import build_vocab
from tasks.vocab.train import train_byte_level, train_sentencepiece, train_wordpiece

pytestmark = pytest.mark.usefixtures("forked_trainers")

ENGLISH = [f"The converter blows air through melted iron for {number} minutes. Steel remains." for number in range(80)]
RUSSIAN = [
    f"Конвертер продувает воздух через расплавленный чугун {number} минут, и остаётся сталь." for number in range(80)
]
PROSE = Path(json.decoder.__file__).read_text(encoding="utf-8").splitlines()
SIZES: dict[str, Any] = {"context": 32, "layers": 1, "heads": 2, "width": 16}
GPT2 = {**SIZES, "positions": "learned", "activation": "gelu_tanh"}
GPT2 |= {"norm": "layernorm", "qk_norm": "none", "biases": True}
PIECES = 350
NEW = 40

Publish = Callable[..., Path]


@pytest.fixture
def publish(tmp_path: Path) -> Publish:
    """The folder of a network that nobody trained, with the file of its vocabulary."""

    def make(config: Any, vocabulary: str, content: bytes) -> Path:
        folder = tmp_path / "published"
        folder.mkdir()
        export_network(folder, config, make_network(config).initialise(3).state_dict(), {})
        (folder / vocabulary).write_bytes(content)
        return folder

    return make


@pytest.fixture
def gpt2(publish: Publish) -> Path:
    content = train_byte_level(PROSE, VocabConfig(vocab_size=PIECES, model_type="byte_level"))
    rows = tokenizer_of(content).vocab_size
    return publish(GPTConfig.model_validate(GPT2 | {"vocab_size": rows}), "tokenizer.json", content)


@pytest.fixture
def grown(context: RunContext, make_documents) -> Callable[..., tuple[Artifact, Artifact]]:
    """Sequences and vocabulary of a text, grown from a file."""

    def make(base: Path, chunk: dict[str, Any], texts: list[str] = ENGLISH, **vocab: Any) -> tuple[Artifact, Artifact]:
        documents = make_documents([[("text", text) for text in texts]])
        vocabulary = build_vocab(context, documents, VocabConfig.model_validate({"base": base, **vocab}))
        asked = ChunkConfig.model_validate({"budget_tokens": 32 * 4 * 6, **chunk})
        return build_chunk(context, documents, vocabulary, asked), vocabulary

    return make


def config(folder: Path, **settings: Any) -> TrainStageConfig:
    small = {"batch_rows": 4, "micro_batch_rows": 4, "threads": 1, "base_model": folder}
    return TrainStageConfig.model_validate({**small, "model": settings_of_base(folder), **settings})


def trained(context: RunContext, made: tuple[Artifact, Artifact], asked: TrainStageConfig) -> Artifact:
    return build_train(context, *made, asked, lambda message: None)


def weights(model: Artifact) -> dict[str, torch.Tensor]:
    return load_file(model.file("model.safetensors"))


def test_a_gpt2_goes_on_under_its_own_vocabulary(context: RunContext, gpt2: Path, grown: Callable[..., Any]) -> None:
    made = grown(gpt2 / "tokenizer.json", {"row_length": 33})
    before = read_published(open_published(gpt2))
    # So low a rate that the weights stay where the published ones are.
    still = {"schedule": {"peak_lr": 1e-12, "end_lr": 0.0}}
    model = trained(context, made, config(gpt2, **still))
    assert model.report.facts["base_model"]["weights"] == published_digest(gpt2)
    after = weights(model)
    for name, expected in before.items():
        torch.testing.assert_close(after[name][: len(expected)], expected, rtol=0, atol=1e-7)
    assert trained(context, made, config(gpt2, **still)).reused


def test_new_scripts_get_new_rows_which_learn_alone(context: RunContext, gpt2: Path, grown: Callable[..., Any]) -> None:
    made = grown(gpt2 / "tokenizer.json", {"row_length": 33}, RUSSIAN, extend={"ru": NEW})
    model = trained(context, made, config(gpt2, trainable="new_rows"))
    before, after = read_published(open_published(gpt2)), weights(model)
    rows = len(before["embedding.weight"])
    assert len(after["embedding.weight"]) == rows + model.report.facts["base_model"]["new_rows"]
    assert model.report.facts["base_model"]["new_rows"] >= NEW
    assert torch.equal(after["embedding.weight"][:rows], before["embedding.weight"])
    assert torch.equal(after["blocks.0.mlp_in.weight"], before["blocks.0.mlp_in.weight"])


def test_padded_rows_are_reported_with_the_setting_that_keeps_them(
    context: RunContext, publish: Publish, grown: Callable[..., Any]
) -> None:
    content = train_byte_level(PROSE, VocabConfig(vocab_size=PIECES, model_type="byte_level"))
    rows = tokenizer_of(content).vocab_size + 6
    folder = publish(GPTConfig.model_validate(GPT2 | {"vocab_size": rows}), "tokenizer.json", content)
    base = folder / "tokenizer.json"
    reported = rf"has {rows} rows, and this run's vocabulary has {rows - 6} tokens.*set vocab\.embedding_rows = {rows}"
    with pytest.raises(RecipeError, match=reported):
        check_base_model(config(folder), rows - 6, base)
    with pytest.raises(RecipeError, match=reported):
        check_base_model(config(folder), rows + NEW, base, rows - 6)
    more = rf"has {rows} rows, and .* has {rows + 1} tokens.*vocab\.embedding_rows to {rows}"
    with pytest.raises(RecipeError, match=more):
        check_base_model(config(folder), rows + 1 + NEW, base, rows + 1)
    check_base_model(config(folder), rows + NEW, base, rows)
    _, vocab = grown(base, {"row_length": 33})
    with pytest.raises(InputError, match=reported):
        make_starting_model(folder, vocab, open_tokenizer(vocab))
    made = grown(base, {"row_length": 33}, embedding_rows=rows)
    model = trained(context, made, config(folder))
    assert len(weights(model)["embedding.weight"]) == rows
    assert "new_rows" not in model.report.facts["base_model"]


def test_a_bert_goes_on(context: RunContext, publish: Publish, grown: Callable[..., Any]) -> None:
    content = train_wordpiece(PROSE, VocabConfig(vocab_size=300, model_type="wordpiece", lowercase=True))
    rows = tokenizer_of(content).vocab_size
    folder = publish(BERTConfig(vocab_size=rows, **SIZES), "tokenizer.json", content)
    made = grown(folder / "tokenizer.json", {"objective": "masked_lm", "row_length": 32}, RUSSIAN, extend={"ru": NEW})
    model = trained(context, made, config(folder, trainable="new_rows"))
    before, after = read_published(open_published(folder)), weights(model)
    assert model.report.facts["base_model"]["new_rows"] >= NEW
    assert len(after["embedding.weight"]) == len(after["masked_head_bias"]) > rows
    for name, expected in before.items():
        assert torch.equal(after[name][: len(expected)], expected), name


def test_a_t5_with_a_head_of_its_own_goes_on(context: RunContext, publish: Publish, grown: Callable[..., Any]) -> None:
    content = train_sentencepiece(PROSE, VocabConfig(vocab_size=PIECES, model_type="unigram"))
    rows = PIECES + 30
    choices = {"activation": "geglu_tanh", "tied_head": False, "vocab_size": rows}
    folder = publish(T5Config.model_validate(SIZES | choices), "spiece.model", content)
    chunk = {"objective": "span_corruption", "input_length": 32}
    made = grown(folder / "spiece.model", chunk, RUSSIAN, sentinels=20, embedding_rows=rows, extend={"ru": NEW})
    model = trained(context, made, config(folder, trainable="new_rows"))
    before, after = read_published(open_published(folder)), weights(model)
    for name, expected in before.items():
        assert torch.equal(after[name][: len(expected)], expected), name
    new = model.report.facts["base_model"]["new_rows"]
    assert new >= NEW
    assert len(after["embedding.weight"]) == len(after["head.weight"]) == rows + new


def test_a_vocabulary_that_is_not_the_model_s_is_refused(gpt2: Path, tmp_path: Path, grown: Callable[..., Any]) -> None:
    other = tmp_path / "other.json"
    other.write_bytes(train_byte_level(PROSE[::2], VocabConfig(vocab_size=PIECES, model_type="byte_level")))
    reported = r"is tokenizer\.json, and this run's comes from .*, which differs.*Set vocab\.base to .*tokenizer\."
    with pytest.raises(InputError, match=reported):
        check_base_model(config(gpt2), PIECES, other)
    _, vocab = grown(other, {"row_length": 33})
    with pytest.raises(InputError, match=reported):
        make_starting_model(gpt2, vocab, open_tokenizer(vocab))
    with pytest.raises(RecipeError, match=r"trains a vocabulary of its own.*Set vocab\.base to .*tokenizer\.json\."):
        check_base_model(config(gpt2), None)
    (gpt2 / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"has no vocabulary \(tokenizer\.model, .*Copy the whole published folder"):
        check_base_model(config(gpt2), PIECES, other)


def test_what_does_not_fit_is_reported_before_any_work(gpt2: Path) -> None:
    base, rows = gpt2 / "tokenizer.json", settings_rows(gpt2)
    check_base_model(config(gpt2), rows, base)
    other = config(gpt2, model=settings_of_base(gpt2) | {"layers": 2})
    with pytest.raises(RecipeError, match=r"Set train\.model\.layers = 1, as it was trained"):
        check_base_model(other, rows, base)
    with pytest.raises(RecipeError, match=rf"there are none: the model in .* has {rows} rows"):
        check_base_model(config(gpt2, trainable="new_rows"), rows, base)
    (gpt2 / "model.safetensors").rename(gpt2 / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"in a pickle \(pytorch_model\.bin\)"):
        check_base_model(config(gpt2), rows, base)


def test_another_byte_of_the_weights_is_another_model(
    context: RunContext, gpt2: Path, tmp_path: Path, grown: Callable[..., Any]
) -> None:
    made = grown(gpt2 / "tokenizer.json", {"row_length": 33})
    first = trained(context, made, config(gpt2))
    shutil.copytree(gpt2, tmp_path / "moved")
    assert trained(context, made, config(tmp_path / "moved")).reused
    changed = load_file(gpt2 / "model.safetensors")
    changed["transformer.ln_f.bias"] = torch.ones(16)
    save_file(changed, gpt2 / "model.safetensors")
    second = trained(context, made, config(gpt2))
    assert second.identity != first.identity


def settings_rows(folder: Path) -> int:
    return json.loads((folder / "config.json").read_text())["vocab_size"]


def test_words_of_bert_are_found_in_its_list_of_lines_too(publish: Publish, tmp_path: Path) -> None:
    words = [*BERT_TOKENS, "[PAD]", "[UNK]", *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")]
    content = "".join(f"{word}\n" for word in words).encode()
    folder = publish(BERTConfig(vocab_size=len(words), **SIZES), "vocab.txt", content)
    check_base_model(config(folder), len(words), folder / "vocab.txt")
    (tmp_path / "vocab.txt").write_bytes(content + b"##i\n")
    with pytest.raises(InputError, match="which differs"):
        check_base_model(config(folder), len(words), tmp_path / "vocab.txt")
