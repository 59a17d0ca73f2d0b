"""Generation in batches: each text is the text that its prompt gets alone."""

from typing import Any

import pytest
import torch

from model.config.network import GPTConfig
from model.errors import InputError
from model.inference import generate
from model.inference.generate import Prompt, Sampling, generate_batch, stream_batch
from model.nn.gpt import GPT
from tests.model.inference.reference import generate_tokens, greedy_without_cache

CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "grouped queries": {"heads": 4, "kv_heads": 2},
    "window": {"window": 5, "kv_heads": 1},
    "window of upper blocks": {"window": 4, "window_from_layer": 1},
    "learned positions": {"positions": "learned", "position_offset": 2, "qk_norm": "none", "norm": "layernorm"},
    "relative positions": {"positions": "relative"},
    "relative positions with a window": {"positions": "relative", "window": 6},
    "prefix": {"attention": "prefix"},
    "dynamic scaling": {"rotary_scaling": {"kind": "dynamic", "factor": 4.0, "original_context": 8}},
    "a quarter rotates": {"rotary_share": 0.5, "parallel_residual": True, "biases": True},
}
LENGTHS = (1, 9, 3, 14, 9, 24, 2, 30)


def network_of(case: str) -> GPT:
    sizes = {"vocab_size": 40, "context": 24, "layers": 2, "heads": 2, "width": 32, "init_std": 0.4}
    return GPT(GPTConfig.model_validate(sizes | CASES[case])).initialise(3).eval()


def prompts_of(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(0, 40, (length,), generator=generator).tolist() for length in lengths]


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_of_a_batch_are_those_of_each_text_alone(case: str) -> None:
    network, prompts = network_of(case), prompts_of()
    found = generate_batch(network, [Prompt(one, Sampling(0.0)) for one in prompts], max_new_tokens=20)
    assert found == [generate_tokens(network, one, max_new_tokens=20, temperature=0.0) for one in prompts]
    # Keys in a cache keep the rotations that they had, and a prompt is a prefix at once: no pass over all tokens.
    if case not in ("dynamic scaling", "prefix"):
        for prompt, written in zip(prompts, found, strict=True):
            fits = max(0, 24 - len(prompt))
            assert written[:fits] == greedy_without_cache(network, prompt, min(20, fits))
    assert len({tuple(written) for written in found}) > 4


def test_what_memory_held_before_changes_no_token() -> None:
    """Where algorithms are deterministic, PyTorch fills new memory with NaN."""
    network, prompts = network_of("default"), [Prompt(one, Sampling(0.7, seed=1)) for one in prompts_of((3, 11, 6))]
    expected = generate_batch(network, prompts, max_new_tokens=10)
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        assert generate_batch(network, prompts, max_new_tokens=10) == expected
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = fills


@pytest.mark.parametrize("case", ["default", "dynamic scaling", "window"])
def test_logits_of_a_batch_are_those_of_a_whole_text(case: str) -> None:
    network, prompts = network_of(case), prompts_of((3, 11, 6))
    drawing = stream_batch(network, [Prompt(one, Sampling(0.0)) for one in prompts], max_new_tokens=6, alternatives=40)
    seen = [list(prompt) for prompt in prompts]
    for one in drawing:
        if case != "dynamic scaling" or len(seen[one.text]) == len(prompts[one.text]):
            expected = network(torch.tensor([seen[one.text]]))[0, -1].double().softmax(0)
            found = torch.zeros(40, dtype=torch.float64)
            found[[token for token, _ in one.likeliest]] = torch.tensor([p for _, p in one.likeliest]).double()
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
            assert one.probability == pytest.approx(float(found[one.token]))
            assert one.likeliest[0][0] == one.token
        seen[one.text].append(one.token)
    assert [len(one) for one in seen] == [9, 17, 12]


def test_a_sample_does_not_depend_on_its_batch() -> None:
    network, prompts = network_of("grouped queries"), prompts_of()
    nucleus = Sampling(1.0, 0.8, seed=4)
    batch = [Prompt(one, nucleus, sample) for one in prompts for sample in range(2)]
    found = generate_batch(network, batch, max_new_tokens=18)
    assert found == [generate_batch(network, [one], max_new_tokens=18)[0] for one in batch]
    assert found[::-1] == generate_batch(network, batch[::-1], max_new_tokens=18)
    assert found[0] != found[1]


def test_texts_that_end_make_place_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    network, prompts = network_of("default"), [Prompt(one, Sampling(0.0)) for one in prompts_of()]
    whole = generate_batch(network, prompts, max_new_tokens=20)
    stop = whole[0][7]
    ended = [written[: written.index(stop)] if stop in written else written for written in whole]
    assert len(set(map(len, ended))) > 2
    for rows in (1, 3, 64):
        monkeypatch.setattr(generate, "MOST_ROWS", rows)
        assert generate_batch(network, prompts, max_new_tokens=20, stop=stop) == ended
    monkeypatch.setattr(generate, "MOST_READ_TOKENS", 20)
    assert generate_batch(network, prompts, max_new_tokens=20, stop=stop) == ended


def test_a_text_ends_where_its_caller_says() -> None:
    network, prompts = network_of("default"), [Prompt(one, Sampling(0.0)) for one in prompts_of()]
    whole = generate_batch(network, prompts, max_new_tokens=9)
    found = generate_batch(network, prompts, max_new_tokens=9, ended=lambda text, written: len(written) > text)
    assert found == [written[: number + 1] for number, written in enumerate(whole)]
    assert generate_batch(network, prompts, max_new_tokens=0) == [[]] * len(prompts)
    assert generate_batch(network, [], max_new_tokens=3) == []
    with pytest.raises(InputError, match="at least one token"):
        stream_batch(network, [prompts[0], Prompt([], Sampling())], max_new_tokens=1)
