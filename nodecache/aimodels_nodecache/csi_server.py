"""The process of the CSI driver: its two sockets in kubelet's folders, health and metrics, and its end.

Kubelet finds the socket in `plugins_registry`, asks there for the other one, and forgets the driver when it is taken
away. A killed process leaves its mounts as they are; the next one takes over sockets and records.
"""

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc.aio  # type: ignore[import-untyped]  # has no types

from aimodels_core import serving
from aimodels_core.errors import StoreUnavailable
from aimodels_core.names import CSI_DRIVER
from aimodels_nodecache import wire
from aimodels_nodecache.csi import Services
from aimodels_nodecache.devices import Devices
from aimodels_nodecache.disks import Disks
from aimodels_nodecache.driver import Driver, Limits
from aimodels_nodecache.ledger import Ledger
from aimodels_nodecache.orphans import Orphans
from aimodels_nodecache.podrecords import PodRecords
from aimodels_nodecache.pods import Access, Pods
from aimodels_nodecache.settings import CsiSettings
from aimodels_nodecache.threads import InThreads
from aimodels_nodecache.trees import NodeTrees
from aimodels_nodecache.volumes import Volumes

log = logging.getLogger(__name__)

_THREADS = 8
_MAX_MESSAGE_BYTES = 1024 * 1024
_MORE_CALLS = 64
"""Calls at once beside those that wait."""
_STOP_SECONDS = 2.0
_UMASK = 0o077


class Socket:
    """A socket in one of kubelet's folders.

    Args:
        path: where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = 0

    @property
    def there(self) -> bool:
        """Whether it is still this one that is there."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    @contextlib.asynccontextmanager
    async def serve(self, *services: Any, calls: int) -> AsyncIterator[None]:
        """Answer at it as long as the context lasts; what an earlier process left there is replaced.

        Raises:
            StoreUnavailable: code Listen: it cannot be made.
        """
        options = (("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),)
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=calls)
        server.add_generic_rpc_handlers(services)
        try:
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
            with _umask(_UMASK):
                server.add_insecure_port(f"unix:{self.path}")
                await server.start()
            self._inode = self.path.stat().st_ino
        except (OSError, RuntimeError) as error:
            raise StoreUnavailable(f"{self.path}: cannot listen: {error}", code="Listen") from error
        try:
            yield
        finally:
            if self.there:
                self.path.unlink(missing_ok=True)
            await server.stop(_STOP_SECONDS)


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


class Registration:
    """Tells kubelet where the driver is, and learns whether it was taken.

    Args:
        endpoint: path of the driver's socket as kubelet sees it.
    """

    def __init__(self, endpoint: Path) -> None:
        self._endpoint = endpoint
        self.registered = False
        self.refused: asyncio.Event = asyncio.Event()

    def service(self) -> Any:
        """Make the service of a gRPC server."""
        return wire.registration_service(self._info, self._notified)

    async def _info(self, _: Any, __: Any) -> Any:
        made = wire.message("pluginregistration.PluginInfo")
        return made(type="CSIPlugin", name=CSI_DRIVER, endpoint=str(self._endpoint), supported_versions=["1.0.0"])

    async def _notified(self, request: Any, _: Any) -> Any:
        self.registered = bool(request.plugin_registered)
        if self.registered:
            log.info("kubelet has taken the driver")
        else:
            log.error("kubelet does not take the driver", extra={"detail": request.error[:512]})
            self.refused.set()
        return wire.message("pluginregistration.RegistrationStatusResponse")()


async def serve(settings: CsiSettings, stop: asyncio.Event) -> None:
    """Serve until asked to stop.

    Raises:
        UsageError: a file that cannot be used.
        TransientError: a socket or port that cannot be had, records that cannot be read, or a kubelet that refuses.
    """
    began, root, kubelet = time.monotonic(), Path(settings.cache_dir), Path(settings.kubelet_dir)
    account = Path(settings.account_dir)
    threads_of_mounts = ThreadPoolExecutor(_THREADS, "mounts")
    threads = InThreads(threads_of_mounts)
    pods = Pods(Access(settings.api_url, account / "token", account / "ca.crt"))
    ledger, volumes = Ledger(PodRecords(root / "records"), threads), Volumes(kubelet)
    try:
        await ledger.load()
        driver = Driver(
            settings.node,
            kubelet,
            volumes=volumes,
            trees=NodeTrees(root),
            ledger=ledger,
            pods=pods,
            threads=threads,
            limits=Limits(settings.wait_seconds, settings.waiters),
        )
        services = Services(driver, importlib.metadata.version("ai-models"))
        devices = Devices(settings.node, root, pods, Disks(), threads, folder=settings.host_folder)
        orphans = Orphans(settings.node, volumes, ledger, pods, threads, seconds=settings.orphan_seconds)
        calls, registry = Socket(kubelet / "plugins" / CSI_DRIVER / "csi.sock"), kubelet / "plugins_registry"
        entry, registration = Socket(registry / f"{CSI_DRIVER}-reg.sock"), Registration(calls.path)

        def metrics() -> str:
            return render(driver, ledger, orphans, pods, devices, registered=registration.registered)

        health = serving.health(lambda: calls.there and entry.there, lambda: registration.registered, metrics)
        async with (
            serving.site(health, settings.listen_host, settings.health_port) as health_port,
            calls.serve(*services.handlers(), calls=settings.waiters + _MORE_CALLS),
            entry.serve(registration.service(), calls=_MORE_CALLS),
        ):
            started = {"health_port": health_port, "seconds": round(time.monotonic() - began, 3)}
            log.info("driver serves", extra={"records": len(ledger.uids), **started})
            await _until(stop, registration, orphans.run(), devices.run())
    finally:
        await pods.close()
        threads_of_mounts.shutdown(wait=False, cancel_futures=True)


async def _until(stop: asyncio.Event, registration: Registration, *work: Coroutine[Any, Any, None]) -> None:
    tasks = {asyncio.create_task(one) for one in (stop.wait(), registration.refused.wait(), *work)}
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    for task in done:
        task.result()
    if registration.refused.is_set():
        raise StoreUnavailable("kubelet does not take the driver", code="Refused")


def render(driver: Driver, ledger: Ledger, orphans: Orphans, pods: Pods, devices: Devices, *, registered: bool) -> str:
    """Render what was counted in Prometheus' text format."""
    figures, lines = driver.figures, ["# TYPE aimodels_csi_calls_total counter"]
    for (method, code), n in sorted(figures.calls.items()):
        lines.append(f'aimodels_csi_calls_total{{method="{method}",code="{code}"}} {n}')
    lines.append("# TYPE aimodels_api_calls_total counter")
    for (verb, status), n in sorted(pods.calls.items()):
        lines.append(f'aimodels_api_calls_total{{verb="{verb}",resource="pods",status="{status}"}} {n}')
    plain = (
        ("aimodels_csi_mounts_total", "counter", figures.mounts),
        ("aimodels_csi_mount_seconds_total", "counter", round(figures.mount_seconds, 6)),
        ("aimodels_csi_waiting", "gauge", figures.waiting),
        ("aimodels_csi_records", "gauge", len(ledger.uids)),
        ("aimodels_csi_orphans_total", "counter", orphans.collected),
        ("aimodels_csi_registered", "gauge", int(registered)),
        ("aimodels_devices_unused", "gauge", len(devices.troubles)),
    )
    for name, kind, value in plain:
        lines += [f"# TYPE {name} {kind}", f"{name} {value}"]
    return "\n".join(lines) + "\n"
