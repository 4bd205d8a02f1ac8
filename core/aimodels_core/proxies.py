"""Which HTTP proxy a request goes through: proxies and exceptions, parsed once. Pure.

Connections through one are opened in `aimodels_core.dial`.
"""

import base64
import dataclasses
import ipaddress
import re
import urllib.parse
from collections.abc import Mapping
from typing import Self

from aimodels_core.errors import UsageError

_LONGEST_URL = 2048
_MOST_DIRECT = 1024
_DEFAULT_PORT = 80
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


@dataclasses.dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy. Its text leaves the credentials out.

    Args:
        host: name or literal address.
        port: TCP port.
        authorization: value of Proxy-Authorization; empty for none. Secret.
    """

    host: str
    port: int
    authorization: str = dataclasses.field(default="", repr=False)

    @classmethod
    def parse(cls, text: str, *, where: str) -> Self:
        """Read `http://[user:password@]host[:port]`; the scheme may be left out.

        Args:
            text: what was given; never shown, since it may hold a password.
            where: what to name in messages.

        Raises:
            UsageError: another scheme, a path, no host.

        >>> str(Proxy.parse("http://me:secret@Proxy.example:3128/", where="https_proxy"))
        'http://proxy.example:3128'
        """
        text = text.strip()
        try:
            parts = urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise UsageError(f"{where}: want http://host:port, got something else", code="ProxyInvalid") from None
        if parts.scheme != "http":
            raise UsageError(f"{where}: want an http:// proxy, got another scheme", code="ProxyInvalid")
        extra = (
            parts.path not in {"", "/"}
            or parts.query
            or parts.fragment
            or len(text) > _LONGEST_URL
            or not text.isprintable()
        )
        if extra or not host or not (_NAME.fullmatch(host) or _address(host)) or port == 0:
            raise UsageError(f"{where}: want http://host:port, got something else", code="ProxyInvalid")
        return cls(host, _DEFAULT_PORT if port is None else port, _basic(parts.username, parts.password))

    def __str__(self) -> str:
        """Return its URL without credentials."""
        return f"http://{joined(self.host, self.port)}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Direct:
    """One entry of a list of exceptions: a domain with what is below it, or a network; of one port or of all."""

    domain: str = ""
    network: ipaddress.IPv4Network | ipaddress.IPv6Network | None = None
    port: int | None = None

    def covers(self, host: str, port: int) -> bool:
        if self.port not in (None, port):
            return False
        if self.network is not None:
            address = _address(host)
            return address is not None and address in self.network
        return self.domain == "*" or f".{host}".endswith(f".{self.domain}")


@dataclasses.dataclass(frozen=True, slots=True)
class Proxies:
    """Proxies by the scheme of what is asked for, and what goes without.

    Args:
        http: for http URLs.
        https: for https URLs.
        no_proxy: hosts that are reached directly; loopback always is.
    """

    http: Proxy | None = None
    https: Proxy | None = None
    no_proxy: tuple[_Direct, ...] = ()

    @classmethod
    def parse(cls, http: str, https: str, no_proxy: str) -> Self:
        """Read URLs of proxies and a list of exceptions; empty for none.

        Exceptions, between commas or blanks: a host or domain (`example.com` or `.example.com`: it and what is below
        it), an address, a network, `*`; each may end with `:port`.

        Raises:
            UsageError: one cannot be parsed.
        """
        words = [word for word in re.split(r"[,\s]+", no_proxy.lower()) if word]
        if len(words) > _MOST_DIRECT:
            raise UsageError(f"no_proxy: want at most {_MOST_DIRECT} entries, got {len(words)}")
        return cls(
            Proxy.parse(http, where="http_proxy") if http.strip() else None,
            Proxy.parse(https, where="https_proxy") if https.strip() else None,
            tuple(map(_direct, words)),
        )

    def find(self, host: str, port: int, *, tls: bool) -> Proxy | None:
        """Return the proxy for requests to a host; None for a direct connection.

        >>> proxies = Proxies.parse("", "http://proxy:3128", "example.com, 10.0.0.0/8, other.org:8443")
        >>> hosts = ("hub.org", "a.example.com", "10.1.2.3", "other.org", "localhost")
        >>> [host for host in hosts if proxies.find(host, 443, tls=True)]
        ['hub.org', 'other.org']
        """
        proxy = self.https if tls else self.http
        if proxy is None:
            return None
        host = host.lower().rstrip(".")
        if _is_loopback(host) or any(one.covers(host, port) for one in self.no_proxy):
            return None
        return proxy


DIRECT = Proxies()
"""No proxy for anything."""


def from_env(env: Mapping[str, str]) -> Proxies:
    """Read the usual variables: https_proxy and no_proxy in both cases, the lower one first, http_proxy in lower case.

    HTTP_PROXY is not read, as by curl: a CGI server sets it from a request's header.

    Raises:
        UsageError: one cannot be parsed.
    """
    both = {name: env.get(name) or env.get(name.upper(), "") for name in ("https_proxy", "no_proxy")}
    return Proxies.parse(env.get("http_proxy", ""), both["https_proxy"], both["no_proxy"])


def joined(host: str, port: int) -> str:
    """Return host and port as an authority.

    >>> joined("::1", 80)
    '[::1]:80'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _basic(user: str | None, password: str | None) -> str:
    """Make the value of Proxy-Authorization (RFC 7617, 2)."""
    if user is None:
        return ""
    pair = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"


def _direct(word: str) -> _Direct:
    if word == "*":
        return _Direct("*")
    if (network := _network(word)) is not None:
        return _Direct(network=network)
    host, colon, port = word.rpartition(":")
    if not colon:
        host, port = word, ""
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else None
    if (number is None) == bool(colon):
        raise _bad(word)
    if (network := _network(host.removeprefix("[").removesuffix("]"))) is not None:
        return _Direct(network=network, port=number)
    domain = host.removeprefix("*").removeprefix(".").rstrip(".")
    if host != "*" and not _NAME.fullmatch(domain):
        raise _bad(word)
    return _Direct(domain or "*", port=number)


def _bad(word: str) -> UsageError:
    # A URL put here by mistake may hold a password.
    got = "a URL" if "@" in word or "//" in word else repr(word[:80])
    return UsageError(f"no_proxy: want hosts, domains, addresses or networks, got {got}", code="ProxyInvalid")


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return address.is_loopback if address is not None else f".{host}".endswith(".localhost")
