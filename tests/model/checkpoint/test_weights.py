"""Saved weights are restored bit for bit, or not at all."""

from pathlib import Path
from typing import Any

import pytest
import torch

from model.checkpoint.weights import describe_model, load_model, save_model
from model.config.network import GPTConfig
from model.errors import InputError, IntegrityError
from model.inference.scoring import choice_log_probabilities
from model.nn.gpt import GPT
from tests.model.inference.reference import continuation_log_probabilities, generate_tokens

CONFIG = GPTConfig(vocab_size=30, context=16, layers=2, heads=2, width=16)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[GPT, Path]:
    network = GPT(CONFIG).initialise(3)
    save_model(tmp_path, CONFIG, network.state_dict(), {"tokenizer_digest": "abc"})
    return network, tmp_path


def test_a_model_comes_back_with_the_same_logits(saved: tuple[GPT, Path]) -> None:
    network, folder = saved
    tokens = torch.arange(16)[None]
    assert torch.equal(load_model(folder, "abc")(tokens), network(tokens))
    assert describe_model(folder)["config"] == CONFIG.model_dump(mode="json")


@pytest.mark.parametrize(
    "choices",
    [
        {"positions": "learned", "activation": "swiglu", "norm": "rmsnorm", "tied_head": False, "dropout": 0.2},
        {"positions": "relative", "norm_position": "post", "qk_norm": "head", "biases": False},
        {"init": "t_fixup", "norm": "none", "qk_norm": "none"},
    ],
    ids=["learned", "relative", "t-fixup"],
)
def test_a_model_of_other_choices_comes_back_scores_and_writes(choices: dict[str, Any], tmp_path: Path) -> None:
    config = GPTConfig.model_validate(CONFIG.model_dump() | {"init_std": 0.3} | choices)
    network = GPT(config).initialise(3)
    save_model(tmp_path, config, network.state_dict(), {})
    loaded = load_model(tmp_path)
    tokens = torch.arange(16)[None]
    assert torch.equal(loaded(tokens), network.eval()(tokens))
    pairs = [([1, 2, 3], [4, 5]), ([1, 2, 3], [6, 7, 8])]
    together = choice_log_probabilities(loaded, [1, 2, 3], [[4, 5], [6, 7, 8]])
    assert together == pytest.approx(continuation_log_probabilities(loaded, pairs), rel=1e-4)
    written = generate_tokens(loaded, [1, 2], max_new_tokens=6, temperature=0.0)
    assert written[-1] == int(loaded(torch.tensor([[1, 2, *written[:-1]]]))[0, -1].argmax())


def test_saving_twice_writes_the_same_bytes(saved: tuple[GPT, Path], tmp_path_factory: pytest.TempPathFactory) -> None:
    _, folder = saved
    again = tmp_path_factory.mktemp("again")
    save_model(again, CONFIG, GPT(CONFIG).initialise(3).state_dict(), {"tokenizer_digest": "abc"})
    for path in folder.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()


def test_another_tokenizer_is_refused(saved: tuple[GPT, Path]) -> None:
    with pytest.raises(InputError, match="trained with the tokenizer abc, not with xyz"):
        load_model(saved[1], "xyz")


def test_one_flipped_bit_is_refused(saved: tuple[GPT, Path]) -> None:
    path = saved[1] / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="bytes changed after training"):
        load_model(saved[1])


def test_pickles_are_not_read(tmp_path: Path) -> None:
    torch.save(GPT(CONFIG).state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickles"):
        load_model(tmp_path)
