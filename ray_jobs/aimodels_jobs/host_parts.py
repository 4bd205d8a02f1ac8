"""The parts of a coordinator that serves, opened as its settings say; and the files of which they keep the content."""

import dataclasses
import urllib.parse
from collections.abc import Awaitable, Callable
from pathlib import Path

from aimodels_core import dial, watched
from aimodels_core.messages import Want
from aimodels_core.source import Gate, Source
from aimodels_core.watched import Followed
from aimodels_jobs.admission import Capacity
from aimodels_jobs.checkpoints import Checkpoints
from aimodels_jobs.coordinator import Coordinator
from aimodels_jobs.executor import Executor, Inline
from aimodels_jobs.folder import Folder
from aimodels_jobs.governor import Connections, RateGate
from aimodels_jobs.host_options import HostSettings
from aimodels_jobs.layout import Store
from aimodels_jobs.movers import Movers
from aimodels_jobs.nodes import Agents
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
        proxies=settings.proxies,
    )


def follow_hub(settings: HostSettings) -> Followed[HubSettings]:
    """Say how hubs are reached, with the token that is in force.

    Raises:
        UsageError: as `open_hub`.
    """
    files = [Path(settings.hub_token_file)] if settings.hub_token_file else []
    return Followed(files, lambda: open_hub(settings))


def follow_kept(settings: HostSettings) -> Followed[tuple[bytes, ...]]:
    """Follow the files whose content is kept by connections and clients: the store's keys, authorities.

    Raises:
        UsageError: one is no good to begin with.
    """
    keys = [Path(settings.s3_credentials) / name for name in ("accessKey", "secretKey") if settings.s3_credentials]
    authorities = [Path(name) for name in (settings.s3_ca_file, settings.hub_ca_file) if name]

    def load() -> tuple[bytes, ...]:
        for path in authorities:
            dial.tls_context(str(path))
        return (*(watched.read_secret(path).encode() for path in keys), *map(watched.read_bytes, authorities))

    return Followed([*keys, *authorities], load)


class _Sources:
    """Opens sources with the hub's settings as they are now. Implements `coordinator.Sources`."""

    def __init__(self, hub: Callable[[], HubSettings]) -> None:
        self._hub = hub

    def open(self, want: Want, gate: Gate) -> Source:
        return Sourcing(self._hub()).open(want, gate)


def _executor(settings: HostSettings) -> Callable[[int], Awaitable[Executor]]:
    async def choose(_: int) -> Executor:
        if settings.inline:
            return Inline()
        from aimodels_jobs.fleet import actors

        return actors.attach(workers=settings.movers, nodes=settings.nodes)

    return choose


def _agents(settings: HostSettings) -> Agents | None:
    if not settings.agents:
        return None
    from aimodels_jobs.fleet.agents import RayAgents
    from aimodels_jobs.fleet.cluster import Ray

    return RayAgents(Ray(""))


def open_coordinator(
    settings: HostSettings, hub: Callable[[], HubSettings], *, retry: Retry | None = None
) -> tuple[Coordinator, Threads]:
    """Put the coordinator together.

    Args:
        settings: what it was told.
        hub: how hubs are reached, asked for every attempt of a publication.
        retry: times of the retry loop.

    Raises:
        AiModelsError: whatever the store or a setting is refused for.
    """
    objects = open_objects(settings)
    pause = Pause()
    writer = writer_of(objects, sleep=pause.sleep)
    threads = Threads()
    pickle = Pickle.REFUSE if settings.refuse_pickle else Pickle.ALLOW
    workshop = Workshop(
        Store(objects),
        Checkpoints(objects),
        threads,
        pickle=pickle,
        check_writer=writer.check,
        capacity=Capacity(settings.capacity_limit),
    )
    connections = Connections.of(settings.connections, movers=max(4, settings.movers))
    movers = Movers(_executor(settings), connections)
    gate, retry = RateGate(), retry or Retry()
    made = Coordinator(workshop, writer, _Sources(hub), movers, gate, retry=retry, pause=pause)
    if agents := _agents(settings):
        made.serve_nodes(agents)
    return made, threads
