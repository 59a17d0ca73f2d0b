"""A published model of each family, from start to `transformers`: its vocabulary extended by Chinese and Russian, a
short training of the new rows alone and of all weights, the export, and what `transformers` makes of it.

`transformers` writes the base with random weights, under the keys of the family's published `config.json`, with a
vocabulary of its kind that is trained here. Sizes are shrunk.
"""

import json
import random
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import processors
from typer.testing import CliRunner

from flows.cli import app
from flows.models.load import open_trained
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from tasks.artifacts.artifact import Artifact
from tasks.models.load import Trained
from tasks.vocab.output import fast_tokenizer
from tests.model.huggingface.test_families import LLAMA3
from tests.tasks.vocab.test_families import llama2, llama3, olmo2, qwen, smollm2
from tests.tasks.vocab.test_fast import released

transformers = pytest.importorskip("transformers")

NEW = 48
"""Rows added for each of the two languages."""
STEPS, ROWS, CONTEXT = 6, 4, 64
RATE = 1e-3
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}
CLOSE = {"rtol": 0.0, "atol": 1e-5}
ENGLISH = "air iron steel carbon furnace converter blows melted minutes remains lime slag heat the through of and is by"
RUSSIAN = "воздух железо сталь углерод печь конвертер продувает плавит минут остаётся известь шлак тепло через и под"
CHINESE = "空气 铁水 钢铁 碳素 高炉 转炉 吹炼 熔化 分钟 剩下 石灰 炉渣 热量 通过 以及 温度 氧气 工人 生产 质量"
MIXED = [
    "The converter makes steel: 转炉吹炼钢铁，温度很高。 Конвертер продувает воздух 12 минут!",
    "  two  blanks\tand\n\nlines\r\n    def f(x):\n        return x  # 返回",
    "Ёж, naïve café, 日本語の文章, العربية, 👍🏽 2025 год — 3.14 и 1,000,000",
    "<|endoftext|> [MASK] </s> <s> are text here",
    "",
]
CHATS = "{% for message in messages %}{{ message['content'] + eos_token }}{% endfor %}"
RECIPE = """
name = "family"
budget_tokens = {tokens}
max_epochs = 16
[[sources]]
name = "old"
paths = ["{recipe}/old.jsonl"]
weight = 0.4
language = "en"
[[sources]]
name = "new"
paths = ["{recipe}/new.jsonl"]
weight = 0.6
[clean]
preset = "minimal"
[vocab]
extend = {{ zh = {rows}, ru = {rows} }}
[train]
base_model = "{{base}}"
trainable = "{trainable}"
batch_rows = {batch}
micro_batch_rows = {batch}
threads = 1
[train.schedule]
peak_lr = {rate}
"""


def with_begin(tokenizer: tokenizers.Tokenizer, begin: str) -> tokenizers.Tokenizer:
    """Return the tokenizer with the token that Llama's puts before a text where special tokens are asked for."""
    tokenizer.add_special_tokens([begin])
    number = tokenizer.token_to_id(begin)
    tokenizer.post_processor = processors.TemplateProcessing(f"{begin} $A", special_tokens=[(begin, number)])
    return tokenizer


def with_end(tokenizer: tokenizers.Tokenizer, end: str) -> tokenizers.Tokenizer:
    tokenizer.add_special_tokens([end])
    return tokenizer


@dataclass(frozen=True)
class Base:
    """A released model: its class, what its `config.json` says besides sizes, and its vocabulary."""

    kind: str
    tokenizer: Callable[[], tokenizers.Tokenizer | bytes]
    """A `tokenizer.json`, or SentencePiece's own file."""
    settings: dict[str, Any] = field(default_factory=dict)
    spare_rows: int = 0
    """Rows that the tables have beyond the vocabulary."""
    shard: str = "50GB"


BASES = {
    "Llama 2 7B": Base("Llama", released, {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "TinyLlama": Base("Llama", lambda: with_begin(llama2(older=True), "<s>"), {"rms_norm_eps": 1e-5}),
    "Llama 3 8B": Base(
        "Llama",
        lambda: with_begin(llama3(), "<|begin_of_text|>"),
        {"rms_norm_eps": 1e-5, "rope_theta": 500_000.0},
        shard="40KB",
    ),
    "Llama 3.2 1B": Base(
        "Llama",
        lambda: with_end(with_begin(llama3(), "<|begin_of_text|>"), "<|end_of_text|>"),
        {"tie_word_embeddings": True, "rope_theta": 500_000.0, "rope_scaling": LLAMA3, "head_dim": 16},
    ),
    "SmolLM2 135M": Base("Llama", smollm2, {"tie_word_embeddings": True, "rope_theta": 100_000.0}),
    "Mistral 7B 0.1": Base("Mistral", lambda: llama2(older=False), {"sliding_window": 24, "rms_norm_eps": 1e-5}),
    "Mistral 7B 0.3": Base("Mistral", released, {"sliding_window": None, "rope_theta": 1e6}),
    "Qwen2 0.5B": Base("Qwen2", qwen, {"tie_word_embeddings": True, "rope_theta": 1e6}, spare_rows=9),
    "Qwen2.5 7B": Base("Qwen2", qwen, {"rope_theta": 1e6}, spare_rows=12, shard="40KB"),
    "Qwen3 0.6B": Base("Qwen3", qwen, {"head_dim": 16, "tie_word_embeddings": True, "rope_theta": 1e6}, spare_rows=5),
    "OLMo 2 1B": Base("Olmo2", olmo2, {"num_key_value_heads": 4, "rope_theta": 500_000.0}, spare_rows=7),
}
QUICK = ("Mistral 7B 0.1", "Qwen2.5 7B")


def write_base(base: Base, folder: Path) -> str:
    """Write weights and vocabulary as published; return the name of the vocabulary's file."""
    folder.mkdir()
    content = base.tokenizer()
    if isinstance(content, bytes):
        name, engine = "tokenizer.model", tokenizers.Tokenizer.from_buffer(fast_tokenizer(content))
        (folder / name).write_bytes(content)
    else:
        name, engine = "tokenizer.json", content
        engine.save(str(folder / name))
    rows = engine.get_vocab_size() + base.spare_rows
    config = getattr(transformers, f"{base.kind}Config")(**{**SIZES, "vocab_size": rows, **base.settings})
    torch.manual_seed(4)
    network = getattr(transformers, f"{base.kind}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    network.save_pretrained(folder, max_shard_size=base.shard)
    (folder / "chat_template.jinja").write_text(CHATS)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "eos_token_id": [1, 2]}))
    return name


def write_texts(folder: Path) -> None:
    """Write texts of drawn words: English, and Russian and Chinese."""
    draw = random.Random(3)

    def sentence(words: str, blank: str, end: str) -> str:
        chosen = draw.choices(words.split(), k=draw.randrange(6, 14))
        return blank.join(chosen).capitalize() + end

    def text(*styles: tuple[str, str, str]) -> str:
        return "\n".join(sentence(*styles[number % len(styles)]) for number in range(24))

    english, russian, chinese = (ENGLISH, " ", "."), (RUSSIAN, " ", "."), (CHINESE, "", "。")
    for name, styles in (("old", [english]), ("new", [russian, chinese])):
        lines = [json.dumps({"text": text(*styles)}) for _ in range(60)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))


def recipe_of(trainable: str, home: Path) -> Recipe:
    settings = {
        "tokens": STEPS * ROWS * CONTEXT,
        "rows": NEW,
        "trainable": trainable,
        "batch": ROWS,
        "rate": RATE,
        "recipe": home,
    }
    path = home / f"{trainable}.toml"
    path.write_text(RECIPE.format(**settings).replace("{base}", str(home / "base")))
    return load_recipe(path, home / "root")


def exported(model: Path, folder: Path) -> tuple[Any, Any]:
    """Return what `transformers` loads of the exported model: network and tokenizer."""
    done = CliRunner().invoke(app, ["model", "export", str(model), str(folder), "--root", str(folder.parent / "root")])
    assert done.exit_code == 0, done.output
    network, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return network.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def check_tokenizer(ours: Trained, theirs: Any, base: tokenizers.Tokenizer, new: int) -> None:
    """Assert that both give the same ids, that they write the new languages in new tokens, and that English has the
    ids of the base."""
    # A text that contains the name of a special token is text here.
    for text in map(unicodedata.normalize, ["NFC"] * len(MIXED), MIXED):
        ids = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ids == ours.tokenizer.encode(text)
        assert theirs.decode(ids) == text
    begin = [ours.tokenizer.begin] if ours.tokenizer.begin >= 0 else []
    assert theirs(ENGLISH)["input_ids"] == begin + ours.tokenizer.encode(ENGLISH)
    assert max(ours.tokenizer.encode(MIXED[0])) >= new
    for text in (ENGLISH, MIXED[1].partition("#")[0].strip()):
        assert ours.tokenizer.encode(text) == base.encode(text, add_special_tokens=False).ids


@pytest.mark.usefixtures("forked_trainers")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.prove_families) for name in BASES],
)
def test_a_base_is_extended_trained_and_exported(
    name: str, tmp_path: Path, build: Callable[[str, Recipe, Path], dict[str, Artifact]]
) -> None:
    base = BASES[name]
    file = write_base(base, tmp_path / "base")
    write_texts(tmp_path)
    before, root = open_trained(tmp_path, str(tmp_path / "base")), tmp_path / "root"
    old_rows, weights = before.network.config.vocab_size, before.network.state_dict()
    released_file = tmp_path / "base" / file
    content = released_file.read_bytes()
    engine = tokenizers.Tokenizer.from_buffer(content if file.endswith("json") else fast_tokenizer(content))
    for trainable in ("new_rows", "all"):
        model = build("train", recipe_of(trainable, tmp_path), root)["train"]
        theirs, their_tokenizer = exported(model.path, tmp_path / f"exported-{trainable}")
        assert type(theirs).__name__ == f"{base.kind}ForCausalLM" or base.settings.get("sliding_window", 1) is None
        ours = open_trained(root, str(model.path))
        tokens = torch.tensor([ours.tokenizer.encode(MIXED[0])[:CONTEXT]])
        network: Any = ours.network
        with torch.no_grad():
            torch.testing.assert_close(theirs(tokens).logits, network(tokens), **CLOSE)
        check_tokenizer(ours, their_tokenizer, engine, old_rows)
        assert (their_tokenizer.chat_template, theirs.generation_config.eos_token_id) == (CHATS, [1, 2])
        after = ours.network.state_dict()
        assert after["embedding.weight"].shape[0] >= old_rows + 2 * NEW
        changed = [key for key in weights if not torch.equal(after[key][: len(weights[key])], weights[key])]
        assert changed == ([] if trainable == "new_rows" else [*weights])
