"""The hub simulator against its own promises: ranges, signatures, limits, faults on demand, life as a process."""

import http.client
import json
import ssl
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub.bodies import GeneratedBody, JoinedBody, pieces
from tests.support.hub.faults import Fault
from tests.support.hub.limits import Limits
from tests.support.hub.plain import get, signed_url
from tests.support.hub.process import HubProcess
from tests.support.hub.repository import Content, File, Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.hub.signing import Style

MIB = 1024 * 1024
ROOT = Path(__file__).parents[2]
GOOD = "hf_good"
WEIGHTS = GeneratedBody(3 * MIB + 17, seed=1)
WEIGHTS_BYTES = b"".join(pieces(WEIGHTS))
FILES: dict[str, Content | File] = {"config.json": b"{}\n", "model.safetensors": WEIGHTS}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        running.add(Repository("org/name", FILES))
        yield running


# The CDN


@pytest.mark.parametrize("style", list(Style))
def test_signed_urls_end_and_cannot_be_changed(style: Style) -> None:
    now = [1_800_000_000.0]
    with Hub(clock=lambda: now[0], url_lifetime_seconds=60, url_style=style) as hub:
        hub.add(Repository("org/name", FILES))
        url = signed_url(hub)
        assert get(url, Range="bytes=0-9")[0] == 206
        changed = url.replace("Expires=1800000060", "Expires=1900000060").replace("Expires=60", "Expires=6000")
        assert changed != url
        assert get(changed, Range="bytes=0-9")[0] == 403
        now[0] += 61
        assert get(url, Range="bytes=0-9")[0] == 403
        assert get(signed_url(hub), Range="bytes=0-9")[0] == 206


@pytest.mark.parametrize(
    ("asked", "status", "start", "stop"),
    [
        ("bytes=0-0", 206, 0, 1),
        ("bytes=100-199", 206, 100, 200),
        (f"bytes={3 * MIB}-", 206, 3 * MIB, 3 * MIB + 17),
        ("bytes=-5", 206, 3 * MIB + 12, 3 * MIB + 17),
        (f"bytes={3 * MIB}-{9 * MIB}", 206, 3 * MIB, 3 * MIB + 17),
    ],
)
def test_ranges(hub: Hub, asked: str, status: int, start: int, stop: int) -> None:
    code, headers, content = get(signed_url(hub), Range=asked)

    assert code == status
    assert headers["content-range"] == f"bytes {start}-{stop - 1}/{WEIGHTS.size_bytes}"
    assert content == WEIGHTS_BYTES[start:stop]


def test_range_past_the_end_is_416(hub: Hub) -> None:
    code, headers, _ = get(signed_url(hub), Range=f"bytes={WEIGHTS.size_bytes}-")

    assert code == 416
    assert headers["content-range"] == f"bytes */{WEIGHTS.size_bytes}"


def test_large_request_without_a_range_is_refused() -> None:
    with Hub(max_rangeless_bytes=MIB) as hub:
        hub.add(Repository("org/name", FILES))

        assert get(signed_url(hub))[0] == 400
        assert get(signed_url(hub), Range="bytes=0-")[0] == 206


def test_throttle_holds_one_connection_to_its_rate(hub: Hub) -> None:
    hub.throttle(10 * MIB)
    begin = time.monotonic()
    get(signed_url(hub))

    assert 0.2 < time.monotonic() - begin < 3


# Bodies


def test_generated_bodies_are_the_same_whatever_the_ranges() -> None:
    body = GeneratedBody(10**12, seed=7)
    at = 512 * 10**9 + 1

    assert bytes(body.read(at, at + 1000)) == bytes(body.read(at, at + 300)) + bytes(body.read(at + 300, at + 1000))
    assert bytes(body.read(at, at + 100)) != bytes(body.read(at + MIB, at + MIB + 100))
    assert bytes(GeneratedBody(100, seed=None).read(0, 100)) == bytes(100)


def test_a_declared_terabyte_is_served_by_range() -> None:
    body = JoinedBody((GeneratedBody(100, seed=1), GeneratedBody(10**12, seed=2)))
    with Hub() as hub:
        hub.add(Repository("org/huge", {"model.safetensors": File("model.safetensors", body, sha256="a" * 64)}))
        last = 10**12 + 99
        code, headers, content = get(signed_url(hub, repository="org/huge"), Range=f"bytes={last - 9}-{last}")

    assert code == 206
    assert headers["content-range"] == f"bytes {last - 9}-{last}/{10**12 + 100}"
    assert content == bytes(GeneratedBody(10**12, seed=2).read(10**12 - 10, 10**12))


def test_tls_on_both_hosts() -> None:
    with Hub(tls=True, host="localhost") as hub:
        hub.add(Repository("org/name", FILES))
        context = ssl.create_default_context(cadata=hub.ca_pem.decode())
        connection = http.client.HTTPSConnection(
            "localhost", int(hub.url.rpartition(":")[2]), context=context, timeout=10
        )
        connection.request("GET", "/org/name/resolve/main/model.safetensors")
        location = urllib.parse.urlsplit(connection.getresponse().headers["location"])
        connection.close()
        cdn = http.client.HTTPSConnection(location.hostname or "", location.port, context=context, timeout=10)
        cdn.request("GET", f"{location.path}?{location.query}", headers={"Range": "bytes=5-104"})
        content = cdn.getresponse().read()
        cdn.close()

    assert content == WEIGHTS_BYTES[5:105]


# Faults


def test_a_flipped_bit_shows_once(hub: Hub) -> None:
    hub.fault(Fault.FLIP_BIT, on="cdn", path="model.safetensors", offset=150, times=1)
    url = signed_url(hub)
    first = get(url, Range="bytes=100-199")[2]
    second = get(url, Range="bytes=100-199")[2]

    assert second == WEIGHTS_BYTES[100:200]
    assert [index for index in range(100) if first[index] != second[index]] == [50]
    assert first[50] ^ second[50] == 1


@pytest.mark.parametrize("kind", [Fault.TRUNCATE, Fault.STALL])
def test_body_ends_early(hub: Hub, kind: Fault) -> None:
    hub.fault(kind, on=On.CDN, after_bytes=1000, seconds=0.05)

    with pytest.raises(http.client.IncompleteRead) as caught:
        get(signed_url(hub), Range="bytes=0-99999")

    assert caught.value.partial == WEIGHTS_BYTES[:1000]
    assert hub.log.payload_bytes("model.safetensors") == 1000


def test_reset(hub: Hub) -> None:
    hub.fault(Fault.RESET, on=On.CDN, after_bytes=2 * MIB)

    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        get(signed_url(hub))


def test_connection_closed_before_the_answer(hub: Hub) -> None:
    hub.fault(Fault.TRUNCATE, on=On.INFO, after_bytes=None)

    with pytest.raises(http.client.RemoteDisconnected):
        get(f"{hub.url}/api/models/org/name")


def test_status_with_retry_after_on_the_third_and_fourth_request(hub: Hub) -> None:
    rule = hub.fault(Fault.STATUS, on=On.INFO, status=503, retry_after="7", skip=2, times=2)
    codes = [get(f"{hub.url}/api/models/org/name") for _ in range(5)]

    assert [code for code, _, _ in codes] == [200, 200, 503, 503, 200]
    assert codes[2][1]["retry-after"] == "7"
    assert rule.hits == 2


@pytest.mark.parametrize(
    ("kind", "status", "header", "value"),
    [
        (Fault.IGNORE_RANGE, 200, "content-length", str(WEIGHTS.size_bytes)),
        (Fault.WRONG_RANGE, 206, "content-range", f"bytes 11-20/{WEIGHTS.size_bytes}"),
        (Fault.WRONG_TOTAL, 206, "content-range", f"bytes 10-19/{WEIGHTS.size_bytes + 1}"),
        (Fault.NO_CONTENT_RANGE, 206, "content-range", None),
        (Fault.NO_ETAG, 206, "etag", None),
        (Fault.GZIP, 206, "content-encoding", "gzip"),
        (Fault.HTML, 200, "content-type", "text/html; charset=utf-8"),
        (Fault.REDIRECT, 302, "location", "http://127.0.0.1:9/"),
    ],
)
def test_heads_that_lie(hub: Hub, kind: Fault, status: int, header: str, value: str | None) -> None:
    hub.fault(kind, on=On.CDN)
    code, headers, _ = get(signed_url(hub), Range="bytes=10-19")

    assert code == status
    assert headers.get(header) == value


@pytest.mark.parametrize(
    ("kind", "header", "value"),
    [
        (Fault.NO_COMMIT, "x-repo-commit", None),
        (Fault.WRONG_COMMIT, "x-repo-commit", "f" * 40),
        (Fault.WRONG_DIGEST, "x-linked-etag", f'"{"e" * 64}"'),
        (Fault.WRONG_SIZE, "x-linked-size", str(WEIGHTS.size_bytes + 1)),
    ],
)
def test_redirects_that_lie(hub: Hub, kind: Fault, header: str, value: str | None) -> None:
    hub.fault(kind, on=On.RESOLVE)
    code, headers, _ = get(f"{hub.url}/org/name/resolve/main/model.safetensors")

    assert code == 302
    assert headers.get(header) == value


def test_a_signed_url_ends_in_the_middle_of_a_file(hub: Hub) -> None:
    hub.fault(Fault.EXPIRED, on=On.CDN, after_bytes=5000, times=1)
    url = signed_url(hub)
    with pytest.raises(http.client.IncompleteRead):
        get(url, Range="bytes=0-9999")

    assert get(url, Range="bytes=5000-9999")[0] == 403
    assert get(signed_url(hub), Range="bytes=5000-9999")[2] == WEIGHTS_BYTES[5000:10000]


def test_the_cdn_host_changes(hub: Hub) -> None:
    first = signed_url(hub)
    hub.fault(Fault.OTHER_CDN, on=On.RESOLVE)
    second = signed_url(hub)

    assert first.startswith(hub.cdn_url)
    assert second.startswith(hub.other_cdn_url)
    assert get(second, Range="bytes=0-3")[2] == WEIGHTS_BYTES[:4]


def test_lfs_pointer_instead_of_the_file(hub: Hub) -> None:
    hub.fault(Fault.POINTER, on=On.RESOLVE, path="model.safetensors")
    code, _, content = get(f"{hub.url}/org/name/resolve/main/model.safetensors")

    assert code == 200
    assert content.startswith(b"version https://git-lfs.github.com/spec/v1\noid sha256:")


def test_listings_that_loop_leave_or_end_early() -> None:
    with Hub(page_size=10) as hub:
        hub.add(Repository("org/many", {f"f{number:03}": "x" for number in range(25)}))
        url = f"{hub.url}/api/models/org/many/tree/main?recursive=true"
        loop = hub.fault(Fault.LINK_LOOP, on=On.TREE)
        following = get(url)[1]["link"].partition(">")[0].removeprefix("<")
        assert get(following)[1]["link"].partition(">")[0].removeprefix("<") == following
        hub.rules.remove(loop)
        hub.fault(Fault.LINK_AWAY, on=On.TREE, location="http://10.0.0.1/next", times=1)
        assert get(url)[1]["link"] == '<http://10.0.0.1/next>; rel="next"'
        hub.fault(Fault.LIST_CUT, on=On.INFO, count=3)
        assert len(json.loads(get(f"{hub.url}/api/models/org/many")[2])["siblings"]) == 3


def test_redirect_loop_on_resolve(hub: Hub) -> None:
    hub.fault(Fault.REDIRECT_LOOP, on=On.RESOLVE)
    url = f"{hub.url}/org/name/resolve/main/model.safetensors"

    assert get(url)[1]["location"].startswith(url)


def test_answers_without_length_and_without_end(hub: Hub) -> None:
    hub.fault(Fault.UNSIZED, on=On.CDN, times=1)
    code, headers, content = get(signed_url(hub), Range="bytes=0-9")
    hub.fault(Fault.ENDLESS, on=On.TREE)
    parts = urllib.parse.urlsplit(hub.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.request("GET", "/api/models/org/name/tree/main")
    endless = connection.getresponse()
    first = endless.read(3 * MIB)
    endless.close()
    connection.close()

    assert (code, content) == (206, WEIGHTS_BYTES[:10])
    assert "content-length" not in headers
    assert first == b" " * 3 * MIB


def test_refusals_with_and_without_an_error_code(hub: Hub) -> None:
    with_code = get(f"{hub.url}/api/models/org/nothing")
    hub.fault(Fault.NO_ERROR_CODE, on=On.INFO)
    without_code = get(f"{hub.url}/api/models/org/nothing")

    assert (with_code[0], with_code[1]["x-error-code"]) == (401, "RepoNotFound")
    assert without_code[0] == 401
    assert "x-error-code" not in without_code[1]


def test_the_cdn_refuses_a_token(hub: Hub) -> None:
    assert get(signed_url(hub), Authorization=f"Bearer {GOOD}")[0] == 400


def test_the_cdn_may_live_at_another_address() -> None:
    with Hub(cdn_host="127.0.0.2") as hub:
        hub.add(Repository("org/name", FILES))
        url = signed_url(hub)

        assert url.startswith("http://127.0.0.2:")
        assert get(url, Range="bytes=0-3")[2] == WEIGHTS_BYTES[:4]


def test_resolves_have_a_limit_of_their_own_and_say_when_it_ends() -> None:
    with Hub(limits=Limits(resolvers=1, retry_after=True, window_seconds=30)) as hub:
        hub.add(Repository("org/name", FILES))
        signed_url(hub)
        code, headers, _ = get(f"{hub.url}/org/name/resolve/main/model.safetensors")

        assert code == 429
        assert headers["ratelimit"] == f'"resolvers";r=0;t={headers["retry-after"]}'
        assert get(f"{hub.url}/api/models/org/name")[0] == 200


# As a process


def test_a_process_is_controlled_from_outside() -> None:
    with HubProcess("--generated", "org/big=1Mx2", "--throttle", "10M") as hub:
        hub.fault("status", on="info", status=503, times=1)
        codes = [get(f"{hub.url}/api/models/org/big")[0] for _ in range(2)]
        hub.throttle(None)
        for path in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
            get(get(f"{hub.url}/org/big/resolve/main/{path}")[1]["location"])
        stats = hub.stats()
        hub.reset()

        assert codes == [503, 200]
        assert stats["payloadBytes"] == 2 * MIB
        assert stats["requests"] == {"info": 2, "resolve": 2, "cdn": 2}
        assert hub.stats()["payloadBytes"] == 0


def test_runs_as_a_process_and_ends_with_its_parent() -> None:
    words = ["-m", "tests.support.hub", "--generated", "org/big=4M", "--models", "bge-m3", "--token", GOOD]
    start = f"p = subprocess.Popen([sys.executable, *{words!r}])"
    parent = f"import subprocess, sys, time; {start}; print(p.pid, flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        child = int(process.stdout.readline())
        started = json.loads(process.stdout.readline())
        location = get(f"{started['url']}/org/big/resolve/main/model.safetensors")[1]["location"]
        assert len(get(location)[2]) == 4 * MIB
        stats = json.loads(get(f"{started['url']}/-/stats")[2])
        assert stats["files"]["org/big/model.safetensors"] == {"requests": 1, "bytes": 4 * MIB}
        assert started["repositories"] == ["BAAI/bge-m3", "org/big"]
    finally:
        process.kill()
        process.wait(timeout=10)
        process.stdout.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and "Z" not in _state(child) and time.monotonic() < deadline:
        time.sleep(0.05)

    assert not Path(f"/proc/{child}").exists() or "Z" in _state(child)


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
