"""Fine-tuning and export as stages: reused where nothing that decides the result changed, resumed after kill -9."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from model.checkpoint.weights import save_model
from model.config.network import BERTConfig
from model.errors import InputError
from model.nn.factory import make_network
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.models.export import ExportConfig, build_export
from tasks.models.finetune import build_finetune, read_stage_config
from tasks.models.load import ModelSource, Trained, chat_template, write_vocabulary
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_sentencepiece

PROJECT = Path(__file__).parents[3]
RECORDS = [{"text": f"we smelt {'tin' if n % 2 else 'iron'} ore {n}", "label": str(n % 2)} for n in range(60)]
TASK = """
epochs = 2
threads = 1
seeds = [1, 2, 3]
[[tasks]]
name = "metals"
kind = "classification"
train = "train.jsonl"
fields = ["text"]
answer = "label"
"""
BUILD = """
import sys
from pathlib import Path
from tests.tasks.models.test_finetune_stage import built
built(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def built(home: Path, root: Path, notes: list[str] | None = None, task: str = "task.toml") -> Artifact:
    config = read_stage_config(home / task)
    context, lines = RunContext(root, run_id="run"), [] if notes is None else notes
    return build_finetune(context, ModelSource(home / "bert"), config, lines.append)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model `bert`, examples and a task file."""
    folder = tmp_path_factory.mktemp("home")
    vocabulary = VocabConfig(vocab_size=312, special_tokens=("[CLS]", "[SEP]", "[MASK]"))
    tokenizer = SentencePieceTokenizer(train_sentencepiece([record["text"] for record in RECORDS], vocabulary))
    config = BERTConfig(vocab_size=tokenizer.vocab_size, context=32, layers=1, heads=2, width=16)
    (folder / "bert").mkdir()
    weights = make_network(config).initialise(1).state_dict()
    save_model(folder / "bert", config, weights, {"tokenizer_digest": tokenizer.digest})
    write_vocabulary(folder / "bert", tokenizer)
    (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    (folder / "task.toml").write_text(TASK)
    return folder


@pytest.fixture(scope="module")
def undisturbed(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return built(home, tmp_path_factory.mktemp("undisturbed"))


def test_equal_inputs_are_reused_whatever_their_files_are_called(home: Path, undisturbed: Artifact) -> None:
    root = undisturbed.path.parents[2]
    assert built(home, root).reused
    (home / "same.jsonl").write_bytes((home / "train.jsonl").read_bytes())
    (home / "renamed.toml").write_text(TASK.replace("train.jsonl", "same.jsonl"))
    assert built(home, root, task="renamed.toml").identity == undisturbed.identity


@pytest.mark.parametrize("change", ["examples", "setting", "seed"])
def test_what_decides_the_result_makes_another_identity(
    change: str, home: Path, undisturbed: Artifact, tmp_path: Path
) -> None:
    task = {"setting": ("epochs = 2", "epochs = 1"), "seed": ("[1, 2, 3]", "[1]"), "examples": ("", "")}[change]
    (tmp_path / "bert").symlink_to(home / "bert")
    (tmp_path / "task.toml").write_text(TASK.replace(*task) if task[0] else TASK)
    lines = (home / "train.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "train.jsonl").write_text("".join(lines[1:] if change == "examples" else lines))
    assert built(tmp_path, tmp_path / "root").identity != undisturbed.identity


def test_killed_at_any_seed_it_goes_on_to_the_same_bytes(home: Path, undisturbed: Artifact, tmp_path: Path) -> None:
    root, environment = tmp_path / "root", {**os.environ, "PYTHONPATH": str(PROJECT)}
    process = subprocess.Popen([sys.executable, "-c", BUILD, str(home), str(root)], env=environment, cwd=PROJECT)
    until = time.monotonic() + 120
    while not list(root.glob("work/*/scratch/finetuned/seed-1.json")):
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < until, "the first seed is not finished after two minutes"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list(root.glob("artifacts/finetune/*"))
    notes: list[str] = []
    resumed = built(home, root, notes)
    assert any("seed 1 was trained before" in note for note in notes)
    assert "continued from the finished parts" in resumed.cause
    assert (resumed.identity, resumed.content) == (undisturbed.identity, undisturbed.content)


def test_a_fine_tuned_model_is_exported_or_refused_by_its_architecture(home: Path, undisturbed: Artifact) -> None:
    root = undisturbed.path.parents[2]
    context, plain = RunContext(root, run_id="run"), ModelSource(home / "bert")
    exported = build_export(context, plain, ExportConfig(), card=None)
    assert build_export(context, plain, ExportConfig(), card=None).reused
    other = build_export(context, plain, ExportConfig(), card="# Card\n")
    assert other.identity != exported.identity
    assert {record.name for record in other.records} - {record.name for record in exported.records} == {"README.md"}
    assert len(load_file(exported.path / "model.safetensors")) > 10


def test_a_chat_template_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_bytes(b"{{ messages }}\xff")
    with pytest.raises(InputError, match=r"chat_template\.jinja: byte 14 is not UTF-8"):
        chat_template(Trained(tmp_path, None, None, {}))  # type: ignore[arg-type]


def test_a_missing_file_of_examples_is_named(home: Path, tmp_path: Path) -> None:
    (home / "lost.toml").write_text(TASK.replace("train.jsonl", "lost.jsonl"))
    with pytest.raises(InputError, match=r"task metals: there is no file .*lost\.jsonl"):
        built(home, tmp_path, task="lost.toml")
