"""Connections: opened by a deadline, to addresses that were checked, with TLS verified.

Requests live in `aimodels_core.transport`.
"""

import contextlib
import functools
import http.client
import ipaddress
import os
import re
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any

from aimodels_core import hosts, proxies
from aimodels_core.errors import SourceDenied, SourceUnavailable, UsageError
from aimodels_core.proxies import Proxy

# Family and socket address, as the resolver returns them.
_Address = tuple[int, tuple[Any, ...]]

_MOST_HEAD_BYTES = 16 * 1024
# tinyproxy says 401 to wrong credentials, 407 to none.
_REFUSED = frozenset({http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.PROXY_AUTHENTICATION_REQUIRED})
_STATUS = re.compile(rb"HTTP/1\.[0-9] ([1-5][0-9]{2})[ \r\n]")


def connect(  # noqa: PLR0913 - all that a connection depends on
    host: str,
    port: int,
    *,
    tls: bool,
    ca_file: str,
    trusted: bool,
    timeout_seconds: float,
    private_cidrs: tuple[str, ...] = (),
    authorities: str = "",
    proxy: Proxy | None = None,
) -> http.client.HTTPConnection:
    """Open a connection whose socket is already connected; it never connects again by itself.

    The address that is dialled is the one that was checked, so a name that changes its address gains nothing. Through a
    proxy, names are resolved there; only literal addresses are checked here.

    Args:
        host: name or literal address.
        port: TCP port.
        tls: verify and encrypt.
        ca_file: PEM file with further authorities beside the system's; empty for none.
        trusted: addresses that are not global are fine too.
        timeout_seconds: for connecting and the TLS handshake together, then the time-out of the socket.
        private_cidrs: networks that are fine even if not global.
        authorities: PEM text with further authorities, for those who have them in no file.
        proxy: what to go through: by a tunnel with `tls`, else it forwards requests. Its address is not checked.

    Raises:
        SourceUnavailable: codes DnsFailed, AddressRefused, ConnectFailed, TlsFailed, ProxyFailed.
        SourceDenied: code ProxyRefused: the proxy does not accept the credentials; from later answers of it, too.
        UsageError: the CA file cannot be read.
    """
    deadline = time.monotonic() + timeout_seconds
    context = tls_context(ca_file, authorities) if tls else None
    if proxy is None:
        raw = _dial(host, _permitted(host, port, trusted=trusted, private_cidrs=private_cidrs), deadline)
    else:
        if _is_literal(host):
            _permitted(host, port, trusted=trusted, private_cidrs=private_cidrs)
        raw = _dial_proxy(proxy, deadline)
    try:
        if proxy is not None and context is not None:
            _tunnel(raw, proxy, proxies.joined(host, port), deadline)
        connection = _wrap(raw, host, port, context, deadline, None if context else proxy)
    except BaseException:
        raw.close()
        raise
    connection.sock.settimeout(timeout_seconds)
    connection.auto_open = 0
    return connection


class _Forwarded(http.client.HTTPConnection):
    """A connection to a proxy, whose requests it forwards to a host (RFC 9112, 3.2.2)."""

    def __init__(self, host: str, port: int, proxy: Proxy) -> None:
        super().__init__(host, port)
        self._proxy = proxy

    def putrequest(self, method: str, url: str, skip_host: bool = False, skip_accept_encoding: bool = False) -> None:  # noqa: FBT001, FBT002 - as http.client has it
        """Begin a request to the host for the target `url`."""
        place = self.host if self.port == http.client.HTTP_PORT else proxies.joined(self.host, self.port)
        super().putrequest(method, f"http://{place}{url}", skip_host, skip_accept_encoding)
        if self._proxy.authorization:
            self.putheader("Proxy-Authorization", self._proxy.authorization)

    def getresponse(self) -> http.client.HTTPResponse:
        """Return an answer of the host.

        Raises:
            SourceDenied: the proxy does not accept the credentials.
        """
        response = super().getresponse()
        if response.status == http.HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            raise _refused(self._proxy, response.status)
        return response


def _refused(proxy: Proxy, status: int) -> SourceDenied:
    got = "refuses the credentials" if proxy.authorization else "wants credentials, got none"
    return SourceDenied(f"proxy {proxy}: {got} (status {status})", code="ProxyRefused")


def _is_literal(host: str) -> bool:
    """Tell whether `host` is an address in any form that a resolver takes for one, such as 127.1; asks no server."""
    try:
        return bool(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
    except (OSError, UnicodeError):
        return False


def _dial_proxy(proxy: Proxy, deadline: float) -> socket.socket:
    try:
        return _dial(proxy.host, _permitted(proxy.host, proxy.port, trusted=True, private_cidrs=()), deadline)
    except SourceUnavailable as error:
        raise SourceUnavailable(f"proxy {error.message}", code=error.code) from error


def _tunnel(raw: socket.socket, proxy: Proxy, target: str, deadline: float) -> None:
    """Have the proxy open a tunnel to `target` (RFC 9110, 9.3.6)."""
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    lines += [f"Proxy-Authorization: {proxy.authorization}"] if proxy.authorization else []
    try:
        raw.settimeout(max(0.001, deadline - time.monotonic()))
        raw.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
        head, rest = _head(raw, deadline)
    except OSError as error:
        raise SourceUnavailable(f"proxy {proxy}: no tunnel to {target}: {_why(error)}", code="ProxyFailed") from error
    found = _STATUS.match(head)
    status = int(found[1]) if found else 0
    if status in _REFUSED:
        raise _refused(proxy, status)
    if not 200 <= status < 300 or rest:
        got = f"status {status}" if status >= 300 else "no answer of a proxy"
        raise SourceUnavailable(f"proxy {proxy}: want a tunnel to {target}, got {got}", code="ProxyFailed")


def _head(raw: socket.socket, deadline: float) -> tuple[bytes, bytes]:
    """Receive the head of an answer, cut where it is too long, and what came behind it."""
    got = b""
    while b"\r\n\r\n" not in got and len(got) < _MOST_HEAD_BYTES:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        raw.settimeout(left)
        more = raw.recv(4096)
        if not more:
            break
        got += more
    head, end, rest = got.partition(b"\r\n\r\n")
    # A head that does not end opens no tunnel, whatever its status.
    return (head + end, rest) if end else (head + b"\r\n", b"?")


def _wrap(
    raw: socket.socket, host: str, port: int, context: ssl.SSLContext | None, deadline: float, proxy: Proxy | None
) -> http.client.HTTPConnection:
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is None:
        connection = http.client.HTTPConnection(host, port) if proxy is None else _Forwarded(host, port, proxy)
        connection.sock = raw
        return connection
    secure = http.client.HTTPSConnection(host, port, context=context)
    raw.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        secure.sock = context.wrap_socket(raw, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        message = f"{host}:{port}: certificate not accepted: {error.verify_message}"
        raise SourceUnavailable(message, code="TlsFailed") from error
    except ssl.SSLError as error:
        message = f"{host}:{port}: TLS handshake failed: {error.reason or 'connection lost'}"
        raise SourceUnavailable(message, code="TlsFailed") from error
    except OSError as error:
        raise SourceUnavailable(f"{host}:{port}: TLS handshake: {_why(error)}", code="ConnectFailed") from error
    return secure


def _permitted(host: str, port: int, *, trusted: bool, private_cidrs: tuple[str, ...]) -> list[_Address]:
    """Resolve `host` into (family, socket address) that may be dialled, in the resolver's order."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a host name"
        raise SourceUnavailable(f"{host}: name not resolved: {why}", code="DnsFailed") from error
    good = [
        (int(family), sockaddr)
        for family, _, _, _, sockaddr in found
        if trusted or hosts.is_global(str(sockaddr[0])) or hosts.in_networks(str(sockaddr[0]), private_cidrs)
    ]
    if not good:
        seen = ", ".join(sorted({_show(sockaddr) for *_, sockaddr in found})[:4])
        raise SourceUnavailable(
            f"{host}: want a public address, got {seen}; a private host must be set explicitly", code="AddressRefused"
        )
    return good


def _show(sockaddr: Sequence[object]) -> str:
    return str(ipaddress.ip_address(str(sockaddr[0]).partition("%")[0]))


def _dial(host: str, addresses: list[_Address], deadline: float) -> socket.socket:
    why = "no address"
    for position, (family, address) in enumerate(addresses):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        raw = socket.socket(family, socket.SOCK_STREAM)
        raw.settimeout(left / (len(addresses) - position))
        try:
            raw.connect(address)
        except OSError as error:
            with contextlib.suppress(OSError):
                raw.close()
            why = _why(error)
            continue
        return raw
    raise SourceUnavailable(f"{host}: no connection: {why}", code="ConnectFailed")


def _why(error: OSError) -> str:
    return "timed out" if isinstance(error, TimeoutError) else (error.strerror or type(error).__name__)


def tls_context(ca_file: str, authorities: str = "") -> ssl.SSLContext:
    """Return a verifying context, shared by callers with the same authorities and made again when the file changes.

    Raises:
        UsageError: the file is missing or holds no certificate.
    """
    try:
        stat = os.stat(ca_file) if ca_file else None  # noqa: PTH116 - PEM text by mistake is no path
    except (OSError, ValueError) as error:
        hint = " (want the name of a PEM file, got its text)" if "BEGIN CERT" in ca_file else f" {ca_file[:200]}"
        raise UsageError(f"CA file{hint}: cannot be read", code="CaFileInvalid") from error
    return _context(ca_file, (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat else (), authorities)


@functools.lru_cache(maxsize=16)
def _context(ca_file: str, version: tuple[int, ...], authorities: str) -> ssl.SSLContext:
    """Make a context; `version` only tells changed files apart."""
    del version
    context = ssl.create_default_context()
    try:
        if ca_file:
            context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"CA file {ca_file[:200]}: want PEM certificates", code="CaFileInvalid") from error
    try:
        if authorities:
            context.load_verify_locations(cadata=authorities)
    except (ValueError, ssl.SSLError) as error:
        raise UsageError("authorities: want PEM certificates", code="CaFileInvalid") from error
    return context
