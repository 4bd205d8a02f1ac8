import pickle

import pytest

from aimodels_core import proxies
from aimodels_core.errors import UsageError
from aimodels_core.proxies import Proxies, Proxy

URL = "http://proxy:3128"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("http://proxy:3128", "proxy", 3128),
        ("http://Proxy.example", "proxy.example", 80),
        ("proxy:3128/", "proxy", 3128),
        ("http://10.0.0.1:8080", "10.0.0.1", 8080),
        ("http://[fd00::1]:3128", "fd00::1", 3128),
    ],
)
def test_a_proxy_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert Proxy.parse(text, where="x") == Proxy(host, port)


@pytest.mark.parametrize(
    "text",
    [
        "https://me:s3cr3t@proxy:3128",
        "socks5://me:s3cr3t@proxy:1080",
        "http://me:s3cr3t@proxy:3128/path",
        "http://me:s3cr3t@proxy:port",
        "http://me:s3cr3t@",
        "http://me:s3cr3t@[::1:80",
        "http://me:s3cr3t@a\r\nb:1",
        "http://s3cr3t/x:y@proxy:3128",
        "http://me:s3cr3t@proxy:0",
    ],
)
def test_what_is_no_proxy_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(UsageError, match=r"^https_proxy: want") as caught:
        Proxies.parse("", text, "")

    assert "s3cr3t" not in str(caught.value)


def test_credentials_become_a_header_and_are_shown_nowhere() -> None:
    proxy = Proxy.parse("http://me%40x:s3%3Acr3t@proxy:3128", where="x")

    assert proxy.authorization == "Basic bWVAeDpzMzpjcjN0"
    assert "bWV" not in f"{proxy} {proxy!r} {Proxies(https=proxy)!r}"
    assert pickle.loads(pickle.dumps(proxy)) == proxy


@pytest.mark.parametrize(
    ("no_proxy", "host", "direct"),
    [
        ("", "hub.example.com", False),
        ("example.com", "example.com", True),
        ("example.com", "hub.Example.com.", True),
        ("example.com", "hubexample.com", False),
        (".example.com", "hub.example.com", True),
        (".example.com", "example.com", True),
        ("*.example.com", "hub.example.com", True),
        ("a.org example.com", "example.com", True),
        ("a.org,example.com", "example.com", True),
        ("example.com:443", "example.com", True),
        ("example.com:8443", "example.com", False),
        ("*", "hub.org", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.0/8", "hub.org", False),
        ("10.1.2.3:443", "10.1.2.3", True),
        ("10.1.2.3:80", "10.1.2.3", False),
        ("fd00::/8", "fd00::1", True),
        ("[fd00::1]:443", "fd00::1", True),
        ("fd00::1", "fd00::1", True),
        ("", "localhost", True),
        ("", "a.localhost", True),
        ("", "127.0.0.1", True),
        ("", "127.8.0.1", True),
        ("", "::1", True),
        ("", "::ffff:127.0.0.1", True),
        ("", "notlocalhost", False),
    ],
)
def test_exceptions_go_without_a_proxy(no_proxy: str, host: str, *, direct: bool) -> None:
    found = Proxies.parse("", URL, no_proxy).find(host, 443, tls=True)

    assert (found is None) is direct


@pytest.mark.parametrize("text", ["a b:c:d", "10.0.0.0/99", "host:port", "http://me:s3cr3t@x", "a/b", "x:", "é"])
def test_an_exception_that_cannot_be_one_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^no_proxy: want hosts") as caught:
        Proxies.parse("", URL, text)

    assert "s3cr3t" not in str(caught.value)


def test_the_environment_is_read_as_curl_reads_it() -> None:
    upper = proxies.from_env({"HTTPS_PROXY": "up:1", "HTTP_PROXY": "up:2", "NO_PROXY": "x"})
    both = proxies.from_env({"HTTPS_PROXY": "up:1", "https_proxy": "low:1", "http_proxy": "low:2"})

    assert upper.https == Proxy("up", 1)
    assert upper.http is None
    assert upper.find("x", 443, tls=True) is None
    assert (both.https, both.http) == (Proxy("low", 1), Proxy("low", 2))
    assert proxies.from_env({}) == Proxies()
