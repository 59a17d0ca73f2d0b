"""Which checkpoints are healthy."""

from model.guard.policy import Health


def run(health: Health, begin: int, end: int, unclean: tuple[int, ...] = (), every: int = 50) -> None:
    for step in range(begin, end):
        health.step_done(step + 1, clean=step not in unclean)
        if (step + 1) % every == 0:
            health.saved(step + 1)


def test_a_checkpoint_is_healthy_after_64_clean_steps() -> None:
    health = Health(64)
    run(health, 0, 113)
    assert health.healthy == []
    run(health, 113, 114)
    assert health.healthy == [50]
    assert health.to_keep == [50, 100]


def test_a_step_that_is_left_out_makes_all_candidates_doubtful() -> None:
    health = Health(64)
    run(health, 0, 300, unclean=(120,))
    assert health.healthy == [50, 150, 200]


def test_while_something_is_suspected_nothing_becomes_healthy_and_nothing_is_given_up() -> None:
    health = Health(64)
    run(health, 0, 300)
    before = health.healthy
    for step in range(300, 1000):
        health.step_done(step + 1, clean=True, suspected=True)
        if (step + 1) % 50 == 0:
            health.saved(step + 1)
    assert health.healthy == before == [100, 150, 200]
    health.step_done(1001, clean=True)
    assert health.healthy == [800, 850, 900]


def test_the_last_three_healthy_ones_are_kept() -> None:
    health = Health(64)
    run(health, 0, 500)
    assert health.healthy == [300, 350, 400]
    assert health.to_keep == [300, 350, 400, 450, 500]


def test_of_many_checkpoints_every_32nd_step_has_a_candidate() -> None:
    health = Health(64)
    run(health, 0, 200, every=1)
    assert health.to_keep == [65, 97, 129, 161, 193]


def test_state() -> None:
    health = Health(64)
    run(health, 0, 320)
    again = Health(64, health.state)
    run(health, 320, 400)
    run(again, 320, 400)
    assert again.state == health.state
