"""Weights divided over ranks are trained as whole ones are."""

import functools
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from model.checkpoint.checkpoint import DividedTensors
from model.checkpoint.writer import safetensors_blocks, write_parts
from model.config.network import GPTConfig
from model.config.train import TrainConfig, TrainerRun
from model.distributed.process_group import Ranks, rank_rows
from model.engines.layout import Place
from model.errors import IntegrityError
from model.nn.factory import make_network, make_shapes

PROJECT = Path(__file__).resolve().parents[3]
SIZES: dict[str, Any] = {"vocab_size": 48, "context": 16, "layers": 2, "heads": 4, "width": 16}
ALL = {"kv_heads": 2, "qk_norm": "head", "activation": "swiglu", "ffn_width": 37, "attend_within_documents": True}
NETWORKS: dict[str, dict[str, Any]] = {
    "tied": {**ALL, "norm": "rmsnorm", "z_loss": 0.01},
    "untied": {**ALL, "tied_head": False, "biases": True, "norm": "layernorm", "positions": "learned"},
    "dropped": {**ALL, "dropout": 0.2, "embedding_norm": True, "biases": True},
    "relative": {"positions": "relative", "norm_position": "post", "window": 5, "head_bias": True},
}


FSDP, TENSOR, PIPELINE = {"engine": "fsdp"}, {"tensor_parallel": 2}, {"pipeline_parallel": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "fsdp-1": {**FSDP, "ranks": 1},
    "fsdp-2": {**FSDP, "ranks": 2},
    "fsdp-4": {**FSDP, "ranks": 4},
    "tensor": {**TENSOR, "ranks": 2},
    "pipeline": {**PIPELINE, "ranks": 2},
    "copies-tensor": {**TENSOR, "ranks": 4},
    "copies-pipeline": {**PIPELINE, "ranks": 4},
    "tensor-pipeline": {**TENSOR, **PIPELINE, "ranks": 4},
    "copies-tensor-pipeline": {**TENSOR, **PIPELINE, "ranks": 8},
    "fsdp-tensor": {**FSDP, **TENSOR, "ranks": 4},
    "fsdp-pipeline": {**FSDP, **PIPELINE, "ranks": 4},
    "fsdp-tensor-pipeline": {**FSDP, **TENSOR, **PIPELINE, "ranks": 8},
}


Case = tuple[TrainerRun, Sequence[dict[str, Any]]]
"""A run and layouts of it."""


def trained(steps: int, folder: Path, *cases: Case) -> list[list[dict[str, Any]]]:
    """What ranks of `divided_rank.py` write of each case: of one process, then of each layout."""
    files: list[list[Path]] = []
    for number, (run, layouts) in enumerate(cases):
        files.append([folder / f"{number}-{layout}.json" for layout in range(1 + len(layouts))])
        for file, settings in zip(files[-1], ({}, *layouts), strict=True):
            train = TrainConfig.model_validate(run.train.model_dump() | settings)
            file.write_text(run.model_copy(update={"train": train}).model_dump_json())
    words = [sys.executable, "-m", "tests.model.engines.divided_rank", str(steps), *map(str, itertools.chain(*files))]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr
    return [[json.loads(file.with_suffix(".found").read_text()) for file in of_case] for of_case in files]


SHORT = {"tied": ["fsdp-2", "tensor", "pipeline"], "untied": ["fsdp-tensor"], "dropped": ["tensor", "copies-pipeline"]}
"""Layouts of the default tests."""
FEW = 3
"""Their steps: from the second on, weights are those that the update of divided ones left."""


def case_of(build: Callable[..., TrainerRun], choices: str, layouts: list[str], steps: int, **settings: Any) -> Case:
    """A network in these layouts, and at the end recomputed in some."""
    run = build(batch_rows=8, micro_batch_rows=2, positions=8 * steps, **settings)
    model = GPTConfig.model_validate(SIZES | NETWORKS[choices])
    recomputed = [{**LAYOUTS[layout], "recompute": True} for layout in again(layouts)]
    return run.model_copy(update={"eos": 5, "model": model}), [*(LAYOUTS[layout] for layout in layouts), *recomputed]


def again(layouts: list[str]) -> list[str]:
    return [layout for layout in layouts if layout in ("fsdp-2", "tensor-pipeline")]


@pytest.fixture(scope="module")
def short(build_run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What is found in the default tests, all of it by one program."""
    folder = tmp_path_factory.mktemp("short")
    build = functools.partial(build_run, folder)
    cases = {choices: case_of(build, choices, layouts, FEW) for choices, layouts in SHORT.items()}
    cases["lamb"] = case_of(build, "tied", ["tensor"], FEW, optimizer={"kind": "lamb"})
    return dict(zip(cases, trained(FEW, folder, *cases.values()), strict=True))


@pytest.mark.parametrize("choices", SHORT)
def test_losses_and_every_gradient_are_those_of_one_process(short, choices: str) -> None:
    """In float64, where only the order of sums differs."""
    check(short[choices], SHORT[choices])


@pytest.mark.prove
@pytest.mark.parametrize("choices", NETWORKS)
def test_over_50_steps_losses_and_every_gradient_are_those_of_one_process(make_run, tmp_path, choices: str) -> None:
    (found,) = trained(50, tmp_path, case_of(make_run, choices, list(LAYOUTS), 50))
    check(found, list(LAYOUTS))


def check(results: list[dict[str, Any]], layouts: list[str]) -> None:
    alone, *others = results
    found = dict(zip(layouts, others, strict=False))
    for layout, divided in found.items():
        assert divided["first"] == alone["first"], layout
        compare(divided, alone, layout)
    for layout, divided in zip(again(layouts), others[len(layouts) :], strict=True):
        assert divided["norms"] == found[layout]["norms"], layout


def compare(found: dict[str, Any], expected: dict[str, Any], name: str) -> None:
    for key, relative, absolute in (("losses", 1e-9, 0), ("held_out", 1e-9, 0), ("norms", 1e-12, 1e-15)):
        np.testing.assert_allclose(found[key], expected[key], rtol=relative, atol=absolute, err_msg=name)


def test_lamb_scales_divided_matrices_by_their_whole_norms(short) -> None:
    check(short["lamb"], ["tensor"])


@pytest.mark.prove
def test_over_50_steps_lamb_scales_divided_matrices_by_their_whole_norms(make_run, tmp_path: Path) -> None:
    (found,) = trained(50, tmp_path, case_of(make_run, "tied", list(LAYOUTS), 50, optimizer={"kind": "lamb"}))
    check(found, list(LAYOUTS))


@pytest.mark.prove
@pytest.mark.parametrize(("choices", "compiled"), [({"qk_norm": "none"}, False), ({"dropout": 0.2}, True)])
def test_compiled_blocks_of_divided_weights_compute_what_one_process_does(
    make_run, tmp_path: Path, choices: dict[str, Any], compiled: bool
) -> None:
    """Without compiling, and where graphs round to float32 in spite of `divided_rank.py` (before norms of queries and
    in dropout of attention), with it."""
    run = make_run(batch_rows=8, micro_batch_rows=2, positions=8 * 8, compile=True)
    model = GPTConfig.model_validate(SIZES | NETWORKS["tied"] | choices)
    run = run.model_copy(update={"eos": 5, "model": model})
    layouts = ("tensor", "tensor-pipeline", "fsdp-2", "fsdp-tensor")
    case = run, [{"compile": compiled}, *(LAYOUTS[layout] for layout in layouts)]
    ((_, alone, *others),) = trained(8, tmp_path, case)
    for layout, divided in zip(layouts, others, strict=True):
        compare(divided, alone, layout)


@pytest.mark.parametrize(("rows", "size"), [(7, 2), (2, 4), (5, 4), (16, 4), (1, 3)])
def test_rows_are_divided_as_torch_divides_them(rows: int, size: int) -> None:
    chunks = [chunk.tolist() for chunk in torch.arange(rows).chunk(size)]
    found = [list(range(*rank_rows(rows, rank, size))) for rank in range(size)]
    assert found == chunks + [[]] * (size - len(chunks))


def parts_of(weights: dict[str, torch.Tensor], config: GPTConfig, place: Place) -> tuple[dict, dict]:
    boxes = {name: place.part(name, weight.shape) for name, weight in weights.items() if place.is_writer(name, config)}
    parts = {name: weights[name][box].contiguous() for name, box in boxes.items()}
    return parts, {name: tuple(side.start for side in box) for name, box in boxes.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_all_ranks_are_the_whole_and_each_number_is_one_rank_s(layout: str, tmp_path: Path) -> None:
    config = GPTConfig.model_validate(SIZES | NETWORKS["relative"] | {"ffn_width": 37, "vocab_size": 47})
    train = TrainConfig.model_validate({"batch_rows": 8, "micro_batch_rows": 1, **LAYOUTS[layout]})
    weights = {name: weight.detach() for name, weight in make_network(config).initialise(1).named_parameters()}
    places = [Place(train, rank) for rank in range(train.ranks)]
    for place in places:
        parts, begins = parts_of(weights, config, place)
        steps = {f"{name}|step": torch.tensor(3.0) for name in parts}
        blocks = safetensors_blocks(parts | steps, begins)
        (tmp_path / f"weights-{place.rank}").write_bytes(b"".join(bytes(memoryview(block)) for block in blocks))
    divided = DividedTensors(sorted(tmp_path.glob("weights*")))
    for name, weight in weights.items():
        whole, middle = (tuple(slice(n * k // 3, n - n * k // 3) for n in weight.shape) for k in (0, 1))
        for box in (whole, middle, *(place.part(name, weight.shape) for place in places)):
            assert torch.equal(divided.part(name, box), weight[box])
        assert divided.part(f"{name}|step", ()) == 3
    assert divided.load().keys() == {*weights, *(f"{name}|step" for name in weights)}


def test_parts_that_are_in_no_file_are_missed(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(3, 4)}, tmp_path / "upper", {"begins": json.dumps({"w": [0, 0]})})
    save_file({"w": torch.zeros(3, 4)}, tmp_path / "lower", {"begins": json.dumps({"w": [4, 0]})})
    divided = DividedTensors([tmp_path / "upper", tmp_path / "lower"])
    assert divided.part("w", (slice(4, 7), slice(1, 3))).shape == (3, 2)
    with pytest.raises(IntegrityError, match="2 of 8 elements of w are in none of its files"):
        divided.part("w", (slice(2, 6), slice(1, 3)))


def test_a_result_written_by_all_ranks_is_the_file_of_one(tmp_path: Path) -> None:
    config = GPTConfig.model_validate(SIZES)
    weights = {name: weight.detach() for name, weight in make_network(config).initialise(1).named_parameters()}
    save_file(weights, tmp_path / "expected")

    class Waiting(Ranks):
        def barrier(self) -> None: ...

    train = TrainConfig.model_validate({**FSDP, **TENSOR, **PIPELINE, "ranks": 12, "batch_rows": 3})
    for rank in range(12):
        place = Place(train, rank)
        parts, begins = parts_of(weights, config, place)
        write_parts(tmp_path / "written", make_shapes(config), parts, begins, Waiting(rank, 12))
    assert (tmp_path / "written").read_bytes() == (tmp_path / "expected").read_bytes()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizer": {"kind": "muon"}}, "FSDP partitions all weights.* one of adamw, sgd, lamb"),
        ({"micro_batch_rows": "auto"}, "Set a number"),
        ({"trainable": "new_rows"}, "Set engine = native, or trainable = all"),
    ],
)
def test_what_does_not_go_with_divided_weights_is_refused_with_a_hint(settings: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainConfig.model_validate({"engine": "fsdp", "ranks": 2, **settings})
