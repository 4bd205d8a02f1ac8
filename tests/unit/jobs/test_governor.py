import threading

import pytest

from aimodels_core.errors import RateLimited
from aimodels_jobs.governor import Connections, RateGate, Throttled, parse_rate_limit

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


def test_what_a_hub_held_up_is_counted_by_kind() -> None:
    clock = Clock()
    gate = RateGate(longest_wait_seconds=0.0, clock=clock)
    gate.wait("hub", "api", "t")
    gate.learn(*KEY, 429, {"retry-after": "7"})
    with pytest.raises(RateLimited):
        gate.wait(*KEY)

    resolve = gate.throttled["resolve"]
    assert (resolve.refusals, gate.throttled["api"].refusals) == (1, 0)
    assert 7 <= resolve.seconds <= 8
    assert gate.throttled["api"].seconds == 0


def test_what_payload_hosts_held_up_is_counted_once() -> None:
    clock = Clock()
    connections = Connections(16, clock=clock)
    connections.had_trouble("cdn", pause_seconds=5)
    clock.now += 3
    connections.had_trouble("cdn", pause_seconds=5)
    connections.had_trouble("other", pause_seconds=2)

    assert connections.throttled == Throttled(seconds=10.0, refusals=3)


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
        connections.went_well("cdn", 1)
    assert connections.limit("cdn") == 9
    for _ in range(1000):
        connections.went_well("cdn", 1)
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


class Source:
    """A host that gives each connection `each` bytes/s, and all of them together `together` at most."""

    def __init__(self, connections: Connections, clock: Clock, each: float, together: float) -> None:
        self.connections, self.clock, self.each, self.together = connections, clock, each, together

    def serve(self, seconds: float, run_bytes: int = 64) -> int:
        """Move runs one after another with all that is granted; how many connections the last one had."""
        end, granted = self.clock() + seconds, 0
        while self.clock() < end:
            granted = self.connections.grant("cdn", 64, run_bytes)
            self.clock.now += run_bytes / min(granted * self.each, self.together)
            self.connections.went_well("cdn", run_bytes)
            self.connections.give_back("cdn", granted)
        return granted


@pytest.mark.parametrize(
    ("each", "together", "want"),
    [
        (50.0, 10_000.0, 16),  # throttled for each connection
        (1.0, 10_000.0, 16),  # so slow that no run comes within a window
        (250.0, 900.0, 4),  # the mover itself is the limit
        (100.0, 900.0, 8),  # eight are clearly better than four, sixteen are not better than eight
    ],
)
def test_as_many_connections_as_bring_more_bytes(each: float, together: float, want: int) -> None:
    clock = Clock()
    source = Source(Connections(16, first=4, clock=clock), clock, each, together)
    source.serve(20.0 if each > 1 else 200.0)
    assert source.connections.limit("cdn") == want


def test_connections_are_looked_at_again_when_the_source_has_changed() -> None:
    clock = Clock()
    source = Source(Connections(16, first=4, clock=clock), clock, 250.0, 900.0)
    assert source.serve(20.0) == 4
    source.each = 20.0
    assert source.serve(60.0) == 16


def test_a_rest_is_not_taken_for_a_slow_source() -> None:
    clock = Clock()
    source = Source(Connections(16, first=4, clock=clock), clock, 250.0, 900.0)
    source.serve(0.3)
    clock.now += 600.0
    source.serve(0.3)
    assert source.connections.limit("cdn") == 4


def test_who_waits_for_a_connection_is_woken_when_the_window_ends() -> None:
    clock = Clock()
    connections = Connections(16, first=4, clock=clock)
    assert connections.grant("cdn", 4, 64) == 4
    wait = connections.wake_after("cdn")
    assert wait is not None
    clock.now += wait
    assert connections.grant("cdn", 12, 64) == 12


def test_as_many_as_asked_for_are_granted_at_once() -> None:
    assert Connections.of(16, movers=1).grant("cdn", 16, 64) == 16
