import threading

import pytest

from aimodels_core.errors import RateLimited
from aimodels_jobs.governor import Connections, RateGate, parse_rate_limit

KEY = ("hub", "resolve", "t")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_header_without_parameters_says_nothing() -> None:
    assert parse_rate_limit("") == {}
    assert parse_rate_limit('"api"') == {}


def test_requests_pass_until_the_window_is_spent() -> None:
    clock = Clock()
    gate = RateGate(longest_wait_seconds=0.0, clock=clock)
    gate.learn(*KEY, 200, {"ratelimit": '"resolve";r=2;t=60'})

    gate.wait(*KEY)
    gate.wait(*KEY)
    with pytest.raises(RateLimited) as caught:
        gate.wait(*KEY)

    assert caught.value.retry_after_seconds == pytest.approx(60, abs=1)
    clock.now += 61
    gate.wait(*KEY)


def test_other_kinds_and_identities_are_not_slowed() -> None:
    gate = RateGate(longest_wait_seconds=0.0, clock=Clock())
    gate.learn(*KEY, 429, {"retry-after": "7"})

    gate.wait("hub", "api", "t")
    gate.wait("hub", "resolve", "other")
    with pytest.raises(RateLimited):
        gate.wait(*KEY)


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        pytest.param({"retry-after": "7"}, 7, 8, id="retry-after"),
        pytest.param({"ratelimit": '"api";r=0;t=30'}, 30, 31, id="reset"),
        pytest.param({}, 2.5, 5, id="nothing"),
        pytest.param({"ratelimit": '"api";r=40;t=290'}, 2.5, 5, id="window with requests left"),
    ],
)
def test_o06_a_refusal_blocks_every_task_of_the_key(headers: dict[str, str], least: float, most: float) -> None:
    clock = Clock()
    gate = RateGate(longest_wait_seconds=0.0, clock=clock)
    gate.learn(*KEY, 429, headers)

    with pytest.raises(RateLimited) as caught:
        gate.wait(*KEY)
    assert least <= (caught.value.retry_after_seconds or 0) <= most


def test_a_waiting_request_goes_on_when_the_pause_is_over() -> None:
    gate = RateGate(longest_wait_seconds=30.0)
    gate.learn(*KEY, 200, {"ratelimit": '"resolve";r=0;t=1'})
    thread = threading.Thread(target=gate.wait, args=KEY)
    thread.start()
    thread.join(10)

    assert not thread.is_alive()
    assert gate.waited_seconds >= 0.9


def test_connections_are_bounded_and_come_back() -> None:
    connections = Connections(8, clock=Clock())

    assert connections.grant("cdn", 6, 1) == 6
    assert connections.grant("cdn", 6, 1) == 2
    assert connections.grant("cdn", 6, 1) == 0
    assert connections.grant("other", 6, 1) == 6

    connections.give_back("cdn", 6)
    assert connections.grant("cdn", 1, 1) == 1


def test_trouble_halves_once_a_second_and_success_creeps_back() -> None:
    clock = Clock()
    connections = Connections(16, clock=clock)

    connections.had_trouble("cdn")
    connections.had_trouble("cdn")
    assert connections.limit("cdn") == 8
    assert connections.grant("cdn", 1, 1) == 0

    clock.now += 2
    assert connections.grant("cdn", 1, 1) == 1
    for _ in range(8):
        connections.went_well("cdn")
    assert connections.limit("cdn") == 9
    for _ in range(1000):
        connections.went_well("cdn")
    assert connections.limit("cdn") == 16


def test_trouble_never_closes_a_host_for_good() -> None:
    clock = Clock()
    connections = Connections(16, clock=clock)
    for _ in range(20):
        clock.now += 400
        connections.had_trouble("cdn", pause_seconds=1e9)
    clock.now += 301

    assert connections.grant("cdn", 4, 1) == 1


def test_bytes_per_second_are_capped() -> None:
    clock = Clock()
    connections = Connections(16, bytes_per_second=100.0, clock=clock)

    assert connections.grant("cdn", 1, 1000) == 1
    assert connections.grant("cdn", 1, 1000) == 0
    assert connections.wake_after("cdn") == pytest.approx(10)
    clock.now += 10.1
    assert connections.grant("cdn", 1, 1000) == 1


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"retry-after": "9" * 400}, id="endless"),
        pytest.param({"retry-after": "²"}, id="no digit that counts"),
        pytest.param({"retry-after": "-1"}, id="negative"),
        pytest.param({"ratelimit": f'"api";r=0;t={"9" * 400}'}, id="endless window"),
        pytest.param({"ratelimit": '"api";r=0;t=999999999'}, id="window of decades"),
        pytest.param({"ratelimit": f'"api";r={"9" * 400};t=1'}, id="endless quota"),
    ],
)
@pytest.mark.parametrize("status", [200, 429])
def test_no_header_of_a_hub_stops_its_tasks_for_longer_than_the_longest_back_off(
    headers: dict[str, str], status: int
) -> None:
    clock = Clock()
    gate = RateGate(longest_wait_seconds=0.0, clock=clock)

    gate.learn(*KEY, status, headers)

    clock.now += 302
    gate.wait(*KEY)
