"""BERT and T5 beyond the comparison with `transformers`: initialisation, masks, size, checks."""

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from model.config.network import BERTConfig, T5Config
from model.data.row_format import RowFormat
from model.data.span_lengths import Denoising, corrupted_lengths, raw_length
from model.nn.bert import BERT
from model.nn.factory import flops_per_token
from model.nn.t5 import T5

SIZES: dict[str, Any] = {"vocab_size": 40, "layers": 2, "heads": 2, "width": 16}
TOKENS = torch.randint(3, 40, (3, 12), generator=torch.Generator().manual_seed(2))
IS_TOKEN = torch.arange(12) < torch.tensor([12, 7, 3])[:, None]
TYPES = (torch.arange(12) >= 2).long() * IS_TOKEN
POSITIONS = torch.tensor([[1, 4, 9], [0, 6, 0], [2, 0, 0]])


def bert(**choices: Any) -> BERT:
    return BERT(BERTConfig.model_validate(SIZES | {"context": 16} | choices)).initialise(1).eval()


def t5(**choices: Any) -> T5:
    return T5(T5Config.model_validate(SIZES | choices)).initialise(1).eval()


def t5_logits(network: T5, inputs: torch.Tensor, decoder_inputs: torch.Tensor) -> torch.Tensor:
    return network.logits(network.decode(decoder_inputs, network.encode(inputs, IS_TOKEN), IS_TOKEN))


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_bert_sees_both_ways_and_no_padding(norm_position: str) -> None:
    network = bert(norm_position=norm_position, init_std=0.3)
    before = network.hidden(TOKENS, TYPES, IS_TOKEN)
    in_padding, in_text = TOKENS.clone(), TOKENS.clone()
    in_padding[1, 9] = 39 - in_padding[1, 9]
    in_text[1, 6] = 42 - in_text[1, 6]
    assert torch.equal(network.hidden(in_padding, TYPES, IS_TOKEN)[IS_TOKEN], before[IS_TOKEN])
    moved = (network.hidden(in_text, TYPES, IS_TOKEN) != before).any(-1)
    assert moved[1, :7].all()
    assert not moved[[0, 2]].any()
    assert not torch.equal(network.hidden(TOKENS, 1 - TYPES, IS_TOKEN), before)


def test_t5_s_decoder_sees_what_it_wrote_and_all_that_was_read() -> None:
    network = t5()
    decoder_inputs = TOKENS[:, :9].flip(0)
    before = t5_logits(network, TOKENS, decoder_inputs)
    changed = decoder_inputs.clone()
    changed[:, 5] = 42 - changed[:, 5]
    after = t5_logits(network, TOKENS, changed)
    assert torch.equal(after[:, :5], before[:, :5])
    assert not torch.isclose(after[:, 5:], before[:, 5:]).all(-1).any()
    in_padding, in_text = TOKENS.clone(), TOKENS.clone()
    in_padding[2, 3] = 42 - in_padding[2, 3]
    in_text[2, 2] = 42 - in_text[2, 2]
    assert torch.equal(t5_logits(network, in_padding, decoder_inputs), before)
    assert not torch.isclose(t5_logits(network, in_text, decoder_inputs)[2], before[2]).all(-1).any()


@pytest.mark.parametrize("choices", [{}, {"activation": "geglu_tanh", "tied_head": False, "head_size": 6}])
def test_t5_starts_with_the_deviations_of_its_program_and_learns_everywhere(choices: dict[str, Any]) -> None:
    network = T5(T5Config.model_validate(SIZES | {"width": 64} | choices)).initialise(1)
    assert torch.equal(network.embedding.weight, T5(network.config).initialise(1).embedding.weight)
    nats = F.cross_entropy(t5_logits(network, TOKENS, TOKENS).flatten(0, 1), TOKENS.roll(1, 1).flatten())
    if network.head is not None:
        # Logits of deviation 1 cost half a nat. A tied head starts sure that the token just read comes again, as T5's.
        assert float(nats.detach()) == pytest.approx(math.log(40) + 0.5, abs=0.4)
    nats.backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []
    block = network.decoder_blocks[1]
    query, key = block.attention_query.weight.detach(), block.attention_key.weight.detach()
    assert float(key.std()) == pytest.approx(64**-0.5, rel=0.1)
    assert float(query.std() / key.std()) == pytest.approx((network.config.head_size or 32) ** -0.5, rel=0.1)


def test_bert_starts_as_surprised_as_a_uniform_guess_and_learns_everywhere() -> None:
    network = bert()
    ranges: list[torch.Tensor] = []
    hidden = network.hidden(TOKENS, TYPES, IS_TOKEN, ranges)
    masked = F.cross_entropy(network.masked_logits(hidden, POSITIONS).flatten(0, 1), POSITIONS.flatten())
    following = F.cross_entropy(network.next_logits(hidden), torch.tensor([0, 1, 1]))
    assert float(masked.detach()) == pytest.approx(math.log(40), abs=0.1)
    assert float(following.detach()) == pytest.approx(math.log(2), abs=0.1)
    (masked + following).backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []
    assert len(ranges) == 5
    assert ranges[-1].tolist() == [-float(hidden.detach().min()), float(hidden.detach().max())]


def test_the_head_reads_the_positions_asked_for() -> None:
    network = bert(init_std=0.3)
    hidden = network.hidden(TOKENS, TYPES, IS_TOKEN)
    everywhere = network.masked_logits(hidden, torch.arange(12).expand(3, -1))
    some = network.masked_logits(hidden, POSITIONS)
    torch.testing.assert_close(some[0, 2], everywhere[0, 9], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(some[1, 1], everywhere[1, 6], rtol=1e-4, atol=1e-5)
    alone = network.masked_logits(hidden[:1, 9:10], torch.zeros(1, 1, dtype=torch.long))
    torch.testing.assert_close(some[0, 2], alone[0, 0], rtol=1e-4, atol=1e-5)


def test_dropout_is_off_where_nothing_is_trained() -> None:
    dropped, plain = bert(dropout=0.5), bert()
    assert torch.equal(dropped.hidden(TOKENS, TYPES, IS_TOKEN), plain.hidden(TOKENS, TYPES, IS_TOKEN))
    written = t5(dropout=0.5)
    assert torch.equal(t5_logits(written, TOKENS, TOKENS), t5_logits(t5(), TOKENS, TOKENS))
    written.train()
    assert not torch.equal(t5_logits(written, TOKENS, TOKENS), t5_logits(written, TOKENS, TOKENS))


BASE = {"layers": 12, "heads": 12, "width": 768}
LARGE = {"layers": 24, "heads": 16, "width": 1024}


@pytest.mark.parametrize(("sizes", "millions"), [(BASE, 110), (LARGE, 336)])
def test_bert_has_as_many_parameters_as_published(sizes: dict[str, int], millions: int) -> None:
    """Devlin et al. 2019 give 110M and 340M; their README 336M of the latter, counted without its heads."""
    with torch.device("meta"):
        network = BERT(BERTConfig(vocab_size=30522, context=512, **sizes))
    heads = sum(p.numel() for name, p in network.named_parameters() if "head" in name)
    assert sum(p.numel() for p in network.parameters()) - heads == pytest.approx(millions * 1e6, rel=0.02)


@pytest.mark.parametrize(
    ("first", "sizes", "millions"),
    [
        (True, {"layers": 6, "heads": 8, "head_size": 64, "width": 512, "ffn_width": 2048}, 60),
        (True, {"layers": 12, "heads": 12, "head_size": 64, "width": 768, "ffn_width": 3072}, 220),
        (True, {"layers": 24, "heads": 16, "head_size": 64, "width": 1024, "ffn_width": 4096}, 770),
        (True, {"layers": 24, "heads": 128, "head_size": 128, "width": 1024, "ffn_width": 65536}, 11_000),
        # T5 v1.1 and Flan-T5 (Chung et al. 2022, table 2): 80M, 250M, 780M, 3B, 11B.
        (False, {"layers": 8, "heads": 6, "head_size": 64, "width": 512, "ffn_width": 1024}, 77),
        (False, {"layers": 12, "heads": 12, "head_size": 64, "width": 768, "ffn_width": 2048}, 250),
        (False, {"layers": 24, "heads": 16, "head_size": 64, "width": 1024, "ffn_width": 2816}, 780),
    ],
)
def test_t5_has_as_many_parameters_as_published(first: bool, sizes: dict[str, int], millions: int) -> None:
    """Raffel et al. 2020, section 3.1.1 and table 14 (their 3B and 11B are 2.8 and 11.3 billion)."""
    activation = "relu" if first else "geglu_tanh"
    with torch.device("meta"):
        network = T5(T5Config(vocab_size=32128, activation=activation, tied_head=first, **sizes))
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(millions * 1e6, rel=0.05)


def test_heads_divide_the_width_or_have_a_size_of_their_own() -> None:
    with pytest.raises(ValidationError, match="Choose width 18"):
        BERTConfig(width=17, heads=3)
    with pytest.raises(ValidationError, match="Choose width 18"):
        T5Config(width=17, heads=3)
    assert T5Config(width=17, heads=3, head_size=4).block(decoder=False).head_size == 4


@pytest.mark.parametrize("kind", ["random_spans", "iid_drop", "bert_style", "language_model"])
def test_a_t5_s_arithmetic_is_that_of_its_matrices_for_inputs_and_targets(kind: Denoising) -> None:
    """Counted by PyTorch over a forward pass; the backward one takes twice as much."""
    config = T5Config(vocab_size=400, context=64, layers=2, heads=2, width=32)
    rows = RowFormat(objective="span_corruption", tokenizer_digest="t", vocab_size=400, eos=1, pad=0, denoising=kind)
    raw = raw_length(64, kind=kind)
    lengths = corrupted_lengths(raw, kind=kind)
    network, inputs = T5(config), torch.ones(1, lengths.inputs, dtype=torch.int64)
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        encoded = network.encode(inputs, inputs == 1)
        network.logits(network.decode(torch.ones(1, lengths.targets, dtype=torch.int64), encoded, inputs == 1))
    assert flops_per_token(config, rows) * raw == pytest.approx(3 * counted.get_total_flops(), rel=1e-6)
    assert (flops_per_token(config, rows) == flops_per_token(config)) == (kind == "random_spans")
