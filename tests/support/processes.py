"""Child processes that serve on a free port of 127.0.0.1: started, waited for, stopped. And waiting by polling.

Which programs there are is in `tests.support.servers`.
"""

import contextlib
import functools
import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
START_SECONDS = 40.0
STOP_SECONDS = 5.0
LOG_BYTES = 6000


class ServerError(RuntimeError):
    """A server did not start, or died; the message ends with what it printed last."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    tls: bool = False

    @property
    def url(self) -> str:
        """Base URL without a slash at the end."""
        return f"{'https' if self.tls else 'http'}://{HOST}:{self.port}"

    def printed(self) -> str:
        """The end of what it printed."""
        return self.log.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace")


def wait_for(check: Callable[[], bool], what: str, *, seconds: float = 10.0, pause_seconds: float = 0.02) -> None:
    """Poll until `check` holds.

    Raises:
        TimeoutError: it did not within `seconds`; the message says `what`.
    """
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(f"want {what} within {seconds} s")
        time.sleep(pause_seconds)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def answers(port: int, *, path: str = "/") -> bool:
    """Whether something speaks HTTP (or at least listens, for TLS) at the port."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 500
    except http.client.RemoteDisconnected:
        return True
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextlib.contextmanager
def started(
    command: Callable[[int], Sequence[str]],
    *,
    ready: Callable[[int], bool] = answers,
    env: Mapping[str, str] = {},
    cwd: Path | None = None,
    tls: bool = False,
    seconds: float = START_SECONDS,
) -> Iterator[Server]:
    """Run a server made by `command(port)` and stop it, with its children, at the end.

    Args:
        command: the argument list for a port; called again with another port when that one was taken meanwhile.
        ready: tells whether the server at a port can be used.
        env: added to this process's environment, from which what breaks servers was removed.
        cwd: working directory.
        tls: only for `Server.url`.
        seconds: deadline of the start.

    Raises:
        ServerError: it ended, or was not ready in time.
    """
    with tempfile.TemporaryDirectory(prefix="server-") as folder:
        log = Path(folder) / "log"
        server = _launch(command, ready, log, {**_environment(), **env}, cwd, tls=tls, seconds=seconds)
        try:
            yield server
        finally:
            stop(server.process)


def _environment() -> dict[str, str]:
    """This process's environment without what breaks servers or sends their traffic elsewhere."""
    removed = {"AWS_CA_BUNDLE", "AWS_PROFILE"}
    kept = {k: v for k, v in os.environ.items() if k not in removed and "proxy" not in k.lower()}
    return {**kept, "OTEL_TRACES_EXPORTER": "none", "GOMAXPROCS": "2"}


def _launch(
    command: Callable[[int], Sequence[str]],
    ready: Callable[[int], bool],
    log: Path,
    env: Mapping[str, str],
    cwd: Path | None,
    *,
    tls: bool,
    seconds: float,
) -> Server:
    for _ in range(4):
        server = _run(command, log, env, cwd, tls=tls)
        try:
            wait_for(functools.partial(_settled, server, ready), "an answer", seconds=seconds)
        except BaseException as error:
            stop(server.process)
            if isinstance(error, TimeoutError):
                message = f"{server.process.args!r}: want it ready within {seconds} s:\n{server.printed()}"
                raise ServerError(message) from error
            raise
        if server.process.poll() is None:
            return server
        stop(server.process)
        if "address already in use" not in server.printed().lower():
            raise ServerError(f"{server.process.args!r}: ended with {server.process.returncode}:\n{server.printed()}")
    raise ServerError("server: want a free port, got four that were taken meanwhile")


def _settled(server: Server, ready: Callable[[int], bool]) -> bool:
    return server.process.poll() is not None or ready(server.port)


def _run(
    command: Callable[[int], Sequence[str]], log: Path, env: Mapping[str, str], cwd: Path | None, *, tls: bool
) -> Server:
    port = free_port()
    with log.open("wb") as out:
        argv = [str(part) for part in command(port)]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=cwd, start_new_session=True
        )
    return Server(process, port, log, tls)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that `started` began, and what it started: asked first, then killed."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
            os.killpg(process.pid, signal.SIGCONT)  # a test may have stopped it
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
            if sign == signal.SIGKILL:
                return
