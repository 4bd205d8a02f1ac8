"""The coordinator as a server: it keeps the right to write, answers its HTTP API, and comes back by itself.

An actor that Ray restarted serves again without anybody calling it, so everything begins in the constructor. How it
becomes an actor is in `host`, its options in `host_options`, the API in `service`, publications in `coordinator`.
"""

import asyncio
import dataclasses
import logging
import urllib.parse
from collections.abc import Awaitable, Callable
from pathlib import Path

from aimodels_core import serving, watched
from aimodels_core.errors import AiModelsError, TransientError
from aimodels_jobs import service
from aimodels_jobs.checkpoints import Checkpoints
from aimodels_jobs.coordinator import Coordinator
from aimodels_jobs.executor import Executor, Inline
from aimodels_jobs.folder import Folder
from aimodels_jobs.governor import Connections, RateGate
from aimodels_jobs.host_options import HostSettings
from aimodels_jobs.layout import Store
from aimodels_jobs.movers import Movers
from aimodels_jobs.objects import Objects
from aimodels_jobs.retry import Retry
from aimodels_jobs.s3 import S3
from aimodels_jobs.s3_client import S3Settings
from aimodels_jobs.selection import Pickle
from aimodels_jobs.sources import hub_url
from aimodels_jobs.sources.hub_settings import HubSettings
from aimodels_jobs.sourcing import Sourcing
from aimodels_jobs.threads import Pause, Threads
from aimodels_jobs.workshop import Workshop
from aimodels_jobs.writer import writer_of

log = logging.getLogger(__name__)

_CONNECTIONS_PER_MOVER = 16
_WRITER_BUDGET_SECONDS = 20.0
"""Longer than a dead writer's lease lives: a shorter wait would never see it expire."""
_LOOK_SECONDS = 2.0
_START_PAUSE_SECONDS = 1.0


def open_objects(settings: HostSettings) -> Objects:
    """Open the store.

    Raises:
        UsageError: a place or a credential that cannot be one.
        StoreUnavailable, StoreUnsafe.
    """
    if not settings.store.startswith("s3://"):
        return Folder(Path(settings.store), create=True)
    place = urllib.parse.urlsplit(settings.store)
    keys = Path(settings.s3_credentials) if settings.s3_credentials else None
    made = S3Settings(
        bucket=place.netloc,
        prefix=place.path.strip("/"),
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        path_style=not settings.s3_virtual_host,
        ca_file=settings.s3_ca_file,
    )
    if keys:
        access, secret = watched.read_secret(keys / "accessKey"), watched.read_secret(keys / "secretKey")
        made = dataclasses.replace(made, access_key=access, secret_key=secret)
    return S3(made)


def open_hub(settings: HostSettings) -> HubSettings:
    """Say how hubs are reached.

    Raises:
        UsageError: an endpoint or a token file that cannot be one.
    """
    return HubSettings(
        endpoint=hub_url.parse_endpoint(settings.hub_endpoint) if settings.hub_endpoint else "",
        token=watched.read_secret(Path(settings.hub_token_file)) if settings.hub_token_file else "",
        ca_file=settings.hub_ca_file,
        allowed_hosts=frozenset(settings.allow_hosts),
        private_cidrs=settings.private_cidrs,
    )


def _executor(settings: HostSettings) -> Callable[[int], Awaitable[Executor]]:
    async def choose(_: int) -> Executor:
        if settings.inline:
            return Inline()
        from aimodels_jobs.fleet import actors

        return actors.attach(workers=settings.movers)

    return choose


def open_coordinator(settings: HostSettings, *, retry: Retry | None = None) -> tuple[Coordinator, Threads]:
    """Put the coordinator together.

    Raises:
        AiModelsError: whatever the store or a setting is refused for.
    """
    objects = open_objects(settings)
    pause = Pause()
    writer = writer_of(objects, sleep=pause.sleep)
    threads = Threads()
    pickle = Pickle.REFUSE if settings.refuse_pickle else Pickle.ALLOW
    workshop = Workshop(Store(objects), Checkpoints(objects), threads, pickle=pickle, check_writer=writer.check)
    connections = Connections(settings.connections or _CONNECTIONS_PER_MOVER * max(4, settings.movers))
    movers = Movers(_executor(settings), connections)
    sources = Sourcing(open_hub(settings))
    gate, retry = RateGate(), retry or Retry()
    return Coordinator(workshop, writer, sources, movers, gate, retry=retry, pause=pause), threads


class Host:
    """Runs a coordinator and its server from the moment it is made, in the running event loop.

    Args:
        settings: what it was told; a place of the store, paths, numbers.
        retry: times of the retry loop.
    """

    def __init__(self, settings: HostSettings, retry: Retry | None = None) -> None:
        # An actor's process has nobody else to do it; where somebody has, this changes nothing.
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._settings = settings
        self._retry = retry
        self._coordinator: Coordinator | None = None
        self._trouble: AiModelsError | None = None
        self._port = 0
        self._serving = asyncio.Event()
        self._task = asyncio.get_event_loop().create_task(self._run())

    async def ready(self, seconds: float) -> int:
        """Wait until the API answers; returns its port.

        Raises:
            AiModelsError: why it does not, after `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._serving.wait()
        except TimeoutError as error:
            raise self._trouble or TransientError(f"coordinator: not serving after {seconds:.0f} s") from error
        return self._port

    async def settings(self) -> HostSettings:
        """Say with what it was started."""
        return self._settings

    async def stop(self) -> None:
        """End cleanly: no more requests, checkpoints stay, the right to write is given back."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def __ray_shutdown__(self) -> None:
        """Called by Ray before it ends an actor in good order."""
        await self.stop()

    async def _run(self) -> None:
        """Serve; what prevents it now is tried again for ever."""
        while True:
            try:
                await self._serve()
            except AiModelsError as error:
                self._trouble = error
                log.warning("coordinator does not serve", extra={"error": error.code, "detail": error.message})
            except Exception:
                self._trouble = TransientError("coordinator: an internal error; its log has it", code="Internal")
                log.exception("coordinator broke")
            await asyncio.sleep(_START_PAUSE_SECONDS)

    async def _serve(self) -> None:
        token = watched.Secret(Path(self._settings.token_file))
        certificate = None
        if self._settings.tls_cert:
            certificate = watched.Certificate(Path(self._settings.tls_cert), Path(self._settings.tls_key))
        coordinator, threads = open_coordinator(self._settings, retry=self._retry)
        app = service.application(coordinator, token)
        await coordinator.start()
        try:
            place = self._settings.bind, self._settings.port
            async with serving.site(app, *place, certificate=certificate) as port:
                self._answers_at(port)
                followed = [token, certificate] if certificate else [token]
                await asyncio.gather(self._keep_writing(coordinator), serving.follow(*followed))
        finally:
            self._serving.clear()
            await coordinator.close()
            threads.close()

    def _answers_at(self, port: int) -> None:
        self._port = port
        self._trouble = None
        self._serving.set()
        log.info("coordinator serves", extra={"port": port, "tls": bool(self._settings.tls_cert)})

    async def _keep_writing(self, coordinator: Coordinator) -> None:
        """Become the writer, however long another one takes, and again when the right was lost."""
        while True:
            try:
                await coordinator.keep_owning(budget_seconds=_WRITER_BUDGET_SECONDS)
            except AiModelsError as error:
                self._trouble = error
                log.warning("coordinator is not the writer", extra={"error": error.code, "detail": error.message})
                await asyncio.sleep(_LOOK_SECONDS)
