"""Put the pieces together for one command: store, sources, movers, coordinator. The environment is read here only."""

import dataclasses
import os
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from aimodels_core import names
from aimodels_core.errors import UsageError
from aimodels_core.messages import Want
from aimodels_core.units import GIB
from aimodels_jobs.checkpoints import Checkpoints
from aimodels_jobs.cli import display
from aimodels_jobs.cli.arguments import Command, MoveOptions, SourceOptions, StoreOptions
from aimodels_jobs.coordinator import Coordinator
from aimodels_jobs.executor import Executor, Inline
from aimodels_jobs.folder import Folder
from aimodels_jobs.governor import Connections, RateGate
from aimodels_jobs.layout import Store
from aimodels_jobs.movers import Movers
from aimodels_jobs.objects import Objects
from aimodels_jobs.retry import Retry
from aimodels_jobs.s3 import S3
from aimodels_jobs.s3_client import S3Settings
from aimodels_jobs.selection import Pickle
from aimodels_jobs.sources import hub_settings, hub_url
from aimodels_jobs.sources.hub_settings import HubSettings
from aimodels_jobs.sourcing import Sourcing
from aimodels_jobs.threads import Pause, Threads
from aimodels_jobs.workshop import Workshop
from aimodels_jobs.writer import writer_of

RAY_PAYS_FROM_BYTES = GIB
"""Below this, starting Ray takes longer than moving (design 3)."""
RAY_PAYS_FROM_CORES = 4
"""One process fills two cores; more movers only help where there are more."""


def open_objects(options: StoreOptions, env: Mapping[str, str], *, create: bool) -> Objects:
    """Open the store that the options name.

    Raises:
        UsageError: neither a folder nor `s3://bucket[/prefix]`.
        NotPublished: code NoStore: the folder is not there and is not to be made.
    """
    if not options.store.startswith("s3://"):
        if "://" in options.store or not options.store:
            raise UsageError(f"--store: want a folder or s3://bucket/prefix, got {options.store[:200]!r}")
        return Folder(Path(options.store), create=create)
    parts = urllib.parse.urlsplit(options.store)
    if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
        raise UsageError("--store: want s3://bucket/prefix")
    endpoint = options.s3_endpoint or env.get("AWS_ENDPOINT_URL_S3", "") or env.get("AWS_ENDPOINT_URL", "")
    settings = S3Settings(
        bucket=parts.netloc,
        prefix=parts.path.strip("/"),
        endpoint=endpoint,
        region=env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1",
        ca_file=options.ca_file,
    )
    return S3(settings)


def open_hub(options: SourceOptions, ca_file: str, env: Mapping[str, str]) -> HubSettings:
    """Say how the hub is reached: options first, then the hub's own variables and its token file."""
    found = hub_settings.from_env(env)
    endpoint = hub_url.parse_endpoint(options.endpoint) if options.endpoint else found.endpoint
    token = found.token or hub_settings.saved_token(hub_settings.token_path(env, Path.home()))
    return dataclasses.replace(
        found, endpoint=endpoint, token=token, ca_file=ca_file, allowed_hosts=frozenset(options.allow_hosts)
    )


def check_source(command: Command, env: Mapping[str, str]) -> None:
    """Refuse a source that cannot be one, before a store is made for it.

    Raises:
        UnsupportedSource: a URL form or host that is not served.
    """
    options = command.source
    endpoint = open_hub(options, command.store.ca_file, env).endpoint
    hub_url.parse_argument(options.source, endpoint=endpoint, revision=options.revision)


def pickle_of(command: Command) -> Pickle:
    """Say whether torch weights may be published."""
    return Pickle.REFUSE if command.source.refuse_pickle else Pickle.ALLOW


def open_workshop(command: Command, objects: Objects) -> Workshop:
    """Make what publications share."""
    return Workshop(Store(objects), Checkpoints(objects), Threads(), pickle=pickle_of(command))


def want_of(command: Command) -> Want:
    """Make the want of a command line.

    Raises:
        UsageError: a name that cannot be one.
    """
    return Want(
        uid=names.model_tag(command.model or "plan"),
        name=command.model,
        generation=1,
        url=command.source.source,
        scope=names.LOCAL,
        revision=command.source.revision,
    )


def open_coordinator(command: Command, env: Mapping[str, str]) -> tuple[Coordinator, Movers]:
    """Make the coordinator of a `publish` command, and what starts its movers."""
    objects = open_objects(command.store, env, create=True)
    pause = Pause()
    writer = writer_of(objects, sleep=pause.sleep)
    workshop = dataclasses.replace(open_workshop(command, objects), check_writer=writer.check)
    connections = Connections.of(command.move.connections, movers=max(1, command.move.workers))
    movers = Movers(executor_for(command.move, env), connections)
    sources = Sourcing(open_hub(command.source, command.store.ca_file, env), short_forms=True)
    coordinator = Coordinator(workshop, writer, sources, movers, RateGate(), retry=Retry(), pause=pause)
    return coordinator, movers


def executor_for(options: MoveOptions, env: Mapping[str, str]) -> Callable[[int], Awaitable[Executor]]:
    """Decide where movers run once the bytes to move are known (design 3)."""

    async def choose(bytes_to_move: int) -> Executor:
        address = env.get("RAY_ADDRESS", "")
        large = bytes_to_move >= RAY_PAYS_FROM_BYTES and (os.cpu_count() or 1) >= RAY_PAYS_FROM_CORES
        if not (options.workers or address or large):
            return Inline()
        from aimodels_jobs.fleet import actors

        workers = options.workers or max(2, (os.cpu_count() or 2) // 2)
        display.say(f"starting {workers} Ray workers {'in a cluster' if address else 'on this machine'}")
        return actors.attach(address, workers) if address else actors.local(workers)

    return choose
