"""One resolve per file and URL lifetime, and where a hub may send a reader."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from aimodels_core.errors import (
    AiModelsError,
    SourceUnavailable,
)
from aimodels_jobs.sources.hub_wire import Clock
from tests.support.hub.faults import Fault
from tests.support.hub.repository import Access, Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.hub.signing import Style
from tests.support.hub_source import FILES, GRANTED, OPEN, QUICK, WEIGHTS, OpenGate, file_of, read_all, refused, source


def test_one_resolve_per_file_and_url_lifetime(hub: Hub) -> None:
    made = source(hub)
    file = file_of(made, "model.safetensors")
    with ThreadPoolExecutor(8) as pool:
        pieces = list(pool.map(lambda at: made.read(file, at, at + 1000), range(0, 100_000, 1000)))

    assert b"".join(pieces) == WEIGHTS[:100_000]
    assert made.requests_made() == {"api": 2, "resolve": 1}
    assert len(hub.log.select(on=On.RESOLVE)) == 1


def test_a_publication_stays_within_the_requests_that_are_allowed(hub: Hub) -> None:
    made = source(hub)
    for file in made.resolve().files:
        assert len(made.read(file, 0, file.size_bytes)) == file.size_bytes
    asked = made.requests_made()
    own = [each for each in hub.log if each.on is not On.CDN]

    assert asked["api"] == 2
    assert asked["resolve"] == 3
    assert len(own) == sum(asked.values())


def test_every_request_to_the_hub_passes_the_gate_with_its_class_and_identity(hub: Hub) -> None:
    gate = OpenGate()
    made = source(hub, token="hf_good", gate=gate)
    read_all(made, "config.json")
    host = hub.url.removeprefix("http://")

    assert [kind for _, kind, _ in gate.waits] == ["api", "api", "resolve", "resolve"]
    assert {where for where, _, _ in gate.waits} == {host}
    assert len({identity for *_, identity in gate.waits}) == 1
    assert "hf_good" not in gate.waits[0][2]
    assert [status for _, status, _ in gate.answers] == [200, 200, 302, 206]
    assert all("ratelimit" in headers for *_, headers in gate.answers)


@pytest.mark.parametrize("style", list(Style))
def test_a_ticket_says_when_it_ends_and_is_renewed_before(style: Style) -> None:
    now = [0.0]
    clock = Clock(monotonic=lambda: now[0])
    with Hub(url_lifetime_seconds=1000, url_style=style) as hub:
        hub.add(Repository("org/name", FILES))
        made = source(hub, clock=clock)
        file = file_of(made, "model.safetensors")
        first = made.ticket(file)
        now[0] = 790.0
        assert made.ticket(file) == first
        now[0] = 810.0

        assert made.ticket(file) != first
        assert first.expires_at is not None
        assert first.size_bytes == file.size_bytes
        assert first.headers == ()
        assert first.trusted
        assert "Signature" not in repr(first)


def test_o05_an_expired_url_is_replaced_once_for_all_that_hold_it(hub: Hub) -> None:
    made = source(hub)
    file = file_of(made, "model.safetensors")
    old = made.ticket(file)
    hub.fault(Fault.EXPIRED, on=On.CDN, times=1)
    ready = threading.Barrier(4)

    def work(at: int) -> bytes:
        ready.wait(10)
        return made.read(file, at, at + 1000)

    with ThreadPoolExecutor(4) as pool:
        pieces = list(pool.map(work, range(0, 4000, 1000)))

    assert b"".join(pieces) == WEIGHTS[:4000]
    assert made.ticket(file) != old
    assert made.renew(file, old) == made.ticket(file)
    assert made.requests_made()["resolve"] == 2


def test_o05_a_url_that_ends_in_the_middle_of_a_body(hub: Hub) -> None:
    made = source(hub)
    hub.fault(Fault.EXPIRED, on=On.CDN, times=1, after_bytes=600_000)

    assert read_all(made, "model.safetensors") == WEIGHTS
    assert made.requests_made()["resolve"] == 2


def test_o05_a_url_that_is_never_accepted_ends_in_time_and_is_no_denial(hub: Hub) -> None:
    made = source(hub)
    file = file_of(made, "model.safetensors")
    hub.fault(Fault.EXPIRED, on=On.CDN)
    with pytest.raises(AiModelsError) as caught:
        made.read(file, 0, 10)

    assert caught.value.retryable
    assert made.requests_made()["resolve"] <= 2 + QUICK.attempts
    assert "Signature" not in caught.value.message


def test_the_cdn_host_may_change(hub: Hub) -> None:
    made = source(hub)
    file = file_of(made, "model.safetensors")
    first = made.ticket(file)
    hub.fault(Fault.OTHER_CDN, on=On.RESOLVE)
    second = made.renew(file, first)

    assert first.host != second.host
    assert made.read(file, 0, 10) == WEIGHTS[:10]


@pytest.mark.parametrize(
    "location",
    ["https://evil.example/x", "http://10.0.0.1/x", "https://169.254.169.254/latest", "https://hf.co.evil.example/x"],
)
def test_a_redirect_to_a_foreign_place_is_refused(hub: Hub, location: str) -> None:
    hub.fault(Fault.REDIRECT, on=On.RESOLVE, location=location)
    error = refused(source(hub))

    assert (type(error), error.code) == (SourceUnavailable, "ForeignRedirect")


def test_a_redirect_loop_ends(hub: Hub) -> None:
    hub.fault(Fault.REDIRECT_LOOP, on=On.RESOLVE)
    made = source(hub)

    assert refused(made).code == "RedirectLoop"
    assert made.requests_made()["resolve"] <= 6


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (Fault.NO_COMMIT, "WrongCommit"),
        (Fault.WRONG_COMMIT, "WrongCommit"),
        (Fault.WRONG_DIGEST, "WrongDigest"),
        (Fault.WRONG_SIZE, "WrongSize"),
    ],
)
def test_a_redirect_that_names_another_file_is_refused(hub: Hub, kind: Fault, code: str) -> None:
    hub.fault(kind, on=On.RESOLVE, path="model.safetensors")
    error = refused(source(hub))

    assert (type(error), error.code) == (SourceUnavailable, code)


@pytest.mark.parametrize("kind", [Fault.WEAK_ETAG, Fault.NO_ETAG])
def test_o12_weak_or_absent_entity_tags_are_fine(hub: Hub, kind: Fault) -> None:
    hub.fault(kind)
    made = source(hub)

    assert read_all(made, "config.json") == b"{}\n"
    assert read_all(made, "model.safetensors") == WEIGHTS


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_hub_that_sends_small_files_to_its_own_cache(name: str) -> None:
    with Hub(resolve_cache=True, tokens={"hf_good": "u"}) as hub:
        hub.add(Repository("org/name", FILES, access=Access.PRIVATE, granted=GRANTED))
        made = source(hub, token="hf_good")

        assert read_all(made, name) == FILES[name]
        assert sum(made.requests_made().values()) == sum(each.on is not On.CDN for each in hub.log)


def test_a_source_that_nobody_holds_closes_its_connections(hub: Hub) -> None:
    """An open socket would be reported as a warning, and warnings are errors."""
    made = source(hub)
    made.resolve()
    gone = weakref.ref(made)
    OPEN.clear()
    del made
    gc.collect()

    assert gone() is None
