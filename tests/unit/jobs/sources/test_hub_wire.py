"""How often and how long one thing is tried."""

import dataclasses

import pytest

from aimodels_core.errors import RateLimited, SourceUnavailable
from aimodels_jobs.sources.hub_wire import Clock, Patience, Tries


@dataclasses.dataclass
class Time:
    """A clock that only sleeping moves."""

    seconds: float = 1000.0
    slept: list[float] = dataclasses.field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds

    def clock(self) -> Clock:
        return Clock(now=lambda: self.seconds, monotonic=lambda: self.seconds, sleep=self.sleep, jitter=lambda: 0.5)


def asked_to_wait(seconds: float | None) -> RateLimited:
    return RateLimited("429", code="TooManyRequests", retry_after_seconds=seconds)


def test_pauses_grow_and_the_attempts_end() -> None:
    time, error = Time(), SourceUnavailable("down")
    tries = Tries(Patience(attempts=4, first_pause_seconds=1.0), time.clock())
    for _ in range(3):
        tries.again(error)
    with pytest.raises(SourceUnavailable) as caught:
        tries.again(error)

    assert caught.value is error
    assert time.slept == [0.75, 1.5, 3.0]


def test_the_budget_ends_before_a_long_pause() -> None:
    time = Time()
    tries = Tries(Patience(attempts=100, budget_seconds=10), time.clock())
    time.seconds += 9.0
    with pytest.raises(SourceUnavailable):
        tries.again(SourceUnavailable("503", retry_after_seconds=2.0))

    assert time.slept == []


def test_a_pause_that_the_server_asks_for_is_kept() -> None:
    time = Time()
    Tries(Patience(), time.clock()).again(SourceUnavailable("503", retry_after_seconds=9.0))

    assert time.slept == [9.0]


def test_what_cannot_get_better_is_not_tried_again() -> None:
    with pytest.raises(SourceUnavailable):
        Tries(Patience(), Time().clock()).again(SourceUnavailable("private", code="AddressRefused"))


def test_o06_waits_that_were_asked_for_use_up_neither_attempts_nor_budget() -> None:
    time = Time()
    tries = Tries(Patience(attempts=2, budget_seconds=60, waits_seconds=300), time.clock())
    for _ in range(20):
        time.seconds += 7  # what the gate waits
        tries.again(asked_to_wait(7))
    tries.again(SourceUnavailable("down"))

    assert len(time.slept) == 1


def test_o06_without_retry_after_the_waits_end_too() -> None:
    tries = Tries(Patience(waits_seconds=10), Time().clock())
    for _ in range(10):
        tries.again(asked_to_wait(None))
    with pytest.raises(RateLimited):
        tries.again(asked_to_wait(None))


def test_o06_waits_end_with_the_time_asked_for() -> None:
    tries = Tries(Patience(waits_seconds=100), Time().clock())
    with pytest.raises(RateLimited) as caught:
        tries.again(asked_to_wait(240))

    assert caught.value.retry_after_seconds == 240


def test_the_gates_own_refusal_is_final_here() -> None:
    time = Time()
    with pytest.raises(RateLimited):
        Tries(Patience(), time.clock()).again(RateLimited("the window is used up", retry_after_seconds=1))

    assert time.slept == []
