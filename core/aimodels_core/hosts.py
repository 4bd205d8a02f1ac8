"""Which hosts and addresses may be talked to, and how a URL is shown in messages.

Opening connections lives in `aimodels_core.dial`, requests in `aimodels_core.transport`.
"""

import dataclasses
import ipaddress
import socket
import urllib.parse

_SHOWN_PARAMETERS = frozenset(
    {"expand", "limit", "n", "recursive", "revision", "scope", "service", "x-amz-expires", "x-amz-date"}
)
_SHOWN_LENGTH = 300
_PORTS = {"http": 80, "https": 443}
# Prefixes that carry an IPv4 address inside an IPv6 one: NAT64 (RFC 6052, 2.1) and its local form (RFC 8215).
_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port: what credentials belong to."""

    scheme: str
    host: str
    port: int

    @property
    def tls(self) -> bool:
        """Whether connections to it are encrypted."""
        return self.scheme == "https"


def origin(url: str) -> Origin:
    """Return where `url` points to.

    Raises:
        ValueError: not http or https, no host, or a bad port. The message does not contain the URL.

    >>> origin("https://Hub.example/a?b")
    Origin(scheme='https', host='hub.example', port=443)
    """
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("url: want scheme://host[:port]/path, got something else") from None
    if parts.scheme not in _PORTS or not host:
        raise ValueError(f"url: want http or https and a host, got scheme {parts.scheme[:20]!r}")
    return Origin(parts.scheme, host.rstrip("."), _PORTS[parts.scheme] if port is None else port)


def redact(url: str) -> str:
    """Return `url` for messages: scheme, host, path, and the query parameters that are known to be harmless.

    >>> redact("https://user:secret@cdn.example/a/b?X-Amz-Signature=abc&recursive=true#x")
    'https://cdn.example/a/b?recursive=true&…'
    """
    try:
        parts = urllib.parse.urlsplit(url)
        pairs = urllib.parse.parse_qsl(parts.query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        return "(a URL that cannot be parsed)"
    shown = [(key, value) for key, value in pairs if key.lower() in _SHOWN_PARAMETERS]
    query = urllib.parse.urlencode(shown, safe=":/,") + ("&…" if len(shown) < len(pairs) else "")
    text = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    text += f"?{query.lstrip('&')}" if query else ""
    return "".join(c if c.isprintable() else "?" for c in text)[:_SHOWN_LENGTH]


def is_global(address: str) -> bool:
    """Tell whether `address` is one of the public internet, also when it hides an IPv4 address in an IPv6 one.

    >>> [is_global(a) for a in ("1.1.1.1", "10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "224.0.0.1")]
    [True, False, False, False, False]
    """
    return all(ip.is_global and not ip.is_multicast for ip in _faces(address))


def _faces(address: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """List every address that `address` may stand for."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return [ip]
    inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
    if inner is None and any(ip in network for network in _NAT64):
        inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if inner is None:
        return [ip]
    return [inner]


def in_networks(address: str, cidrs: tuple[str, ...]) -> bool:
    """Tell whether `address` lies in one of the networks `cidrs`."""
    networks = [ipaddress.ip_network(cidr, strict=False) for cidr in cidrs]
    return any(ip in network for ip in _faces(address) for network in networks)


@dataclasses.dataclass(frozen=True, slots=True)
class HostRules:
    """Where requests and their redirects may go (design 8).

    Hosts are names or literal addresses in lower case; `host:port` means this port only.

    Args:
        trusted: hosts that the user or administrator set: any address, plain HTTP included.
        suffixes: such as `.hf.co`: may be redirected to, over HTTPS; the bare `hf.co` counts.
        suffixes_private: hosts under `suffixes` may have addresses that are not global.
        allowed: more hosts that may be redirected to: any address, plain HTTP included.
        private_cidrs: networks whose addresses may be dialled for every host.
    """

    trusted: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()
    suffixes_private: bool = False
    allowed: frozenset[str] = frozenset()
    private_cidrs: tuple[str, ...] = ()

    def may_use(self, url: str) -> bool:
        """Tell whether a request may start at `url`: HTTPS, or a host that was set explicitly (any name of it)."""
        place = origin(url)
        return place.tls or self._explicit(place.host, place.port) or self._same_as_trusted(place.host)

    def may_redirect(self, from_url: str, to_url: str) -> bool:
        """Tell whether an answer of `from_url` may send us to `to_url`."""
        try:
            here, there = origin(from_url), origin(to_url)
        except ValueError:
            return False
        if self._explicit(there.host, there.port):
            return True
        if here.tls and not there.tls:
            return False
        if here.host == there.host or (there.tls and self._has_suffix(there.host)):
            return True
        return self._explicit(here.host, here.port) and same_machine(here.host, there.host)

    def may_be_private(self, host: str) -> bool:
        """Tell whether `host` may have an address that is not global."""
        if self._explicit(host, None) or (self.suffixes_private and self._has_suffix(host)):
            return True
        return self._same_as_trusted(host)

    def _same_as_trusted(self, host: str) -> bool:
        return any(same_machine(_bare(name), host) for name in self.trusted)

    def _explicit(self, host: str, port: int | None) -> bool:
        known = self.trusted | self.allowed
        host = host.lower().rstrip(".")
        if port is None:
            return any(_bare(name) == host for name in known)
        return host in known or _joined(host, port) in known

    def _has_suffix(self, host: str) -> bool:
        host = host.lower().rstrip(".")
        return any(f".{host}".endswith("." + suffix.lower().lstrip(".")) for suffix in self.suffixes)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bare(name: str) -> str:
    """Return the host of `host`, `host:port` or `[host]:port`."""
    if name.startswith("["):
        return name[1:].partition("]")[0].lower()
    return (name if name.count(":") > 1 else name.partition(":")[0]).lower()


def same_machine(one: str, other: str) -> bool:
    """Tell whether two host names mean one host: the same name, two names of loopback, or a shared address."""
    if one == other:
        return True
    left, right = _addresses(one), _addresses(other)
    return bool(left & right) or all(side and all(map(_is_loopback, side)) for side in (left, right))


def _is_loopback(address: str) -> bool:
    return all(ip.is_loopback for ip in _faces(address))


def _addresses(host: str) -> frozenset[str]:
    """Resolve `host`; the resolver's own time-outs bound the wait."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(str(sockaddr[0]) for *_, sockaddr in found)
