"""Stores that misbehave: a bucket behind a proxy that spoils what a test says, a folder on a small file system."""

import contextlib
import dataclasses
import http.client
import ssl
import subprocess
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.scripted import Call, Reply, Scripted, serve
from tests.support.servers import S3Server

Forward = Callable[[], Reply]
Spoil = Callable[[Call, Forward], Reply]


def well(call: Call, forward: Forward) -> Reply:
    """Spoil nothing."""
    del call
    return forward()


@dataclasses.dataclass(slots=True)
class Spoiled:
    """A server seen through a proxy.

    Args:
        server: as clients see it.
        proxy: what stands before it.
        spoil: what is done to each request; tests change it on the way.
        hits: requests that were spoiled.
    """

    server: S3Server
    proxy: Scripted
    spoil: Spoil = well
    hits: list[str] = dataclasses.field(default_factory=list)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    @property
    def calls(self) -> list[Call]:
        """Every request so far."""
        return self.proxy.calls

    def when(self, matches: Callable[[Call], bool], answer: Spoil, *, times: int = 10**9) -> None:
        """Spoil the next requests that match."""

        def spoil(call: Call, forward: Forward) -> Reply:
            with self._lock:
                met = matches(call) and len(self.hits) < times
                if met:
                    self.hits.append(f"{call.method} {call.path.partition('?')[0]}")
            return answer(call, forward) if met else forward()

        self.hits.clear()
        self.spoil = spoil


@contextlib.contextmanager
def spoiled(server: S3Server, spoil: Spoil = well, *, context: ssl.SSLContext | None = None) -> Iterator[Spoiled]:
    """Put a proxy before a server; with `context`, one that speaks TLS."""

    def answer(call: Call) -> Reply:
        return made.spoil(call, lambda: _forward(server, call))

    with serve(answer, context=context) as proxy:
        made = Spoiled(dataclasses.replace(server, endpoint=proxy.url), proxy, spoil)
        yield made


def refusal(code: str, status: int) -> Reply:
    """An error of S3."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>so it is</Message></Error>'.encode()
    return Reply(status, body, [("Content-Type", "application/xml")])


def error(code: str, status: int) -> Spoil:
    """Answer an error of S3 instead."""
    return lambda _, __: refusal(code, status)


def after(spoil: Spoil) -> Spoil:
    """Do what was asked for, and answer something else."""

    def answer(call: Call, forward: Forward) -> Reply:
        forward()
        return spoil(call, forward)

    return answer


def reset(call: Call, forward: Forward) -> Reply:
    """Reset the connection instead of an answer."""
    del call, forward
    return Reply(reset=True, length=100)


def _forward(server: S3Server, call: Call) -> Reply:
    where = urllib.parse.urlsplit(server.endpoint)
    connection = http.client.HTTPConnection(where.hostname or "", where.port or 0, timeout=30)
    try:
        connection.putrequest(call.method, call.path, skip_host=True, skip_accept_encoding=True)
        for name, value in call.headers.items():
            if name not in {"connection", "expect"}:
                connection.putheader(name, value)
        connection.endheaders(call.body)
        answer = connection.getresponse()
        body = answer.read()
        skipped = {"content-length", "connection", "transfer-encoding", "date", "server"}
        headers = [(k, v) for k, v in answer.getheaders() if k.lower() not in skipped]
        length = int(answer.headers.get("Content-Length", len(body))) if call.method == "HEAD" else None
        return Reply(answer.status, body, headers, length=length)
    finally:
        connection.close()


@contextlib.contextmanager
def small_disk(at: Path, size_mib: int) -> Iterator[Path]:
    """Mount a file system of that size (needs root)."""
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


def remount(at: Path, options: str) -> None:
    """Change the options of a mounted file system."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(at)], check=True)
