"""Bits per byte of released weights: by hand where all tokens are equally likely, else beside a single pass."""

import math
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from flows.models.tokenizers import compare_tokenizers, weights_next_to, zero_step
from model.checkpoint.weights import save_model
from model.config.network import BERTConfig, GPTConfig
from model.errors import InputError
from model.inference.scoring import window_borders
from model.nn.factory import make_network
from model.nn.gpt import GPT
from tasks.tokenizer.open import tokenizer_of
from tasks.vocab.base import prepare_base
from tasks.vocab.config import VocabConfig

TEXT = "Air is blown through melted iron. " * 20


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bytes alone, and an end-of-text token: 257 rows, a token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    engine = tokenizers.Tokenizer(models.BPE(vocab={character: n for n, character in enumerate(alphabet)}, merges=[]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens(["<|endoftext|>"])
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    engine.save(str(path))
    return path


def saved(network: Any, folder: Path, vocabulary: Path) -> Path:
    network.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(vocabulary.read_bytes())
    return folder


def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=257, max_position_embeddings=64, num_attention_heads=2, **sizes))


def test_where_all_tokens_are_equally_likely_a_byte_costs_their_logarithm(tmp_path: Path, vocabulary: Path) -> None:
    network = small_llama()
    torch.nn.init.zeros_(network.lm_head.weight)
    folder = saved(network, tmp_path / "llama", vocabulary)
    found = zero_step(folder, vocabulary, TEXT, 10_000)
    assert found["bits_per_byte"] == pytest.approx(math.log2(257), rel=1e-6)
    assert found["scored_bytes"] == len(TEXT)


def test_a_text_within_one_window_costs_what_one_pass_says(tmp_path: Path, vocabulary: Path) -> None:
    torch.manual_seed(2)
    network = GPT2LMHeadModel(GPT2Config(vocab_size=257, n_positions=64, n_embd=32, n_layer=1, n_head=2)).eval()
    folder = saved(network, tmp_path / "gpt2", vocabulary)
    engine = tokenizers.Tokenizer.from_file(str(vocabulary))
    ids = [engine.token_to_id("<|endoftext|>"), *engine.encode(TEXT[:50]).ids]
    with torch.inference_mode():
        nats = F.cross_entropy(network(torch.tensor([ids[:-1]])).logits[0], torch.tensor(ids[1:]), reduction="sum")
    found = zero_step(folder, vocabulary, TEXT, 50)
    assert found["bits_per_byte"] == pytest.approx(float(nats) / math.log(2) / 50, rel=1e-5)
    assert found["scored_bytes"] == 50


@pytest.mark.parametrize(("length", "context"), [(2, 1), (9, 8), (10, 8), (100, 8), (100, 7), (101, 1)])
def test_every_token_is_predicted_once_from_half_a_window_or_more(length: int, context: int) -> None:
    predicted = []
    tokens = list(range(length))
    for first, last, unseen in window_borders(length, context, max(1, context // 2)):
        window, new = tokens[first:last], unseen - first
        assert len(window) <= context + 1
        assert new >= min(window[new], (context + 1) // 2)
        predicted += window[new:]
    assert predicted == list(range(1, length))


def test_a_model_of_ours_needs_its_own_vocabulary(tmp_path: Path, vocabulary: Path) -> None:
    digest = tokenizer_of(prepare_base(VocabConfig(base=vocabulary))).digest
    config = GPTConfig(vocab_size=258, context=16, layers=1, heads=1, width=8)
    weights = {name: tensor.detach() for name, tensor in GPT(config).initialise(1).named_parameters()}
    weights["embedding.weight"] = torch.zeros_like(weights["embedding.weight"])
    (tmp_path / "tokenizer.json").write_bytes(vocabulary.read_bytes())
    assert weights_next_to(tmp_path / "tokenizer.json") is None
    save_model(tmp_path, config, weights, {"tokenizer_digest": digest})
    assert weights_next_to(tmp_path / "tokenizer.json") == tmp_path
    assert zero_step(tmp_path, tmp_path / "tokenizer.json", TEXT, 100)["bits_per_byte"] == pytest.approx(
        math.log2(258), rel=1e-6
    )
    save_model(tmp_path, config, weights, {"tokenizer_digest": "another"})
    with pytest.raises(InputError, match="trained with the tokenizer another"):
        zero_step(tmp_path, tmp_path / "tokenizer.json", TEXT, 100)


def test_what_predicts_no_next_token_has_no_bits_and_says_why(tmp_path: Path, vocabulary: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    folder = saved(
        BertForMaskedLM(BertConfig(vocab_size=257, num_attention_heads=1, **sizes)), tmp_path / "bert", vocabulary
    )
    found = zero_step(folder, vocabulary, TEXT, 100)
    assert (found["bits_per_byte"], found["note"]) == (None, "bert does not predict each next token")


def test_a_bert_of_ours_has_no_bits_and_says_why(tmp_path: Path, vocabulary: Path) -> None:
    digest = tokenizer_of(prepare_base(VocabConfig(base=vocabulary))).digest
    config = BERTConfig(vocab_size=258, context=16, layers=1, heads=1, width=8)
    save_model(tmp_path, config, make_network(config).initialise(1).state_dict(), {"tokenizer_digest": digest})
    found = zero_step(tmp_path, vocabulary, TEXT, 100)
    assert (found["bits_per_byte"], found["note"]) == (None, "a bert does not predict each next token")


def test_weights_with_fewer_rows_than_pieces_are_refused(tmp_path: Path, vocabulary: Path) -> None:
    network = small_llama()
    network.resize_token_embeddings(200)
    folder = saved(network, tmp_path / "llama", vocabulary)
    with pytest.raises(InputError, match="257 pieces and the model 200 rows"):
        zero_step(folder, vocabulary, TEXT, 100)


def test_bases_are_compared_with_their_weights(tmp_path: Path, vocabulary: Path) -> None:
    network = small_llama()
    torch.nn.init.zeros_(network.lm_head.weight)
    folder = saved(network, tmp_path / "llama", vocabulary)
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    with_weights, without = compare_tokenizers(text, [folder, vocabulary], 200)
    assert with_weights["bits_per_byte"] == pytest.approx(math.log2(257), rel=1e-6)
    assert with_weights["scored_bytes"] == 200
    assert (without["bits_per_byte"], without["note"]) == (None, "")
    assert [line["bits_per_byte"] for line in compare_tokenizers(text, [folder], 0)] == [None]
