"""Layouts of the papers' recipes, started dry, and the search of a layout that fits."""

import json
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flows.cli import app
from flows.planning.cost_model import find_accelerator, network_of
from flows.planning.layout_search import layout_section, search_layouts
from flows.planning.terminal import print_layouts
from flows.recipe.load import open_recipe
from model.config.accelerators import Accelerator
from model.config.network import GPTConfig
from model.config.train import TrainConfig
from model.engines.sizes import rank_sizes
from model.errors import RecipeError
from model.nn.factory import parameter_count

NETWORK = GPTConfig(vocab_size=512, context=64, layers=2, heads=2, width=128)
TRAIN = TrainConfig(batch_rows=16, micro_batch_rows=4, recompute=True)


def device_of(memory: float) -> Accelerator:
    return replace(find_accelerator("a100"), memory_bytes=memory)


@pytest.mark.parametrize(("name", "ranks", "tensor"), [("yalm_100b", 800, 1), ("opt_175b", 992, 8)])
def test_the_papers_layouts_start_in_one_process(name: str, ranks: int, tensor: int, tmp_path: Path) -> None:
    began = time.process_time()
    reported = CliRunner().invoke(app, ["estimate", name, "--layout", "--json", "--root", str(tmp_path)])
    seconds = time.process_time() - began
    section = json.loads(reported.stdout)
    (rank,) = section["own"]["ranks"]
    recipe = open_recipe(name, tmp_path, ())
    network = network_of(recipe)
    assert section["own"]["settings"]["ranks"] == ranks
    assert rank["weights"] == rank_sizes(network, recipe.train.trainer_config()).weights
    # The first rank has the longest parts: 27,308 rows are 34 or 35 each.
    assert 4 * parameter_count(network) <= ranks * rank["weights"] < 1.04 * 4 * parameter_count(network)
    assert rank["optimizer"] == 2 * rank["weights"]
    messages = rank["messages"]
    # Gradients are divided once a micro-batch, of which there are as many as tensor ranks. Weights are gathered twice
    # but for those outside of blocks; parts are filled up alike.
    assert section["own"]["micro_batches"] == tensor
    assert messages["reduce_scatter"] == ranks * rank["weights"]
    assert 1.95 < messages["all_gather"] / messages["reduce_scatter"] < 2
    assert messages["sends"] == section["own"]["bubble"] == 0
    # Each block sums the stream, in float32, twice forward, when recomputed, and backward; embedding and head once.
    streams = messages["tensor_sums"] / (4 * network.context * network.width * section["own"]["micro_batches"])
    assert 6 * network.layers + 2 <= streams < 6 * network.layers + 3 if tensor > 1 else not streams
    small, large = section["kept"]
    assert small["recomputed"] < small["whole"] < large["whole"]
    # Inputs of blocks grow with the rows; the gradient of the head, computed with the loss, does not.
    assert 1.5 * small["recomputed"] < large["recomputed"] < 2 * small["recomputed"]
    # Of one core; wall time depends on what else the machine does.
    assert seconds < 60
    text = Console(record=True, width=100, file=StringIO())
    print_layouts(layout_section(recipe, None, None), text)
    assert f"data {ranks // tensor} x tensor {tensor} x pipeline 1" in text.export_text()


def test_a_recipe_that_divides_nothing_is_shown_what_could(foundry: Path, tmp_path: Path) -> None:
    asked = ["estimate", str(foundry / "foundry.toml"), "--layout", "--hardware", "a100", "--devices", "2"]
    asked += ["--root", str(tmp_path), "--set", "train.optimizer.kind=adamw"]
    text = " ".join(CliRunner().invoke(app, asked).output.split())
    assert "train.engine is native, which starts each rank with the whole network" in text
    assert "the cheapest that fits: train.engine = fsdp, train.ranks = 2" in text


def test_the_cheapest_layout_that_fits_is_found() -> None:
    large, _ = search_layouts(NETWORK, TRAIN, device_of(80e9), 4)
    best = next(one for one in large if one["fits"])
    assert best["peak"] <= 0.9 * 80e9
    assert best["seconds"] == min(one["seconds"] for one in large)
    # With less memory than that layout takes another one is found, or none.
    small, _ = search_layouts(NETWORK, TRAIN, device_of(best["peak"]), 4)
    assert best["layout"] not in [one["layout"] for one in small if one["fits"]]
    none, _ = search_layouts(NETWORK, TRAIN, device_of(1e5), 4)
    assert not any(one["fits"] for one in none)


def test_why_layouts_were_not_tried_is_said() -> None:
    normalised = NETWORK.model_copy(update={"qk_norm": "all"})
    found, refused = search_layouts(normalised, TRAIN, device_of(80e9), 2)
    assert {one["settings"]["tensor_parallel"] for one in found} == {1}
    assert "normalises all heads together, and with tensor_parallel 2" in refused
    # A device that holds none of them, so that none is started.
    assert "tensor_parallel" not in search_layouts(NETWORK, TRAIN, device_of(1e5), 2)[1]


def test_devices_whose_links_are_unknown_are_refused() -> None:
    with pytest.raises(RecipeError, match="--hardware v100, a100, h100 or h200"):
        search_layouts(NETWORK, TRAIN, find_accelerator("tpu-v4"), 4)
