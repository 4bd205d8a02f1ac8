"""Connections: opened by a deadline, to addresses that were checked, with TLS verified.

Requests live in `aimodels_core.transport`.
"""

import contextlib
import functools
import http.client
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any

from aimodels_core import hosts
from aimodels_core.errors import SourceUnavailable, UsageError

# Family and socket address, as the resolver returns them.
_Address = tuple[int, tuple[Any, ...]]


def connect(
    host: str,
    port: int,
    *,
    tls: bool,
    ca_file: str,
    trusted: bool,
    timeout_seconds: float,
    private_cidrs: tuple[str, ...] = (),
    authorities: str = "",
) -> http.client.HTTPConnection:
    """Open a connection whose socket is already connected; it never connects again by itself.

    The address that is dialled is the one that was checked, so a name that changes its address gains nothing.

    Args:
        host: name or literal address.
        port: TCP port.
        tls: verify and encrypt.
        ca_file: PEM file with further authorities beside the system's; empty for none.
        trusted: addresses that are not global are fine too.
        timeout_seconds: for connecting and the TLS handshake together, then the time-out of the socket.
        private_cidrs: networks that are fine even if not global.
        authorities: PEM text with further authorities, for those who have them in no file.

    Raises:
        SourceUnavailable: codes DnsFailed, AddressRefused, ConnectFailed, TlsFailed.
        UsageError: the CA file cannot be read.
    """
    deadline = time.monotonic() + timeout_seconds
    context = tls_context(ca_file, authorities) if tls else None
    raw = _dial(host, _permitted(host, port, trusted=trusted, private_cidrs=private_cidrs), deadline)
    try:
        connection = _wrap(raw, host, port, context, deadline)
    except BaseException:
        raw.close()
        raise
    connection.sock.settimeout(timeout_seconds)
    connection.auto_open = 0
    return connection


def _wrap(
    raw: socket.socket, host: str, port: int, context: ssl.SSLContext | None, deadline: float
) -> http.client.HTTPConnection:
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is None:
        connection = http.client.HTTPConnection(host, port)
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
