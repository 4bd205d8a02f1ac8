"""Publishing in tests: a coordinator of this process on a loop of its own, over any store.

It is the product as the command line puts it together, only less patient; what goes wrong is the business of the tests.
The command line itself is in `commandline`, looking into the store in `auditing`.
"""

import asyncio
import concurrent.futures
import dataclasses
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from aimodels_core import names
from aimodels_core.messages import PublicationState, Snapshot, Stage, Want
from aimodels_core.source import Gate, Source
from aimodels_jobs.admission import Capacity
from aimodels_jobs.checkpoints import Checkpoints
from aimodels_jobs.collection import Collected
from aimodels_jobs.coordinator import Coordinator
from aimodels_jobs.executor import Executor, Inline
from aimodels_jobs.flight import Patience
from aimodels_jobs.folder import Folder
from aimodels_jobs.governor import Connections, RateGate
from aimodels_jobs.layout import Store
from aimodels_jobs.movers import Movers
from aimodels_jobs.objects import Objects
from aimodels_jobs.retry import Retry
from aimodels_jobs.sources import hub_url, hub_wire
from aimodels_jobs.sources.hub_settings import HubSettings
from aimodels_jobs.sources.huggingface import HuggingFace
from aimodels_jobs.threads import Pause, Threads
from aimodels_jobs.workshop import Workshop
from aimodels_jobs.writer import writer_of
from tests.support.hub.repository import Repository
from tests.support.hub.server import Hub
from tests.support.servers import S3Server
from tests.support.stores import bucket
from tests.support.weights import safetensors_of_size, tiny_safetensors

T = TypeVar("T")

MIB = 1024 * 1024
PART = 16 * MIB
WEIGHTS_BYTES = 2 * PART + 1
"""Three parts, the last one of one byte."""

ENDED = frozenset({Stage.READY, Stage.FAILED})
SETTLED = frozenset({Stage.READY, Stage.FAILED, Stage.WAITING})

QUICK_HUB = hub_wire.Patience(attempts=4, budget_seconds=20, waits_seconds=30, first_pause_seconds=0.01)
QUICK_RUNS = Patience(tries=3, back_off_seconds=0.05)
QUICK_RETRY = Retry(first_seconds=0.1, most_seconds=0.5, denied_seconds=600.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A store: how a new process opens it, and how the command line is told of it."""

    open: Callable[[], Objects]
    words: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def store(self) -> Store:
        """Another client of it."""
        return Store(self.open())


def folder_place(root: Path) -> Place:
    """A store in a folder."""
    return Place(lambda: Folder(root), ("--store", str(root)))


def bucket_place(server: S3Server, prefix: str) -> Place:
    """A store below a prefix of a server's bucket."""
    words = ("--store", f"s3://{server.bucket}/{prefix}", "--s3-endpoint", server.endpoint)
    return Place(lambda: bucket(server, prefix), words, server.environment())


@dataclasses.dataclass(frozen=True, slots=True)
class Hubs:
    """Opens sources of any endpoint that a want names, with little patience."""

    patience: hub_wire.Patience = QUICK_HUB
    clock: hub_wire.Clock | None = None

    def open(self, want: Want, gate: Gate) -> Source:
        endpoint = "/".join(want.url.split("/")[:3])
        reference = hub_url.parse(want.url, endpoint=endpoint, revision=want.revision)
        settings = HubSettings(endpoint=endpoint, token=want.credential)
        if self.clock is None:
            return HuggingFace(reference, settings, gate=gate, patience=self.patience)
        return HuggingFace(reference, settings, gate=gate, patience=self.patience, clock=self.clock)


class Desk:
    """A coordinator over a store, on an event loop in a thread of its own.

    Args:
        place: the store.
        runs: patience of runs.
        hubs: opens sources.
        retry: times of the retry loop.
        own: become the writer at once.
        executor: where movers are.
        connections: to each payload host.
        wall_clock: Unix seconds.
        capacity: most that the store may hold.
    """

    def __init__(
        self,
        place: Place | Objects,
        *,
        runs: Patience = QUICK_RUNS,
        hubs: Hubs | None = None,
        retry: Retry = QUICK_RETRY,
        own: bool = True,
        executor: Callable[[], Executor] = Inline,
        connections: int = 16,
        wall_clock: Callable[[], float] = time.time,
        capacity: Capacity | None = None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="desk")
        self._thread.start()
        self.objects = place.open() if isinstance(place, Place) else place
        self.store = Store(self.objects)
        pause = Pause()
        self.writer = writer_of(self.objects, sleep=pause.sleep)
        self._threads = Threads()
        workshop = Workshop(
            self.store,
            Checkpoints(self.objects),
            self._threads,
            patience=runs,
            check_writer=self.writer.check,
            capacity=capacity or Capacity(),
        )

        async def choose(_: int) -> Executor:
            return executor()

        self.movers = Movers(choose, Connections(connections))
        self.coordinator = Coordinator(
            workshop,
            self.writer,
            hubs or Hubs(),
            self.movers,
            RateGate(),
            retry=retry,
            pause=pause,
            wall_clock=wall_clock,
        )
        self.run(self.coordinator.start())
        if own:
            self.own()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything, as the command line does."""
        try:
            self.run(self.coordinator.close())
        finally:
            self._threads.close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    def run(self, call: Coroutine[Any, Any, T], *, seconds: float = 50.0) -> T:
        """Run a coroutine on the desk's loop and wait for it."""
        future: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(call, self._loop)
        return future.result(seconds)

    def own(self, *, budget_seconds: float = 20.0) -> None:
        """Become the writer."""
        self.run(self.coordinator.own(budget_seconds=budget_seconds))

    def put(self, want: Want) -> PublicationState:
        """Take a want in."""
        return self.run(self.coordinator.put(want))

    def state(self, uid: str) -> PublicationState:
        """The state of a publication now."""
        return next(p for p in self.coordinator.snapshot().publications if p.uid == uid)

    def until(
        self, uid: str, check: Callable[[PublicationState], bool], what: str, *, seconds: float = 45.0
    ) -> PublicationState:
        """Wait until a publication is as it should be.

        Raises:
            TimeoutError: it is not in time; the message has its state.
        """
        return self.run(self._until(uid, check, what, seconds), seconds=seconds + 5)

    async def _until(
        self, uid: str, check: Callable[[PublicationState], bool], what: str, seconds: float
    ) -> PublicationState:
        deadline, etag = time.monotonic() + seconds, ""
        while True:
            snapshot: Snapshot = await self.coordinator.changed(etag, wait_seconds=0.5)
            etag, state = snapshot.etag, next(p for p in snapshot.publications if p.uid == uid)
            if check(state):
                return state
            if time.monotonic() > deadline:
                raise TimeoutError(f"{uid}: want {what} within {seconds} s, got {state}")

    def publish(self, want: Want, *, seconds: float = 45.0) -> PublicationState:
        """Publish and wait until it is ready, has failed, or waits for its next attempt."""
        before = self.put(want)
        old = before.trouble if before.stage in SETTLED else None
        return self.until(
            want.uid, lambda s: s.stage in SETTLED and (s.trouble is not old or s.stage is Stage.READY), "an end",
            seconds=seconds,
        )  # fmt: skip

    def ready(self, uid: str, *, seconds: float = 45.0) -> PublicationState:
        """Wait until a publication is ready, through waits."""
        state = self.until(uid, lambda s: s.stage in ENDED, "Ready", seconds=seconds)
        assert state.stage is Stage.READY, state.trouble
        return state

    def collect(self) -> Collected:
        """Collect beside whatever is going on."""
        return self.run(self.coordinator.collect(now=True))


def want(
    url: str, name: str, *, scope: str = names.LOCAL, generation: int = 1, credential: str = "", created: float = 0.0
) -> Want:
    """A want with a name for its uid."""
    return Want(names.model_tag(name), name, generation, url, scope, credential=credential, created=created)


@dataclasses.dataclass(frozen=True, slots=True)
class Shop:
    """A running coordinator over a store that has a good model, for many tests."""

    desk: Desk
    place: Place
    good: str
    """Digest of the good model's manifest."""

    def give(self, name: str) -> str:
        """Let a name stand for the good model, as if it had been published from there."""
        store = self.desk.store
        found = store.resolve_tag(names.LOCAL, "good")
        store.put_manifest(names.LOCAL, names.model_tag(name), store.read_manifest(names.LOCAL, found))
        return name


def good_model(repository: str = "org/good", *, weights_bytes: int = WEIGHTS_BYTES, seed: int = 0) -> Repository:
    """A small model with weights of three parts."""
    weights = safetensors_of_size(weights_bytes, seed=seed)
    return Repository(repository, {**tiny_safetensors(), "model.safetensors": weights})


def wanted(hub: Hub, name: str, repository: str = "org/name", **fields: object) -> Want:
    """A want of a repository of the test's hub."""
    return want(f"{hub.url}/{repository}", name, **fields)  # type: ignore[arg-type]  # fields of a want
