"""What plans say that training takes, and runs that are refused because it cannot be there."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from flows.cli import app
from flows.planning.calculator import PlanOptions, calculate, estimate_training
from flows.planning.cost_model import (
    Training,
    find_accelerator,
    layouts,
    memory_bound,
    memory_by_layout,
    network_of,
    recipe_memory,
)
from flows.planning.preconditions import check_memory, check_prerequisites, start_run
from flows.planning.terminal import print_training
from flows.recipe.load import find_recipe, load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES, select_stages
from model.config import machine
from model.config.network import GPTConfig
from model.config.train import TrainConfig
from model.engines.dry_layout import dry_layout
from model.engines.memory import rank_memory
from model.errors import RecipeError
from model.nn.factory import active_parameter_count

SMALL = ("budget_tokens=6K", "train.threads=1")


@pytest.fixture
def recipe(foundry: Path, tmp_path: Path) -> Recipe:
    return load_recipe(foundry / "foundry.toml", tmp_path / "root")


@pytest.fixture
def machine_of(monkeypatch: pytest.MonkeyPatch):
    def made(size: float) -> None:
        monkeypatch.setattr(machine, "machine_memory", lambda: int(size))

    return made


def changed(recipe: Recipe, **settings: object) -> Recipe:
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=settings)})


def test_13b_parameters_under_zero_1_take_122_gb_of_each_of_8_devices():
    """4 + 4 + 12 / 8 bytes each: weights and gradients in float32, and an eighth of moments and DeepSpeed's copy."""
    memory = calculate(PlanOptions(hardware="h100", devices=8, parameters=12.85e9, tokens=300e9))["memory"]
    assert memory["ZeRO-1"].at_least == pytest.approx(9.5 * 12.85e9, rel=1e-3)
    assert memory["ZeRO-2"].at_least == pytest.approx((4 + 20 / 8) * 12.85e9, rel=1e-3)
    assert memory["native"].at_least == pytest.approx(20 * 12.85e9, rel=1e-3)  # and the vector of gradients
    # Each rank begins with the whole network.
    assert memory["ZeRO-3"].at_least == pytest.approx(4 * 12.85e9, rel=1e-3)
    assert all(layout.total is None for layout in memory.values()), "without a network activations are unknown"


def test_a_recipe_s_plan_has_its_activations(recipe: Recipe):
    train = recipe.train.trainer_config()
    reported = memory_by_layout(network_of(recipe), train, 1.0, 1)
    assert list(reported) == ["native", "ZeRO-1", "ZeRO-2", "ZeRO-3"]
    assert reported["native"].total == rank_memory(network_of(recipe), train).total
    assert reported["native"].activations > 0


def test_layouts_that_the_trainer_has_not_are_not_reported(recipe: Recipe):
    lamb = recipe.train.trainer_config().model_copy(
        update={"optimizer": recipe.train.optimizer.model_copy(update={"kind": "lamb"})}
    )
    assert list(layouts(lamb, 8)) == ["native"]
    cut = TrainConfig(ranks=4, tensor_parallel=2, pipeline_parallel=2)
    (name,) = layouts(cut, 8)
    reported = memory_by_layout(network_of(recipe), cut, 1.0, 8)[name]
    assert name == "tensor 2 x pipeline 2"
    assert reported.total == dry_layout(network_of(recipe), cut).fullest.peak
    assert reported.activations > 0


def test_a_training_that_cannot_fit_is_refused_before_anything_is_built(recipe: Recipe, tmp_path: Path, machine_of):
    memory = recipe_memory(recipe)
    assert memory.total is not None
    machine_of(memory.total)
    check_prerequisites(recipe, STAGES)
    machine_of(memory.total - 1)
    with pytest.raises(RecipeError, match=r"at least .* this machine has .* weights .* \+ gradients .* \+ optimizer "):
        start_run(recipe, tmp_path / "root")
    assert not (tmp_path / "root").exists()
    check_prerequisites(recipe, select_stages(until="chunk"))
    # Ranks of one machine share it; those of two have two.
    four = changed(recipe, ranks=4, batch_rows=16, micro_batch_rows=4)
    machine_of(4 * (recipe_memory(four).total or 0) - 1)
    with pytest.raises(RecipeError, match="4 ranks take"):
        check_memory(four)
    hosts = four.train.hosts.model_copy(update={"count": 2, "address": "127.0.0.1:1"})
    check_memory(changed(four, hosts=hosts))


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("train.micro_batch_rows=1", "train.model.width=8", "train.model.heads=1", "train.model.layers=1"),
        ("train.model.experts=8", "train.model.experts_per_token=4"),
        ("train.model.heads=32", "train.model.head_size=64", "train.model.kv_heads=4"),
        ("train.model.attention=prefix", "train.model.dropout=0.1", "train.model.z_loss=0.1"),
        ("train.recompute=true", "train.optimizer.kind=lamb"),
        ("train.optimizer.kind=muon",),
        ("train.dtype=bfloat16",),
        ("train.dtype=float16", "train.engine=fsdp", "train.ranks=2", "train.micro_batch_rows=4"),
        *(
            ("train.engine=deepspeed", f"train.zero_stage={stage}", "train.ranks=2", "train.micro_batch_rows=4")
            for stage in (1, 3)
        ),
        ("train.tensor_parallel=2", "train.pipeline_parallel=2", "train.ranks=4", "train.micro_batch_rows=2"),
        ("train.model.architecture=t5", "chunk.objective=span_corruption", "vocab.sentinels=20"),
    ],
    ids=" ".join,
)
def test_the_bound_without_pytorch_is_above_what_is_counted(settings: tuple[str, ...], foundry: Path, tmp_path: Path):
    recipe = load_recipe(foundry / "foundry.toml", tmp_path / "root", settings)
    counted = recipe_memory(recipe)
    assert memory_bound(recipe) > (counted.total or counted.at_least)


def test_the_size_of_a_micro_batch_that_fits_is_named(recipe: Recipe, machine_of):
    one, four = (changed(recipe, batch_rows=8, micro_batch_rows=rows) for rows in (1, 4))
    machine_of(recipe_memory(one).total or 0)
    check_memory(one)
    with pytest.raises(RecipeError, match=r"Set train.micro_batch_rows = 1, which fits; `bessemer estimate`"):
        check_memory(four)


def test_gpt3_is_refused_by_the_command(tmp_path: Path):
    for source in ("common_crawl", "webtext2", "books1", "books2", "wikipedia"):
        folder = tmp_path / "corpora" / source
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text("Paths are checked before memory, which needs PyTorch.")
    data = f"variables.data={tmp_path / 'corpora'}"
    asked = ["run", "gpt3", "--root", str(tmp_path / "root"), "--set", "train.device=cpu", "--set", data]
    reported = CliRunner().invoke(app, asked)
    assert reported.exit_code == RecipeError.exit_code
    # 800 ranks, each of which initialises the network that ZeRO-3 then shards.
    assert "698.4 GB of weights, which each rank initialises whole" in " ".join(reported.output.split())
    assert not (tmp_path / "root").exists()


def test_what_is_unknown_refuses_by_what_is_known(recipe: Recipe, machine_of):
    compiled = changed(recipe, compile=True)
    memory = recipe_memory(compiled)
    assert memory.total is None
    machine_of(memory.at_least)
    check_memory(compiled)
    machine_of(memory.at_least - 1)
    with pytest.raises(RecipeError, match="activations are added to this"):
        check_memory(compiled)


def test_rows_at_once_that_the_machine_chooses_are_counted_as_one(recipe: Recipe):
    one = recipe_memory(changed(recipe, micro_batch_rows=1)).total
    assert recipe_memory(changed(recipe, micro_batch_rows="auto")).total == one


def test_a_device_is_asked_for_its_memory(recipe: Recipe, monkeypatch: pytest.MonkeyPatch):
    cuda = changed(recipe, device="cuda")
    memory = {"total_memory": int(recipe_memory(cuda).at_least) - 1}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("Device", (), memory))
    with pytest.raises(RecipeError, match="the device has"):
        check_memory(cuda)


@pytest.mark.usefixtures("forked_trainers")
def test_a_model_that_exists_needs_no_memory(foundry: Path, tmp_path: Path, build, machine_of):
    root = tmp_path / "root"
    recipe = load_recipe(foundry / "foundry.toml", root, SMALL)
    machine_of(1)
    with pytest.raises(RecipeError, match="at least"):
        check_prerequisites(recipe, STAGES, root)
    build("train", recipe, root)
    check_prerequisites(recipe, STAGES, root)
    program = (
        "import sys; from pathlib import Path; from flows.recipe.load import load_recipe;"
        " from flows.recipe.stages import STAGES; from flows.planning.preconditions import check_prerequisites;"
        " recipe, root = map(Path, sys.argv[1:3]);"
        " check_prerequisites(load_recipe(recipe, root, sys.argv[3:]), STAGES, root); sys.exit('torch' in sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program, foundry / "foundry.toml", root, *SMALL], check=False)
    assert loaded.returncode == 0, "PyTorch is loaded only for a model that is to be built"
    with pytest.raises(RecipeError, match="at least"):
        check_prerequisites(changed(recipe, seed=2), STAGES, root)
    with pytest.raises(RecipeError, match="at least"):
        check_prerequisites(recipe, STAGES, root, force=True)


def test_shipped_recipes_that_a_laptop_trains_are_not_refused(tmp_path: Path, machine_of):
    machine_of(8e9)
    for name in ("quickstart", "multilingual"):
        check_memory(load_recipe(find_recipe(name), tmp_path))


def test_a_mixture_of_experts_costs_the_work_of_few_and_the_memory_of_all() -> None:
    sizes = {"vocab_size": 512, "context": 64, "layers": 2, "heads": 2, "width": 64}
    few, many = (GPTConfig.model_validate({**sizes, "ffn_width": 96, "experts": count}) for count in (2, 8))
    device = find_accelerator("a100")
    plans = []
    for network in (few, many):
        given = Training(device.peak_flops, 1e9, active_parameter_count(network), 1, mfu=0.4)
        plans.append(estimate_training(given, device, None, network))
    routers = 2 * 6 * 64
    matrices = 2 * 6 * 3 * 64 * 96
    assert plans[1]["parameters"] == plans[0]["parameters"] + routers
    assert plans[1]["total_parameters"] == plans[0]["total_parameters"] + routers + matrices
    assert plans[0]["total_parameters"] == plans[0]["parameters"]
    weights = [plan["memory"]["native"].weights for plan in plans]
    assert weights[1] - weights[0] == 4 * (routers + matrices)
    assert [*plans[1]["memory"]] == ["native"]
    shown = Console(file=io.StringIO(), width=120)
    print_training(plans[1], shown)
    assert "that a token uses, of" in shown.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_a_training_that_costs_little_does_not_read_as_free() -> None:
    """6 x 1e7 x 1e9 FLOPs at 40% of 312 TFLOP/s take 481 s, .13 of an hour."""
    shown = Console(file=io.StringIO(), width=120)
    print_training(calculate(PlanOptions(hardware="a100", devices=1, price=2.0, tokens=1e9, parameters=1e7)), shown)
    (line,) = [line for line in shown.file.getvalue().splitlines() if "device hours" in line]  # pyright: ignore
    assert line.split() == ["cost", "0.27", "0.13", "device", "hours", "at", "2"]
