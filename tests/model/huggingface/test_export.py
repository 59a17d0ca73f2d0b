"""Conversion to and from `transformers` gives the same logits."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model.config.network import BERTConfig, GPTConfig, T5Config
from model.errors import InputError, RecipeError
from model.huggingface.base import export_weights
from model.huggingface.decoders import NEOX, OPT
from model.huggingface.io import export_network, open_published, read_published
from model.huggingface.registry import fitting_family, obstacles
from model.model_files import ONE_FILE, published_digest
from model.nn.bert import BERT
from model.nn.factory import make_network
from model.nn.gpt import GPT
from model.nn.t5 import T5

transformers = pytest.importorskip("transformers")
TOKENS = torch.randint(3, 40, (3, 12), generator=torch.Generator().manual_seed(2))
SIZES: dict[str, Any] = {"vocab_size": 40, "context": 16, "layers": 2, "heads": 2, "width": 16}
BEFORE_LLAMA: dict[str, Any] = {"norm": "layernorm", "activation": "gelu", "qk_norm": "none", "biases": True}
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
LLAMA: dict[str, Any] = {"norm": "rmsnorm", "biases": False, "activation": "swiglu"}
GPTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"positions": "learned", "activation": "gelu_tanh"}),
    "gpt2 with its own head": ("GPT2LMHeadModel", {"positions": "learned", "tied_head": False}),
    "less offset than opt": ("OPTForCausalLM", {"positions": "learned", "position_offset": 1}),
    "more offset than opt": ("OPTForCausalLM", {"positions": "learned", "position_offset": 3, "tied_head": False}),
    "neox": ("GPTNeoXForCausalLM", {"parallel_residual": True, "rotary_share": 0.25, "tied_head": False}),
    "neox, tied": ("GPTNeoXForCausalLM", {}),
    "llama": ("LlamaForCausalLM", {**LLAMA, "tied_head": False, "rotary_base": 500.0}),
    "llama, tied and with biases": ("LlamaForCausalLM", {**LLAMA, "activation": "geglu", "biases": True}),
    "relu in gpt2": ("GPT2LMHeadModel", {"positions": "learned", "activation": "relu"}),
    "opt": ("OPTForCausalLM", {"positions": "learned", "activation": "relu", "position_offset": 2}),
    "opt-350m": (
        "OPTForCausalLM",
        {"positions": "learned", "activation": "relu", "norm_position": "post", "embedding_width": 8},
    ),
}
"""Networks of ours, and the class that they go to."""


def shaken(network: nn.Module) -> Any:
    """The network with random numbers in every weight, biases and norms too, large enough that each one matters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(0.0).add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return network.eval()


def loaded(class_name: str, folder: Path) -> Any:
    network, reported = getattr(transformers, class_name).from_pretrained(folder, output_loading_info=True)
    assert not reported["missing_keys"], "nothing may be left to chance"
    assert not reported["unexpected_keys"]
    return network.eval()


def taken_over(folder: Path) -> Any:
    published = open_published(folder)
    network = make_network(published.config)
    network.load_state_dict(read_published(published))
    return network.eval()


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    weights, others = one.state_dict(), other.state_dict()
    assert weights.keys() == others.keys()
    assert [name for name in weights if not torch.equal(weights[name], others[name])] == []


@pytest.mark.parametrize("name", GPTS)
def test_a_gpt_goes_to_transformers_and_comes_back(name: str, tmp_path: Path) -> None:
    class_name, choices = GPTS[name]
    ours = shaken(GPT(GPTConfig.model_validate(SIZES | BEFORE_LLAMA | choices)))
    assert export_network(tmp_path, ours.config, ours.state_dict(), {"eos_token_id": 2}) == class_name
    assert stat.S_IMODE((tmp_path / ONE_FILE).stat().st_mode) == 0o644, "others may read, not write"
    theirs = loaded(class_name, tmp_path)
    assert theirs.config.eos_token_id == 2
    torch.testing.assert_close(theirs(TOKENS).logits, ours(TOKENS), **CLOSE)
    back = taken_over(tmp_path)
    torch.testing.assert_close(back(TOKENS), ours(TOKENS), rtol=0, atol=0)


def test_transformers_own_opt_is_read_and_given_back(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    settings = transformers.OPTConfig(vocab_size=40, max_position_embeddings=16, **sizes)
    theirs = shaken(transformers.OPTForCausalLM(settings))
    theirs.save_pretrained(tmp_path)
    ours = taken_over(tmp_path)
    assert ours.config.position_offset == 2
    torch.testing.assert_close(ours(TOKENS), theirs(TOKENS).logits, **CLOSE)
    assert obstacles(ours.config, OPT) == []
    kept = load_file(tmp_path / "model.safetensors")
    back = export_weights(ours.state_dict(), OPT.weight_map(ours.config, ours.state_dict()))
    assert {name for name in back if not torch.equal(back[name], kept[name])} == set()
    assert kept.keys() - back.keys() <= {"lm_head.weight"}


def test_a_bert_without_a_norm_behind_its_embedding_has_its_norms_before_each_branch() -> None:
    with pytest.raises(ValueError, match=r'Set norm_position = "pre", or leave embedding_norm out'):
        BERTConfig(**SIZES, embedding_norm=False)


@pytest.mark.parametrize(
    ("class_name", "choices"),
    [
        ("BertForPreTraining", {"ffn_width": 24}),
        ("MegatronBertForPreTraining", {"norm_position": "pre", "embedding_norm": False, "ffn_width": 24}),
    ],
)
def test_a_bert_goes_to_transformers_and_comes_back(class_name: str, choices: dict[str, Any], tmp_path: Path) -> None:
    ours = shaken(BERT(BERTConfig.model_validate(SIZES | choices)))
    export_network(tmp_path, ours.config, ours.state_dict(), {})
    theirs = loaded(class_name, tmp_path)
    is_token = torch.arange(12) < torch.tensor([12, 7, 2])[:, None]
    types = (torch.arange(12) >= 4).long().expand(3, -1) * is_token
    expected = theirs(input_ids=TOKENS, token_type_ids=types, attention_mask=is_token.long())
    hidden = ours.hidden(TOKENS, types, is_token)
    everywhere = torch.arange(12).expand(3, -1)
    logits = ours.masked_logits(hidden, everywhere)
    torch.testing.assert_close(logits[is_token], expected.prediction_logits[is_token], **CLOSE)
    torch.testing.assert_close(ours.next_logits(hidden), expected.seq_relationship_logits.flip(1), **CLOSE)
    assert_same_weights(taken_over(tmp_path), ours)


@pytest.mark.parametrize("choices", [{}, {"activation": "geglu_tanh", "tied_head": False, "head_size": 6}])
def test_a_t5_goes_to_transformers_and_comes_back(choices: dict[str, Any], tmp_path: Path) -> None:
    ours = shaken(T5(T5Config.model_validate(SIZES | choices)))
    export_network(tmp_path, ours.config, ours.state_dict(), {"decoder_start_token_id": 0})
    theirs = loaded("T5ForConditionalGeneration", tmp_path)
    is_token = torch.arange(12) < torch.tensor([12, 7, 1])[:, None]
    inputs = TOKENS[:, :9].flip(0)
    expected = theirs(input_ids=TOKENS, attention_mask=is_token.long(), decoder_input_ids=inputs).logits
    logits = ours.logits(ours.decode(inputs, ours.encode(TOKENS, is_token), is_token))
    torch.testing.assert_close(logits, expected, **CLOSE)
    assert_same_weights(taken_over(tmp_path), ours)


def test_our_default_network_is_a_qwen3_and_what_has_no_class_says_what_to_train() -> None:
    assert fitting_family(GPTConfig()).class_name == "Qwen3ForCausalLM"
    normed = GPTConfig(embedding_norm=True)
    with pytest.raises(RecipeError, match=r"has embedding_norm = true\. The nearest one is Qwen3ForCausalLM\. Train"):
        fitting_family(normed)
    neox = normed.model_copy(update=BEFORE_LLAMA)
    assert [(one.name, one.needed) for one in obstacles(neox, NEOX)] == [("embedding_norm", False)]
    with pytest.raises(RecipeError, match=r'norm_position = "pre".*BertForPreTraining.*norm_position = "post"'):
        fitting_family(BERTConfig(norm_position="pre"))


@pytest.mark.parametrize(
    ("choices", "name"),
    [
        ({"qk_norm": "head"}, "qk_norm"),
        ({"positions": "relative"}, "positions"),
        ({"biases": False}, "biases"),
        ({"head_bias": True}, "head_bias"),
        ({"embedding_width": 8, "embedding_projection": "padding"}, "embedding_width"),
        ({"first_input_norm": False}, "first_input_norm"),
        ({"norm": "rmsnorm"}, "norm"),
    ],
)
def test_every_choice_that_no_class_has_is_named(choices: dict[str, Any], name: str) -> None:
    with pytest.raises(RecipeError, match=rf"it has .*{name} = "):
        fitting_family(GPTConfig.model_validate(SIZES | BEFORE_LLAMA | choices))


def test_what_only_training_looks_at_is_no_obstacle() -> None:
    trained = {"dropout": 0.1, "z_loss": 1e-4, "attend_within_documents": True, "init_std": 0.006}
    config = GPTConfig.model_validate(SIZES | BEFORE_LLAMA | trained)
    assert fitting_family(config) is NEOX


@pytest.fixture
def small_gpt2(tmp_path: Path) -> Path:
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    shaken(transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=40, **sizes))).save_pretrained(tmp_path)
    return tmp_path


def test_weights_in_several_files_are_one_network(small_gpt2: Path, tmp_path: Path) -> None:
    whole = taken_over(small_gpt2)
    theirs = loaded("GPT2LMHeadModel", small_gpt2)
    several = tmp_path / "several"
    theirs.save_pretrained(several, max_shard_size="6KB")
    assert len(list(several.glob("model-*.safetensors"))) > 1
    assert_same_weights(taken_over(several), whole)
    (several / "model-00001-of-00007.safetensors").unlink()
    with pytest.raises(InputError, match=r"1 \(model-00001-of-.* are missing"):
        open_published(several)


def rewritten(folder: Path, **changed: Tensor | None) -> None:
    weights = load_file(folder / "model.safetensors") | changed
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, folder / "model.safetensors")


def resettled(folder: Path, **changed: Any) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | changed))


def test_files_of_the_body_alone_and_old_names_are_understood(small_gpt2: Path) -> None:
    before = taken_over(small_gpt2)
    weights = load_file(small_gpt2 / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 16, 16)
    save_file(bare, small_gpt2 / "model.safetensors")
    assert_same_weights(taken_over(small_gpt2), before)


def test_the_layer_norms_of_bert_s_first_program_are_understood(tmp_path: Path) -> None:
    ours = shaken(BERT(BERTConfig(**SIZES)))
    export_network(tmp_path, ours.config, ours.state_dict(), {})
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    save_file(old, tmp_path / "model.safetensors")
    assert_same_weights(taken_over(tmp_path), ours)


def test_half_precision_is_read_as_float32(small_gpt2: Path) -> None:
    weights = {name: tensor.bfloat16() for name, tensor in load_file(small_gpt2 / "model.safetensors").items()}
    save_file(weights, small_gpt2 / "model.safetensors")
    assert {parameter.dtype for parameter in taken_over(small_gpt2).parameters()} == {torch.float32}


def test_what_does_not_fit_is_reported_by_name(small_gpt2: Path) -> None:
    resettled(small_gpt2, vocab_size=38)
    reported = r"wte\.weight has the shape \[40, 16\].*\[38, 16\]\. The table has 40 rows, and vocab_size there is 38"
    with pytest.raises(InputError, match=reported):
        open_published(small_gpt2)
    resettled(small_gpt2, vocab_size=40, n_layer=3)
    with pytest.raises(InputError, match=r"3 layers.*12 \(transformer\.h\.2\..*missing, none unexpected"):
        open_published(small_gpt2)
    resettled(small_gpt2, n_layer=2, n_inner=48)
    with pytest.raises(
        InputError, match=r"mlp\.c_fc\.weight has the shape \[16, 64\], and by config.json it is \[16, 48\]"
    ):
        open_published(small_gpt2)
    resettled(small_gpt2, n_inner=None, scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(
        InputError, match=r"scale_attn_by_inverse_layer_idx = True, and the networks here support False"
    ):
        open_published(small_gpt2)
    resettled(small_gpt2, model_type="mamba")
    with pytest.raises(
        InputError, match=r"model_type = mamba, and the networks here support gpt2, gpt_neox, llama, qwen3"
    ):
        open_published(small_gpt2)


def test_a_head_that_only_pretends_to_be_tied_is_refused(small_gpt2: Path) -> None:
    rewritten(small_gpt2, **{"lm_head.weight": torch.ones(40, 16)})
    with pytest.raises(
        InputError, match=r"lm_head\.weight should repeat transformer\.wte\.weight, and differs from it"
    ):
        read_published(open_published(small_gpt2))
    rewritten(
        small_gpt2, **{"lm_head.weight": load_file(small_gpt2 / "model.safetensors")["transformer.wte.weight"].clone()}
    )
    read_published(open_published(small_gpt2))


def test_pickles_and_torn_files_are_refused_with_the_cure(small_gpt2: Path) -> None:
    whole = (small_gpt2 / "model.safetensors").read_bytes()
    (small_gpt2 / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="is no safetensors file, or is cut off"):
        open_published(small_gpt2)
    (small_gpt2 / "model.safetensors").rename(small_gpt2 / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"in a pickle \(pytorch_model\.bin\).*save_pretrained"):
        open_published(small_gpt2)
    (small_gpt2 / "pytorch_model.bin").unlink()
    with pytest.raises(InputError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        open_published(small_gpt2)


def test_the_digest_follows_settings_and_weights_and_not_the_place(small_gpt2: Path, tmp_path: Path) -> None:
    before = published_digest(small_gpt2)
    (small_gpt2 / "README.md").write_text("about")
    assert published_digest(small_gpt2) == before
    resettled(small_gpt2, layer_norm_epsilon=1e-6)
    settled = published_digest(small_gpt2)
    assert settled != before
    rewritten(small_gpt2, **{"transformer.ln_f.bias": torch.zeros(16)})
    assert published_digest(small_gpt2) not in (before, settled)
