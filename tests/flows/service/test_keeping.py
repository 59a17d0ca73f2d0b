"""Parts of the service that end by themselves are started again: at once, then after longer pauses."""

from flows.service.keeper import MAX_PAUSE, STEADY_SECONDS, Backoff


def test_the_first_time_at_once() -> None:
    assert Backoff().is_over(0.0)
    assert Backoff().is_over(1e9)


def test_pauses_double_while_it_ends_soon() -> None:
    patience, now, pauses = Backoff(), 1000.0, []
    for _ in range(8):
        patience.begin(now)
        begun = now
        while not patience.is_over(now):
            now += 1.0
        pauses.append(now - begun)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, MAX_PAUSE]


def test_what_lived_long_is_started_at_once_again() -> None:
    patience = Backoff()
    for now in (0.0, 1.0, 3.0, 7.0):
        patience.begin(now)
    assert not patience.is_over(7.0 + 2.0)
    later = 7.0 + 8.0 + STEADY_SECONDS
    patience.begin(later)
    assert patience.is_over(later + 1.0)
