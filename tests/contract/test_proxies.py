"""Publications and single requests through HTTP proxies: our simulator and Debian's tinyproxy."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimodels_core import dial, names
from aimodels_core.errors import SourceDenied, SourceUnavailable
from aimodels_core.proxies import Proxies, Proxy
from aimodels_core.transport import HostRules, Policy, Transport
from tests.support.auditing import content
from tests.support.certificates import certificates
from tests.support.commandline import Cli
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.processes import free_port
from tests.support.proxy import PASSWORD, ProxySimulator, RunningProxy, own_address, tinyproxy
from tests.support.publishing import Place, folder_place, good_model
from tests.support.scripted import Reply, serve

REPOSITORY = "org/name"
QUICK = Policy(connect_seconds=2, read_seconds=2, attempts=1)
AnyProxy = ProxySimulator | RunningProxy


@pytest.fixture(params=["simulator", "tinyproxy"])
def proxy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyProxy]:
    if request.param == "simulator":
        with ProxySimulator(PASSWORD) as made:
            yield made
    else:
        with tinyproxy(tmp_path, password=PASSWORD) as running:
            yield running


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return folder_place(tmp_path / "store")


def environment(url: str) -> dict[str, str]:
    return {"https_proxy": url, "http_proxy": url, "no_proxy": "", "HTTPS_PROXY": "", "NO_PROXY": ""}


def told(place: Place, hub: Hub, url: str, folder: Path) -> Cli:
    """A command line behind a proxy, which trusts the hub's authority."""
    words = place.words
    if hub.url.startswith("https"):
        (folder / "hub.crt").write_bytes(hub.ca_pem)
        words = (*words, "--ca-file", str(folder / "hub.crt"))
    return Cli(dataclasses.replace(place, words=words), hub.url, environment(url))


@pytest.mark.parametrize("tls", [True, False])
def test_a_publication_goes_through_the_proxy_and_its_bytes_are_right(
    proxy: AnyProxy, place: Place, tmp_path: Path, *, tls: bool
) -> None:
    own = own_address()
    with Hub(host=own, cdn_host=own, tls=tls) as hub:
        repository = hub.add(good_model(REPOSITORY))
        cli = told(place, hub, proxy.url, tmp_path)
        done = cli("publish", REPOSITORY, "--name", "m", "-v")
        doctor = cli("doctor")

        assert done.code == 0, done.err
        assert content(place.store, names.LOCAL, "m") == {
            path: file.sha256_hex for path, file in repository.head.files.items()
        }
        assert hub.log.select(on=On.CDN)
        if isinstance(proxy, ProxySimulator):
            assert hub.cdn_connections + hub.api_connections == proxy.opened
            assert {line.split(" ")[0] for line in proxy.asked} == {"CONNECT" if tls else "GET"}
    printed = done.out + done.err + doctor.out + doctor.err
    assert PASSWORD not in printed
    assert "Basic" not in printed
    assert f"http://127.0.0.1:{proxy.url.rpartition(':')[2]}" in doctor.out


def test_without_the_password_the_proxy_is_named_and_the_failure_is_for_good(
    proxy: AnyProxy, place: Place, tmp_path: Path
) -> None:
    url = proxy.url.replace(PASSWORD, "wr0ng")
    with Hub(host=own_address(), tls=True) as hub:
        hub.add(good_model(REPOSITORY))
        done = told(place, hub, url, tmp_path)("publish", REPOSITORY, "--name", "m", "--retry-seconds", "5")

        assert done.code == 1, done.err
        assert f"proxy http://127.0.0.1:{url.rpartition(':')[2]}: refuses the credentials" in done.err
        assert "wr0ng" not in done.err
        assert not list(hub.log)


def test_a_proxy_that_cannot_be_one_is_told_by_publish_and_doctor(place: Place) -> None:
    cli = Cli(place, environment=environment("socks5://me:s3cr3t@proxy:1080"))
    runs = [cli("publish", REPOSITORY, "--name", "m"), cli("doctor")]

    assert [run.code for run in runs] == [2, 1]
    assert all("want an http:// proxy, got another scheme" in run.out + run.err for run in runs)
    assert all("s3cr3t" not in run.out + run.err for run in runs)


def test_a_tunnel_that_ends_in_the_middle_is_opened_again(place: Place, tmp_path: Path) -> None:
    own = own_address()
    with ProxySimulator(cut_after_bytes=1_000_000, cuts=2) as proxy, Hub(host=own, cdn_host=own, tls=True) as hub:
        repository = hub.add(good_model(REPOSITORY))
        done = told(place, hub, proxy.url, tmp_path)("publish", REPOSITORY, "--name", "m")

        assert done.code == 0, done.err
        assert proxy.cuts < 2
        assert content(place.store, names.LOCAL, "m") == {
            path: file.sha256_hex for path, file in repository.head.files.items()
        }


def connected(proxy: ProxySimulator, host: str, port: int = 443, *, trusted: bool = False, tls: bool = True) -> None:
    through = Proxy.parse(proxy.url, where="x")
    dial.connect(host, port, tls=tls, ca_file="", trusted=trusted, timeout_seconds=1, proxy=through).close()


@pytest.mark.parametrize(
    ("raw", "got"),
    [
        pytest.param(b"HTTP/1.1 502 Bad\r\n\r\n", "got status 502", id="502"),
        pytest.param(b"HTTP/1.1 403 No\r\nContent-Length: 3\r\n\r\nno\n", "got status 403", id="403"),
        pytest.param(b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\n\r\n", "got status 302", id="redirect"),
        pytest.param(b"SSH-2.0-x\r\n\r\n", "got no answer of a proxy", id="garbage"),
        pytest.param(b"", "got no answer of a proxy", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\n", "got no answer of a proxy", id="half a head"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nhello", "got no answer of a proxy", id="bytes behind the head"),
        pytest.param(b"HTTP/1.1 200 " + b"x" * 100_000, "no answer of a proxy|tunnel", id="a head without an end"),
    ],
)
def test_any_other_answer_than_a_tunnel_is_a_failure_of_the_proxy_that_may_pass(raw: bytes, got: str) -> None:
    with ProxySimulator(raw=raw) as proxy, pytest.raises(SourceUnavailable, match=got) as caught:
        connected(proxy, "hub.example")

    assert caught.value.code == "ProxyFailed"
    assert f"proxy {proxy.url}: " in caught.value.message
    assert "hub.example:443" in caught.value.message


def test_a_proxy_that_does_not_answer_ends_with_the_deadline() -> None:
    with ProxySimulator(hang=True) as proxy, pytest.raises(SourceUnavailable, match="timed out") as caught:
        connected(proxy, "hub.example")

    assert caught.value.code == "ProxyFailed"


def test_a_proxy_that_is_not_there_is_named() -> None:
    through = Proxy("127.0.0.1", free_port())
    with pytest.raises(SourceUnavailable, match=r"proxy 127\.0\.0\.1: no connection") as caught:
        dial.connect("hub.example", 443, tls=True, ca_file="", trusted=False, timeout_seconds=1, proxy=through)

    assert caught.value.code == "ConnectFailed"


@pytest.mark.parametrize("host", ["10.0.0.1", "169.254.169.254", "::ffff:10.0.0.1", "10.1", "0x0a000001", "fd00::1"])
@pytest.mark.parametrize("tls", [True, False])
def test_a_literal_private_address_is_refused_before_the_proxy_is_asked(host: str, *, tls: bool) -> None:
    with ProxySimulator() as proxy, pytest.raises(SourceUnavailable, match="want a public address") as caught:
        connected(proxy, host, tls=tls)

    assert caught.value.code == "AddressRefused"
    assert proxy.asked == []


@pytest.mark.parametrize("tls", [True, False])
def test_names_are_resolved_by_the_proxy_and_certificates_proven_to_us(tmp_path: Path, *, tls: bool) -> None:
    authority = certificates(tmp_path, "hub.invalid")
    rules = HostRules(trusted=frozenset({"hub.invalid"}))
    with (
        serve(lambda call: Reply(body=call.path.encode()), context=authority.server_context() if tls else None) as host,
        ProxySimulator(PASSWORD, names={"hub.invalid": "127.0.0.1", "other.invalid": "127.0.0.1"}) as proxy,
    ):
        through = Proxies.parse(proxy.url, proxy.url, "")
        client = Transport(rules, policy=QUICK, ca_file=str(authority.ca), proxies=through)
        url = f"{'https' if tls else 'http'}://hub.invalid:{host.port}"
        bodies = [client.call("GET", f"{url}/{i}?a=b", max_bytes=99).body for i in range(3)]

        assert bodies == [b"/0?a=b", b"/1?a=b", b"/2?a=b"]
        assert {call.headers["host"] for call in host.calls} == {f"hub.invalid:{host.port}"}
        assert all("proxy-authorization" not in call.headers for call in host.calls)
        assert proxy.opened == (1 if tls else 3)
        if tls:
            with pytest.raises(SourceUnavailable) as caught:
                client.call("GET", f"https://other.invalid:{host.port}/", max_bytes=99)
            assert caught.value.code == "TlsFailed"


def test_a_forwarded_request_without_credentials_is_told_so() -> None:
    with ProxySimulator(PASSWORD) as proxy:
        through = Proxies.parse(proxy.url.replace(PASSWORD, "wr0ng"), "", "")
        client = Transport(HostRules(trusted=frozenset({"hub.invalid"})), policy=QUICK, proxies=through)
        with pytest.raises(SourceDenied, match="refuses the credentials") as caught:
            client.call("GET", "http://hub.invalid/x", max_bytes=99)

    assert caught.value.code == "ProxyRefused"
    assert "wr0ng" not in str(caught.value)


def test_loopback_and_exceptions_go_without() -> None:
    with serve(lambda _: Reply(body=b"ok")) as host, ProxySimulator() as proxy:
        through = Proxies.parse(proxy.url, proxy.url, own_address())
        client = Transport(HostRules(trusted=frozenset({"127.0.0.1"})), policy=QUICK, proxies=through)

        assert client.call("GET", f"{host.url}/x", max_bytes=9).body == b"ok"
        assert proxy.asked == []
        assert through.find(own_address(), 443, tls=True) is None
