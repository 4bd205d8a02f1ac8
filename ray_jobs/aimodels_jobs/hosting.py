"""The coordinator as a server: it keeps the right to write, answers its HTTP API, and comes back by itself.

An actor that Ray restarted serves again without anybody calling it, so everything begins in the constructor. How it
becomes an actor is in `host`, its options in `host_options`, its parts in `host_parts`, the API in `service`.
"""

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from aimodels_core import serving, watched
from aimodels_core.errors import AiModelsError, TransientError
from aimodels_core.watched import Followed
from aimodels_jobs import host_parts, service
from aimodels_jobs.coordinator import Coordinator
from aimodels_jobs.host_options import HostSettings
from aimodels_jobs.retry import Retry

log = logging.getLogger(__name__)

_WRITER_BUDGET_SECONDS = 20.0
"""Longer than a dead writer's lease lives: a shorter wait would never see it expire."""
_LOOK_SECONDS = 2.0
_START_PAUSE_SECONDS = 1.0
_QUIET = ("aiohttp", "boto3", "botocore", "httpcore2", "httpx2", "huggingface_hub", "s3transfer", "urllib3")


class Host:
    """Runs a coordinator and its server from the moment it is made, in the running event loop.

    Args:
        settings: what it was told; a place of the store, paths, numbers.
        retry: times of the retry loop.
    """

    def __init__(self, settings: HostSettings, retry: Retry | None = None) -> None:
        if not logging.getLogger().handlers:  # an actor's process has nobody else to do it
            serving.log_json(settings.log_level, quiet=_QUIET)
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
        """Serve until the files that connections keep the content of are replaced: then it begins anew with them."""
        token = watched.Secret(Path(self._settings.token_file))
        certificate = None
        if self._settings.tls_cert:
            certificate = watched.Certificate(Path(self._settings.tls_cert), Path(self._settings.tls_key))
        hub, kept = host_parts.follow_hub(self._settings), host_parts.follow_kept(self._settings)
        coordinator, threads = host_parts.open_coordinator(self._settings, hub, retry=self._retry)
        app = service.application(coordinator, token)
        await coordinator.start()
        try:
            place = self._settings.bind, self._settings.port
            async with serving.site(app, *place, certificate=certificate) as port:
                self._answers_at(port)
                followed: list[Followed[Any]] = [token, hub, certificate] if certificate else [token, hub]
                await _until_one_ends(self._keep_writing(coordinator), serving.follow(*followed), _until_replaced(kept))
        finally:
            self._serving.clear()
            try:
                await coordinator.close()
            finally:
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


async def _until_replaced(kept: Followed[tuple[bytes, ...]]) -> None:
    """Wait until the files have another content, which is good."""
    opened = kept()
    while kept() == opened:
        await asyncio.sleep(_LOOK_SECONDS)
        kept.refresh()
    log.info("keys or authorities were replaced; serving begins anew, publications go on when they are wanted again")


async def _until_one_ends(*work: Coroutine[object, object, None]) -> None:
    """Do all of it until one ends or fails; none of it goes on after this."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
