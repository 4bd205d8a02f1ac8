"""Bounded ranges, checked to the byte, under every fault of a hub and its CDN."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aimodels_core.digest import Digest
from aimodels_core.errors import (
    DigestMismatch,
    RateLimited,
    SourceUnavailable,
    UnsafeContent,
)
from aimodels_jobs.governor import RateGate
from aimodels_jobs.sources.hub_settings import HubSettings
from aimodels_jobs.sources.hub_wire import Clock
from tests.support.hub.bodies import BytesBody
from tests.support.hub.faults import Fault
from tests.support.hub.limits import Limits
from tests.support.hub.repository import File, Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.hub_source import FILES, QUICK, WEIGHTS, OpenGate, file_of, read_all, refused, source


def test_o04_an_empty_file_needs_no_request(hub: Hub) -> None:
    hub.add(Repository("org/empty", {"__init__.py": b"", "config.json": b"{}\n"}))
    made = source(hub, "org/empty")
    file = file_of(made, "__init__.py")
    before = len(hub.log)

    assert file.size_bytes == 0
    assert made.read(file, 0, 0) == b""
    assert len(hub.log) == before


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 4), (3, 2), (4, 4)])
def test_ranges_outside_the_file_are_refused(hub: Hub, start: int, stop: int) -> None:
    made = source(hub)
    with pytest.raises(ValueError, match=r"config\.json"):
        made.read(file_of(made, "config.json"), start, stop)


@pytest.mark.parametrize(
    "kind",
    [
        Fault.TRUNCATE,
        Fault.RESET,
        Fault.SHORT,
        Fault.IGNORE_RANGE,
        Fault.WRONG_RANGE,
        Fault.WRONG_TOTAL,
        Fault.NO_CONTENT_RANGE,
        Fault.GZIP,
        Fault.HTML,
        Fault.POINTER,
        Fault.STATUS,
        Fault.FLIP_BIT,
        Fault.OTHER_BYTES,
        Fault.LONG,
    ],
)
@pytest.mark.parametrize(("name", "on"), [("model.safetensors", On.CDN), ("config.json", On.RESOLVE)])
def test_a_fault_that_passes_does_no_harm(hub: Hub, kind: Fault, name: str, on: On) -> None:
    made = source(hub)
    made.resolve()
    hub.fault(kind, on=on, path=name, times=1, after_bytes=1)

    assert read_all(made, name) == FILES[name]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (Fault.TRUNCATE, "ShortBody"),
        (Fault.SHORT, "ShortBody"),
        (Fault.IGNORE_RANGE, "NotPartial"),
        (Fault.WRONG_RANGE, "WrongRange"),
        (Fault.WRONG_TOTAL, "WrongRange"),
        (Fault.NO_CONTENT_RANGE, "WrongRange"),
        (Fault.GZIP, "Encoded"),
        (Fault.HTML, "NotPartial"),
        (Fault.STATUS, "ServerError"),
    ],
)
def test_o02_a_fault_that_stays_is_an_error_that_says_what_came(hub: Hub, kind: Fault, code: str) -> None:
    made = source(hub)
    file = file_of(made, "model.safetensors")
    hub.fault(kind, on=On.CDN, after_bytes=635)
    with pytest.raises(SourceUnavailable) as caught:
        made.read(file, 0, file.size_bytes)

    assert caught.value.code == code
    assert "Signature" not in caught.value.message


def test_bytes_that_differ_twice_are_final_and_name_both_digests(hub: Hub) -> None:
    made = source(hub)
    file = file_of(made, "model.safetensors")
    hub.fault(Fault.OTHER_BYTES, on=On.CDN)
    with pytest.raises(DigestMismatch) as caught:
        made.read(file, 0, file.size_bytes)

    assert caught.value.want == str(Digest.of(WEIGHTS))
    assert caught.value.got not in ("", caught.value.want)


def test_o01_a_pointer_that_the_hub_serves_twice_is_refused(hub: Hub) -> None:
    hub.fault(Fault.POINTER, on=On.RESOLVE, path="model.safetensors")
    error = refused(source(hub))

    assert isinstance(error, UnsafeContent)
    assert (error.code, error.path) == ("LfsPointer", "model.safetensors")
    assert str(len(WEIGHTS)) in error.message


def test_o01_a_pointer_that_the_hub_serves_once_does_no_harm(hub: Hub) -> None:
    hub.fault(Fault.POINTER, on=On.RESOLVE, path="model.safetensors", times=1)

    assert read_all(source(hub), "model.safetensors") == WEIGHTS


def test_o01_a_pointer_on_the_cdn_is_refused_after_a_second_resolve(hub: Hub) -> None:
    made = source(hub)
    hub.fault(Fault.POINTER, on=On.CDN)
    with pytest.raises(UnsafeContent) as caught:
        read_all(made, "model.safetensors")

    assert caught.value.code == "LfsPointer"
    assert made.requests_made()["resolve"] == 2


def test_o01_a_pointer_kept_as_an_ordinary_file_is_refused(hub: Hub) -> None:
    pointer = File("model.safetensors", BytesBody(WEIGHTS), lfs=True).pointer
    hub.add(Repository("org/copy", {"model.safetensors": File("model.safetensors", BytesBody(pointer), lfs=False)}))
    with pytest.raises(UnsafeContent) as caught:
        read_all(source(hub, "org/copy"), "model.safetensors")

    assert caught.value.code == "LfsPointer"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("on", [On.INFO, On.TREE, On.RESOLVE, On.CDN])
def test_o06_a_passing_refusal_is_tried_again(hub: Hub, status: int, on: On) -> None:
    hub.fault(Fault.STATUS, on=on, status=status, retry_after="0", times=2)
    clock = Clock(jitter=lambda: 0.0)

    assert read_all(source(hub, clock=clock), "model.safetensors") == WEIGHTS


@pytest.mark.parametrize("retry_after", ["7", None])
def test_o06_four_imports_under_a_strict_limit_all_finish(hub: Hub, retry_after: str | None) -> None:
    contents = {f"f{number:02}.json": b"%d" % number for number in range(60)}
    hub.add(Repository("org/many", dict(contents)))
    hub.fault(Fault.STATUS, on=On.INFO, status=429, retry_after=retry_after, every=3)
    hub.fault(Fault.STATUS, on=On.RESOLVE, status=429, retry_after=retry_after, every=3)
    slept: list[float] = []
    clock = Clock(sleep=slept.append)

    def run(_: int) -> dict[str, bytes]:
        made = source(hub, "org/many", clock=clock)
        return {file.path: made.read(file, 0, file.size_bytes) for file in made.resolve().files}

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [contents] * 4
    assert 6 < max(slept) <= 8 if retry_after else 0 < max(slept) <= 2


def test_o06_a_window_that_is_used_up_is_waited_for_by_the_hubs_own_header() -> None:
    now = [1_750_000_000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = Clock(now=lambda: now[0], monotonic=lambda: now[0], sleep=sleep, jitter=lambda: 0.0)
    with Hub(clock=lambda: now[0], limits=Limits(resolvers=10)) as hub:
        contents = {f"f{number:02}.json": b"%d" % number for number in range(35)}
        hub.add(Repository("org/many", dict(contents)))
        made = source(hub, "org/many", clock=clock)
        found = {file.path: made.read(file, 0, file.size_bytes) for file in made.resolve().files}

    assert found == contents
    assert 900 <= now[0] - 1_750_000_000 <= 910
    assert len(hub.log.select(on=On.RESOLVE, status=429)) == 3


def test_o06_the_shared_governor_waits_for_all_and_nobody_waits_twice() -> None:
    """Four imports share one gate and one window; the wait is the gate's, and too long a one is told at once."""
    with Hub(limits=Limits(resolvers=20, window_seconds=1)) as hub:
        contents = {f"f{number:02}.json": b"%d" % number for number in range(8)}
        hub.add(Repository("org/many", dict(contents)))
        gate, slept = RateGate(longest_wait_seconds=30.0), list[float]()

        def run(_: int) -> dict[str, bytes]:
            made = source(hub, "org/many", gate=gate, clock=Clock(sleep=slept.append))
            return {file.path: made.read(file, 0, file.size_bytes) for file in made.resolve().files}

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(run, range(4))) == [contents] * 4

    assert gate.waited_seconds > 0
    assert sum(slept) < 1


def test_o06_a_long_wait_is_told_at_once() -> None:
    with Hub(limits=Limits(resolvers=3)) as hub:
        hub.add(Repository("org/many", {f"f{number:02}.json": b"%d" % number for number in range(8)}))
        made = source(hub, "org/many", gate=RateGate(longest_wait_seconds=1))
        with pytest.raises(RateLimited) as caught:
            [made.read(file, 0, file.size_bytes) for file in made.resolve().files]

    assert caught.value.retry_after_seconds is not None
    assert 200 < caught.value.retry_after_seconds <= 302


class ClosedGate(OpenGate):
    """Refuses, as the governor does when the wait would be too long."""

    def wait(self, host: str, kind: str, identity: str) -> None:
        raise RateLimited(f"{host}: {kind} requests are used up", retry_after_seconds=240)


def test_a_refusal_of_the_gate_reaches_the_caller_and_no_request_is_made(hub: Hub) -> None:
    error = refused(source(hub, gate=ClosedGate()))

    assert isinstance(error, RateLimited)
    assert error.retry_after_seconds == 240
    assert len(hub.log) == 0


def test_a_refused_range_is_not_asked_for_ever(hub: Hub) -> None:
    made = source(hub)
    file = file_of(made, "model.safetensors")
    hub.fault(Fault.STATUS, on=On.CDN, status=416)
    with pytest.raises(SourceUnavailable):
        made.read(file, 0, 10)

    assert len(hub.log.select(on=On.CDN)) <= QUICK.attempts


def test_over_tls_with_the_authority_that_was_given(tmp_path: Path) -> None:
    with Hub(tls=True, host="localhost", cdn_host="localhost") as hub:
        hub.add(Repository("org/name", FILES))
        ca_file = tmp_path / "ca.pem"
        ca_file.write_bytes(hub.ca_pem)
        made = source(hub, settings=HubSettings(endpoint=hub.url, ca_file=str(ca_file)))

        assert read_all(made, "model.safetensors") == WEIGHTS
        assert refused(source(hub)).code == "TlsFailed"


def test_two_hubs_at_once_do_not_mix(hub: Hub) -> None:
    """The hub library has one client per process; each source's requests must still take their own way."""
    with Hub() as other:
        other.add(Repository("org/name", {"config.json": b"[]\n"}))
        with ThreadPoolExecutor(8) as pool:
            hubs = [hub, other] * 8
            found = list(pool.map(lambda each: source(each).resolve(), hubs))

        assert {len(each.files) for each in found[::2]} == {3}
        assert {len(each.files) for each in found[1::2]} == {1}
