"""The shell of our servers: log lines, health and metrics, a site that follows its certificate, the signals to stop.

Needs aiohttp, which the command line does not install: only servers import this. What they answer is theirs.
"""

import asyncio
import contextlib
import datetime
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from aiohttp import web

from aimodels_core.errors import TransientError
from aimodels_core.watched import Certificate, Followed

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LOOK_SECONDS = 2.0
_STOP_SECONDS = 5.0

LOG_LEVELS = ("Debug", "Info", "Warn", "Error")


class JsonLines(logging.Formatter):
    """One JSON object a line, with the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Render a record."""
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        fields = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        line |= {name: value for name, value in fields.items() if not name.startswith("_")}  # Ray marks every record
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def log_json(level: str, *, quiet: Sequence[str] = ()) -> None:
    """Log JSON lines to standard error from now on.

    Args:
        level: one of `LOG_LEVELS`.
        quiet: loggers that say only warnings and worse.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level={"Warn": "WARNING"}.get(level, level.upper()), handlers=[handler], force=True)
    for name in quiet:
        logging.getLogger(name).setLevel(logging.WARNING)


def health(healthy: Callable[[], bool], ready: Callable[[], bool], metrics: Callable[[], str]) -> web.Application:
    """Make an application of `/healthz`, `/readyz` and `/metrics`."""

    def answering(question: Callable[[], bool]) -> Callable[[web.Request], Any]:
        async def answer(_: web.Request) -> web.Response:
            well = question()
            return web.Response(status=200 if well else 503, text="ok\n" if well else "not now\n")

        return answer

    async def show(_: web.Request) -> web.Response:
        return web.Response(text=metrics(), content_type="text/plain")

    app = web.Application()
    app.router.add_get("/healthz", answering(healthy))
    app.router.add_get("/readyz", answering(ready))
    app.router.add_get("/metrics", show)
    return app


@contextlib.asynccontextmanager
async def site(
    app: web.Application, host: str, port: int, *, certificate: Certificate | None = None
) -> AsyncIterator[int]:
    """Serve an application as long as the context lasts; yields the port.

    Args:
        app: what answers.
        host: address to listen at.
        port: 0 takes any free one.
        certificate: for TLS; whoever refreshes it renews it here.

    Raises:
        TransientError: code Listen: the address is taken, or not ours.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_SECONDS)
    await runner.setup()
    try:
        context = certificate.context if certificate else None
        try:
            await web.TCPSite(runner, host, port, ssl_context=context, reuse_address=True).start()
        except OSError as error:
            raise TransientError(f"server: cannot listen on {host}:{port}: {error.strerror}", code="Listen") from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def follow(*files: Followed[Any]) -> None:
    """Refresh what may be replaced, every two seconds, for ever."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        for one in files:
            one.refresh()


def stop_event() -> asyncio.Event:
    """Return an event of the running loop that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
