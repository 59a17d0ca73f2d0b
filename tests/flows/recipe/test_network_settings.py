"""A preset and a base model's description replace settings of the network that a recipe leaves out."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.recipe.load import load_recipe
from flows.recipe.resolve import resolve_model_config
from flows.recipe.schema import Recipe
from model.config.network import BERTConfig, GPTConfig
from model.errors import RecipeError

RECIPE = """
name = "small"
budget_tokens = "40K"
[[sources]]
name = "books"
paths = ["{recipe}/books"]
weight = 1.0
[train.model]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "books").mkdir()
    (tmp_path / "base").mkdir()
    config = GPTConfig(vocab_size=300, context=64, layers=2, heads=2, width=16, dropout=0.1, positions="learned")
    (tmp_path / "base" / "model.json").write_text(json.dumps({"config": config.model_dump()}))
    return tmp_path


def load(folder: Path, network: str, *settings: str) -> Recipe:
    (folder / "small.toml").write_text(RECIPE + network)
    return load_recipe(folder / "small.toml", folder / "root", settings)


def test_a_preset_sets_the_network_and_the_length_of_rows(folder: Path) -> None:
    recipe = load(folder, 'preset = "gpt2-medium"')
    network = recipe.train.model
    assert (network.layers, network.width, network.context) == (24, 1024, 1024)
    assert recipe.chunk.row_length == 1025
    assert network.vocab_size == GPTConfig().vocab_size


def test_keys_and_settings_beside_a_preset_overrule_it(folder: Path) -> None:
    recipe = load(
        folder, 'preset = "gpt2-medium"\nlayers = 2', "train.model.context=128", "train.model.preset=opt-125m"
    )
    network = recipe.train.model
    assert (network.layers, network.width, network.context, network.activation) == (2, 768, 128, "relu")
    assert recipe.chunk.row_length == 129


def test_sizes_beside_a_preset_that_are_not_its_are_reported(folder: Path) -> None:
    sizes = "context = 1024\nlayers = 4\nheads = 12\nwidth = 240\ndropout = 0.1\n"
    recipe = load(folder, sizes, "train.model.preset=gpt2-small")
    assert recipe.warnings == (
        "the network is no gpt2-small, but one with layers 4 instead of 12, width 240 instead of 768: settings"
        " next to a preset override it. Leave layers and width out of train.model for the published network",
    )
    assert load(folder, 'context = 1024\nwidth = 768\npreset = "gpt2-small"').warnings == ()
    assert load(folder, sizes).warnings == ()


def test_plan_says_what_is_not_the_preset_s(folder: Path) -> None:
    load(folder, "layers = 2")
    words = ["estimate", str(folder / "small.toml"), "--set", "train.model.preset=gpt2-small"]
    (folder / "books").rmdir()
    reported = CliRunner().invoke(app, [*words, "--root", str(folder / "root")]).stdout
    assert "! the network is no gpt2-small, but one with layers 2 instead of 12" in reported


def test_a_preset_of_bert_sets_the_objective(folder: Path) -> None:
    recipe = load(folder, 'preset = "bert-base"')
    assert isinstance(recipe.train.model, BERTConfig)
    assert recipe.chunk.objective == "masked_lm"


def test_the_same_network_has_the_same_identity_with_and_without_its_preset(folder: Path) -> None:
    named = load(folder, 'preset = "gpt2-small"')
    choices = 'context = 1024\nlayers = 12\nheads = 12\nwidth = 768\npositions = "learned"\nactivation = "gelu_tanh"'
    choices += '\nnorm = "layernorm"\nqk_norm = "none"\nbiases = true\ninit_std = 0.02'
    assert load(folder, choices).train.identity_params() == named.train.identity_params()


def test_an_unknown_preset_names_the_recipe(folder: Path) -> None:
    with pytest.raises(RecipeError, match=r"small\.toml, line 9: train\.model\.preset: there is no preset 'gpt3'"):
        load(folder, 'preset = "gpt3"')


def test_what_is_left_out_is_the_base_s_but_for_what_may_differ(folder: Path) -> None:
    recipe = load(folder, "", "train.base_model={recipe}/base")
    network = recipe.train.model
    assert isinstance(network, GPTConfig)
    assert (network.context, network.width, network.positions) == (64, 16, "learned")
    assert network.dropout == 0.0
    assert recipe.chunk.row_length == 65
    assert load(folder, "width = 32", "train.base_model={recipe}/base").train.model.width == 32


def test_a_base_of_another_architecture_or_none_gives_nothing(folder: Path) -> None:
    asked = {"model": {"architecture": "bert"}, "base_model": str(folder / "base")}
    assert resolve_model_config(asked, "it") == {"architecture": "bert"}
    assert resolve_model_config({"model": {"width": 8}, "base_model": str(folder / "gone")}, "it") == {"width": 8}


def test_a_preset_that_is_misspelled_is_guessed_and_one_with_a_wrong_key_reported(folder: Path) -> None:
    with pytest.raises(RecipeError, match=r"train\.model\.presett: unknown key; did you mean `preset`\?"):
        load(folder, 'presett = "gpt2-small"')
    with pytest.raises(RecipeError, match=r"train\.model\.layres: unknown key; did you mean `layers`\?"):
        load(folder, 'preset = "bert-base"\nlayres = 3')


LLAMA = {"model_type": "llama", "vocab_size": 320, "max_position_embeddings": 128, "num_hidden_layers": 2}
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
T5 = {"model_type": "t5", "vocab_size": 32128, "d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32, "d_kv": 8}


@pytest.mark.parametrize(
    ("config", "file", "expected"),
    [
        (LLAMA | SMALL, "tokenizer.json", {"embedding_rows": 320}),
        (T5, "spiece.model", {"embedding_rows": 32128, "sentinels": 100, "normaliser": "none"}),
    ],
)
def test_a_published_base_brings_its_vocabulary(
    config: dict[str, Any], file: str, expected: dict[str, Any], folder: Path
) -> None:
    (folder / "base" / "model.json").unlink()
    (folder / "base" / "config.json").write_text(json.dumps(config))
    base = "train.base_model={recipe}/base"
    # Without a file of a vocabulary there is nothing to take: the checks of the base model say so.
    assert load(folder, "", base).vocab.base is None
    (folder / "base" / file).touch()
    vocab = load(folder, "", base).vocab
    assert vocab.base == folder / "base" / file
    assert {key: getattr(vocab, key) for key in expected} == expected
    assert load(folder, "", base, "vocab.embedding_rows=400").vocab.embedding_rows == 400
    # A file elsewhere is the user's own choice, with all that belongs to it.
    elsewhere = load(folder, "", base, "vocab.base={recipe}/" + file).vocab
    assert (elsewhere.base, elsewhere.embedding_rows) == (folder / file, 0)
    with pytest.raises(RecipeError, match="`vocab_size` cannot be set with `base`"):
        load(folder, "", base, "vocab.vocab_size=400")
