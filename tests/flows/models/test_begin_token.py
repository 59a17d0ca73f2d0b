"""Released models whose texts begin with a token (Llama, Mistral 0.1): prompts, rows of training, scores and exports
have it where `transformers` has it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import processors

from flows.models.generate import write_texts
from flows.models.load import open_trained
from flows.recipe.schema import Recipe
from model.finetune.chat_template import ChatTemplate, Message
from model.inference.generate import Sampling
from model.inference.scoring import text_nats
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables.files import read_table
from tasks.tokenizer.json_format import begin_token
from tasks.tokenizer.open import load_tokenizer, open_tokenizer
from tasks.tokenizer.released import texts_begin
from tests.flows.models.test_families import CONTEXT, Base, exported, recipe_of, with_begin, with_end, write_base
from tests.flows.models.test_families import write_texts as write_corpus
from tests.tasks.vocab.test_families import llama2, llama3, qwen
from tests.tasks.vocab.test_fast import released

transformers = pytest.importorskip("transformers")

WITH_BEGIN = {
    "Llama 3": Base("Llama", lambda: with_end(with_begin(llama3(), "<|begin_of_text|>"), "<|end_of_text|>")),
    "Llama 2 as tokenizer.json": Base("Llama", lambda: with_begin(llama2(older=True), "<s>")),
    "Llama 2 as tokenizer.model": Base("Llama", released),
}
PROMPT = "The converter blows air"


def base_folder(name: str, folder: Path) -> None:
    """Write a released model whose files say that texts begin with a token."""
    if write_base(WITH_BEGIN[name], folder) == "tokenizer.model":
        settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def greedy(network: Any, ids: list[int], tokens: int) -> list[int]:
    """Return the likeliest ids, each from a whole forward pass."""
    found = list(ids)
    for _ in range(tokens):
        with torch.no_grad():
            logits = network(torch.tensor([found])).logits
        found.append(int(logits[0, -1].argmax()))
    return found[len(ids) :]


@pytest.mark.usefixtures("forked_trainers")
@pytest.mark.parametrize("name", WITH_BEGIN)
def test_rows_prompts_scores_and_the_export_have_it(
    name: str, tmp_path: Path, build: Callable[[str, Recipe, Path], dict[str, Artifact]]
) -> None:
    base_folder(name, tmp_path / "base")
    write_corpus(tmp_path)
    artifacts = build("train", recipe_of("new_rows", tmp_path), tmp_path / "root")
    tokenizer = open_tokenizer(artifacts["vocab"])
    begin, eos = tokenizer.begin, tokenizer.eos
    assert begin >= 0
    assert begin not in (eos, tokenizer.pad)

    rows = np.concatenate(
        [
            read_table(path).column("tokens").combine_chunks().flatten().to_numpy()
            for path in artifacts["chunk"].files("sequences")
        ]
    ).reshape(-1, CONTEXT + 1)
    after_end = rows[:, 1:][rows[:, :-1] == eos]
    assert {*np.unique(after_end).tolist()} <= {begin, tokenizer.pad}, "each document begins with it"
    assert rows[0, 0] == begin
    assert np.count_nonzero(rows == begin) >= 3

    theirs, their_tokenizer = exported(artifacts["train"].path, tmp_path / "exported")
    ours = open_trained(tmp_path / "root", str(artifacts["train"].path))
    ids = their_tokenizer(PROMPT)["input_ids"]
    assert ids == [begin, *tokenizer.encode(PROMPT)]
    [[written]] = write_texts(ours, [PROMPT], Sampling(temperature=0.0), tokens=12)
    assert written.text == tokenizer.decode_following(greedy(theirs, ids, 12))
    with torch.no_grad():
        loss = float(theirs(torch.tensor([ids]), labels=torch.tensor([ids])).loss)
    [nats] = text_nats(ours.network, [ids[1:]], tokenizer.opening)  # type: ignore[arg-type]
    assert math.isclose(nats, loss * (len(ids) - 1), rel_tol=1e-4)

    again = open_trained(tmp_path / "root", str(tmp_path / "exported"))
    assert (again.tokenizer.begin, again.tokenizer.opening) == (begin, begin), "an export is a base as released"


@pytest.mark.parametrize("name", WITH_BEGIN)
def test_a_released_model_continues_a_prompt_as_transformers_does(name: str, tmp_path: Path) -> None:
    base_folder(name, tmp_path / "base")
    ours = open_trained(tmp_path, str(tmp_path / "base"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "base")
    ids = tokenizer(PROMPT)["input_ids"]
    assert ids[0] == ours.tokenizer.begin
    [[written]] = write_texts(ours, [PROMPT], Sampling(temperature=0.0), tokens=12)
    assert written.text == ours.tokenizer.decode_following(greedy(theirs, ids, 12))


def test_our_own_chat_form_begins_as_texts_of_the_vocabulary_do(tmp_path: Path) -> None:
    base_folder("Llama 3", tmp_path / "base")
    tokenizer = open_trained(tmp_path, str(tmp_path / "base")).tokenizer
    ids = ChatTemplate.own(tokenizer).prompt([Message("user", "Hi")], tokenizer)
    assert ids == [tokenizer.begin, *tokenizer.encode_following("User: Hi\nAssistant:")]


@pytest.mark.parametrize(
    ("beside", "begins"),
    [
        ({}, False),
        ({"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer"}}, True),
        ({"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}}, False),
        ({"tokenizer_config.json": {"add_bos_token": True}}, True),
        ({"tokenizer.json": {"kind": "sentencepiece", "begin": 1}}, True),
        ({"tokenizer.json": {"kind": "sentencepiece"}, "tokenizer_config.json": {"add_bos_token": True}}, False),
    ],
)
def test_files_beside_a_sentencepiece_vocabulary_say_whether_texts_begin_with_it(
    tmp_path: Path, beside: dict[str, Any], begins: bool
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"any")
    for name, content in beside.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert texts_begin(tmp_path / "tokenizer.model") is begins


def test_a_vocabulary_without_such_a_token_has_texts_after_the_end_of_the_one_before(tmp_path: Path) -> None:
    write_base(Base("Qwen2", lambda: with_end(qwen(), "<|endoftext|>")), tmp_path / "base")
    tokenizer = open_trained(tmp_path, str(tmp_path / "base")).tokenizer
    assert (tokenizer.begin, tokenizer.opening) == (-1, tokenizer.eos)


def test_a_vocabulary_that_was_described_without_it_is_used_as_it_was(tmp_path: Path) -> None:
    base_folder("Llama 3", tmp_path / "base")
    tokenizer = open_trained(tmp_path, str(tmp_path / "base")).tokenizer
    described = {key: value for key, value in tokenizer.description().items() if key != "begin"}
    model, description = tmp_path / "byte_level.json", tmp_path / "tokenizer.json"
    model.write_bytes(tokenizer.model)
    description.write_text(json.dumps(described))
    assert (tokenizer.begin >= 0, load_tokenizer(model, description).begin) == (True, -1)


def test_tokens_around_a_text_are_none_before_it() -> None:
    """BERT's and T5's post-processors close texts, and a malformed one begins nothing."""
    around = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    before = processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 1)])
    behind = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    closed = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    for processor, begin in ((around, -1), (before, 1), (behind, -1), (closed, 1)):
        engine = llama3()
        engine.post_processor = processor
        assert begin_token(json.loads(engine.to_str())) == begin
    for malformed in (
        {"single": []},
        {"single": [{"SpecialToken": {"id": "a"}}, {"Sequence": {}}], "special_tokens": {}},
    ):
        assert begin_token({"post_processor": {"type": "TemplateProcessing", **malformed}}) == -1
