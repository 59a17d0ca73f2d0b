"""One optimizer step: micro-batches, clipping, decay, and non-finite numbers."""

import math

import pytest
import torch

from model.config.options import OptimizerConfig
from model.config.train import TrainerRun
from model.data.loader import CausalBatch
from model.distributed.process_group import SINGLE_PROCESS
from model.engines.native import NativeEngine
from model.nn.gpt import GPT
from model.optim.schedules import StepSchedule

NO_START = torch.zeros(4, dtype=torch.int64)


@pytest.fixture
def tokens() -> torch.Tensor:
    ids = torch.randint(4, 48, (4, 17), generator=torch.Generator().manual_seed(6))
    ids[0, 5:] = 3
    return ids


def weights(engine: NativeEngine) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in engine.network.parameters()]


def engine_of(run: TrainerRun, **settings: object) -> NativeEngine:
    changed = run.model_copy(update={"train": run.train.model_copy(update=settings)})
    return NativeEngine(changed, GPT(run.model).initialise(run.train.seed), SINGLE_PROCESS)


def test_micro_batches_add_up_to_the_batch_even_where_rows_are_padded(make_run, tokens: torch.Tensor) -> None:
    run = make_run(batch_rows=4)
    whole = engine_of(run, micro_batch_rows=4).step(CausalBatch(tokens, NO_START), StepSchedule(0.01))
    pieces = engine_of(run, micro_batch_rows=1).step(CausalBatch(tokens, NO_START), StepSchedule(0.01))
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-6)
    assert pieces.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
    assert pieces.largest_activations == pytest.approx(whole.largest_activations, rel=1e-5)


def test_two_rows_are_overfitted(make_run, tokens: torch.Tensor) -> None:
    engine = engine_of(make_run())
    losses = [engine.step(CausalBatch(tokens[1:3], NO_START[:2]), StepSchedule(0.01)).loss for _ in range(100)]
    assert losses[0] == pytest.approx(math.log(48), abs=0.1)
    assert losses[-1] < 0.1


def test_a_non_finite_gradient_changes_nothing(make_run, tokens: torch.Tensor) -> None:
    engine = engine_of(make_run())
    engine.step(CausalBatch(tokens, NO_START), StepSchedule(0.01))
    with torch.no_grad():
        engine.network.final_norm.weight[0] = math.nan
    before = weights(engine)
    moments = {p: s["exp_avg"].clone() for p, s in engine.optimizer.state.items()}
    done = engine.step(CausalBatch(tokens, NO_START), StepSchedule(0.01))
    assert not done.applied
    assert math.isnan(done.loss)
    assert all(torch.equal(a, b) or bool(a.isnan().any()) for a, b in zip(before, weights(engine), strict=True))
    assert all(torch.equal(engine.optimizer.state[p]["exp_avg"], moment) for p, moment in moments.items())


def test_a_long_gradient_is_cut_to_the_clip_norm(make_run, tokens: torch.Tensor) -> None:
    optimizer = OptimizerConfig(weight_decay=0.0)
    engine = engine_of(make_run(), optimizer=optimizer)
    done = engine.step(CausalBatch(tokens, NO_START), StepSchedule(0.0, max_norm=1e-3))
    assert done.grad_norm > 0.1
    squares = sum(float((s["exp_avg"] / (1 - optimizer.beta1)).pow(2).sum()) for s in engine.optimizer.state.values())
    assert math.sqrt(squares) == pytest.approx(1e-3, rel=1e-3)


def test_decay_touches_matrices_and_neither_norms_nor_biases_nor_the_embedding(make_run) -> None:
    engine = engine_of(make_run())
    decayed, kept = engine.optimizer.param_groups
    assert decayed["weight_decay"] > 0 == kept["weight_decay"]
    names = {id(parameter): name for name, parameter in engine.network.named_parameters()}
    assert {names[id(p)].rpartition(".")[0].rpartition(".")[2] for p in decayed["params"]} == {
        "attention_query",
        "attention_key",
        "attention_value",
        "attention_out",
        "mlp_in",
        "mlp_out",
    }
    assert len(decayed["params"]) + len(kept["params"]) == len(names)


def test_as_many_tokens_pass_at_once_where_rows_are_cut(make_run, tokens: torch.Tensor) -> None:
    engine = engine_of(make_run(batch_rows=4), micro_batch_rows=2)
    seen: list[tuple[int, ...]] = []
    engine.network.embedding.register_forward_hook(lambda _, inputs, __: seen.append(tuple(inputs[0].shape)))
    engine.step(CausalBatch(tokens, NO_START), StepSchedule(0.01))
    engine.step(CausalBatch(tokens, NO_START).shortened(4), StepSchedule(0.01, row_pieces=4))
    assert seen == [(2, 16), (2, 16), (8, 4), (8, 4)]
