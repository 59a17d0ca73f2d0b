"""One copy of the model over several processes computes what one process does."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
from pydantic import ValidationError
from safetensors.numpy import load_file

from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config
from model.config.options import ScheduleConfig
from model.config.train import TrainConfig, TrainerRun
from model.data.row_format import RowFormat
from model.data.span_lengths import raw_length
from model.engines.dry_layout import dry_layout
from model.engines.layout import Place
from model.train.trainer import train
from tests.model.forked_trainers import train_in_ranks

TENSOR = {"ranks": 2, "tensor_parallel": 2}
PIPELINE = {"ranks": 2, "pipeline_parallel": 2}
BOTH = {"ranks": 4, "tensor_parallel": 2, "pipeline_parallel": 2}
COPIES = [{"ranks": 4, "tensor_parallel": 2}, {"ranks": 4, "pipeline_parallel": 2}]
FEW, STEPS = 8, 50
"""Steps of default tests and of proofs."""
WITHIN = 1e-4
READINGS = ("activation_lows", "activation_highs")
VOCABULARY, CONTEXT = 47, 16
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "context": CONTEXT, "layers": 2, "heads": 2, "width": 16}
"""Of an odd number of pieces, which two ranks cannot share evenly."""


def batches(steps: int) -> dict[str, int]:
    """Four micro-batches a step, and one step more that is short."""
    return {"batch_rows": 8, "micro_batch_rows": 2, "positions": 8 * steps + 3}


def metrics(run: TrainerRun) -> dict[str, np.ndarray]:
    with pa.OSFile(str(run.out / "result" / "metrics.arrow"), "rb") as source:
        table = pa.ipc.open_file(source).read_all()
    reported = {name: np.array(table[name].to_pylist()) for name in ("loss", "grad_norm", *READINGS)}
    if table["next_accuracy"][0].is_valid:
        reported |= {name: np.array(table[name].to_pylist()) for name in ("masked_accuracy", "next_accuracy")}
    return reported


def result(run: TrainerRun) -> dict[str, np.ndarray]:
    return load_file(run.out / "result" / "model.safetensors")


def agree(run: TrainerRun, reference: TrainerRun, steps: int) -> None:
    """In all that is reported of each step, and in the result, whose weights have their own names and whole shapes."""
    ours, theirs = metrics(run), metrics(reference)
    assert len(ours["loss"]) == steps + 1
    assert set(ours) == set(theirs)
    for name in theirs:
        # An activation range may be 0.003 where numbers of order 1 nearly cancel.
        np.testing.assert_allclose(
            ours[name], theirs[name], rtol=WITHIN, atol=1e-5 if name in READINGS else 0, err_msg=name
        )
    weights, expected = result(run), result(reference)
    assert {name: w.shape for name, w in weights.items()} == {name: w.shape for name, w in expected.items()}
    for name in weights:
        # Adam divides by roots of squares that may be tiny, which magnifies the last bits of a gradient.
        np.testing.assert_allclose(weights[name], expected[name], atol=2e-3, err_msg=name)


def distances(runs: list[TrainerRun], reference: TrainerRun) -> dict[str, float]:
    """The largest difference that one of the runs has of the reference, of each number that is reported of steps, and
    of all weights."""
    theirs, expected = metrics(reference), result(reference)
    found = dict.fromkeys((*theirs, "weights"), 0.0)
    for run in runs:
        ours, weights = metrics(run), result(run)
        assert len(ours["loss"]) == STEPS + 1
        assert {name: w.shape for name, w in weights.items()} == {name: w.shape for name, w in expected.items()}
        for name in theirs:
            found[name] = max(found[name], float(np.abs(ours[name] - theirs[name]).max()))
        for name in weights:
            found["weights"] = max(found["weights"], float(np.abs(weights[name] - expected[name]).max()))
    return found


def laid_out(run: TrainerRun, layout: dict[str, Any]) -> TrainerRun:
    train = TrainConfig.model_validate(run.train.model_dump() | layout)
    name = "-".join(f"{setting}-{value}" for setting, value in layout.items())
    return run.model_copy(update={"train": train, "out": run.out.with_name(name)})


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, build_run) -> Callable[[int], TrainerRun]:
    """One process's training of so many steps."""

    @functools.cache
    def trained(steps: int) -> TrainerRun:
        run = build_run(tmp_path_factory.mktemp("alone"), **batches(steps))
        train(run)
        return run

    return trained


def test_ranks_that_cut_the_same_matrices_are_neighbours() -> None:
    train = TrainConfig.model_validate(BOTH | {"ranks": 8})
    places = [(stage, data, tensor) for stage in (0, 1) for data in (0, 1) for tensor in (0, 1)]
    found = [Place(train, rank) for rank in range(8)]
    assert [(place.stage, place.data, place.tensor) for place in found] == places


@pytest.mark.parametrize(
    ("layout", "steps"),
    [
        pytest.param(TENSOR, FEW, id="tensor"),
        pytest.param(PIPELINE, FEW, id="pipeline"),
        pytest.param(TENSOR, STEPS, id="tensor-50", marks=pytest.mark.prove),
        pytest.param(PIPELINE, STEPS, id="pipeline-50", marks=pytest.mark.prove),
        pytest.param(BOTH, STEPS, id="both", marks=pytest.mark.prove),
        pytest.param(COPIES[0], STEPS, id="copies-tensor", marks=pytest.mark.prove),
        pytest.param(COPIES[1], STEPS, id="copies-pipeline", marks=pytest.mark.prove),
        pytest.param(BOTH | {"ranks": 8}, STEPS, id="copies-both", marks=pytest.mark.prove),
    ],
)
def test_a_copy_over_several_ranks_computes_what_one_does(
    alone: Callable[[int], TrainerRun], layout: dict, steps: int
) -> None:
    """Also in a process that has started the same ranks dry, whose meshes PyTorch takes for those of the real ones."""
    run = laid_out(alone(steps), layout)
    dry_layout(run.model, run.train)
    train_in_ranks(run)
    agree(run, alone(steps), steps)


CHOICES: dict[str, dict[str, Any]] = {
    "learned": {"positions": "learned", "activation": "swiglu", "ffn_width": 37, "tied_head": False, "z_loss": 0.01},
    "relative": {"positions": "relative", "norm_position": "post", "qk_norm": "head", "biases": False},
    "narrow": {"embedding_width": 8, "embedding_projection": "padding", "head_bias": True, "first_input_norm": False},
    "parallel": {"parallel_residual": True, "norm": "rmsnorm", "attend_within_documents": True, "layers": 3},
}
"""Networks that have between them a weight of every kind."""


@pytest.mark.parametrize("choices", CHOICES)
@pytest.mark.prove
def test_every_kind_of_weight_is_shared_and_comes_together(make_run, choices: str) -> None:
    """At most three times as far from one process as that is from itself with other micro-batches: how fast steps
    magnify the last bits of sums depends on the network, and 50 steps change a gradient's norm by 2e-6 to 1e-3."""
    run = make_run(**batches(STEPS), schedule=ScheduleConfig(peak_lr=0.003))
    model = GPTConfig.model_validate(SIZES | {"vocab_size": 48} | CHOICES[choices])
    run = run.model_copy(update={"eos": 5, "model": model})
    train(run)
    others = [laid_out(run, {"micro_batch_rows": rows}) for rows in (1, 4, 8)]
    for other in others:
        train(other)
    spread = distances(others, run)
    for layout in (TENSOR, PIPELINE, BOTH):
        parts = laid_out(run, layout)
        train_in_ranks(parts)
        for name, distance in distances([parts], run).items():
            # Adam divides by roots of squares that may be tiny: the one weight that moved farthest varies more.
            assert distance <= (10 if name == "weights" else 3) * spread[name], (layout, name)


@pytest.mark.prove
@pytest.mark.parametrize(
    ("settings", "within"),
    [
        ({"recompute": True}, WITHIN),
        # Halves of a product are rounded to 8 bits each before they are added up.
        ({"dtype": "bfloat16"}, 0.01),
        ({"dtype": "float16"}, 0.002),
        ({"optimizer": {"l1": 0.001, "l2": 0.01, "kind": "sgd"}}, WITHIN),
        ({"length_warmup": {"share": 0.5, "start_length": 8}}, WITHIN),
    ],
    ids=["recompute", "bfloat16", "float16", "penalties", "length-warmup"],
)
def test_other_settings_go_with_layouts(make_run, settings: dict, within: float) -> None:
    run = make_run(batch_rows=8, micro_batch_rows=2, positions=8 * 10 + 3, **settings)
    train(run)
    parts = laid_out(run, BOTH)
    train_in_ranks(parts)
    ours, theirs = metrics(parts), metrics(run)
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=within)
    np.testing.assert_allclose(ours["grad_norm"], theirs["grad_norm"], rtol=3 * within)


@pytest.fixture
def run_of(tmp_path: Path, write_sequences, write_order) -> Callable[[NetworkConfig, int], TrainerRun]:
    """A run of a BERT or a T5 over random rows."""

    def make(model: NetworkConfig, steps: int) -> TrainerRun:
        is_bert = model.architecture == "bert"
        sentinels = () if is_bert else tuple(range(VOCABULARY - 1, VOCABULARY - 11, -1))
        rows = RowFormat.model_validate(
            {
                "objective": "masked_lm" if is_bert else "span_corruption",
                "tokenizer_digest": "tokenizer",
                "vocab_size": VOCABULARY,
                "eos": 1,
                "pad": 0,
                "cls": 2,
                "sep": 3,
                "mask": 4,
                "sentinels": sentinels,
                "special": (0, 1, 2, 3, 4, *sorted(sentinels)),
            }
        )
        length = CONTEXT if is_bert else raw_length(CONTEXT)
        tokens = np.random.default_rng(5).integers(5, VOCABULARY - 10, size=(12, length))
        pairs = None
        if is_bert:
            tokens[:, 0], tokens[:, [7, 15]], pairs = 2, 3, ([8] * 12, [True, False] * 6)
            # Rows that end early, and one without a second stretch.
            tokens[3, 11:], tokens[3, 10] = 0, 3
        return TrainerRun(
            sequences=(write_sequences(tmp_path / "rows.arrow", tokens, row_format=rows, pairs=pairs),),
            order=write_order(tmp_path / "order.arrow", [(7 * i) % 12 for i in range(batches(steps)["positions"])]),
            out=tmp_path / "alone",
            pad=0,
            eos=1,
            tokenizer_digest="tokenizer",
            model=model,
            train=TrainConfig(batch_rows=8, micro_batch_rows=2, threads=1, schedule=ScheduleConfig(peak_lr=0.005)),
        )

    return make


BERT, T5 = BERTConfig.model_validate(SIZES), T5Config.model_validate(SIZES)
UNTIED_T5 = T5.model_copy(update={"tied_head": False})


@pytest.mark.parametrize(
    ("model", "layout", "steps"),
    [
        pytest.param(UNTIED_T5, PIPELINE, FEW, id="t5-untied-pipeline"),
        pytest.param(UNTIED_T5, PIPELINE, STEPS, id="t5-untied-pipeline-50", marks=pytest.mark.prove),
        pytest.param(BERT, TENSOR, STEPS, id="bert-tensor", marks=pytest.mark.prove),
        pytest.param(BERT, PIPELINE, STEPS, id="bert-pipeline", marks=pytest.mark.prove),
        pytest.param(BERT, BOTH, STEPS, id="bert-both", marks=pytest.mark.prove),
        pytest.param(T5, TENSOR, STEPS, id="t5-tensor", marks=pytest.mark.prove),
        pytest.param(
            T5Config.model_validate(SIZES | {"activation": "geglu_tanh"}),
            BOTH,
            STEPS,
            id="t5-both",
            marks=pytest.mark.prove,
        ),
        # The encoder ends within a stage, and at the end of one; a table is held by one, two and three stages.
        pytest.param(T5, {"ranks": 3, "pipeline_parallel": 3}, STEPS, id="t5-3", marks=pytest.mark.prove),
        pytest.param(T5, {"ranks": 4, "pipeline_parallel": 4}, STEPS, id="t5-4", marks=pytest.mark.prove),
    ],
)
def test_bert_and_t5_over_several_ranks_compute_what_one_does(
    run_of, model: NetworkConfig, layout: dict, steps: int
) -> None:
    run = run_of(model, steps)
    train(run)
    parts = laid_out(run, layout)
    train_in_ranks(parts)
    agree(parts, run, steps)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tensor_parallel": 2}, "= 2 processes, and ranks is 1. Set ranks = 2"),
        ({"tensor_parallel": 2, "pipeline_parallel": 2, "ranks": 6}, "ranks is 6. Set ranks = 8"),
        ({**TENSOR, "engine": "deepspeed"}, "Set engine = native or fsdp, or leave both out"),
        ({**PIPELINE, "engine": "deepspeed"}, "Set engine = native or fsdp, or leave both out"),
        ({**TENSOR, "optimizer": {"kind": "muon"}}, "Set pipeline_parallel = 2 instead"),
        ({**PIPELINE, "trainable": "new_rows"}, "Leave tensor_parallel and pipeline_parallel out"),
        ({**TENSOR, "ranks": 6}, "copies of the model 3 does not divide batch_rows 16"),
    ],
)
def test_impossible_layouts_are_refused_with_a_hint(settings: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("model", "layout", "words"),
    [
        ({"heads": 3, "width": 24}, TENSOR, "does not divide model.heads 3, and a head cannot be split"),
        ({"qk_norm": "all"}, TENSOR, "Set tensor_parallel = 1, or qk_norm"),
        ({"layers": 1}, PIPELINE, "model.layers are 1. Set pipeline_parallel = 1 at most"),
    ],
)
def test_a_network_that_cannot_be_sharded_is_refused_with_a_hint(
    make_run, model: dict, layout: dict, words: str
) -> None:
    run = make_run(**layout).model_dump()
    with pytest.raises(ValidationError, match=words):
        TrainerRun.model_validate({**run, "model": {**run["model"], **model}})


def test_a_t5_has_the_blocks_of_both_sides_for_stages(make_run) -> None:
    run = make_run(ranks=2, pipeline_parallel=2).model_dump()
    model = T5Config.model_validate(SIZES | {"layers": 1})
    assert TrainerRun.model_validate({**run, "model": model.model_dump()}).train.pipeline_parallel == 2
