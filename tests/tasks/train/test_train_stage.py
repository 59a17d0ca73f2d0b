"""A model from rows: trained by the real trainer, interrupted and resumed to the same bytes."""

import argparse
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from model.checkpoint.metrics import MetricsLog
from model.errors import Infra, InputError, IntegrityError, Paused, RecipeError
from model.guard.decisions import Decision
from model.guard.guard import write_decision
from model.launch.failures import FEWER_RANKS, LONGEST_PAUSE
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import ProgressListener, RunContext, stage_identity
from tasks.artifacts.identity import Identity, library_versions
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.train.config import TrainStageConfig
from tasks.train.launcher import MessageFormatter
from tasks.train.run import _result
from tasks.train.stage import build_train, train_stage
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab

TEXT = Path(argparse.__file__).read_text(encoding="utf-8")
CONFIG = TrainStageConfig.model_validate(
    {
        "model": {"context": 32, "layers": 1, "heads": 2, "width": 16},
        "batch_rows": 4,
        "micro_batch_rows": 4,
        "checkpoint_steps": 5,
        "threads": 1,
    }
)


@pytest.fixture
def parents(context: RunContext, make_documents) -> tuple[Artifact, Artifact]:
    documents = make_documents([[("code", TEXT[:20_000])]])
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=400))
    chunk = build_chunk(context, documents, vocab, ChunkConfig(row_length=33, budget_tokens=32 * 4 * 12))
    return chunk, vocab


def test_a_portable_training_is_the_same_in_any_layout(context, parents):
    sequences, vocab = parents
    given = {"sequences": sequences, "vocab": vocab}

    def identity(**settings: object) -> Identity:
        config = TrainStageConfig.model_validate({**CONFIG.model_dump(), **settings})
        return stage_identity(train_stage(config), config, given, {})

    layout = {"ranks": 2, "threads": 3, "micro_batch_rows": 1, "memory_limit": 1 << 30}
    portable = identity(numerics="portable")
    assert portable == identity(numerics="portable", **layout)
    assert portable.libs["numerics"] == "portable-1"
    assert "instruction-set" not in portable.libs
    others = [identity(), *(identity(**{name: value}) for name, value in layout.items())]
    assert len({one.key for one in (portable, *others)}) == 2 + len(layout)
    assert all("instruction-set" in one.libs for one in others)


def test_a_portable_training_resumes_with_other_ranks(context, parents):
    def config(**settings: object) -> TrainStageConfig:
        return TrainStageConfig.model_validate({**CONFIG.model_dump(), "numerics": "portable", **settings})

    with pytest.raises(Paused):
        build_train(context, *parents, config(pause_share=0.5), print)
    artifact = build_train(context, *parents, config(ranks=2, micro_batch_rows=2, threads=2), print)
    starts = [kind for kind in artifact.table("events").column("kind").to_pylist() if kind in ("start", "resume")]
    assert starts == ["start", "resume"]
    assert build_train(context, *parents, config(), print).reused


def test_interrupted_training_goes_on_to_the_bytes_of_an_undisturbed_one(context, parents, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    heard: list[dict[str, Any]] = []
    whole = build_train(context, *parents, CONFIG, heard.append)
    assert [message["kind"] for message in heard][:1] == ["start"]
    assert heard[-1]["kind"] == "done"
    assert whole.table("steps").num_rows == 12
    assert whole.table("metrics").num_rows == 12
    facts = whole.report.facts
    assert facts["exact"] is True
    assert facts["training"]["tokens"] == 32 * 4 * 12
    clocks = {record.name for record in whole.records if not record.deterministic}
    assert clocks == {"perf.arrow", "events.arrow", "reproduction.json", "packages.lock"}

    def interrupt(message: dict[str, Any]) -> None:
        if message["kind"] in ("step", "checkpoint"):
            raise KeyboardInterrupt

    again = replace(context, forced=frozenset({"train"}))
    with pytest.raises(KeyboardInterrupt):
        build_train(again, *parents, CONFIG, interrupt)
    heard.clear()
    resumed = build_train(again, *parents, CONFIG, heard.append)
    assert heard[0]["step"] > 0
    assert resumed.content == whole.content
    assert not resumed.reused
    assert (context.root / "runs" / context.run_id / "train.log").exists()


@pytest.mark.usefixtures("forked_trainers")
def test_a_paused_training_leaves_no_artifact_and_goes_on_to_the_same_content(context, parents, tmp_path):
    whole = build_train(replace(context, root=tmp_path / "other"), *parents, CONFIG, lambda message: None)
    heard: list[dict[str, Any]] = []
    with pytest.raises(Paused, match="paused after step 6 of 12"):
        build_train(context, *parents, CONFIG.model_copy(update={"pause_share": 0.5}), heard.append)
    reported = [sentence for message in heard for sentence in MessageFormatter().format(message)]
    assert reported[-1] == "paused after step 6 of 12, with a checkpoint to resume from"
    assert not (context.root / "artifacts" / "train").exists()
    heard.clear()
    resumed = build_train(context, *parents, CONFIG, heard.append)
    assert heard[0]["step"] == 6
    assert (resumed.identity, resumed.content) == (whole.identity, whole.content)


@pytest.mark.usefixtures("forked_trainers")
def test_lasting_checkpoints_that_an_earlier_setting_did_not_ask_for_are_named_and_left_out(context, parents):
    with pytest.raises(Paused):
        build_train(context, *parents, CONFIG.model_copy(update={"pause_share": 0.5}), lambda message: None)
    heard: list[dict[str, Any]] = []
    resumed = build_train(context, *parents, CONFIG.model_copy(update={"lasting_checkpoints": 3}), heard.append)
    kept = {record.name.partition(".")[0] for record in resumed.records if record.name.startswith("step-")}
    assert kept == {"step-000000006", "step-000000009"}
    (missing,) = [message for message in heard if message.get("event") == "no_lasting_checkpoint"]
    (sentence,) = MessageFormatter().format(missing)
    assert sentence == "no_lasting_checkpoint: step 3, because it was not written"


def test_a_vocabulary_size_that_contradicts_the_tokenizer_is_refused(context, parents):
    wrong = CONFIG.model_copy(update={"model": CONFIG.model.model_copy(update={"vocab_size": 500})})
    with pytest.raises(RecipeError, match=r"train.model.vocab_size is 500.*has 400 tokens"):
        build_train(context, *parents, wrong, lambda message: None)


@pytest.mark.usefixtures("forked_trainers")
def test_rows_of_another_length_than_the_context_are_refused_by_the_trainer(context, parents):
    wrong = CONFIG.model_copy(update={"model": CONFIG.model.model_copy(update={"context": 64})})
    with pytest.raises(InputError, match=r"rows of 33 tokens.*context 64 needs\s+65"):
        build_train(context, *parents, wrong, lambda message: None)


def test_patience_is_no_part_of_the_identity_and_threads_are():
    patient = CONFIG.model_copy(update={"hang_seconds": 5.0, "max_seconds": 9.0, "stop_seconds": 1.0})
    assert patient.identity_params() == CONFIG.identity_params()
    threads = CONFIG.model_copy(update={"threads": 2})
    assert threads.identity_params() != CONFIG.identity_params()


def test_a_log_gets_about_twenty_lines_however_many_steps():
    teller = MessageFormatter()
    step = {"kind": "step", "steps": 1000, "loss": 1.0, "lr": 0.1, "tokens_s": 5}
    reported = [line for number in range(1, 1001) for line in teller.format({**step, "step": number})]
    assert len(reported) == 21
    assert reported[-1].startswith("step 1000 of 1000: loss 1.0000")


def test_a_restart_is_reported_in_a_sentence_with_what_it_cost():
    restart = {"kind": "event", "event": "restart", "number": 2, "step": 57, "checkpoint": 50, "seconds_lost": 12.4}
    (reported,) = MessageFormatter().format({**restart, "words": "Infra: rank 1 of 2 was killed by SIGKILL"})
    assert reported == (
        "restart 2 after step 57: Infra: rank 1 of 2 was killed by SIGKILL; training resumes from step 50, 12 seconds"
        " were lost"
    )


ROLLBACK = {
    "kind": "event",
    "event": "rollback",
    "step": 205,
    "cause": "the loss has risen from 2.6 to 3.17 since step 201",
    "onset": 201,
    "to_step": 125,
    "skipped": [3184, 3328],
    "firing": 1,
    "settings": {},
}


def test_a_rollback_is_reported_with_its_cause_its_onset_and_what_is_left_out():
    (reported,) = MessageFormatter().format(ROLLBACK)
    assert reported == (
        "rollback at step 205: the loss has risen from 2.6 to 3.17 since step 201; it began at step 201, training rolls"
        " back to the checkpoint after step 125, skips positions 3,184 to 3,328 of ORDER (144 sequences) and changes"
        " nothing else"
    )
    (reported,) = MessageFormatter().format(
        {**ROLLBACK, "to_step": 0, "settings": {"train.schedule.peak_lr": 0.001 * 0.9}}
    )
    assert "rolls back to its start, " in reported
    assert reported.endswith(" and changes train.schedule.peak_lr to 0.0009")


def test_rollbacks_are_shown_where_the_run_was_started(context, parents, monkeypatch):
    shown: list[tuple[str, str]] = []
    recovered = {"kind": "event", "event": "recovered", "step": 269, "onset": 201, "to_step": 125, "cause": "it rose"}

    class Onlooker(ProgressListener):
        def note(self, stage: str, sentence: str) -> None:
            shown.append((stage, sentence))

    def trainer(*arguments: object, on_log: Callable[[dict[str, Any]], None], **settings: object) -> None:
        for message in ({"kind": "event", "event": "spike", "step": 203}, ROLLBACK, recovered):
            on_log(message)
        raise Paused(300, 600, 2.5)

    monkeypatch.setattr("tasks.train.run.run_trainer", trainer)
    with pytest.raises(Paused):
        build_train(replace(context, listener=Onlooker()), *parents, CONFIG, lambda message: None)
    (_, first), (_, second) = [(stage, sentence) for stage, sentence in shown if stage == "train"][-2:]
    assert first.startswith("rollback at step 205: the loss has risen ")
    assert second == "recovered by step 269: the divergence that began at step 201 (it rose) has not recurred"
    assert not any("spike" in sentence for _, sentence in shown)


@pytest.mark.parametrize(
    ("by", "expected"), [(["guard"], [True, False]), (["hand"], [True]), (["guard", "hand", "guard"], [True])]
)
def test_a_replay_that_the_guard_rolled_back_is_trained_anew_though_it_ends_as_a_plain_run(
    by, expected, context, parents, monkeypatch
):
    """As where `data forget` was interrupted, and the run continued without it. What a person decided stays."""
    replays: list[bool] = []

    def trainer(*arguments: object, heartbeat: Path, **settings: object) -> None:
        out = heartbeat.parent
        replays.append((out / "replay").exists())
        if len(replays) == 2:
            raise Infra("killed")
        (out / "result").mkdir()
        (out / "result" / "model.json").write_text(json.dumps({"decisions": [{"by": one} for one in by]}))

    monkeypatch.setattr("tasks.train.run.run_trainer", trainer)
    monkeypatch.setattr("tasks.train.run.write_run", lambda path, run: (path.parent / "replay").mkdir())
    with pytest.raises(Infra if by == ["guard"] else IntegrityError):  # The second ends at a result without its marker.
        build_train(context, *parents, CONFIG, lambda message: None)
    assert replays == expected


def test_steps_that_fewer_ranks_computed_make_the_model_inexact_unless_its_numerics_are_portable():
    journal = MetricsLog()
    journal.add("steps", step=0, pos_start=0, pos_end=4, row_pieces=1, applied=True)
    assert _result(journal.tables(), [], CONFIG).exact is True
    journal.event(0, FEWER_RANKS, "Infra", ranks=1, of=2)
    assert _result(journal.tables(), [], CONFIG).exact is False
    portable = CONFIG.model_copy(update={"numerics": "portable"})
    assert _result(journal.tables(), [], portable).exact is True


def test_the_supervisor_is_given_longer_than_it_gives_the_ranks_by_the_settings_of_the_training(
    context, parents, monkeypatch
):
    """A person has raised `hang_seconds` of the training before it is continued."""
    given: list[float] = []

    def trainer(*arguments: object, heartbeat: Path, hang_seconds: float, **others: object) -> None:
        given.append(hang_seconds)
        if len(given) == 1:
            settings = {"train.hang_seconds": 9e3}
            raised = Decision(attempt=1, by="hand", cause="", onset=0, step=0, to_step=0, settings=settings)
            write_decision(heartbeat.parent, raised, MetricsLog())
        raise Infra("killed")

    monkeypatch.setattr("tasks.train.run.run_trainer", trainer)
    config = CONFIG.model_copy(update={"hang_seconds": 10.0, "start_seconds": 100.0})
    for _ in range(2):
        with pytest.raises(Infra):
            build_train(context, *parents, config, lambda message: None)
    assert given[0] > 110 + LONGEST_PAUSE
    assert given[1] - given[0] == 9e3 - 10
    assert config.trainer_config().hang_seconds == 10


def test_deepspeed_decides_the_result_only_where_it_is_the_engine():
    assert "deepspeed" not in train_stage(CONFIG).libraries
    zero = CONFIG.model_copy(update={"engine": "deepspeed"})
    assert set(train_stage(zero).libraries) - set(train_stage(CONFIG).libraries) == {"deepspeed"}


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"compile": True}, {"c++-compiler"}),
        ({"dtype": "bfloat16"}, {"narrow-products"}),
        ({"device": "cuda"}, {"gpu", "cuda"}),
    ],
)
def test_parts_of_the_machine_decide_the_result_where_they_compute_it(changed: dict[str, Any], parts: set[str]):
    plain, other = (train_stage(CONFIG.model_copy(update=change)).libraries for change in ({}, changed))
    assert set(other) - set(plain) == parts
    assert library_versions(other).keys() - library_versions(plain).keys() == parts


def test_engine_and_ranks_are_part_of_the_identity():
    zero = {"engine": "deepspeed"}
    changes = ({}, zero, {**zero, "zero_stage": 2}, {**zero, "zero_stage": 3}, {"ranks": 2})
    params = [TrainStageConfig.model_validate(CONFIG.model_dump() | change).identity_params() for change in changes]
    assert all(one != other for one, other in itertools.combinations(params, 2))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss_scale": {"start": 8.0}}, "Leave loss_scale out, or set dtype = float16"),
        ({"dtype": "bfloat16", "loss_scale": {"growth_steps": 3}}, "dtype is bfloat16"),
        ({"zero_stage": 2}, "zero_stage is 2, and engine is native"),
        ({"masked_share": 0.2}, "masked_share is 0.2, and a gpt has no masked tokens"),
        ({"model": {"architecture": "t5"}, "masked_share": 0.2}, "and a t5 has no masked tokens"),
        ({"base_model": "base", "trainable": "new_rows", "optimizer": {"kind": "muon"}}, "adamw, lamb or sgd"),
    ],
)
def test_settings_that_nothing_would_look_at_are_refused(settings: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        TrainStageConfig.model_validate(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float16", "loss_scale": {"start": 8.0}},
        {"engine": "deepspeed", "zero_stage": 2},
        {"model": {"architecture": "bert"}, "masked_share": 0.2},
        {"optimizer": {"kind": "muon"}},
        # As they are by default, they ask for nothing.
        {"zero_stage": 1, "masked_share": 0.15, "loss_scale": {"start": 65536.0}},
    ],
)
def test_settings_beside_what_they_speak_of_are_taken(settings: dict[str, Any]):
    config = TrainStageConfig.model_validate(settings)
    assert TrainStageConfig.model_validate(config.model_dump()) == config


@pytest.mark.prove
def test_deepspeed_on_two_ranks_makes_an_artifact_of_the_same_form(context, parents):
    heard: list[dict[str, Any]] = []
    native = build_train(context, *parents, CONFIG, lambda message: None)
    zero = CONFIG.model_copy(update={"engine": "deepspeed", "zero_stage": 2, "ranks": 2})
    spread = build_train(context, *parents, zero, heard.append)
    assert [message["kind"] for message in heard if message["kind"] in ("start", "done")] == ["start", "done"]
    assert [record.name for record in spread.records] == [record.name for record in native.records]
    losses = [artifact.table("metrics").column("loss").to_pylist() for artifact in (spread, native)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert spread.report.facts["exact"] is True
    again = build_train(replace(context, forced=frozenset({"train"})), *parents, zero, lambda message: None)
    assert again.content == spread.content
