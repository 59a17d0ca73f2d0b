"""Where a run rolls back to, what it skips, and what it changes."""

from pathlib import Path
from typing import Any

import pytest

from model.config.network import BERTConfig, GPTConfig
from model.config.options import GuardConfig, RecoveryStep
from model.config.train import TrainConfig, TrainerRun
from model.errors import RecipeError
from model.guard.decisions import Decision, effective_config, with_settings
from model.guard.detection import Divergence
from model.guard.guard import Guard
from model.guard.policy import Health, RecoveryExhausted, check_policy, decide, default_policy, settings_of
from model.optim.schedules import TrainingSchedule

STEPS = 1000
HEALTHY = [300, 350, 400]
EXISTING = [*HEALTHY, 450, 500]


def by_hand(attempt: int, **settings: Any) -> Decision:
    return Decision(attempt=attempt, by="hand", cause="", onset=0, step=0, to_step=0, settings=settings)


def make_run(model: GPTConfig | None = None, **train: Any) -> TrainerRun:
    return TrainerRun(
        sequences=(Path("rows.arrow"),),
        order=Path("order.arrow"),
        out=Path("out"),
        pad=0,
        tokenizer_digest="",
        model=model or GPTConfig(),
        train=TrainConfig.model_validate(train),
    )


def positions(step: int) -> tuple[int, int]:
    return 16 * step, 16 * step + 16


def decided(run: TrainerRun, decisions: list[Decision], onset: int, step: int) -> Decision:
    health = Health(64, {"candidates": [450, 500], "healthy": HEALTHY})
    return decide(run, decisions, Divergence(onset, step, "it rose"), health, EXISTING, positions, STEPS)


def fired(run: TrainerRun, *onsets: int) -> list[Decision]:
    decisions: list[Decision] = []
    for onset in onsets:
        decisions.append(decided(run, decisions, onset, onset + 10))
    return decisions


def test_the_first_time_nothing_changes_but_the_data() -> None:
    (decision,) = fired(make_run(), 425)
    assert decision.attempt == 1
    assert decision.to_step == 400, "the newest healthy one at least 20 steps before step 425"
    assert decision.skipped == (16 * 423, 16 * 438), "from two steps before its onset to two behind step 435"
    assert decision.settings == {}
    assert effective_config(make_run(), [decision]) == make_run()
    assert fired(make_run(), 419)[0].to_step == 350, "step 400 is only 19 steps before"


def test_the_same_trouble_goes_further_back_and_changes_more() -> None:
    run = make_run()
    decisions = fired(run, 425, 430, 440, 441, 435)
    assert [decision.to_step for decision in decisions] == [400, 350, 350, 350, 350]
    assert [decision.firing for decision in decisions] == [1, 2, 3, 4, 5]
    rates = [effective_config(run, decisions[:count]).train.schedule.peak_lr for count in range(1, 6)]
    assert rates == pytest.approx([2e-3, 1.8e-3, 2e-3 * 2 / 3, 1e-3, 2e-2])
    assert effective_config(run, decisions[:4]).train.clip.max_norm == 0.3
    assert effective_config(run, decisions).train.optimizer.kind == "sgd"
    with pytest.raises(RecoveryExhausted, match="each of the 5 steps"):
        decided(run, decisions, 436, 446)


def test_other_trouble_begins_at_the_first_rung_with_what_holds_by_then() -> None:
    run = make_run()
    decisions = fired(run, 425, 430, 800, 810)
    assert [decision.firing for decision in decisions] == [1, 2, 1, 2]
    assert effective_config(run, decisions).train.schedule.peak_lr == pytest.approx(2e-3 * 0.9 * 0.9)


def test_of_two_changes_of_a_setting_the_later_holds() -> None:
    """Though a change of its whole table came between them."""
    rates = ({"train.schedule.peak_lr": 1e-3}, {"train.schedule": {"peak_lr": 5e-4}}, {"train.schedule.peak_lr": 2e-4})
    decisions = [by_hand(number, **rate) for number, rate in enumerate(rates, 1)]
    assert [effective_config(make_run(), decisions[:count]).train.schedule.peak_lr for count in (1, 2, 3)] == [
        1e-3,
        5e-4,
        2e-4,
    ]


def test_rates_of_phases_fall_too() -> None:
    run = make_run(phases=[{"share": 0.2, "start_lr": 2e-3, "end_lr": 1e-3}, {"share": 0.1, "weights": {"news": 1.0}}])
    lower = with_settings(run, settings_of(RecoveryStep(lr_factor=0.5), run))
    before, after = (TrainingSchedule(one.train, 16_000, 256) for one in (run, lower))
    for share in (0.5, 0.75, 0.9, 1.0):
        assert after.learning_rate(share) == pytest.approx(before.learning_rate(share) / 2)
    assert [phase.weights for phase in lower.train.phases] == [{}, {"news": 1.0}]
    without = make_run(phases=[{"share": 0.1, "weights": {"news": 1.0}}])
    assert "train.phases" not in settings_of(RecoveryStep(lr_factor=0.5), without)


def test_a_person_may_change_the_guard() -> None:
    run = make_run()
    short = by_hand(1, **{"train.guard.ladder": [{"lr_factor": 0.5}]})
    decision = decided(run, [short], 425, 435)
    assert decision.settings["train.schedule.peak_lr"] == 1e-3
    with pytest.raises(RecoveryExhausted, match="each of the 1 steps"):
        decided(run, [short, decision], 426, 436)
    with pytest.raises(RecoveryExhausted, match="the guard is off"):
        decided(run, [by_hand(1, **{"train.guard.enabled": False})], 425, 435)


def test_sgd_that_a_person_chose_does_not_become_sgd_at_ten_times_the_rate() -> None:
    run, decisions = make_run(), [by_hand(1, **{"train.optimizer.kind": "sgd", "train.schedule.peak_lr": 0.02})]
    for onset in (425, 430, 440, 441):
        decisions.append(decided(run, decisions, onset, onset + 10))
    with pytest.raises(RecoveryExhausted, match="each of the 4 steps"):
        decided(run, decisions, 435, 445)


def test_most_rollbacks() -> None:
    run = make_run(guard={"most_rollbacks": 2})
    decisions = fired(run, 200, 500)
    with pytest.raises(RecoveryExhausted, match="rolled back 2 times"):
        decided(run, decisions, 900, 910)


def test_a_person_gives_the_guard_a_new_start() -> None:
    run = make_run()
    decisions = fired(run, 425, 430, 440, 441, 435)
    decision = decided(run, [*decisions, by_hand(6)], 436, 446)
    assert (decision.attempt, decision.firing) == (7, 1)


def test_where_nothing_is_healthy_the_run_begins_anew() -> None:
    (decision,) = fired(make_run(), 100)
    assert decision.to_step == 0
    assert fired(make_run(), 1)[0].skipped == (0, 16 * 14)


def test_float16_becomes_bfloat16_at_last_and_sgd_stays_sgd() -> None:
    assert default_policy(make_run(dtype="float16"))[-1].dtype == "bfloat16"
    half = make_run(dtype="float16", loss_scale={"start": 2.0**10})
    assert with_settings(half, settings_of(default_policy(half)[-1], half)).train.dtype == "bfloat16"
    assert len(default_policy(make_run(optimizer={"kind": "sgd"}))) == 4


def test_a_rate_that_came_from_another_width_stays_adamws() -> None:
    wider = make_run(GPTConfig(width=64, heads=4, mup_base_width=32, mup_base_head_size=16))
    check_policy(wider)
    assert [rung.optimizer for rung in default_policy(wider)] == [None] * 4
    as_wide = make_run(GPTConfig(width=32, heads=2, mup_base_width=32))
    assert default_policy(as_wide)[-1].optimizer == "sgd"


def test_a_ladder_of_ones_own() -> None:
    run = make_run(guard={"ladder": [{"lr_factor": 0.5}]})
    decisions = fired(run, 425)
    assert effective_config(run, decisions).train.schedule.peak_lr == 1e-3
    with pytest.raises(RecoveryExhausted, match="each of the 1 steps"):
        decided(run, decisions, 426, 440)


def test_a_run_that_left_out_a_tenth_of_its_rows_is_none() -> None:
    """15 steps of 1,000 at a time, of which nine overlap in the second: 21 are 2.1%."""
    run = make_run(guard={"most_skipped": 0.02})
    decisions = fired(run, 425)
    with pytest.raises(RecoveryExhausted, match="more than 2% of the run's 16,000 rows"):
        decided(run, decisions, 431, 441)
    assert decided(make_run(guard={"most_skipped": 0.021}), decisions, 431, 441).firing == 2


def test_skips_are_for_steps_that_read_any_of_the_positions() -> None:
    decision = Decision(attempt=1, by="guard", cause="", onset=9, step=12, to_step=0, skipped=(100, 140))
    guard = Guard(make_run(), [decision])
    assert [guard.skips(begin, begin + 20) for begin in (60, 80, 90, 120, 139, 140)] == [
        False,
        False,
        True,
        True,
        True,
        False,
    ]


def test_what_was_left_out_stays_left_out() -> None:
    """A setting that only networks of one kind have must not be thought chosen because the run was written down."""
    run = make_run()
    again = with_settings(run, {"train.optimizer.kind": "sgd", "model.activation": "relu"})
    assert again.train.model_fields_set == {"optimizer"}
    assert isinstance(again.model, GPTConfig)
    assert again.model.activation == "relu"
    bert = run.model_copy(update={"model": BERTConfig()})
    assert isinstance(with_settings(bert, {"train.threads": 1}).model, BERTConfig)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train.peak_lr": 1.0}, "train.peak_lr: Extra inputs"),
        ({"out": "elsewhere"}, "out is no setting of training"),
        ({"train.phases.0.end_lr": 0.0}, "train.phases.0.end_lr is no setting of training: phases is no table"),
        ({"train.seed.value": 2}, "train.seed.value is no setting of training: seed is no table"),
        ({"train.batch_rows": 7, "train.micro_batch_rows": 4}, "micro_batch_rows 4 does not divide batch_rows 7"),
        ({"train.optimizer.kind": "adam"}, "train.optimizer.kind"),
    ],
)
def test_changes_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        with_settings(make_run(seed=1, phases=[{"share": 0.1, "end_lr": 1e-4}]), settings)


def test_rungs_are_written_in_a_recipe() -> None:
    assert GuardConfig.model_validate({"ladder": [{}, {"lr_factor": 0.5}]}).ladder == (
        RecoveryStep(),
        RecoveryStep(lr_factor=0.5),
    )
