"""Models that the flow trained on real text, exported: transformers gives their logits and tokens.

Each is trained from a preset, made small, and the exported GPT is then a base that a second flow extends and goes on
from.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flows.models.load import open_trained
from tasks.models.load import Trained
from tests.command import bessemer

pytestmark = pytest.mark.prove_data

TEXT = "The sun rises in the east, and 12 plants grow."
RECIPE = """
name = "{name}"
budget_tokens = "300K"
[[sources]]
name = "text"
paths = ["{data}/{corpus}/*.jsonl.gz"]
weight = 1.0
[vocab]
{vocab}
[train]
batch_rows = 16
{base}
"""
SIZES = "context = 128\nlayers = 2\nheads = 4\nwidth = 128\nffn_width = 256"


@dataclass(frozen=True)
class Kind:
    """A network to train, its vocabulary, and the class that it goes to."""

    preset: str
    vocab: str
    class_name: str


KINDS = {
    "gpt": Kind("gpt2-small", 'vocab_size = 1000\nmodel_type = "byte_level"', "GPT2LMHeadModel"),
    "bert": Kind("bert-base", 'vocab_size = 1000\nmodel_type = "wordpiece"\nlowercase = true', "BertForPreTraining"),
    "t5": Kind("flan-t5-small", 'vocab_size = 1000\nmodel_type = "unigram"', "T5ForConditionalGeneration"),
}


def run(folder: Path, root: Path, recipe: str) -> None:
    path = folder / "recipe.toml"
    path.write_text(recipe)
    bessemer("run", path, "--root", root, "--until", "train", "--limit", "5%")


def logits(ours: Trained, theirs: Any, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Of our network and theirs, for each token of a text."""
    tokens = torch.tensor([ids])
    every = torch.ones_like(tokens, dtype=torch.bool)
    network: Any = ours.network
    if network.config.architecture == "gpt":
        return network(tokens), theirs(tokens).logits
    if network.config.architecture == "bert":
        hidden = network.hidden(tokens, torch.zeros_like(tokens), every)
        return network.masked_logits(hidden, torch.arange(len(ids))[None]), theirs(tokens).prediction_logits
    written = network.logits(network.decode(tokens, network.encode(tokens, every), every))
    return written, theirs(input_ids=tokens, decoder_input_ids=tokens).logits


@pytest.mark.parametrize("name", KINDS)
def test_a_trained_model_is_the_same_in_transformers(
    name: str, data: Path, tmp_path: Path, measured: Callable[..., None]
) -> None:
    transformers = pytest.importorskip("transformers")
    kind, root, exported = KINDS[name], tmp_path / "root", tmp_path / "exported"
    network = f'[train.model]\npreset = "{kind.preset}"\n{SIZES}'
    filled = {"name": name, "data": data, "corpus": "en_textbook_guides", "vocab": kind.vocab, "base": network}
    run(tmp_path, root, RECIPE.format(**filled))
    assert kind.class_name in bessemer("model", "export", "latest", exported, "--root", root).stdout
    ours = open_trained(root, "latest")
    ids = ours.tokenizer.encode(TEXT)
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    assert their_tokenizer(TEXT, add_special_tokens=False)["input_ids"] == ids
    theirs = getattr(transformers, kind.class_name).from_pretrained(exported).eval()
    with torch.no_grad():
        mine, others = logits(ours, theirs, ids)
    largest = float(mine.abs().max())
    difference = float((mine - others).abs().max())
    note = f"logits up to {largest:.1f}"
    measured("train", f"largest difference of {kind.class_name}'s logits", difference, at_most=1e-5, note=note)


def test_a_second_flow_goes_on_from_the_exported_model(data: Path, tmp_path: Path) -> None:
    kind, root, exported = KINDS["gpt"], tmp_path / "root", tmp_path / "exported"
    network = f'[train.model]\npreset = "{kind.preset}"\n{SIZES}'
    filled = {"name": "first", "data": data, "corpus": "en_textbook_guides", "vocab": kind.vocab, "base": network}
    run(tmp_path, root, RECIPE.format(**filled))
    bessemer("model", "export", "latest", exported, "--root", root)
    before = open_trained(root, "latest").network.state_dict()
    grown = f'base = "{exported}/tokenizer.json"\nextend = {{ ru = 300 }}'
    base = f'base_model = "{exported}"\ntrainable = "new_rows"'
    filled = {"name": "second", "data": data, "corpus": "ru_novels", "vocab": grown, "base": base}
    run(tmp_path, root, RECIPE.format(**filled))
    after = open_trained(root, "latest").network.state_dict()
    assert len(after["embedding.weight"]) == 1300
    assert [name for name in before if not torch.equal(after[name][: len(before[name])], before[name])] == []
