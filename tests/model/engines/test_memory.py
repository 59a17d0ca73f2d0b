"""The computed memory of a rank compared with engines that run."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config
from model.config.train import TrainConfig, TrainerRun
from model.distributed.process_group import SINGLE_PROCESS
from model.engines import make_engine
from model.engines.counters import Allocations
from model.engines.dry_layout import dry_layout
from model.engines.layout import sharded_dimension
from model.engines.memory import activation_bytes, rank_memory
from model.engines.sizes import rank_sizes, whole_sizes
from model.nn.factory import make_network
from model.nn.stages import keep_stage_weights
from model.objectives.synthetic import random_batch
from model.optim.optimizers import optimizer_tensors
from model.optim.schedules import StepSchedule

SHAPE = {"vocab_size": 2048, "context": 64, "layers": 2, "heads": 4, "width": 64}
GPT = GPTConfig.model_validate(SHAPE)
UNTIED = GPT.model_copy(update={"tied_head": False, "layers": 4})
BERT = BERTConfig.model_validate(SHAPE)
T5 = T5Config.model_validate(SHAPE)


def run_of(model: NetworkConfig, train: TrainConfig) -> TrainerRun:
    # No row of the batch has the id of padding.
    pad = model.vocab_size
    return TrainerRun(
        sequences=(), order=Path(), out=Path(), pad=pad, eos=0, tokenizer_digest="t", model=model, train=train
    )


def measured(model: NetworkConfig, train: TrainConfig) -> tuple[int, int]:
    """Bytes between steps and at the fullest, of a real native engine over its second step."""
    with Allocations() as allocations:
        engine = make_engine(run_of(model, train), make_network(model).initialise(1), SINGLE_PROCESS)
        rows = random_batch(model, train.batch_rows).rows
        given = allocations.now
        engine.step(rows, StepSchedule(1e-3))
        gc.collect()
        allocations.peak = state = allocations.now
        engine.step(rows, StepSchedule(1e-3))
    del given
    return state, allocations.peak


def train_of(**settings: object) -> TrainConfig:
    return TrainConfig.model_validate({"batch_rows": 16, "micro_batch_rows": 16, "threads": 1, **settings})


@pytest.mark.parametrize("model", [GPT, UNTIED, BERT, T5], ids=["gpt", "untied", "bert", "t5"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"micro_batch_rows": 4},
        {"dtype": "bfloat16", "micro_batch_rows": 4},
        {"recompute": True, "micro_batch_rows": 8},
        {"batch_rows": 1, "micro_batch_rows": 1},
    ],
    ids=["whole batch", "four at once", "bfloat16", "recomputed", "one row"],
)
def test_a_step_takes_what_is_foreseen(model: NetworkConfig, settings: dict[str, object]) -> None:
    train = train_of(**settings)
    memory = rank_memory(model, train)
    state, peak = measured(model, train)
    assert state == pytest.approx(memory.state, rel=0.01)
    assert memory.total is not None
    # Nothing that could fit is refused. What is left out is small beside networks that are worth a question.
    assert 0.9 * peak < memory.total < 1.01 * peak


@pytest.mark.parametrize("kind", ["adamw", "lamb", "sgd", "muon"])
def test_each_optimizer_remembers_what_is_foreseen(kind: str) -> None:
    train = train_of(optimizer={"kind": kind}, batch_rows=1, micro_batch_rows=1)
    engine = make_engine(run_of(UNTIED, train), make_network(UNTIED).initialise(1), SINGLE_PROCESS)
    engine.step(random_batch(UNTIED, 1).rows, StepSchedule(1e-3))
    network, optimizer = engine.network, engine.optimizer  # type: ignore[attr-defined]
    kept = [value for parameter in network.parameters() for value in optimizer_tensors(optimizer, parameter).values()]
    assert sum(value.nbytes for value in kept if value.dim()) == rank_memory(UNTIED, train).optimizer


def test_float32_weights_and_gradients_whatever_the_type_of_products() -> None:
    """4 + 4 + 8 bytes a parameter, and not the 2 + 2 + 12 of a network that is held in half precision."""
    elements = sum(parameter.numel() for parameter in make_network(GPT).parameters())
    for dtype in ("float32", "bfloat16"):
        memory = rank_memory(GPT, train_of(dtype=dtype))
        assert (memory.weights, memory.gradients, memory.optimizer) == (4 * elements, 4 * elements, 8 * elements)


def test_layers_beyond_those_that_are_followed_add_alike() -> None:
    from model.engines import memory

    deep = GPT.model_copy(update={"layers": 7, "norm_position": "post"})
    train = train_of()
    followed = memory._traced(deep, train.rows_at_once, train.dtype, train.recompute, gradient_at_once=True)
    assert activation_bytes(deep, train) == followed


def test_what_is_not_modelled_is_unknown_and_has_no_total() -> None:
    pipeline = {"ranks": 2, "pipeline_parallel": 2, "compile": True}
    for settings in ({"compile": True}, {"numerics": "portable"}, pipeline):
        memory = rank_memory(GPT, train_of(**settings))
        assert memory.total is memory.activations is None
        assert memory.unknown
        assert 0 < memory.at_least < (rank_memory(GPT, train_of()).total or 0)


def held_by_ranks(model: NetworkConfig, tensor: int, pipeline: int) -> list[int]:
    """Bytes of the weights of every rank: torch's chunks of what its stage keeps."""
    held: list[int] = []
    for stage in range(pipeline):
        for rank in range(tensor):
            network = make_network(model)
            keep_stage_weights(network, model, stage, pipeline)
            sides = {name: sharded_dimension(name) for name, _ in network.named_parameters()}
            chunks = [
                whole if sides[name] is None else whole.chunk(tensor, sides[name])[rank]
                for name, whole in network.named_parameters()
            ]
            held.append(sum(chunk.nbytes for chunk in chunks))
    return held


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("model", [UNTIED, BERT, T5], ids=["untied", "bert", "t5"])
def test_a_rank_of_a_copy_holds_its_part(model: NetworkConfig, tensor: int, pipeline: int) -> None:
    train = train_of(ranks=tensor * pipeline, tensor_parallel=tensor, pipeline_parallel=pipeline)
    sizes = [rank_sizes(model, train, rank).weights for rank in range(train.ranks)]
    assert sizes == held_by_ranks(model, tensor, pipeline)


@pytest.mark.parametrize("model", [BERT, T5], ids=["bert", "t5"])
def test_the_first_rank_of_a_stage_is_started_dry_and_holds_its_longest_parts(model: NetworkConfig) -> None:
    train = train_of(ranks=4, tensor_parallel=2, pipeline_parallel=2)
    held = held_by_ranks(model, 2, 2)
    largest = [max(held[:2]), max(held[2:])]
    layout = dry_layout(model, train)
    assert [rank.weights for rank in layout.ranks] == [rank.gradients for rank in layout.ranks] == largest
    memory = rank_memory(model, train)
    assert memory.start == memory.weights == memory.gradients == layout.fullest.weights


def test_the_whole_network_is_what_all_ranks_hold_together() -> None:
    whole = whole_sizes(UNTIED, train_of())
    assert whole.weights == 4 * whole.elements
    for settings in ({"engine": "fsdp"}, {"engine": "fsdp", "pipeline_parallel": 2}, {"pipeline_parallel": 4}):
        train = train_of(ranks=4, **settings)
        assert whole_sizes(UNTIED, train) == whole
        assert sum(rank_sizes(UNTIED, train, rank).weights for rank in (0, 3)) < whole.weights


LIVE = """
import gc, sys, time, warnings
from pathlib import Path
warnings.filterwarnings("ignore")
import torch
from model.config.train import TrainerRun
from model.engines import deepspeed as zero, make_engine
from model.nn.factory import make_network
from model.objectives.synthetic import random_batch
from model.distributed.process_group import join_process_group
from model.optim.schedules import StepSchedule
from tests.model.forked_ranks import run_ranks

zero.BUCKET_ELEMENTS = int(sys.argv[2])
runs = [TrainerRun.model_validate_json(line) for line in sys.stdin.read().splitlines()]

def live():
    # Gloo's threads let go of what they have summed a moment after the ranks go on with it.
    time.sleep(0.3)
    gc.collect()
    # A gradient has a Python object, which is what gc sees, once it was asked for.
    for tensor in [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]:
        tensor.is_leaf and tensor.grad
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor) and one.dtype == torch.float32]
    return {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}

def more_than(before):
    return sum(storage.nbytes() for place, storage in live().items() if place not in before)

def work(rank):
    with join_process_group(rank, 2, Path(sys.argv[1])) as ranks:
        for run in runs:
            # Kept, so that nothing new lies in the place of what an engine before has left.
            before = live()
            network = make_network(run.model).initialise(1)
            engine = make_engine(run, network, ranks)
            seen = []
            rows = random_batch(run.model, run.train.batch_rows).rows
            engine.step(rows, StepSchedule(1e-3))
            state = more_than(before)
            network.embedding.register_forward_pre_hook(lambda *_: seen.append(more_than(before)))
            engine.step(rows, StepSchedule(1e-3))
            if ranks.is_first:
                # Between steps, and before a step's second micro-batch.
                print("live", state, seen[1], flush=True)
            del engine, network

run_ranks(2, work)
"""


def test_engines_of_two_ranks_hold_what_is_foreseen(tmp_path: Path) -> None:
    """Weights, ZeRO's copies, moments, and gradients of micro-batches before, of native and each ZeRO stage."""
    bucket = 1000
    model = GPT.model_copy(update={"width": 128})
    layouts = [{}, *({"engine": "deepspeed", "zero_stage": stage} for stage in (1, 2, 3))]
    trains = [train_of(batch_rows=4, micro_batch_rows=1, ranks=2, **layout) for layout in layouts]
    lines = "\n".join(run_of(model, train).model_dump_json() for train in trains)
    words = [sys.executable, "-c", LIVE, str(tmp_path / "meet"), str(bucket)]
    done = subprocess.run(
        words, cwd=Path(__file__).parents[3], input=lines, capture_output=True, text=True, check=False, timeout=240
    )
    found = [list(map(int, line.split()[1:])) for line in done.stdout.splitlines() if line.startswith("live")]
    assert len(found) == len(trains), done.stderr[-2000:]
    for train, (state, amid) in zip(trains, found, strict=True):
        memory = rank_memory(model, train)
        who = f"{train.engine} {train.zero_stage}"
        # ZeRO-3 keeps memory for its part of the gradients between steps.
        kept = memory.gradients if who == "deepspeed 3" else 0
        assert state == pytest.approx(memory.state + kept, rel=0.02), who
        foreseen = memory.state + memory.gradients
        # A table across the border of two parts of ZeRO-2 has its gradient whole on both ranks; ZeRO-3 has brought
        # weights together.
        more = {"deepspeed 2": model.vocab_size * model.width * 4, "deepspeed 3": memory.buffers}.get(who, 0)
        assert 0.98 * foreseen < amid < 1.02 * foreseen + more, who
    weights = rank_memory(model, trains[0]).weights
    # Bytes a parameter of two ranks: 4 + 4 + 8; ZeRO-1 4 + 4 + (4 + 8) / 2; ZeRO-2 and 3 divide gradients and weights.
    per_weight = [(memory.state + memory.gradients) / weights for memory in (rank_memory(model, t) for t in trains)]
    assert per_weight == [4.0, 3.5, 3.0, 2.5]
