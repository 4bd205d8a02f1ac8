"""One request per file and lifetime, whoever needs the ticket at the same time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from aimodels_core.errors import SourceUnavailable
from aimodels_core.source import ReadTicket
from aimodels_jobs.sources.hub_tickets import Fresh, Tickets


class Hub:
    """Gives a new URL for each request, and lets a test hold the answer back."""

    def __init__(self, lifetime_seconds: float | None = 100.0) -> None:
        self.asked = 0
        self.lifetime_seconds = lifetime_seconds
        self.open = threading.Event()
        self.open.set()
        self.error: Exception | None = None

    def fetch(self) -> Fresh:
        self.asked += 1
        number = self.asked
        assert self.open.wait(10)
        if self.error is not None:
            raise self.error
        return Fresh(ReadTicket(f"https://cdn/{number}"), self.lifetime_seconds)


class Time:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def tickets(time: Time) -> Tickets:
    return Tickets(clock=time, wait_seconds=10)


def test_a_ticket_is_asked_for_once_and_renewed_at_four_fifths_of_its_life(tickets: Tickets, time: Time) -> None:
    hub = Hub(lifetime_seconds=100.0)
    first = tickets.get("a", hub.fetch)
    time.seconds = 79.9
    assert tickets.get("a", hub.fetch) is first
    assert hub.asked == 1
    time.seconds = 80.0

    assert tickets.get("a", hub.fetch).url == "https://cdn/2"


def test_a_ticket_without_end_is_kept(tickets: Tickets, time: Time) -> None:
    hub = Hub(lifetime_seconds=None)
    first = tickets.get("a", hub.fetch)
    time.seconds = 1e9

    assert tickets.get("a", hub.fetch) is first


def test_files_have_tickets_of_their_own(tickets: Tickets) -> None:
    hub = Hub()

    assert tickets.get("a", hub.fetch) != tickets.get("b", hub.fetch)


def test_a_refused_ticket_is_replaced_once_for_all_that_held_it(tickets: Tickets) -> None:
    hub = Hub()
    old = tickets.get("a", hub.fetch)
    new = tickets.get("a", hub.fetch, refused=old)

    assert new != old
    assert tickets.get("a", hub.fetch, refused=old) == new
    assert tickets.get("a", hub.fetch) == new
    assert hub.asked == 2


def test_callers_at_the_same_time_share_one_request(tickets: Tickets) -> None:
    hub = Hub()
    hub.open.clear()
    ready = threading.Barrier(9)

    def call() -> ReadTicket:
        ready.wait(10)
        return tickets.get("a", hub.fetch)

    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(call) for _ in range(8)]
        ready.wait(10)
        hub.open.set()
        found = {each.result(10).url for each in calls}

    assert found == {"https://cdn/1"}
    assert hub.asked == 1


def test_a_failure_is_shared_and_not_kept(tickets: Tickets) -> None:
    hub = Hub()
    hub.error = SourceUnavailable("down")
    with pytest.raises(SourceUnavailable):
        tickets.get("a", hub.fetch)
    hub.error = None

    assert tickets.get("a", hub.fetch).url == "https://cdn/2"


def test_waiting_for_another_callers_request_has_a_deadline(time: Time) -> None:
    hub = Hub()
    hub.open.clear()
    tickets = Tickets(clock=time, wait_seconds=0.01)
    begun = threading.Event()

    def fetch() -> Fresh:
        begun.set()
        return hub.fetch()

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(tickets.get, "a", fetch)
        assert begun.wait(10)
        with pytest.raises(SourceUnavailable) as caught:
            tickets.get("a", hub.fetch)
        hub.open.set()
        first.result(10)

    assert caught.value.code == "TimedOut"
