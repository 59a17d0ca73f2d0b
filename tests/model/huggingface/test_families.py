"""Networks of today's families, made by `transformers`: equal logits, equal generation, and weights back unchanged.

Sizes are shrunk; every other key is that of the published configuration that the case is named after.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from model.config.network import GPTConfig
from model.errors import InputError
from model.huggingface.base import export_weights
from model.huggingface.io import export_network, open_published, published_config, read_published
from model.huggingface.registry import FAMILIES, fitting_family, obstacles
from model.huggingface.settings import Settings
from model.nn.block import KeyValueCache
from model.nn.gpt import GPT

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 2 7B": ("Llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "TinyLlama": ("Llama", {"rms_norm_eps": 1e-5}),
    "SmolLM2 135M": ("Llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 100_000.0}),
    "Llama 3 8B": ("Llama", {"rms_norm_eps": 1e-5, "rope_theta": 500_000.0}),
    "Llama 3.2 1B": (
        "Llama",
        {"tie_word_embeddings": True, "rope_theta": 500_000.0, "rope_scaling": LLAMA3, "head_dim": 16},
    ),
    "Llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "linear scaling": ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.5}}),
    "dynamic scaling": (
        "Llama",
        {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": 64},
    ),
    "YaRN": ("Llama", {"rope_scaling": YARN}),
    "YaRN with its own factor": ("Llama", {"rope_scaling": {**YARN, "attention_factor": 1.3, "beta_fast": 16.0}}),
    "Mistral 7B 0.1": ("Mistral", {"sliding_window": 8, "rms_norm_eps": 1e-5}),
    "Mistral 7B 0.3": ("Mistral", {"sliding_window": None, "rope_theta": 1e6, "rms_norm_eps": 1e-5}),
    "Mistral Nemo": ("Mistral", {"sliding_window": None, "head_dim": 12, "rope_theta": 1e6}),
    "Qwen2 0.5B": ("Qwen2", {"tie_word_embeddings": True, "rope_theta": 1e6}),
    "Qwen2.5 with YaRN": ("Qwen2", {"rope_theta": 1e6, "rope_scaling": YARN}),
    "Qwen2 with a window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
    "Qwen3 0.6B": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True, "rope_theta": 1e6}),
    "Qwen3 8B": ("Qwen3", {"head_dim": 8, "rope_theta": 1e6}),
    "OLMo 2 1B": ("Olmo2", {"num_key_value_heads": 4, "rope_theta": 500_000.0}),
    "OLMo 2 32B": ("Olmo2", {"rope_theta": 500_000.0}),
    "Mixtral 8x7B": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_theta": 1e6}),
    "Mixtral with a window": ("Mixtral", {"num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 8}),
    "Qwen3 30B-A3B": (
        "Qwen3Moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "head_dim": 8,
        },
    ),
    "OLMoE 1B-7B": (
        "Olmoe",
        {
            "num_key_value_heads": 4,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "norm_topk_prob": False,
            "clip_qkv": None,
            "rms_norm_eps": 1e-5,
            "pad_token_id": 1,
        },
    ),
    "Qwen3 MoE with weights that do not sum to 1": (
        "Qwen3Moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": False},
    ),
    "OLMoE with weights that sum to 1": (
        "Olmoe",
        {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True, "pad_token_id": 0},
    ),
}
AS_LLAMA = ("Mistral 7B 0.3", "Mistral Nemo")
TOKENS = torch.randint(3, 60, (2, 100), generator=torch.Generator().manual_seed(2))
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def published(name: str, folder: Path) -> Any:
    """Save a network of `transformers` with random weights, large enough that each of them matters, and return it."""
    kind, choices = CASES[name]
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **choices})
    network = getattr(transformers, f"{kind}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    network.eval().save_pretrained(folder)
    return network


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, GPT, Path]]:
    """Makes each case once: the network of `transformers`, ours of its files, and their folder."""

    @functools.cache
    def make(name: str) -> tuple[Any, GPT, Path]:
        folder = tmp_path_factory.mktemp("published")
        return published(name, folder), imported(folder), folder

    return make


def imported(folder: Path) -> GPT:
    found = open_published(folder)
    network = GPT(found.config)
    network.load_state_dict(read_published(found))
    return network.eval()


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(pair, name: str) -> None:
    theirs, ours, _ = pair(name)
    expected = theirs(TOKENS).logits
    assert float(expected.detach().std()) > 0.3, "the logits differ by more than what is compared"
    torch.testing.assert_close(ours(TOKENS), expected, **CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_a_network_comes_back_with_equal_files(pair, name: str, tmp_path: Path) -> None:
    theirs, ours, folder = pair(name)
    class_name = export_network(tmp_path, ours.config, ours.state_dict(), {})
    # Without a window a Mistral computes what a Llama does.
    assert class_name == ("LlamaForCausalLM" if name in AS_LLAMA else type(theirs).__name__)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    assert [key for key in before if not torch.equal(before[key], after[key])] == []
    assert published_config(tmp_path)[1] == ours.config
    back, report = getattr(transformers, class_name).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(back.eval()(TOKENS).logits, theirs(TOKENS).logits, rtol=0, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_token_by_token_the_same_text_is_generated(pair, name: str) -> None:
    """Up to 10 tokens behind the context of the cases whose positions are scaled from there on."""
    theirs, ours, _ = pair(name)
    prompt = TOKENS[:1, :44]
    expected = theirs.generate(prompt, max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=0)[0, 44:]
    assert generated(ours, prompt, 30) == expected.tolist()


def generated(network: GPT, prompt: Tensor, count: int) -> list[int]:
    cache = KeyValueCache()
    tokens, given = [], prompt
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(network(given, cache)[0, -1].argmax()))
            given = torch.tensor([[tokens[-1]]])
    return tokens


@pytest.mark.parametrize("shards", [3])
def test_weights_in_several_files_are_read(shards: int, tmp_path: Path) -> None:
    theirs = published("Qwen3 8B", tmp_path / "one")
    theirs.save_pretrained(tmp_path / "several", max_shard_size="30KB")
    assert len(list((tmp_path / "several").glob("*.safetensors"))) >= shards
    torch.testing.assert_close(imported(tmp_path / "several")(TOKENS), theirs(TOKENS).logits, **CLOSE)


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_scaling = longrope"),
        ({"attention_bias": True, "mlp_bias": False}, "attention_bias = True"),
        ({"num_key_value_heads": 3}, "kv_heads 3 does not divide heads 4"),
        ({"hidden_act": "tanh"}, "hidden_act = tanh"),
        ({"model_type": "mistral", "layer_types": 2 * ["full_attention"] + ["sliding_attention"]}, "in all blocks"),
    ],
)
def test_what_no_network_here_computes_is_refused(choices: dict[str, Any], problem: str) -> None:
    settings = {**SIZES, "model_type": "llama", **choices}
    with pytest.raises(InputError, match=problem):
        FAMILIES[settings["model_type"]].read(Settings(settings))


def test_a_class_without_windows_has_none() -> None:
    settings = {**SIZES, "sliding_window": 8, "layer_types": 3 * ["sliding_attention"]}
    assert FAMILIES["llama"].read(Settings(settings)).window is None


@pytest.mark.parametrize(
    ("choices", "class_name"),
    [
        ({"qk_norm": "head"}, "Qwen3ForCausalLM"),
        ({"qkv_biases": True}, "Qwen2ForCausalLM"),
        ({"window": 8}, "MistralForCausalLM"),
        ({"qk_norm": "all", "norm_position": "branch"}, "Olmo2ForCausalLM"),
        ({"kv_heads": 2}, "LlamaForCausalLM"),
    ],
)
def test_each_choice_has_its_class(choices: dict[str, Any], class_name: str) -> None:
    config = GPTConfig.model_validate({"qk_norm": "none", **choices})
    family = fitting_family(config)
    assert family.class_name == class_name
    assert obstacles(config, family) == []
    with torch.device("meta"):
        weights = GPT(config).state_dict()
    assert family.weight_map(config, weights).keys() == weights.keys()
    assert len(export_weights(weights, family.weight_map(config, weights))) == len(weights)


@pytest.mark.parametrize(
    ("model_type", "choices"),
    [*((name, {}) for name in FAMILIES), *((name, {"use_sliding_window": True}) for name in ("qwen2", "qwen3"))],
)
def test_a_missing_setting_has_the_default_of_its_class(model_type: str, choices: dict[str, Any]) -> None:
    whole = type(transformers.AutoConfig.for_model(model_type))(**choices).to_json_string(use_diff=False)
    family = FAMILIES[model_type]
    assert family.read(Settings(choices)) == family.read(Settings(json.loads(whole)))


def test_a_window_sees_as_many_tokens_as_it_says() -> None:
    config = GPTConfig(vocab_size=60, context=32, layers=1, heads=2, width=16, window=4)
    network: nn.Module = GPT(config).initialise(1).eval()
    changed = TOKENS[:, :20].clone()
    changed[:, 10] = 3 + (changed[:, 10] - 2) % 57
    moved = (network(changed) - network(TOKENS[:, :20])).abs().amax(dim=(0, 2)) > 0
    assert moved.nonzero().flatten().tolist() == [10, 11, 12, 13]
