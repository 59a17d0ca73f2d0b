"""Presets have the parameters of the published networks, and their weights the published names and shapes."""

import subprocess
import sys
from collections.abc import Collection, Mapping
from typing import Any

import pytest
import torch

from flows.planning.machine_speed import preset_config, preset_costs
from model.config.network import GPTConfig, T5Config, read_network_config
from model.config.presets import PRESETS, expand_preset
from model.errors import RecipeError
from model.huggingface.base import WeightSource, export_weights, fused_attention, in_blocks, weight_sources
from model.huggingface.decoders import NEOX
from model.huggingface.registry import fitting_family, settings_of
from model.nn.factory import make_network, parameter_count

PARAMETERS = {
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "opt-66b": 65_719_701_504,
    "gpt-neox-20b": 20_554_567_680,
    "llama-2-7b": 6_738_415_616,
    "tinyllama-1.1b": 1_100_048_384,
    "smollm2-135m": 134_515_008,
    "llama-3-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b-0.3": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "olmo2-1b": 1_484_916_736,
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "flan-t5-small": 76_961_152,
    "flan-t5-base": 247_577_856,
    "flan-t5-large": 783_150_080,
    "flan-t5-xl": 2_849_757_184,
    "flan-t5-xxl": 11_135_332_352,
}
"""As the published weights have them, tied heads once."""
ROUND = {"opt-175b": 175e9, "yalm-100b": 100e9}
"""Where the weights are not to be had from everywhere: the papers' own number."""
FAMILIES = {
    "gpt2": "GPT2LMHeadModel",
    "opt": "OPTForCausalLM",
    "gpt-neox": "GPTNeoXForCausalLM",
    "llama": "LlamaForCausalLM",
    "tinyllama": "LlamaForCausalLM",
    "smollm2": "LlamaForCausalLM",
    "mistral": "LlamaForCausalLM",  # without a window it computes what a Llama does
    "qwen2.5": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "bert": "BertForPreTraining",
    "t5": "T5ForConditionalGeneration",
    "flan-t5": "T5ForConditionalGeneration",
}


def shapes(network: Any) -> dict[str, tuple[int, ...]]:
    return shapes_of(network.state_dict())


def shapes_of(weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_preset_has_the_parameters_of_the_published_weights(name: str) -> None:
    assert parameter_count(preset_config(name)) == PARAMETERS[name]


@pytest.mark.parametrize("name", ROUND)
def test_the_largest_have_the_parameters_that_their_papers_name(name: str) -> None:
    assert parameter_count(preset_config(name)) == pytest.approx(ROUND[name], rel=0.01)


def test_every_preset_is_counted() -> None:
    assert PARAMETERS.keys() | ROUND.keys() == PRESETS.keys()


def test_shapes_are_those_of_the_network_and_do_not_load_the_compiler() -> None:
    program = """
import sys
from model.config.network import BERTConfig, GPTConfig, T5Config
from model.nn.factory import make_network, make_shapes

def named(network):
    return {name: (one.shape, one.dtype) for name, one in [*network.named_parameters(), *network.named_buffers()]}

configs = GPTConfig(), GPTConfig(positions="learned", norm="rmsnorm"), BERTConfig(), T5Config()
shapes = [make_shapes(config) for config in configs]
assert all(one.is_meta for network in shapes for one in [*network.parameters(), *network.buffers()])
assert [named(one) for one in shapes] == [named(make_network(config)) for config in configs]
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "yalm-100b"])
def test_a_preset_s_weights_have_the_names_and_shapes_of_transformers_class(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = preset_config(name)
    family = fitting_family(config)
    assert family.class_name == FAMILIES[max((known for known in FAMILIES if name.startswith(known)), key=len)]
    settings = settings_of(config, family)
    kind = getattr(transformers, family.class_name)
    with torch.device("meta"):
        ours = make_network(config).state_dict()
        theirs = shapes(kind(kind.config_class(**settings)))
    # The class names this one otherwise than its published file.
    if family is NEOX:
        theirs["embed_out.weight"] = theirs.pop("lm_head.weight")
    mapped = shapes_of(export_weights(ours, family.weight_map(config, ours)))
    assert family.weight_map(config, ours).keys() == ours.keys()
    assert mapped.items() <= theirs.items()
    assert theirs.keys() - mapped.keys() <= {*family.aliases(config)}


FIRST_BLOCK = 3
"""Number of the file that holds the first block."""


def yalm_weight_map(config: GPTConfig, ours: Collection[str]) -> dict[str, WeightSource]:
    """Return the source of each weight in `ours` in the published files of YaLM-100B (Yandex 2022), as `layer_NN.name`.

    Files are named by layer: 0 is the embedding, 1 the norm after it, 3 to 82 the blocks, 84 the output; the names are
    those of its published program. They are pickles, which are not read, and `transformers` has no such class.
    """
    output = f"layer_{FIRST_BLOCK + config.layers + 1:02}"
    modules: dict[str, str | WeightSource] = {
        "embedding": "layer_00.word_embeddings",
        "embedding_norm": "layer_01.input_layernorm",
        "final_norm": f"{output}.input_layer_norm",
        "head_projection": f"{output}.dense",
        "head_norm": f"{output}.output_layer_norm",
        "head_bias": f"{output}.output_bias",
    }
    for layer in range(config.layers):
        block = {
            "attention_norm": "input_layernorm",
            **fused_attention("attention.query_key_value", heads=config.heads),
            "attention_out": "attention.dense",
            "mlp_norm": "post_attention_layernorm",
            "mlp_gate": "mlp.dense_ffn_hidden",
            "mlp_in": "mlp.dense_ffn_gate",
            "mlp_out": "mlp.dense_ffn_output",
        }
        for name, source in in_blocks("blocks", f"layer_{FIRST_BLOCK + layer:02}", block).items():
            modules[name.replace("{}", str(layer))] = source
    return weight_sources(modules, config, ours)


def test_yalm_s_weights_have_the_names_and_shapes_of_its_program() -> None:
    config = preset_config("yalm-100b")
    with torch.device("meta"):
        ours = make_network(config).state_dict()
    weight_map = yalm_weight_map(config, ours)
    assert weight_map.keys() == ours.keys()
    mapped = shapes_of(export_weights(ours, weight_map))
    # What its program makes of 80 layers, width 10240, an embedding of 2048 and 128,000 pieces.
    assert mapped["layer_00.word_embeddings.weight"] == (128_000, 2048)
    assert mapped["layer_01.input_layernorm.weight"] == (2048,)
    assert "layer_03.input_layernorm.weight" not in mapped
    assert mapped["layer_04.input_layernorm.weight"] == (10_240,)
    assert mapped["layer_03.attention.query_key_value.weight"] == (30_720, 10_240)
    assert mapped["layer_82.mlp.dense_ffn_gate.weight"] == (27_308, 10_240)
    assert mapped["layer_82.mlp.dense_ffn_output.weight"] == (10_240, 27_308)
    assert mapped["layer_84.dense.weight"] == (2048, 10_240)
    assert mapped["layer_84.output_bias"] == (128_000,)
    assert {name.partition(".")[0] for name in mapped} == {f"layer_{n:02}" for n in (0, 1, *range(3, 83), 84)}


def test_flan_t5_is_gated_with_a_head_of_its_own_and_t5_is_not() -> None:
    t5, flan = preset_config("t5-base"), preset_config("flan-t5-base")
    assert isinstance(t5, T5Config)
    assert isinstance(flan, T5Config)
    assert (t5.activation, t5.tied_head) == ("relu", True)
    assert (flan.activation, flan.tied_head) == ("geglu_tanh", False)


def test_keys_beside_a_preset_overrule_it_and_the_rows_stay_open() -> None:
    values = expand_preset({"preset": "gpt2-small", "context": 512, "dropout": 0.1})
    assert "vocab_size" not in values
    assert "preset" not in values
    config = read_network_config(values)
    assert (config.context, config.dropout, config.width, config.layers) == (512, 0.1, 768, 12)
    assert expand_preset({"width": 64}) == {"width": 64}


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(RecipeError, match=r"preset: there is no preset 'gpt2-smal'. Did you mean gpt2-small\?"):
        expand_preset({"preset": "gpt2-smal"})
    with pytest.raises(RecipeError, match=r"no preset 7\. Known are gpt2-small, gpt2-medium, .*, flan-t5-xxl\."):
        expand_preset({"preset": 7})


def test_a_preset_of_another_architecture_is_refused() -> None:
    with pytest.raises(RecipeError, match="bert-base is a bert, and architecture is gpt"):
        expand_preset({"preset": "bert-base", "architecture": "gpt"})


def test_memory_is_sixteen_bytes_a_parameter() -> None:
    costs = {cost.name: cost for cost in preset_costs()}
    assert costs["gpt2-small"].training_bytes == 16 * 124_439_808
    # 6 N + 12 L D T, where N leaves out the table of positions.
    looked_up = 1024 * 768
    expected = 6 * (124_439_808 - looked_up) + 12 * 12 * 768 * 1024
    assert costs["gpt2-small"].flops_a_token == expected
