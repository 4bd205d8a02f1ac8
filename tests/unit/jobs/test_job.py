"""What becomes of a want when its store refuses, when it is taken back, and when it is replaced."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from aimodels_core import names
from aimodels_core.errors import NotPublished, StoreUnsafe
from aimodels_core.messages import Stage, Want
from aimodels_jobs.checkpoints import Checkpoints
from aimodels_jobs.coordinator import Coordinator
from aimodels_jobs.executor import Executor, Inline
from aimodels_jobs.folder import Folder
from aimodels_jobs.governor import Connections, RateGate
from aimodels_jobs.layout import Store
from aimodels_jobs.movers import Movers
from aimodels_jobs.objects import ObjectInfo
from aimodels_jobs.retry import Retry
from aimodels_jobs.threads import Pause, Threads
from aimodels_jobs.workshop import Workshop
from aimodels_jobs.writer import writer_of
from tests.support.hub.bodies import Body
from tests.support.memory import MemorySource
from tests.support.weights import tiny_safetensors

WEIGHTS = "model.safetensors"


def _bytes(body: bytes | Body) -> bytes:
    return body if isinstance(body, bytes) else bytes(body.read(0, body.size_bytes))


FILES = {path: _bytes(body) for path, body in tiny_safetensors().items()}
WANT = Want("uid-1", "m", 1, "memory", "local")


class Refusing(Folder):
    """A folder that shows no checkpoints."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        if prefix.startswith(names.checkpoints_prefix()):
            raise StoreUnsafe(f"{prefix}: refused", code="AccessDenied")
        return super().list(prefix)


class Slow(Folder):
    """A folder that takes its time to move a tag."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked, self.go_on = threading.Event(), threading.Event()

    def put(self, key: str, data: bytes) -> None:
        if key.endswith("/current/link"):
            self.asked.set()
            assert self.go_on.wait(20)
        super().put(key, data)


@contextlib.asynccontextmanager
async def _running(folder: Folder, source: MemorySource) -> AsyncIterator[Coordinator]:
    threads, pause = Threads(), Pause()
    writer = writer_of(folder, sleep=pause.sleep)
    workshop = Workshop(Store(folder), Checkpoints(folder), threads, check_writer=writer.check)

    async def choose(_: int) -> Executor:
        return Inline()

    movers = Movers(choose, Connections(4))
    made = Coordinator(workshop, writer, source, movers, RateGate(), retry=Retry(), pause=pause)
    await made.start()
    try:
        await made.own(budget_seconds=5)
        yield made
    finally:
        await made.close()
        threads.close()


def _run(call: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await call

    asyncio.run(bounded())


def test_a_failure_that_cannot_be_cleaned_up_is_shown_all_the_same(tmp_path: Path) -> None:
    folder = Refusing(tmp_path / "s")

    async def publish() -> None:
        async with _running(folder, MemorySource(FILES, lfs=frozenset({WEIGHTS}))) as coordinator:
            await coordinator.put(WANT)
            state = await coordinator.ended(WANT.uid)

            assert (state.stage, state.trouble and state.trouble.code) == (Stage.FAILED, "AccessDenied")

    _run(publish())


@pytest.mark.parametrize("how", ["delete", "close"])
def test_a_tag_never_moves_after_its_publication_was_ended(tmp_path: Path, how: str) -> None:
    folder = Slow(tmp_path / "s")

    async def publish() -> None:
        async with _running(folder, MemorySource(FILES)) as coordinator:
            await coordinator.put(WANT)
            assert await asyncio.to_thread(folder.asked.wait, 10)
            ended = coordinator.delete(WANT.uid, scope="local") if how == "delete" else coordinator.close()
            ending = asyncio.ensure_future(ended)
            _, waiting = await asyncio.wait({ending}, timeout=0.2)
            folder.go_on.set()
            await ending

            assert waiting
            if how == "delete":
                with pytest.raises(NotPublished):
                    Store(folder).resolve_tag("local", WANT.uid)
            else:
                assert Store(folder).tags("local") == (WANT.uid,)

    _run(publish())


def test_a_newer_generation_ends_the_older_one_before_it_begins(tmp_path: Path) -> None:
    folder = Slow(tmp_path / "s")

    async def publish() -> None:
        async with _running(folder, MemorySource(FILES)) as coordinator:
            await coordinator.put(WANT)
            assert await asyncio.to_thread(folder.asked.wait, 10)
            state = await coordinator.put(Want("uid-1", "m", 2, "memory", "local"))
            await asyncio.sleep(0)

            assert (state.generation, state.stage) == (2, Stage.QUEUED)
            folder.go_on.set()
            assert (await coordinator.ended(WANT.uid)).stage is Stage.READY

    _run(publish())


def test_sources_that_do_not_answer_keep_nobody_from_the_store(tmp_path: Path) -> None:
    source = MemorySource(FILES, hold=threading.Event())

    async def publish() -> None:
        async with _running(Folder(tmp_path / "s"), source) as coordinator:
            for number in range(40):
                await coordinator.put(Want(f"uid-{number}", "m", 1, "memory", "local"))
            await asyncio.sleep(0.1)

            async with asyncio.timeout(5):
                await coordinator.delete("uid-0", scope="local")

            assert {state.stage for state in coordinator.snapshot().publications} == {Stage.RESOLVING}

    _run(publish())
