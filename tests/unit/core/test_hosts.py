import pytest

from aimodels_core import hosts
from aimodels_core.hosts import HostRules

HUB = HostRules(suffixes=(".hf.co", ".huggingface.co"))


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("ff02::1", False),
        pytest.param("::ffff:127.0.0.1", False, id="mapped"),
        pytest.param("::ffff:8.8.8.8", True, id="mapped public"),
        pytest.param("2002:7f00:1::", False, id="6to4"),
        pytest.param("64:ff9b::a9fe:a9fe", False, id="nat64"),
    ],
)
def test_only_public_addresses_are_global_however_they_are_written(address: str, *, public: bool) -> None:
    assert hosts.is_global(address) is public


@pytest.mark.parametrize(
    ("start", "target", "allowed"),
    [
        ("https://huggingface.co/a", "https://cdn-lfs.hf.co/b", True),
        ("https://huggingface.co/a", "https://cas-bridge.xethub.hf.co/b", True),
        ("https://huggingface.co/a", "https://huggingface.co/new", True),
        ("https://huggingface.co/a", "https://hf.co/new", True),
        ("https://huggingface.co/a", "https://evilhf.co/b", False),
        ("https://huggingface.co/a", "https://hf.co.evil.example/b", False),
        pytest.param("https://huggingface.co/a", "http://cdn-lfs.hf.co/b", False, id="downgrade"),
        pytest.param("https://huggingface.co/a", "http://huggingface.co/b", False, id="downgrade own host"),
        ("https://huggingface.co/a", "https://127.0.0.1/b", False),
        ("https://huggingface.co/a", "ftp://cdn-lfs.hf.co/b", False),
        ("https://huggingface.co/a", "https://cdn-lfs.hf.co:99999/b", False),
        ("https://huggingface.co/a", "javascript:alert(1)", False),
    ],
)
def test_redirects_stay_on_the_own_host_and_the_listed_suffixes(start: str, target: str, *, allowed: bool) -> None:
    assert HUB.may_redirect(start, target) is allowed


def test_hosts_set_explicitly_may_be_private_and_plain() -> None:
    rules = HostRules(trusted=frozenset({"mirror.lan"}), allowed=frozenset({"cdn.lan:8443"}), suffixes=(".hf.co",))

    assert rules.may_use("http://mirror.lan/x")
    assert rules.may_redirect("https://mirror.lan/", "http://cdn.lan:8443/x")
    assert not rules.may_redirect("https://mirror.lan/", "http://cdn.lan:8444/x")
    assert rules.may_be_private("mirror.lan")
    assert not rules.may_be_private("cdn-lfs.hf.co")


def test_suffixes_may_be_private_only_when_the_administrator_said_so() -> None:
    assert HostRules(suffixes=(".hf.co",), suffixes_private=True).may_be_private("cdn-lfs.hf.co")
    assert not HUB.may_be_private("cdn-lfs.hf.co")


def test_names_of_loopback_are_one_host() -> None:
    rules = HostRules(trusted=frozenset({"127.0.0.1"}))

    assert rules.may_redirect("http://127.0.0.1:8000/a", "http://localhost:9000/b")
    assert rules.may_be_private("localhost")
    assert not rules.may_be_private("10.0.0.1")


def test_redacted_urls_show_no_secret() -> None:
    url = "https://user:pass@cdn.example:8443/a%20b?X-Amz-Signature=s3cr3t&X-Amz-Expires=60&token=t0k#frag"

    shown = hosts.redact(url)

    assert shown == "https://cdn.example:8443/a%20b?X-Amz-Expires=60&…"


@pytest.mark.parametrize("url", ["https://[::1/x", "https://a:b@[bad/x?sig=1", "\n", "x" * 5000])
def test_redacting_never_fails_and_is_short(url: str) -> None:
    assert len(hosts.redact(url)) <= 300
    assert "\n" not in hosts.redact(url)


@pytest.mark.parametrize(
    "url", ["ftp://a/b", "https:///b", "/b", "https://a:port/", "https://[::1/", "https://a:70000/"]
)
def test_an_origin_needs_scheme_host_and_port(url: str) -> None:
    with pytest.raises(ValueError, match="url: want"):
        hosts.origin(url)
