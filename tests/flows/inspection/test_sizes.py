"""Vocabulary, network and budget of a new recipe, from the amount of text."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from flows.inspection.recipe_writer import sizes_of
from flows.inspection.scan import scan_folder
from flows.inspection.sizes import NETWORKS, bytes_per_token, read_base_model, sizes, vocabulary_of
from model.config.network import GPTConfig
from model.errors import InputError
from model.huggingface.base import export_weights
from model.huggingface.io import published_config
from model.nn.factory import make_shapes

ENGLISH = "The furnace was lit before dawn and the iron ran white into the sand of the moulds. "
RUSSIAN = "Печь затопили ещё до рассвета, и железо потекло белым ручьём в песчаные формы на дворе. "

LLAMA = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
}


def write_published(folder: Path, settings: dict[str, Any]) -> None:
    """Write a published network with `settings`, all of whose weights are 0."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    family, config = published_config(folder)
    ours = make_shapes(config).state_dict()
    shapes = export_weights(ours, family.weight_map(config, ours))
    save_file({name: torch.zeros(shape.shape) for name, shape in shapes.items()}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("text_bytes", "vocab_size", "layers", "width", "tokens", "budget_tokens"),
    [
        # 9 bits / 3.5 are 2.571 bytes a token; four readings of 38,889 tokens
        (1e5, 512, 2, 64, 38_889, 155_556),
        # 20 tokens for each of 3 (4 x 96^2 + 3 x 96 x 256) + 512 x 96 parameters
        (1e7, 512, 3, 96, 3_888_889, 20 * 380_928),
        (1e8, 2048, 6, 256, 31_818_182, 20 * 5_267_456),
        (1e10, 16_384, 24, 1024, 2_500_000_000, 20 * 319_160_320),
    ],
)
def test_sizes_by_bytes(
    text_bytes: float, vocab_size: int, layers: int, width: int, tokens: int, budget_tokens: int
) -> None:
    chosen = sizes(text_bytes)
    assert (chosen.vocab_size, chosen.network.layers, chosen.network.width) == (vocab_size, layers, width)
    assert (chosen.tokens, chosen.budget_tokens) == (tokens, budget_tokens)


def test_the_embedding_is_never_more_than_a_quarter_of_the_parameters() -> None:
    for network in NETWORKS:
        vocabulary = vocabulary_of(network)
        assert vocabulary * network.width <= 0.25 * network.parameters(vocabulary)


def test_more_text_never_gives_a_smaller_network_and_enough_text_feeds_it() -> None:
    all_sizes = [sizes(10 ** (exponent / 4)) for exponent in range(16, 44)]
    parameters = [chosen.parameters for chosen in all_sizes]
    assert parameters == sorted(parameters)
    for chosen in all_sizes:
        assert chosen.budget_tokens <= max(4 * chosen.tokens, 2 * chosen.network.context)
        assert chosen.budget_tokens >= 20 * chosen.parameters or chosen.network == NETWORKS[0]


def test_the_vocabulary_has_space_for_all_characters() -> None:
    assert sizes(1e5, characters=80).vocab_size == 512
    assert sizes(1e5, characters=4000).vocab_size == 8192


def test_bytes_per_token() -> None:
    assert bytes_per_token(2**14) == 4.0  # measured on English and Italian: 4.0 to 4.2


def test_the_networks_are_valid_and_their_parameters_those_of_their_matrices() -> None:
    from model.nn.factory import make_network

    for network in NETWORKS[:4]:
        config = GPTConfig(
            vocab_size=512, context=network.context, layers=network.layers, heads=network.heads, width=network.width
        )
        matrices = sum(weight.numel() for weight in make_network(config).parameters() if weight.dim() == 2)
        assert network.parameters(512) == matrices


def test_the_budget_counts_the_tokens_that_the_vocabulary_of_the_base_model_gives_the_text(tmp_path: Path) -> None:
    """A vocabulary of English spells Russian in bytes, 2 per letter, not in tokens of 2.6 bytes."""
    vocabulary = Tokenizer(models.BPE())
    vocabulary.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    vocabulary.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocabulary.train_from_iterator([ENGLISH], trainers.BpeTrainer(vocab_size=512, initial_alphabet=alphabet))
    (tmp_path / "text").mkdir()
    write_published(tmp_path / "llama", LLAMA)
    vocabulary.save(str(tmp_path / "llama" / "tokenizer.json"))
    for number in range(8):
        (tmp_path / "text" / f"{number}.txt").write_text(RUSSIAN * 20)
    base, scan = read_base_model(tmp_path / "llama"), scan_folder(tmp_path / "text")
    total, chosen = sizes_of(scan, base)
    exact = 8 * len(vocabulary.encode(RUSSIAN * 20).ids)
    assert chosen.tokens == pytest.approx(exact, rel=0.02)
    assert chosen.bytes_per_token == pytest.approx(total / exact, rel=0.02)
    # The checks of the recipe report a vocabulary that cannot be read; the budget is an estimate then.
    (tmp_path / "llama" / "tokenizer.json").write_text("{")
    assert sizes_of(scan, base)[1].tokens == round(total / (9 / 3.5))


@pytest.mark.parametrize(
    ("name", "problem"), [("Qwen/Qwen3-0.6B", "does not exist"), ("a/b/c", "does not exist"), (".", "has no config")]
)
def test_a_base_model_that_is_no_folder_here_is_refused_with_how_a_model_of_the_hub_is_copied(
    name: str, problem: str
) -> None:
    with pytest.raises(InputError, match=f"--base-model {name} {problem}") as refused:
        read_base_model(Path(name))
    assert ("`hf download Qwen/Qwen3-0.6B --local-dir FOLDER`" in str(refused.value)) == ("Qwen" in name)
