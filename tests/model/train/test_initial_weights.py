"""Training from a base model, with new rows for an extended vocabulary, alone or with all weights."""

import functools
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from model.checkpoint import weights as weights_module
from model.checkpoint.weights import describe_model, load_model
from model.config.options import OptimizerConfig
from model.config.train import StartingModel, TrainerRun
from model.errors import InputError, IntegrityError, RecipeError
from model.file_content import ChangedInput
from model.huggingface.io import base_digest, base_weights
from model.optim.optimizers import make_optimizer
from model.train.initial_weights import initial_network
from model.train.template import FORKS
from model.train.trainer import train
from tests.model.forked_trainers import pause_at_each_step

OLD, NEW = 40, 8
"""The tiny run's 48 pieces: those of the base, and those that extend it."""
ALONE = {"trainable": "new_rows", "optimizer": OptimizerConfig(weight_decay=0.5)}
EXACT_FILES = ("model.safetensors", "model.json", "steps.arrow", "metrics.arrow")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, build_run, write_sequences) -> Path:
    """The folder of a model of 40 pieces, trained for a few steps."""
    home = tmp_path_factory.mktemp("base")
    run = build_run(home, positions=8)
    tokens = torch.randint(4, OLD, (10, 17), generator=torch.Generator().manual_seed(5)).numpy()
    small = run.model_copy(
        update={
            "sequences": (write_sequences(home / "small.arrow", tokens),),
            "model": run.model.model_copy(update={"vocab_size": OLD}),
            "tokenizer_digest": "of the base",
        }
    )
    return train(small)


@pytest.fixture(scope="module")
def added_pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Piece 40 wrote as 10 and 20, 41 as 11 and 21, ...; 47 could not be written."""
    ids = list(range(OLD, OLD + NEW))
    base_ids = [[number - 30, number - 20] for number in ids[:-1]] + [[]]
    table = pa.table({"id": pa.array(ids, pa.int32()), "base_ids": pa.array(base_ids, pa.list_(pa.int32()))})
    path = tmp_path_factory.mktemp("added") / "added_pieces.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.fixture(scope="module")
def extended(base: Path, added_pieces: Path) -> Callable[..., TrainerRun]:
    """A run over 48 pieces, built by a given function, that starts from the base of 40."""

    def run(build: Callable[..., TrainerRun], name: str = "out", **settings: object) -> TrainerRun:
        starting = StartingModel(folder=base, tokenizer_digest="of the base", added_pieces=added_pieces)
        trainable = settings.pop("trainable", "all")
        made = build(name=name, **settings)
        return TrainerRun.model_validate(
            made.model_dump() | {"base": starting, "train": made.train.model_dump() | {"trainable": trainable}}
        )

    return run


@pytest.fixture
def extend(make_run, extended: Callable[..., TrainerRun]) -> Callable[..., TrainerRun]:
    """Such a run in the test's own folder."""
    return functools.partial(extended, make_run)


def finish(trainer: subprocess.Popen[str]) -> tuple[int, list[dict], str]:
    out, err = trainer.communicate(timeout=120)
    return trainer.returncode, [json.loads(line) for line in out.splitlines()], err


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_training_goes_on_from_the_weights_of_a_trained_model(make_run) -> None:
    first = train(make_run("first"))
    on = make_run("on", positions=2).model_copy(
        update={"base": StartingModel(folder=first, tokenizer_digest="tokenizer")}
    )
    trained = weights(first)
    distance = [
        sum(float((ended[name] - trained[name]).pow(2).sum()) for name in trained)
        for ended in (weights(train(on)), weights(train(make_run("scratch", positions=2))))
    ]
    assert distance[0] < distance[1] / 10


def test_at_the_start_old_pieces_have_their_logits_and_new_rows_are_means(extend, base: Path) -> None:
    start = initial_network(extend(), resumes=False)
    trained = load_model(base)
    tokens = torch.randint(4, OLD, (3, 16), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(start.network(tokens)[..., :OLD], trained(tokens), rtol=0, atol=1e-6)
    table = start.network.embedding.weight.detach()
    torch.testing.assert_close(table[41], (table[11] + table[21]) / 2)
    assert start.base is not None
    assert (start.base.get("new_rows"), start.base.get("without_meaning")) == (NEW, 1)


def test_rows_of_their_own_give_the_logits_of_one_table(extend) -> None:
    one = initial_network(extend(), resumes=False).network
    split = initial_network(extend(trainable="new_rows"), resumes=False).network
    every_piece = torch.arange(OLD + NEW).view(3, 16)
    torch.testing.assert_close(split(every_piece), one(every_piece), rtol=0, atol=1e-6)


ENGINES = [
    pytest.param({}, id="native"),
    pytest.param({"ranks": 2}, id="native-2"),
    pytest.param({"engine": "deepspeed", "zero_stage": 1, "ranks": 2}, id="zero-1", marks=pytest.mark.prove),
    pytest.param({"engine": "deepspeed", "zero_stage": 2, "ranks": 2}, id="zero-2", marks=pytest.mark.prove),
    pytest.param({"engine": "deepspeed", "zero_stage": 3, "ranks": 2}, id="zero-3"),
]


NEW_ROWS = {**ALONE, "batch_rows": 8, "micro_batch_rows": 2, "positions": 8 * (10 if FORKS else 60)}
"""Enough steps to be killed in the middle: forks can pause at each."""


@dataclass(frozen=True)
class Finished:
    """A run that trained new rows alone, and what it said."""

    run: TrainerRun
    messages: list[dict]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, build_run, extended, launch) -> Callable[[dict], Finished]:
    """The undisturbed run of an engine; of each there is one."""
    found: dict[str, Finished] = {}

    def of(engine: dict) -> Finished:
        if str(engine) not in found:
            build = functools.partial(build_run, tmp_path_factory.mktemp("finished"))
            run = extended(build, **NEW_ROWS, **engine)
            code, messages, err = finish(launch(run))
            assert code == 0, err
            found[str(engine)] = Finished(run, messages)
        return found[str(engine)]

    return of


@pytest.fixture(scope="module")
def reference_loss() -> dict[str, list[float]]:
    return {}


@pytest.mark.parametrize("engine", ENGINES)
def test_old_weights_do_not_move_by_a_bit_and_new_rows_learn(
    extend, base: Path, finished, reference_loss: dict[str, list[float]], engine: dict
) -> None:
    run, messages = finished(engine).run, finished(engine).messages
    assert any(message.get("event") == "base_model" and message["new_rows"] == NEW for message in messages)
    before, after = weights(base), weights(run.out / "result")
    assert set(after) == set(before)
    assert after["embedding.weight"].shape == (OLD + NEW, 16)
    assert torch.equal(after["embedding.weight"][:OLD], before["embedding.weight"])
    assert all(torch.equal(after[name], before[name]) for name in before if name != "embedding.weight")
    started = initial_network(extend("again"), resumes=False).network.embedding.weight.detach()
    moved = (after["embedding.weight"] - started)[OLD:].abs().max(dim=1).values
    assert (moved > 1e-3).all()
    with pa.OSFile(str(run.out / "result" / "metrics.arrow"), "rb") as source:
        losses = pa.ipc.open_file(source).read_all()["loss"].to_pylist()
    # Random text, so only what pieces are frequent can be learnt.
    assert losses[-1] < losses[0]
    assert losses == pytest.approx(reference_loss.setdefault("native", losses), rel=1e-5)
    assert load_model(run.out / "result").config.vocab_size == OLD + NEW


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(*one.values, id=one.id, marks=() if one.id in ("native", "zero-3") else pytest.mark.prove)
        for one in ENGINES
    ],
)
def test_killed_with_rows_of_their_own_it_ends_with_the_bytes_of_an_undisturbed_run(
    extend, finished, launch, engine: dict
) -> None:
    undisturbed, run = finished(engine).run, extend(**NEW_ROWS, **engine)
    trainer = launch(run, before=pause_at_each_step)
    deadline = time.monotonic() + 60
    while not list((run.out / "checkpoints").glob("step-*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    trainer.send_signal(signal.SIGKILL)
    finish(trainer)
    code, messages, err = finish(launch(run))
    assert code == 0, err
    assert next(message["step"] for message in messages if message["kind"] == "start") > 0
    for name in EXACT_FILES:
        assert (run.out / "result" / name).read_bytes() == (undisturbed.out / "result" / name).read_bytes(), name


def test_new_rows_are_not_decayed_and_nothing_else_is_in_the_optimizer(extend) -> None:
    network = initial_network(extend(**ALONE), resumes=False).network
    (group,) = make_optimizer(network, OptimizerConfig(weight_decay=0.5)).param_groups
    assert [id(parameter) for parameter in group["params"]] == [id(network.new_rows)]
    assert group["weight_decay"] == 0


def test_where_all_weights_learn_the_old_ones_move_too(extend, base: Path) -> None:
    after = weights(train(extend()))
    assert after["embedding.weight"][:OLD].ne(weights(base)["embedding.weight"]).any()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model": {"layers": 1}}, RecipeError, "has layers = 2, and this run asks for 1. Set train.model.layers = 2"),
        ({"base": {"tokenizer_digest": "another"}}, InputError, "trained with the tokenizer of the base, not with"),
        (
            {"base": {"added_pieces": None}},
            InputError,
            "has 40 embedding rows, and this run's vocabulary has 48 tokens",
        ),
        ({"model": {"vocab_size": OLD}}, InputError, r"only 40 tokens\. Set vocab\.embedding_rows to 40"),
        ({"model": {"vocab_size": 50}}, InputError, r"describes the tokens 40 to 47 .* has 40 to 49"),
        ({"base": {"folder": "/nowhere"}}, InputError, "/nowhere holds no model"),
    ],
)
def test_a_model_that_does_not_fit_the_run_is_refused(extend, change: dict, error: type, words: str) -> None:
    run = extend().model_dump()
    for key, fields in change.items():
        run[key] |= fields
    with pytest.raises(error, match=rf"(?s){words}"):
        train(TrainerRun.model_validate(run))


def test_new_rows_alone_need_new_rows(make_run, base: Path) -> None:
    made = make_run()
    same = StartingModel(folder=train(make_run("same")), tokenizer_digest="tokenizer")
    alone = made.train.model_dump() | {"trainable": "new_rows"}
    with pytest.raises(RecipeError, match="there are no new rows"):
        train(TrainerRun.model_validate(made.model_dump() | {"train": alone, "base": same}))
    with pytest.raises(ValidationError, match="needs a trained model"):
        TrainerRun.model_validate(made.model_dump() | {"train": alone})


@pytest.fixture(scope="module")
def own_head(tmp_path_factory: pytest.TempPathFactory, build_run, write_sequences) -> Path:
    """The folder of a model of 40 pieces whose head is a matrix of its own, with a bias for each piece."""
    home = tmp_path_factory.mktemp("own-head")
    made = build_run(home, positions=8)
    tokens = torch.randint(4, OLD, (10, 17), generator=torch.Generator().manual_seed(5)).numpy()
    choices = {"vocab_size": OLD, "tied_head": False, "head_bias": True}
    small = {
        "sequences": (write_sequences(home / "small.arrow", tokens),),
        "model": made.model.model_copy(update=choices),
        "tokenizer_digest": "of the base",
    }
    return train(made.model_copy(update=small))


@pytest.mark.parametrize("engine", ENGINES)
def test_new_rows_of_a_head_of_its_own_start_and_learn_as_the_embedding_s(
    extend, own_head: Path, launch, engine: dict
) -> None:
    run = extend(**ALONE, batch_rows=8, micro_batch_rows=2, positions=8 * 10, **engine)
    own = run.model.model_copy(update={"tied_head": False, "head_bias": True})
    run = run.model_copy(update={"base": run.base.model_copy(update={"folder": own_head}), "model": own})
    before = weights(own_head)
    network = initial_network(run, resumes=False).network
    torch.testing.assert_close(network.new_head_rows[0], before["head.weight"][[10, 20]].mean(dim=0))
    torch.testing.assert_close(network.new_rows[0], before["embedding.weight"][[10, 20]].mean(dim=0))
    code, _, err = finish(launch(run))
    assert code == 0, err
    after = weights(run.out / "result")
    tables = ("embedding.weight", "head.weight")
    for name, trained in before.items():
        assert torch.equal(after[name][: len(trained)], trained), name
    assert [len(after[name]) for name in (*tables, "head_bias")] == [OLD + NEW] * 3
    assert not after["head_bias"][OLD:].any()
    for name, started in zip(tables, (network.new_rows, network.new_head_rows), strict=True):
        assert ((after[name][OLD:] - started.detach()).abs().max(dim=1).values > 1e-3).all()


def test_new_rows_of_a_head_of_its_own_start_in_one_table_too(extend, own_head: Path) -> None:
    run = extend()
    own = run.model.model_copy(update={"tied_head": False, "head_bias": True})
    run = run.model_copy(update={"base": run.base.model_copy(update={"folder": own_head}), "model": own})
    network, before = initial_network(run, resumes=False).network, weights(own_head)
    assert network.new_head_rows is None
    torch.testing.assert_close(network.head.weight[OLD + 1], before["head.weight"][[11, 21]].mean(dim=0))
    assert torch.equal(network.head.weight[:OLD], before["head.weight"])


def test_a_base_whose_bytes_changed_is_not_trained_on(extend, base: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("model.json", "model.safetensors"):
        (copy / name).write_bytes((base / name).read_bytes())
    run = extend()
    moved = run.model_copy(update={"base": run.base.model_copy(update={"folder": copy})})
    assert train(moved.model_copy(update={"out": tmp_path / "moved"})).exists()
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    with pytest.raises(IntegrityError, match="bytes changed after training"):
        train(moved.model_copy(update={"out": tmp_path / "flipped"}))


def test_a_base_that_is_another_than_the_run_was_planned_with_is_an_error(extend, base: Path) -> None:
    planned = extend().base.model_copy(update={"digest": base_digest(base)})
    assert base_weights(planned)[1] == describe_model(base)["weights_digest"]
    other = planned.model_copy(update={"digest": "0" * 32})
    with pytest.raises(ChangedInput, match=f"the model had the digest {other.digest}, and has {planned.digest} now"):
        base_weights(other)


@pytest.mark.parametrize("moment", ["describe_model", "check_header"])
@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_base_replaced_while_it_is_read_is_an_error(
    name: str, moment: str, extend, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(base, copy)
    whole = getattr(weights_module, moment)

    def replaced(*given):
        found = whole(*given)
        (tmp_path / "beside").write_bytes((copy / name).read_bytes())
        (tmp_path / "beside").replace(copy / name)
        return found

    monkeypatch.setattr(weights_module, moment, replaced)
    with pytest.raises(ChangedInput, match=rf"{name} was changed .* while it was read"):
        base_weights(extend().base.model_copy(update={"folder": copy}))


def test_a_checkpoint_goes_on_from_a_moved_base_and_not_from_another(extend, base: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("model.json", "model.safetensors"):
        (copy / name).write_bytes((base / name).read_bytes())
    run = extend()
    result = train(run)
    (result / "model.json").unlink()
    moved = run.model_copy(update={"base": run.base.model_copy(update={"folder": copy})})
    assert train(moved) == result
    (result / "model.json").unlink()
    (copy / "model.json").write_text((copy / "model.json").read_text() + "\n")
    with pytest.raises(InputError, match="its `base` is"):
        train(moved)
