"""Published networks by name: `train.model.preset = "gpt2-small"` sets all sizes and choices of one.

Radford et al. 2019 (GPT-2), Zhang et al. 2022 (OPT), Yandex 2022 (YaLM-100B), Black et al. 2022 (GPT-NeoX-20B),
Touvron et al. 2023 (LLaMA 2), Grattafiori et al. 2024 (Llama 3), Zhang et al. 2024 (TinyLlama), Allal et al. 2025
(SmolLM2), Jiang et al. 2023 (Mistral 7B), Qwen Team 2024 and 2025 (Qwen 2.5 and 3), OLMo Team 2024 (OLMo 2), Devlin et
al. 2019 (BERT), Raffel et al. 2020 (T5), Chung et al. 2022 (Flan-T5, of the shapes of T5 v1.1).
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model.errors import RecipeError

Values = dict[str, Any]


@dataclass(frozen=True)
class Preset:
    """The settings of a published network, and the rows of its embedding, which a run takes from its own vocabulary."""

    values: Values
    vocab_size: int


def _decoder(choices: Values, layers: int, heads: int, width: int, **more: Any) -> Values:
    return {"architecture": "gpt", **choices, "layers": layers, "heads": heads, "width": width, **more}


def _t5(choices: Values, layers: int, heads: int, head_size: int, width: int, ffn_width: int) -> Values:
    sizes = {"layers": layers, "heads": heads, "head_size": head_size, "width": width, "ffn_width": ffn_width}
    return {"architecture": "t5", **choices, **sizes}


_LAYERNORM: Values = {"norm": "layernorm", "qk_norm": "none", "biases": True, "init_std": 0.02}
"""What decoders before LLaMA have in common."""

_GPT2: Values = {**_LAYERNORM, "context": 1024, "positions": "learned", "activation": "gelu_tanh"}

_OPT: Values = {
    **_LAYERNORM,
    "context": 2048,
    "positions": "learned",
    "position_offset": 2,
    "activation": "relu",
    "init_std": 0.006,
}

_OPT_350M: Values = {**_OPT, "embedding_width": 512, "norm_position": "post"}

_NEOX: Values = {
    **_LAYERNORM,
    "context": 2048,
    "activation": "gelu",
    "rotary_share": 0.25,
    "parallel_residual": True,
    "tied_head": False,
}

_YALM: Values = {
    **_LAYERNORM,
    "embedding_norm": True,
    "context": 1024,
    "activation": "geglu",
    "embedding_width": 2048,
    "embedding_projection": "padding",
    "first_input_norm": False,
    "head_bias": True,
}

_LLAMA: Values = {"context": 2048, "qk_norm": "none", "norm_eps": 1e-5, "tied_head": False, "init_std": 0.02}

_LLAMA3: Values = {**_LLAMA, "context": 8192, "rotary_base": 500_000.0}

_LLAMA3_2: Values = {
    **_LLAMA3,
    "context": 131_072,
    "tied_head": True,
    "rotary_scaling": {"kind": "llama3", "factor": 32.0, "original_context": 8192},
}

_MISTRAL: Values = {**_LLAMA, "context": 32_768, "rotary_base": 1_000_000.0}

_QWEN2: Values = {
    **_LLAMA,
    "context": 32_768,
    "norm_eps": 1e-6,
    "qkv_biases": True,
    "tied_head": True,
    "rotary_base": 1_000_000.0,
}

_QWEN3: Values = {
    "context": 40_960,
    "head_size": 128,
    "norm_eps": 1e-6,
    "rotary_base": 1_000_000.0,
    "init_std": 0.02,
}

_OLMO2: Values = {
    "context": 4096,
    "qk_norm": "all",
    "norm_position": "branch",
    "norm_eps": 1e-6,
    "tied_head": False,
    "rotary_base": 500_000.0,
    "init_std": 0.02,
}

_BERT: Values = {"architecture": "bert", "context": 512}

_T5: Values = {"context": 512}

_T5_V1_1: Values = {"context": 512, "activation": "geglu_tanh", "tied_head": False}

_GPT2_ROWS, _OPT_ROWS, _BERT_ROWS, _T5_ROWS = 50_257, 50_272, 30_522, 32_128
"""OPT's and T5's tables have more rows than their vocabularies have tokens: 50,265 and 32,100."""

PRESETS: dict[str, Preset] = {
    "gpt2-small": Preset(_decoder(_GPT2, 12, 12, 768), _GPT2_ROWS),
    "gpt2-medium": Preset(_decoder(_GPT2, 24, 16, 1024), _GPT2_ROWS),
    "gpt2-large": Preset(_decoder(_GPT2, 36, 20, 1280), _GPT2_ROWS),
    "gpt2-xl": Preset(_decoder(_GPT2, 48, 25, 1600), _GPT2_ROWS),
    "opt-125m": Preset(_decoder(_OPT, 12, 12, 768), _OPT_ROWS),
    "opt-350m": Preset(_decoder(_OPT_350M, 24, 16, 1024), _OPT_ROWS),
    "opt-1.3b": Preset(_decoder(_OPT, 24, 32, 2048), _OPT_ROWS),
    "opt-2.7b": Preset(_decoder(_OPT, 32, 32, 2560), _OPT_ROWS),
    "opt-6.7b": Preset(_decoder(_OPT, 32, 32, 4096), _OPT_ROWS),
    "opt-13b": Preset(_decoder(_OPT, 40, 40, 5120), _OPT_ROWS),
    "opt-30b": Preset(_decoder(_OPT, 48, 56, 7168), _OPT_ROWS),
    "opt-66b": Preset(_decoder(_OPT, 64, 72, 9216), _OPT_ROWS),
    "opt-175b": Preset(_decoder(_OPT, 96, 96, 12_288), _OPT_ROWS),
    "gpt-neox-20b": Preset(_decoder(_NEOX, 44, 64, 6144), 50_432),
    "yalm-100b": Preset(_decoder(_YALM, 80, 128, 10_240, ffn_width=27_308), 128_000),
    "llama-2-7b": Preset(_decoder(_LLAMA, 32, 32, 4096, ffn_width=11_008, context=4096), 32_000),
    "tinyllama-1.1b": Preset(_decoder(_LLAMA, 22, 32, 2048, kv_heads=4, ffn_width=5632), 32_000),
    "smollm2-135m": Preset(
        _decoder(_LLAMA3, 30, 9, 576, kv_heads=3, ffn_width=1536, rotary_base=100_000.0, tied_head=True), 49_152
    ),
    "llama-3-8b": Preset(_decoder(_LLAMA3, 32, 32, 4096, kv_heads=8, ffn_width=14_336), 128_256),
    "llama-3.2-1b": Preset(_decoder(_LLAMA3_2, 16, 32, 2048, kv_heads=8, ffn_width=8192), 128_256),
    "mistral-7b-0.3": Preset(_decoder(_MISTRAL, 32, 32, 4096, kv_heads=8, ffn_width=14_336), 32_768),
    "qwen2.5-0.5b": Preset(_decoder(_QWEN2, 24, 14, 896, kv_heads=2, ffn_width=4864), 151_936),
    "qwen3-0.6b": Preset(_decoder(_QWEN3, 28, 16, 1024, kv_heads=8, ffn_width=3072), 151_936),
    "qwen3-8b": Preset(_decoder(_QWEN3, 36, 32, 4096, kv_heads=8, ffn_width=12_288, tied_head=False), 151_936),
    "olmo2-1b": Preset(_decoder(_OLMO2, 16, 16, 2048, ffn_width=8192), 100_352),
    "bert-base": Preset({**_BERT, "layers": 12, "heads": 12, "width": 768}, _BERT_ROWS),
    "bert-large": Preset({**_BERT, "layers": 24, "heads": 16, "width": 1024}, _BERT_ROWS),
    "t5-small": Preset(_t5(_T5, 6, 8, 64, 512, 2048), _T5_ROWS),
    "t5-base": Preset(_t5(_T5, 12, 12, 64, 768, 3072), _T5_ROWS),
    "t5-large": Preset(_t5(_T5, 24, 16, 64, 1024, 4096), _T5_ROWS),
    "t5-3b": Preset(_t5(_T5, 24, 32, 128, 1024, 16_384), _T5_ROWS),
    "t5-11b": Preset(_t5(_T5, 24, 128, 128, 1024, 65_536), _T5_ROWS),
    "flan-t5-small": Preset(_t5(_T5_V1_1, 8, 6, 64, 512, 1024), _T5_ROWS),
    "flan-t5-base": Preset(_t5(_T5_V1_1, 12, 12, 64, 768, 2048), _T5_ROWS),
    "flan-t5-large": Preset(_t5(_T5_V1_1, 24, 16, 64, 1024, 2816), _T5_ROWS),
    "flan-t5-xl": Preset(_t5(_T5_V1_1, 24, 32, 64, 2048, 5120), _T5_ROWS),
    "flan-t5-xxl": Preset(_t5(_T5_V1_1, 24, 64, 64, 4096, 10_240), _T5_ROWS),
}

KEY = "preset"


def expand_preset(model: Mapping[str, Any], place: str = "train.model") -> dict[str, Any]:
    """Return the settings of `train.model` with those of its preset, which other keys override.

    `vocab_size` is not set, since it follows from a run's vocabulary. Raises RecipeError for an unknown name and for
    another architecture than the preset's.
    """
    values = dict(model)
    if KEY not in values:
        return values
    name = values.pop(KEY)
    if not isinstance(name, str) or name not in PRESETS:
        close = difflib.get_close_matches(str(name), PRESETS, n=1)
        meant = f" Did you mean {close[0]}?" if close else ""
        raise RecipeError(f"{place}.{KEY}: there is no preset {name!r}.{meant} Known are {', '.join(PRESETS)}.")
    preset = PRESETS[name].values
    architecture = values.get("architecture", preset["architecture"])
    if architecture != preset["architecture"]:
        raise RecipeError(
            f"{place}.{KEY}: {name} is a {preset['architecture']}, and architecture is {architecture}. Leave"
            f" architecture out, or choose a preset of that architecture."
        )
    return {**preset, **values}


def preset_overrides(model: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return key -> (requested, published) for the keys of `train.model` that override a known preset."""
    preset = PRESETS.get(str(model.get(KEY)))
    if preset is None:
        return {}
    return {
        key: (requested, preset.values[key])
        for key, requested in model.items()
        if key in preset.values and requested != preset.values[key]
    }
