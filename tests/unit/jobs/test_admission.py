"""A store with a capacity limit, through the coordinator: who waits, what they are told, and what lets them go on."""

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_core.errors import SourceUnavailable, StoreFull
from aimodels_core.messages import PublicationState, Stage, Want
from aimodels_core.source import Gate, ResolvedSource, Source, SourceFile
from aimodels_jobs.admission import Capacity, need_of
from aimodels_jobs.checkpoints import Checkpoints
from aimodels_jobs.coordinator import Coordinator
from aimodels_jobs.executor import Executor, Inline
from aimodels_jobs.folder import Folder
from aimodels_jobs.governor import Connections, RateGate
from aimodels_jobs.layout import Store
from aimodels_jobs.movers import Movers
from aimodels_jobs.objects import ObjectInfo
from aimodels_jobs.plan import Plan, PlanFile, Way
from aimodels_jobs.retry import Retry
from aimodels_jobs.threads import Pause, Threads
from aimodels_jobs.workshop import Workshop
from aimodels_jobs.writer import writer_of
from tests.support.hub.bodies import Body
from tests.support.memory import MemorySource
from tests.support.weights import safetensors_of_size, tiny_safetensors

KIB = 1024
BIG = 400 * KIB
ROOM_FOR_ONE = 600 * KIB
SLOW = Retry(first_seconds=400.0, most_seconds=600.0, denied_seconds=500.0)

Check = Callable[[PublicationState], bool]


def files(size: int, seed: int) -> Mapping[str, bytes]:
    """A model whose weights have that size and nobody else's bytes."""
    made: Mapping[str, bytes | Body] = {
        **tiny_safetensors(),
        "model.safetensors": safetensors_of_size(size, seed=seed),
    }
    return {
        path: body if isinstance(body, bytes) else bytes(body.read(0, body.size_bytes)) for path, body in made.items()
    }


@dataclasses.dataclass(slots=True)
class Shelf:
    """Sources by URL; one that is not there cannot be reached now."""

    models: dict[str, Mapping[str, bytes]] = dataclasses.field(default_factory=dict)

    def open(self, want: Want, gate: Gate) -> Source:
        if want.url not in self.models:
            return Away({})
        return MemorySource(self.models[want.url]).open(want, gate)


class Away(MemorySource):
    """A source that does not answer."""

    def resolve(self) -> ResolvedSource:
        raise SourceUnavailable("memory: 503")


class Listed(Folder):
    """A folder that counts listings of its blobs."""

    listings = 0

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        if prefix.startswith(names.blobs_prefix()):
            self.listings += 1
        return super().list(prefix)


class Quota(Folder):
    """A folder with a quota of its own on blobs, counted as they are."""

    quota = 0

    def put(self, key: str, data: bytes) -> None:
        if key.startswith(names.blobs_prefix()):
            used = sum(info.size_bytes for info in self.list(names.blobs_prefix()))
            if used + len(data) > self.quota:
                raise StoreFull(f"{key}: Disk quota exceeded")
        super().put(key, data)


def want(name: str, *, created: float = 0.0) -> Want:
    return Want(f"uid-{name}", name, 1, name, names.LOCAL, created=created)


@dataclasses.dataclass(slots=True)
class Bench:
    """A running coordinator and what its models are made of."""

    coordinator: Coordinator
    shelf: Shelf
    store: Store
    seeds: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    async def put(self, name: str, size: int, *, created: float = 0.0) -> None:
        self.shelf.models.setdefault(name, files(size, next(self.seeds)))
        await self.coordinator.put(want(name, created=created))

    async def delete(self, name: str) -> None:
        await self.coordinator.delete(f"uid-{name}", scope=names.LOCAL)

    def state(self, name: str) -> PublicationState:
        return next(p for p in self.coordinator.snapshot().publications if p.uid == f"uid-{name}")

    async def until(self, name: str, check: Check) -> PublicationState:
        etag = ""
        while not check(self.state(name)):
            etag = (await self.coordinator.changed(etag, wait_seconds=5)).etag
        return self.state(name)

    async def ready(self, name: str) -> None:
        await self.until(name, lambda state: state.stage is Stage.READY)

    async def waits(self, name: str) -> str:
        """Wait until a publication waits for space; returns the words."""
        state = await self.until(name, lambda state: state.stage is Stage.WAITING)
        assert state.trouble
        assert (state.trouble.reason, state.trouble.retryable) == ("InsufficientStorage", True)
        assert state.next_retry_at is None
        assert state.first_failed_at
        assert state.attempt == 1
        return state.trouble.message

    def metric(self, name: str) -> float:
        lines = dict(line.rsplit(" ", 1) for line in self.coordinator.metrics().splitlines() if line[0] != "#")
        return float(lines[f"aimodels_{name}"])


@contextlib.asynccontextmanager
async def running(
    folder: Folder, limit: int, *, shelf: Shelf | None = None, settle_seconds: float = 0.0
) -> AsyncIterator[Bench]:
    threads, pause, place = Threads(), Pause(), shelf or Shelf()
    writer = writer_of(folder, sleep=pause.sleep)
    capacity = Capacity(limit, settle_seconds=settle_seconds, planning_seconds=20.0, collect_seconds=0.0)
    workshop = Workshop(Store(folder), Checkpoints(folder), threads, check_writer=writer.check, capacity=capacity)

    async def choose(_: int) -> Executor:
        return Inline()

    movers = Movers(choose, Connections(4))
    made = Coordinator(workshop, writer, place, movers, RateGate(), retry=SLOW, pause=pause)
    await made.start()
    try:
        await made.own(budget_seconds=5)
        yield Bench(made, place, workshop.store)
    finally:
        await made.close()
        threads.close()


def run(call: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(40):
            await call

    asyncio.run(bounded())


def test_without_a_limit_nothing_is_listed_and_nobody_waits(tmp_path: Path) -> None:
    folder = Listed(tmp_path / "s", create=True)

    async def law() -> None:
        async with running(folder, 0) as bench:
            await bench.put("a", BIG)
            await bench.ready("a")

            assert folder.listings == 0
            assert "capacity" not in bench.coordinator.metrics()

    run(law())


def test_one_of_two_fits_and_the_other_goes_on_when_the_first_is_deleted(tmp_path: Path) -> None:
    async def law() -> None:
        async with running(Folder(tmp_path / "s", create=True), ROOM_FOR_ONE) as bench:
            await bench.put("a", BIG)
            await bench.ready("a")
            await bench.put("b", BIG)
            words = await bench.waits("b")
            assert words.startswith("needs 4")
            assert words.endswith(" of 600.0 KiB are free")
            assert bench.metric("capacity_waiting") == 1

            await bench.delete("a")
            await bench.ready("b")

            state = bench.state("b")
            assert (state.trouble, state.first_failed_at, state.attempt) == (None, None, 1)
            assert bench.store.tags(names.LOCAL) == ("uid-b",)
            stored = sum(info.size_bytes for _, info in bench.store.blobs())
            assert bench.metric("capacity_used_bytes") == stored <= bench.metric("capacity_limit_bytes")
            assert bench.metric("capacity_reserved_bytes") == 0
            assert bench.metric("collected_bytes_total") > BIG

    run(law())


def test_garbage_is_collected_before_anybody_is_told_to_wait(tmp_path: Path) -> None:
    async def law() -> None:
        async with running(Folder(tmp_path / "s", create=True), ROOM_FOR_ONE) as bench:
            await bench.put("a", BIG)
            await bench.ready("a")
            await bench.delete("a")
            await bench.put("b", BIG)
            seen: list[Stage] = []

            def note(state: PublicationState) -> bool:
                seen.append(state.stage)
                return state.stage is Stage.READY

            await bench.until("b", note)
            assert Stage.WAITING not in seen

    run(law())


def test_one_that_never_fits_says_so_and_blocks_nobody(tmp_path: Path) -> None:
    async def law() -> None:
        async with running(Folder(tmp_path / "s", create=True), ROOM_FOR_ONE) as bench:
            await bench.put("giant", 2 * ROOM_FOR_ONE, created=1)
            assert "the whole store may hold 600.0 KiB" in await bench.waits("giant")
            await bench.put("b", BIG, created=2)
            await bench.ready("b")
            await bench.delete("b")

            assert bench.state("giant").stage is Stage.WAITING
            assert bench.state("giant").bytes_total > 2 * ROOM_FOR_ONE
            assert bench.metric("collections_total") == 0

    run(law())


def test_space_goes_to_the_oldest_and_the_younger_say_why_they_wait(tmp_path: Path) -> None:
    async def law() -> None:
        async with running(Folder(tmp_path / "s", create=True), ROOM_FOR_ONE) as bench:
            await bench.put("first", BIG, created=1)
            await bench.ready("first")
            await bench.put("young", BIG, created=9)
            await bench.waits("young")
            await bench.put("old", BIG, created=5)
            await bench.waits("old")
            await bench.put("small", 100 * KIB, created=7)
            assert "goes first" in await bench.waits("small")

            await bench.delete("first")
            await bench.ready("old")
            assert bench.state("young").stage is Stage.WAITING
            await bench.ready("small")

            await bench.delete("old")
            await bench.ready("young")

    run(law())


def test_one_that_waits_and_is_deleted_keeps_no_place(tmp_path: Path) -> None:
    async def law() -> None:
        async with running(Folder(tmp_path / "s", create=True), ROOM_FOR_ONE) as bench:
            await bench.put("a", BIG)
            await bench.ready("a")
            await bench.put("b", BIG, created=1)
            await bench.put("c", BIG, created=2)
            await bench.waits("b")
            await bench.waits("c")
            await bench.delete("b")
            await bench.delete("a")
            await bench.ready("c")

    run(law())


def test_a_source_that_does_not_answer_keeps_no_space(tmp_path: Path) -> None:
    async def law() -> None:
        async with running(Folder(tmp_path / "s", create=True), ROOM_FOR_ONE) as bench:
            await bench.coordinator.put(want("away", created=1))
            await bench.put("b", BIG, created=2)
            await bench.ready("b")

            assert bench.state("away").stage is Stage.WAITING

    run(law())


def test_files_shared_with_a_model_that_is_there_cost_nothing(tmp_path: Path) -> None:
    async def law() -> None:
        async with running(Folder(tmp_path / "s", create=True), ROOM_FOR_ONE) as bench:
            await bench.put("a", BIG)
            await bench.ready("a")
            bench.shelf.models["b"] = bench.shelf.models["a"]
            await bench.put("b", BIG)
            await bench.ready("b")

            assert bench.state("b").bytes_reused > BIG
            assert bench.metric("reused_bytes_total") > BIG

    run(law())


@pytest.mark.parametrize("order", list(itertools.permutations(("a", "b", "c"))), ids="".join)
def test_a_restarted_coordinator_ends_the_same_whatever_comes_first(tmp_path: Path, order: tuple[str, ...]) -> None:
    """Of three only the oldest fits beside what is there; all come again after the restart, in any order."""
    folder, shelf = Folder(tmp_path / "s", create=True), Shelf()
    sizes = {"a": 200 * KIB, "b": 150 * KIB, "c": 250 * KIB}

    async def law() -> None:
        async with running(folder, ROOM_FOR_ONE, shelf=shelf) as bench:
            await bench.put("there", 300 * KIB)
            await bench.ready("there")
        async with running(folder, ROOM_FOR_ONE, shelf=shelf, settle_seconds=0.2) as bench:
            for name in order:
                shelf.models.setdefault(name, files(sizes[name], ord(name)))
                await bench.put(name, sizes[name], created=float(ord(name)))
            await bench.ready("a")
            await bench.waits("b")
            await bench.waits("c")
            assert set(bench.store.tags(names.LOCAL)) == {"uid-there", "uid-a"}

    run(law())


def test_a_limit_that_was_raised_lets_those_go_on_who_waited(tmp_path: Path) -> None:
    folder, shelf = Folder(tmp_path / "s", create=True), Shelf()

    async def law() -> None:
        for limit, done in ((ROOM_FOR_ONE, False), (2 * ROOM_FOR_ONE, True)):
            async with running(folder, limit, shelf=shelf) as bench:
                await bench.put("a", BIG, created=1)
                await bench.ready("a")
                await bench.put("b", BIG, created=2)
                await (bench.ready("b") if done else bench.waits("b"))

    run(law())


@pytest.mark.parametrize("limit", [0, 10 * ROOM_FOR_ONE])
def test_a_store_that_is_full_by_itself_is_tried_again_when_a_collection_freed_space(
    tmp_path: Path, limit: int
) -> None:
    folder = Quota(tmp_path / "s", create=True)
    folder.quota = ROOM_FOR_ONE

    async def law() -> None:
        async with running(folder, limit) as bench:
            await bench.put("a", BIG)
            await bench.ready("a")
            await bench.put("b", BIG)
            state = await bench.until("b", lambda state: state.stage is Stage.WAITING)
            assert state.trouble
            assert (state.trouble.reason, state.trouble.code) == ("InsufficientStorage", "StoreFull")
            assert state.next_retry_at

            await bench.delete("a")
            if not limit:
                await bench.coordinator.collect(now=True)
            await bench.ready("b")

    run(law())


def test_o58_two_paths_with_the_same_bytes_are_counted_once() -> None:
    digest = Digest.of(b"x")
    files = tuple(SourceFile(path, 1000, digest=digest) for path in ("a/model.safetensors", "b/model.safetensors"))
    rows = tuple(PlanFile(file, "weight", Way.MOVE, digest) for file in files)
    need = need_of("uid", 1.0, Plan("Memory", "org/m", "1" * 40, "Safetensors", rows))

    assert need.asked_bytes == 1000
    assert need.blobs[str(digest)] == 1000
    assert need.size_bytes < 10_000


def test_metrics_name_no_model_and_count_what_was_done(tmp_path: Path) -> None:
    async def law() -> None:
        async with running(Folder(tmp_path / "s", create=True), ROOM_FOR_ONE) as bench:
            await bench.put("secret-name", BIG)
            await bench.ready("secret-name")
            await bench.coordinator.put(want("away"))
            await bench.until("away", lambda state: state.stage is Stage.WAITING)

            text = bench.coordinator.metrics()
            assert "secret" not in text
            assert bench.metric("transferred_bytes_total") > BIG
            assert bench.metric('publications{stage="Ready"}') == 1
            assert bench.metric('publications{stage="Waiting"}') == 1
            assert bench.metric('retries_total{reason="PublicationFailed",error="SourceUnavailable"}') == 1
            assert bench.metric("writing") == 1

    run(law())
