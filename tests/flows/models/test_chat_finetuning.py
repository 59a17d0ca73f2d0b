"""A GPT is fine-tuned on conversations by the command, answers, and is exported with its chat template."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import torch
from typer.testing import CliRunner, Result

from flows.cli import app
from flows.models.load import open_trained
from model.checkpoint.weights import save_model
from model.config.network import GPTConfig
from model.finetune.chat_template import Message
from model.huggingface.io import export_network
from model.inference.generate import Prompt, Sampling, generate_batch
from model.nn.factory import make_network
from model.nn.gpt import GPT
from tasks.models.load import chat_template, write_vocabulary
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_sentencepiece

METALS = ["tin", "copper", "iron", "steel", "lead", "zinc", "brass", "bronze", "gold", "silver"]
PAIRS = [(f"Where is {name}?", f"{name} is in box {number}.") for number, name in enumerate(METALS)]
TASK = """
epochs = 150
threads = 1
batch_size = 5
learning_rate = 0.004
[[tasks]]
name = "boxes"
kind = "chat"
train = "train.jsonl"
development = "train.jsonl"
"""
CHATML = (
    "{% for message in messages %}{{ '<s>' + message['role'] + ': ' + message['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant:' }}{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [f"User: {asked}\nAssistant: {answer}" for asked, answer in PAIRS]
    return SentencePieceTokenizer(train_sentencepiece(texts, VocabConfig(vocab_size=330)))


@pytest.fixture(scope="module")
def home(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model `gpt`, conversations, a task, and the model that learnt it."""
    folder = tmp_path_factory.mktemp("home")
    config = GPTConfig(vocab_size=tokenizer.vocab_size, context=64, layers=2, heads=2, kv_heads=1, width=64)
    (folder / "gpt").mkdir()
    weights = make_network(config).initialise(1).state_dict()
    save_model(folder / "gpt", config, weights, {"tokenizer_digest": tokenizer.digest})
    write_vocabulary(folder / "gpt", tokenizer)
    records = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
        for asked, answer in PAIRS
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "boxes.toml").write_text(TASK)
    reported = bessemer(folder)("model", "finetune", folder / "gpt", "--task", folder / "boxes.toml")
    assert reported.exit_code == 0, reported.stderr
    assert "boxes, held-out examples" in reported.stdout
    return folder


def bessemer(home: Path) -> Callable[..., Result]:
    def call(*words: object) -> Result:
        return CliRunner().invoke(app, [*map(str, words), "--root", str(home)])

    return call


def test_it_answers_through_predict(home: Path) -> None:
    asked = [{"messages": [{"role": "user", "content": question}]} for question, _ in PAIRS]
    (home / "asked.jsonl").write_text("".join(json.dumps(record) + "\n" for record in asked))
    reported = bessemer(home)("model", "predict", home / "finetuned" / "boxes", home / "asked.jsonl")
    assert reported.exit_code == 0, reported.stderr
    assert [json.loads(line)["answer"] for line in reported.stdout.splitlines()] == [answer for _, answer in PAIRS]


def test_the_exported_model_answers_in_transformers(home: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    exported = tmp_path / "exported"
    reported = bessemer(home)("model", "export", home / "finetuned" / "boxes", exported)
    assert reported.exit_code == 0, reported.stderr
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    words = transformers.AutoTokenizer.from_pretrained(exported)
    trained = open_trained(home, str(home / "finetuned" / "boxes"))
    template = chat_template(trained)
    assert template is not None
    for question, answer in PAIRS:
        chat = [{"role": "user", "content": question}]
        ids = words.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=False)
        assert ids[0].tolist() == template.prompt([Message("user", question)], trained.tokenizer)
        found = theirs.generate(ids, max_new_tokens=30, do_sample=False)[0, ids.shape[1] :]
        assert words.decode(found, skip_special_tokens=True).strip() == answer
        both = [*chat, {"role": "assistant", "content": answer}]
        whole = template.conversation([Message("user", question), Message("assistant", answer)], trained.tokenizer)
        assert words.apply_chat_template(both, return_dict=False) == whole.ids
    # An exported folder is fine-tuned and chatted with by the same template.
    again = chat_template(open_trained(home, str(exported)))
    assert again is not None
    assert (again.source, again.eos_token) == (template.source, template.eos_token)


def test_a_published_tokenizers_template_is_used(home: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    exported = tmp_path / "exported"
    assert bessemer(home)("model", "export", home / "gpt", exported).exit_code == 0
    assert chat_template(open_trained(home, str(exported))) is None
    settings = json.loads((exported / "tokenizer_config.json").read_text())
    (exported / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": CHATML}))
    trained = open_trained(home, str(exported))
    template = chat_template(trained)
    assert template is not None
    found = template.conversation([Message("user", "tin"), Message("assistant", "iron")], trained.tokenizer)
    names = {number: name for name, number in trained.tokenizer.special_names.items()}
    special = [names[token] for token in found.ids if token in names]
    assert special == ["<s>", "</s>", "<s>", "</s>"]
    # One answer is learnt in a fifth of the steps that ten take.
    task, out = tmp_path / "one.toml", tmp_path / "tuned"
    task.write_text(TASK.replace("epochs = 150", "epochs = 60"))
    (line,) = (line for line in (home / "train.jsonl").read_text().splitlines() if PAIRS[3][0] in line)
    (tmp_path / "train.jsonl").write_text(f"{line}\n" * 5)
    reported = bessemer(home)("model", "finetune", exported, "--task", task, "--out", out)
    assert reported.exit_code == 0, reported.stderr
    tuned = open_trained(home, str(out))
    assert chat_template(tuned) == template
    prompt = Prompt(template.prompt([Message("user", PAIRS[3][0])], tuned.tokenizer), Sampling(0.0))
    assert isinstance(tuned.network, GPT)
    (ids,) = generate_batch(tuned.network, [prompt], max_new_tokens=30, stop=template.end(tuned.tokenizer))
    assert tuned.tokenizer.decode_following(ids).strip() == PAIRS[3][1]


def test_a_vocabulary_without_padding_and_template_is_enough(home: Path, tmp_path: Path) -> None:
    folder, tuned = tmp_path / "published", tmp_path / "tuned"
    folder.mkdir()
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
    )
    words.train_from_iterator([answer for _, answer in PAIRS], trainer)
    words.save(str(folder / "tokenizer.json"))
    config = GPTConfig(vocab_size=words.get_vocab_size(), context=64, layers=1, heads=2, width=32)
    export_network(folder, config, make_network(config).initialise(1).state_dict(), {})
    task = home / "short.toml"
    task.write_text(TASK.replace("epochs = 150", "epochs = 1"))
    reported = bessemer(home)("model", "finetune", folder, "--task", task, "--out", tuned)
    assert reported.exit_code == 0, reported.stderr
    assert "by words, since the model's tokenizer has no chat template" in reported.stderr
    assert open_trained(home, str(tuned)).tokenizer.pad == -1
    reported = bessemer(home)("model", "export", tuned, tmp_path / "exported")
    assert reported.exit_code == 0, reported.stderr
    settings = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert settings["eos_token_id"] == words.token_to_id("<|endoftext|>")
    assert "pad_token_id" not in settings


def test_a_gpt_that_learns_labels_is_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "mood.toml").write_text(TASK.replace('"chat"', '"classification"') + 'fields = ["a"]\nanswer = "b"\n')
    (tmp_path / "train.jsonl").write_text('{"a": "x", "b": "y"}\n{"a": "z", "b": "w"}\n')
    reported = bessemer(home)("model", "finetune", home / "gpt", "--task", tmp_path / "mood.toml")
    assert reported.exit_code == 2
    assert 'one task of kind = "chat"' in reported.stderr
