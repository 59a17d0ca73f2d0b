"""Weights divided over ranks (FSDP) are trained as whole ones are."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from model.checkpoint.checkpoint import DividedTensors
from model.checkpoint.writer import write_rows
from model.config.network import GPTConfig
from model.config.train import TrainConfig, TrainerRun
from model.distributed.process_group import Ranks, rank_rows
from model.nn.factory import make_network, make_shapes

PROJECT = Path(__file__).resolve().parents[3]
SIZES: dict[str, Any] = {"vocab_size": 48, "context": 16, "layers": 2, "heads": 4, "width": 16}
ALL = {"kv_heads": 2, "qk_norm": "head", "activation": "swiglu", "ffn_width": 37, "attend_within_documents": True}
NETWORKS: dict[str, dict[str, Any]] = {
    "tied": {**ALL, "norm": "rmsnorm", "z_loss": 0.01},
    "untied": {**ALL, "tied_head": False, "biases": True, "norm": "layernorm", "positions": "learned"},
    "relative": {"positions": "relative", "norm_position": "post", "window": 5, "head_bias": True},
}


def trained(run: TrainerRun, ranks: int, steps: int, **settings: object) -> dict[str, Any]:
    """What ranks of `fsdp_rank.py` print."""
    train = TrainConfig.model_validate(run.train.model_dump() | {"ranks": ranks} | settings)
    name = f"{ranks}-{train.engine}-{train.recompute}"
    file, meeting = (run.out.with_name(f"{name}.{kind}") for kind in ("json", "store"))
    file.write_text(run.model_copy(update={"train": train}).model_dump_json())
    command = [sys.executable, "-m", "tests.model.engines.fsdp_rank", str(file)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(meeting), str(ranks), str(steps)],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    printed = [process.communicate(timeout=400) for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(err for _, err in printed)
    return json.loads(printed[0][0])


@pytest.mark.parametrize(
    ("choices", "ranks", "steps"),
    [
        pytest.param("tied", (2,), 8, id="tied"),
        *(pytest.param(name, (1, 2, 4), 50, id=f"{name}-50", marks=pytest.mark.prove) for name in NETWORKS),
    ],
)
def test_losses_and_every_gradient_are_those_of_one_process(
    make_run, choices: str, ranks: tuple[int, ...], steps: int
) -> None:
    """In float64, where only the order of sums differs."""
    run = make_run(batch_rows=8, micro_batch_rows=2, positions=8 * steps)
    model = GPTConfig.model_validate(SIZES | NETWORKS[choices])
    run = run.model_copy(update={"eos": 5, "model": model})
    alone = trained(run, 1, steps, engine="native")
    of_ranks = {size: trained(run, size, steps, engine="fsdp") for size in ranks}
    for divided in of_ranks.values():
        assert divided["first"] == alone["first"]
        np.testing.assert_allclose(divided["losses"], alone["losses"], rtol=1e-9)
        np.testing.assert_allclose(divided["norms"], alone["norms"], rtol=1e-12, atol=1e-15)
    recomputed = trained(run, 2, steps, engine="fsdp", recompute=True)
    assert recomputed["norms"] == of_ranks[2]["norms"]


@pytest.mark.parametrize(("rows", "size"), [(7, 2), (2, 4), (5, 4), (16, 4), (1, 3)])
def test_rows_are_divided_as_torch_divides_them(rows: int, size: int) -> None:
    chunks = [chunk.tolist() for chunk in torch.arange(rows).chunk(size)]
    found = [list(range(*rank_rows(rows, rank, size))) for rank in range(size)]
    assert found == chunks + [[]] * (size - len(chunks))


def test_rows_are_read_from_files_of_any_number_of_ranks(tmp_path: Path) -> None:
    whole = torch.arange(14.0).reshape(7, 2)
    for size in (1, 2, 3, 5):
        folder = tmp_path / str(size)
        folder.mkdir()
        for rank in range(size):
            part = {"w": whole[slice(*rank_rows(7, rank, size))].contiguous(), "step": torch.tensor(3.0)}
            save_file(part, folder / f"weights-{rank:05d}-of-{size:05d}.safetensors")
        divided = DividedTensors(sorted(folder.glob("weights*")))
        for begin in range(8):
            for end in range(begin, 8):
                assert torch.equal(divided.rows("w", begin, end), whole[begin:end])
        assert divided.rows("step", 0, 1) == 3
        assert torch.equal(divided.load()["w"], whole)


def test_a_result_written_by_all_ranks_is_the_file_of_one(tmp_path: Path) -> None:
    config = GPTConfig.model_validate(SIZES)
    weights = {name: weight.detach() for name, weight in make_network(config).initialise(1).named_parameters()}
    save_file(weights, tmp_path / "expected")

    class Waiting(Ranks):
        def barrier(self) -> None: ...

    for rank in range(3):
        rows = {name: weight[slice(*rank_rows(len(weight), rank, 3))] for name, weight in weights.items()}
        write_rows(tmp_path / "written", make_shapes(config), rows, Waiting(rank, 3))
    assert (tmp_path / "written").read_bytes() == (tmp_path / "expected").read_bytes()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tensor_parallel": 2}, "Set engine = native, or leave both out"),
        ({"optimizer": {"kind": "muon"}}, "FSDP partitions all weights"),
        ({"optimizer": {"kind": "lamb"}}, "optimizer.kind = adamw or sgd"),
        ({"compile": True}, "Set compile = false, or engine = native"),
        ({"micro_batch_rows": "auto"}, "Set a number"),
        ({"trainable": "new_rows"}, "Set engine = native, or trainable = all"),
    ],
)
def test_what_does_not_go_with_divided_weights_is_refused_with_a_hint(settings: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainConfig.model_validate({"engine": "fsdp", "ranks": 2, **settings})
