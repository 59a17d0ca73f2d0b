"""`finetune` and `predict` through the command, on a network that was never trained."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from flows.cli import app
from flows.models.finetune import parse_fields
from model.checkpoint.weights import save_model
from model.config.network import BERTConfig, T5Config
from model.errors import InputError
from model.nn.factory import make_network
from tasks.models.load import write_vocabulary
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_sentencepiece

METALS = ["tin", "copper", "iron", "steel", "lead", "zinc", "brass", "bronze", "gold", "silver"]
RECORDS = [
    {
        "sentence": f"we smelt {METALS[n % 10]} and {METALS[(n // 10 + n + 1) % 10]}",
        "label": "hard" if n % 2 else "soft",
    }
    for n in range(80)
]
TASK = """
epochs = 1
threads = 1
[[tasks]]
name = "metals"
kind = "classification"
train = "train.jsonl"
test = "test.jsonl"
fields = ["sentence"]
answer = "label"
"""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    special = ("[CLS]", "[SEP]", "[MASK]")
    config = VocabConfig.model_validate({"vocab_size": 320, "special_tokens": special, "sentinels": 3})
    return SentencePieceTokenizer(train_sentencepiece([str(record["sentence"]) for record in RECORDS], config))


@pytest.fixture
def home(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A folder with a task, its examples, and the models `bert` and `t5`."""
    for name, kind in (("bert", BERTConfig), ("t5", T5Config)):
        config = kind.model_validate(
            {"vocab_size": tokenizer.vocab_size, "context": 32, "layers": 1, "heads": 2, "width": 16}
        )
        (tmp_path / name).mkdir()
        weights = make_network(config).initialise(1).state_dict()
        save_model(tmp_path / name, config, weights, {"tokenizer_digest": tokenizer.digest})
        write_vocabulary(tmp_path / name, tokenizer)
    for name, records in (("train", RECORDS), ("test", RECORDS[:20])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "metals.toml").write_text(TASK)
    return tmp_path


@pytest.fixture
def bessemer(home: Path) -> Callable[..., Result]:
    def call(*words: object) -> Result:
        return CliRunner().invoke(app, [*map(str, words), "--root", str(home)])

    return call


@pytest.mark.parametrize("which", ["bert", "t5"])
def test_a_model_is_taught_and_asked(home: Path, bessemer: Callable[..., Result], which: str) -> None:
    reported = bessemer("model", "finetune", home / which, "--task", home / "metals.toml")
    assert reported.exit_code == 0, reported.stderr
    folder = home / "finetuned" / "metals"
    assert "metals, test: accuracy" in reported.stdout
    assert f"written: {folder}" in reported.stdout
    assert "seed 1, epoch 1 of 1" in reported.stderr
    one = bessemer("model", "predict", folder, "--field", "sentence=we smelt tin")
    assert json.loads(one.stdout).keys() == {"sentence", "label"}
    asked = home / "asked.jsonl"
    asked.write_text('{"id": 7, "sentence": "we smelt gold and lead"}\n\n{"id": 8, "sentence": "we smelt"}\n')
    answers = [json.loads(line) for line in bessemer("model", "predict", folder, asked).stdout.splitlines()]
    assert [answer["id"] for answer in answers] == [7, 8]
    assert {answer["label"] for answer in answers} <= {"hard", "soft"}
    assert one.stderr == ""
    long = bessemer("model", "predict", folder, "--field", f"sentence={'we smelt tin ' * 20}")
    assert "longer than the model reads: 1 of 1 examples cut" in long.stderr
    (sure,) = json.loads(
        bessemer("model", "predict", folder, "--field", "sentence=we", "--probabilities", "--json").stdout
    )
    assert sure.keys() == {"sentence", "label", "label_probabilities"}
    assert sure["label_probabilities"].keys() == {"hard", "soft"}
    again = bessemer("model", "finetune", home / which, "--task", home / "metals.toml")
    assert "exists already" in again.stderr
    if which == "t5":
        words = bessemer("model", "generate", folder, "--prompt", "metals sentence: we smelt tin", "--tokens", "9")
        assert words.exit_code == 0, words.stderr


def test_an_exported_model_is_taught_like_its_original(home: Path, bessemer: Callable[..., Result]) -> None:
    for name, model in (("own", home / "t5"), ("exported", home / "out")):
        if name == "exported":
            assert bessemer("model", "export", home / "t5", model).exit_code == 0
        reported = bessemer("model", "finetune", model, "--task", home / "metals.toml", "--output", home / name)
        assert reported.exit_code == 0, reported.stderr
    own, exported = ((home / name / "model.safetensors").read_bytes() for name in ("own", "exported"))
    assert own == exported


def test_what_is_wrong_is_reported(home: Path, bessemer: Callable[..., Result]) -> None:
    bessemer("model", "finetune", home / "bert", "--task", home / "metals.toml", "--out", home / "out")
    (home / "latin.jsonl").write_bytes('{"sentence": "we smelt tin, glühend"}\n'.encode("latin-1"))
    (home / "list.jsonl").write_text('{"sentence": "we smelt tin"}\n["we smelt tin"]\n')
    cases = [
        (("model", "finetune", home / "bert", "--task", home / "none.toml"), 3, "no task file"),
        (
            ("model", "finetune", home / "t5", "--task", home / "metals.toml", "--out", home / "out"),
            3,
            "is not the result of this model",
        ),
        (("model", "predict", home / "bert", "--field", "sentence=x"), 3, "was not fine-tuned"),
        (("model", "predict", home / "out"), 3, "give a file of records"),
        (("model", "predict", home / "away", "--field", "sentence=x"), 3, "there is no folder"),
        (("model", "predict", home / "out", home / "latin.jsonl"), 3, "is damaged or no text in UTF-8"),
        (("model", "predict", home / "out", home / "list.jsonl"), 3, "list.jsonl, line 2 is no object with fields"),
        (
            ("model", "predict", home / "out", "--field", "text=x"),
            3,
            "record 1 has no sentence, only text; the model reads",
        ),
        (("model", "predict", home / "out", "--task", "other", "--field", "sentence=x"), 3, "knows the tasks metals"),
        (("model", "generate", home / "out", "--prompt", "we ___ tin"), 3, "bessemer model predict"),
    ]
    for words, code, message in cases:
        reported = bessemer(*words)
        assert (reported.exit_code, message in reported.stderr) == (code, True), reported.stderr
    for was, now, message in (
        ("epochs = 1", "epoch = 1", "epoch: unknown key; did you mean epochs?"),
        ("epochs = 1", "learning_rte = 1", "learning_rte: unknown key; did you mean learning_rate?"),
        ("epochs = 1", "answer = 'x'", "answer: unknown key; it belongs in [[tasks]]"),
        ("answer =", "anser =", "tasks.0.anser: unknown key; did you mean answer?"),
        ("answer =", "seeds = [1]\nanswer =", "tasks.0.seeds: unknown key; it belongs above the first [[tasks]]"),
        ("epochs = 1", "zzz = 1", "zzz: unknown key; known are tasks, learning_rate, epochs,"),
    ):
        (home / "metals.toml").write_text(TASK.replace(was, now))
        reported = bessemer("model", "finetune", home / "bert", "--task", home / "metals.toml")
        assert (reported.exit_code, message in reported.stderr) == (2, True), reported.stderr


def test_fields_are_text_or_lists() -> None:
    assert parse_fields(["a=b=c", 'words=["x", "y"]', "n=3", "broken=[x"]) == {
        "a": "b=c",
        "words": ["x", "y"],
        "n": "3",
        "broken": "[x",
    }
    # No JSON that Python reads: too many digits, and lists that are too deep.
    for text in ("1" * 5000, "[" * 100_000):
        assert parse_fields([f"a={text}"]) == {"a": text}
    with pytest.raises(InputError, match="NAME=TEXT"):
        parse_fields(["a"])


def test_the_help_teaches() -> None:
    reported = CliRunner().invoke(app, ["model", "finetune", "--help"]).stdout
    assert 'kind = "classification"    # regression, tagging, span; a T5 also text' in reported
