"""What would stop a later stage stops a run before its first one, and before it has a name."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from flows.cli import app
from flows.planning import preconditions
from flows.planning.explain import forecast_stages
from flows.planning.preconditions import check_prerequisites, start_run
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES, select_stages
from model.config.network import GPTConfig
from model.digests import digest_file
from model.errors import BessemerError, InputError, RecipeError
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_byte_level
from tests.command import invoke

NETWORK = {"context": 64, "layers": 2, "heads": 2, "width": 16}
RECIPE = """
name = "small"
budget_tokens = "40K"
[[sources]]
name = "books"
paths = ["{recipe}/books"]
weight = 1.0
[train.model]
context = 64
layers = 2
heads = 2
width = 16
"""
BASE = "vocab.base={recipe}/base.json"
OTHER = "vocab.base={recipe}/other.json"
MODEL = "train.base_model={recipe}/model"
NEW_ROWS = "train.trainable=new_rows"
SAME_SIZE = "vocab.vocab_size=300"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe, two byte-level bases of 300 pieces, and a model that was trained with the first."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.toml").write_text(RECIPE)
    (folder / "books").mkdir()
    (folder / "books" / "steel.txt").write_text("Air is blown through melted iron.\n")
    text = Path(json.decoder.__file__).read_text(encoding="utf-8")
    pieces = VocabConfig(vocab_size=300, model_type="byte_level")
    (folder / "base.json").write_bytes(train_byte_level([text], pieces))
    (folder / "other.json").write_bytes(train_byte_level([text[::-1]], pieces))
    (folder / "model").mkdir()
    network = GPTConfig.model_validate(NETWORK | {"vocab_size": 300})
    described = {"config": network.model_dump(), "tokenizer_digest": digest_file(folder / "base.json")}
    (folder / "model" / "model.json").write_text(json.dumps(described))
    (folder / "model" / "model.safetensors").write_bytes(b"not opened")
    return folder


def load(folder: Path, *settings: str) -> Recipe:
    return load_recipe(folder / "small.toml", folder / "root", settings)


REFUSED = [
    (("vocab.base={recipe}/gone.model",), InputError, r"vocab\.base: .*gone\.model does not exist", "vocab"),
    (("vocab.base={recipe}/model/model.safetensors",), InputError, "no SentencePiece model", "vocab"),
    ((BASE, "chunk.objective=masked_lm"), InputError, r"no \[CLS\], \[SEP\], \[MASK\]\. Add them", "chunk"),
    ((BASE, "chunk.objective=span_corruption"), InputError, r"0 sentinels\. Set vocab\.sentinels = 3", "chunk"),
    (("train.base_model={recipe}/gone",), InputError, r"train\.base_model: .*gone is not a folder", "train"),
    (("train.base_model={recipe}/books",), InputError, r"books has no model\.json", "train"),
    (
        (MODEL, BASE, "train.model.width=32", "train.model.layers=3"),
        RecipeError,
        r"has layers = 2, width = 16, and .* 3, 32\. Set train\.model\.layers = 2, train\.model\.width = 16, as",
        "train",
    ),
    ((MODEL, BASE, "train.model.context=128"), RecipeError, r"Set train\.model\.context = 64,", "train"),
    ((MODEL, OTHER), InputError, r"and vocab\.base is another; .* Set vocab\.base to the vocabulary that", "train"),
    ((MODEL, OTHER, "vocab.extend.ru=5"), InputError, r"and vocab\.base is another", "train"),
    ((MODEL, BASE, NEW_ROWS), RecipeError, "300 rows, and this run's vocabulary has 300", "train"),
    ((MODEL,), RecipeError, r"has 300 rows, and .* 32000 tokens, .* Set vocab\.base to the model's vocab", "train"),
    ((MODEL, NEW_ROWS), RecipeError, r"is trained anew\. Set vocab\.base to the model's vocabulary", "train"),
]


@pytest.mark.parametrize(("settings", "kind", "message", "stage"), REFUSED)
def test_what_a_stage_cannot_begin_with_is_reported_before_all_work(
    folder: Path, settings: tuple[str, ...], kind: type[BessemerError], message: str, stage: str
) -> None:
    recipe = load(folder, *settings)
    with pytest.raises(kind, match=message):
        check_prerequisites(recipe, select_stages(until=stage))
    with pytest.raises(kind, match=message):
        forecast_stages(recipe, folder / "root")
    with pytest.raises(kind, match=message):
        start_run(recipe, folder / "root", until=stage)
    assert not (folder / "root").exists()
    # A run that does not come to the stage goes on without it.
    check_prerequisites(recipe, STAGES[: STAGES.index(stage)])


@pytest.mark.parametrize(
    "settings",
    [
        (),
        (BASE,),
        (MODEL, BASE),
        (MODEL, BASE, NEW_ROWS, "vocab.extend.ru=5"),
        (MODEL, BASE, NEW_ROWS, 'vocab.special_tokens=["[X]"]'),
        (MODEL, SAME_SIZE, "train.model.dropout=0.1"),
        (MODEL, SAME_SIZE, "train.model.context=32"),
    ],
)
def test_what_can_be_begun_with_passes(folder: Path, settings: tuple[str, ...]) -> None:
    check_prerequisites(load(folder, *settings), STAGES)


def test_a_base_with_the_special_tokens_of_the_objective_passes(folder: Path) -> None:
    masked = (BASE, "chunk.objective=masked_lm", 'vocab.special_tokens=["[CLS]", "[SEP]", "[MASK]"]')
    check_prerequisites(load(folder, *masked), select_stages(until="chunk"))
    spans = (BASE, "chunk.objective=span_corruption", "vocab.sentinels=3")
    check_prerequisites(load(folder, *spans), select_stages(until="chunk"))


def test_the_vocabularies_beside_one_that_is_missing_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "byte_level.json").write_bytes((folder / "base.json").read_bytes())
    with pytest.raises(InputError, match=r"tokenizer\.model does not exist.* Its folder has byte_level\.json\."):
        check_prerequisites(load(folder, f"vocab.base={tmp_path}/tokenizer.model"), STAGES)


def test_a_damaged_description_of_a_model_is_named(folder: Path, tmp_path: Path) -> None:
    for content in ("[]", "{}", '{"config": {"width": "wide"}}', "{"):
        (tmp_path / "model.json").write_text(content)
        (tmp_path / "model.safetensors").write_bytes(b"")
        with pytest.raises(InputError, match=r"model\.json .*Take an untouched copy"):
            check_prerequisites(load(folder, f"train.base_model={tmp_path}"), STAGES)


def test_a_run_that_is_refused_has_no_name(folder: Path) -> None:
    words = ["run", str(folder / "small.toml"), "--root", str(folder / "root"), "--set", MODEL, "--set", NEW_ROWS]
    reported = CliRunner().invoke(app, words)
    assert reported.exit_code == RecipeError.exit_code
    assert "there are none" in reported.output
    assert "run 2" not in reported.output
    assert not (folder / "root" / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_device_that_is_not_there_is_reported_before_the_first_stage(folder: Path) -> None:
    recipe = load(folder, "train.device=cuda")
    check_prerequisites(recipe, select_stages(until="chunk"))
    with pytest.raises(RecipeError, match=r"train\.device is cuda"):
        check_prerequisites(recipe, select_stages())


def test_a_cluster_without_dask_is_reported_before_anything_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load(folder, "machines.address=tcp://127.0.0.1:1", "clean.machines.executor=threads")
    check_prerequisites(recipe, STAGES)
    monkeypatch.setitem(sys.modules, "distributed", None)
    check_prerequisites(recipe, select_stages(until="clean"))
    with pytest.raises(RecipeError, match=r"pip install 'bessemer\[dask\]'"):
        check_prerequisites(recipe, select_stages(until="dedup"))


def test_what_is_checked_before_a_server_is_chosen_loads_no_prefect() -> None:
    """Prefect reads the address of its server where it is imported first: imported sooner, it starts one of its own."""
    program = "import flows.planning.preconditions, sys; sys.exit('prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.usefixtures("shared_server")
def test_a_run_by_command_is_checked_once(foundry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def counted(name: str, check: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*words: Any) -> Any:
            called.append(name)
            return check(*words)

        return wrapped

    def then_end(*words: Any, **options: Any) -> None:
        start_run(*words, **options)
        raise InputError("the run has begun")

    once = ["_first_to_build", "check_first_records", "check_memory", "check_starting_points"]
    for name in once:
        monkeypatch.setattr(preconditions, name, counted(name, getattr(preconditions, name)))
    monkeypatch.setattr("flows.pretrain.start_run", then_end)
    done = invoke("run", foundry / "foundry.toml", "--root", tmp_path / "root", code=InputError.exit_code)
    assert "the run has begun" in done.stderr
    assert sorted(called) == once
