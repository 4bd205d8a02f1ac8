"""The retry loop as its snapshots show it: attempts, times by the clock that is given, and what ends a wait."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from aimodels_core import errors
from aimodels_core.errors import AiModelsError, UsageError, WriterBusy
from aimodels_core.messages import PublicationState, Stage, Trouble, Want
from aimodels_core.source import Gate, ReadTicket, ResolvedSource, SourceFile
from aimodels_jobs.checkpoints import Checkpoints
from aimodels_jobs.coordinator import Coordinator
from aimodels_jobs.executor import Executor, Inline
from aimodels_jobs.folder import Folder
from aimodels_jobs.governor import Connections, RateGate
from aimodels_jobs.layout import Store
from aimodels_jobs.movers import Movers
from aimodels_jobs.retry import Retry
from aimodels_jobs.threads import Pause, Threads
from aimodels_jobs.workshop import Workshop
from aimodels_jobs.writer import writer_of

WANT = Want("uid", "m", 1, "memory", "local")
AWAY = errors.SourceUnavailable("hub: 503")
GONE = errors.SourceNotFound("org/m: no such repository")
GATED = errors.SourceDenied("org/m: accept its conditions first", code="Gated")


class Refusals:
    """A place of sources that answer each attempt with the next of these errors, the last one for ever."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.credentials: list[str] = []

    def open(self, want: Want, gate: Gate) -> "Refusing":
        del gate
        self.credentials.append(want.credential)
        return Refusing(self.errors.pop(0) if len(self.errors) > 1 else self.errors[0])


class Refusing:
    """A source that resolves to an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def resolve(self) -> ResolvedSource:
        raise self._error

    def ticket(self, file: SourceFile) -> ReadTicket:
        raise NotImplementedError

    def renew(self, file: SourceFile, refused: ReadTicket) -> ReadTicket:
        raise NotImplementedError

    def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        raise NotImplementedError

    def abort(self) -> None:
        """Nothing is under way."""

    def requests_made(self) -> Mapping[str, int]:
        return {}


@contextlib.asynccontextmanager
async def running(root: Path, sources: Refusals, *, retry: Retry, own: bool = True) -> AsyncIterator[Coordinator]:
    folder, threads, pause = Folder(root, create=True), Threads(), Pause()
    writer = writer_of(folder, sleep=pause.sleep)
    workshop = Workshop(Store(folder), Checkpoints(folder), threads, check_writer=writer.check)

    async def choose(_: int) -> Executor:
        return Inline()

    movers = Movers(choose, Connections(4))
    made = Coordinator(
        workshop, writer, sources, movers, RateGate(), retry=retry, pause=pause, wall_clock=lambda: 1_000_000.0
    )
    await made.start()
    try:
        if own:
            await made.own(budget_seconds=5)
        yield made
    finally:
        await made.close()
        threads.close()


def run(call: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await call

    asyncio.run(bounded())


async def history(made: Coordinator, *, until: int) -> Sequence[PublicationState]:
    """States of the want as they follow each other, up to `until` failures shown."""
    seen: list[PublicationState] = []
    etag = ""
    while sum(state.trouble is not None and not _begun(state) for state in seen) < until:
        snapshot = await made.changed(etag, wait_seconds=5)
        etag = snapshot.etag
        if not seen or seen[-1] != snapshot.publications[0]:
            seen.append(snapshot.publications[0])
    return seen


def _begun(state: PublicationState) -> bool:
    return state.stage not in (Stage.WAITING, Stage.FAILED)


QUICK = Retry(first_seconds=0.01, most_seconds=0.02, denied_seconds=600.0)
SLOW = Retry(first_seconds=400.0, most_seconds=600.0, denied_seconds=500.0)


def test_attempts_go_on_until_the_error_is_terminal(tmp_path: Path) -> None:
    async def law() -> None:
        sources = Refusals(AWAY, AWAY, AWAY, GONE)
        async with running(tmp_path, sources, retry=QUICK) as made:
            await made.put(WANT)
            state = await made.ended("uid")

        assert (state.stage, state.attempt) == (Stage.FAILED, 4)
        assert state.trouble is not None
        assert (state.trouble.code, state.trouble.retryable) == ("SourceNotFound", False)
        assert state.first_failed_at == 1_000_000.0
        assert len(sources.credentials) == 4

    run(law())


def test_a_wait_says_since_when_and_until_when(tmp_path: Path) -> None:
    async def law() -> None:
        async with running(tmp_path, Refusals(AWAY), retry=SLOW) as made:
            await made.put(WANT)
            state = (await history(made, until=1))[-1]

        assert state.stage is Stage.WAITING
        assert state.first_failed_at == 1_000_000.0
        assert state.next_retry_at is not None
        assert 1_000_280.0 <= state.next_retry_at <= 1_000_400.0
        assert state.trouble is not None
        assert state.trouble.retryable

    run(law())


def test_denied_access_shows_failed_and_a_new_credential_is_tried_at_once(tmp_path: Path) -> None:
    async def law() -> None:
        sources = Refusals(GATED, GONE)
        async with running(tmp_path, sources, retry=SLOW) as made:
            await made.put(WANT)
            denied = (await history(made, until=1))[-1]
            await made.put(WANT)
            asked = len(sources.credentials)
            await made.put(Want("uid", "m", 1, "memory", "local", credential="new"))
            while made.snapshot().publications[0].trouble != gone_trouble():
                await made.changed(made.snapshot().etag, wait_seconds=1)

        assert (denied.stage, denied.next_retry_at) == (Stage.FAILED, 1_000_500.0)
        assert asked == 1, "the same credential again changes nothing"
        assert sources.credentials == ["", "new"]

    run(law())


def gone_trouble() -> Trouble:
    return Trouble(GONE.reason, GONE.code, GONE.message, retryable=False)


def test_a_new_credential_ends_a_wait(tmp_path: Path) -> None:
    async def law() -> None:
        sources = Refusals(AWAY, GONE)
        async with running(tmp_path, sources, retry=SLOW) as made:
            await made.put(WANT)
            await history(made, until=1)
            await made.put(Want("uid", "m", 1, "memory", "local", credential="new"))
            await made.ended("uid")

        assert sources.credentials == ["", "new"]

    run(law())


def test_what_nobody_expected_is_tried_again_and_its_words_are_kept_in_the_log(tmp_path: Path) -> None:
    async def law() -> None:
        sources = Refusals(RuntimeError("token hf_secret"), GONE)
        async with running(tmp_path, sources, retry=QUICK) as made:
            await made.put(WANT)
            states = await history(made, until=2)

        internal = next(state.trouble for state in states if state.trouble)
        assert (internal.code, internal.retryable) == ("Internal", True)
        assert "hf_secret" not in internal.message
        assert states[-1].trouble == gone_trouble()

    run(law())


def test_before_it_may_write_wants_wait_and_nothing_is_removed(tmp_path: Path) -> None:
    async def law() -> None:
        sources = Refusals(GONE)
        async with running(tmp_path, sources, retry=QUICK, own=False) as made:
            state = await made.put(WANT)
            with pytest.raises(WriterBusy):
                await made.delete("other", scope="local")
            with pytest.raises(WriterBusy):
                await made.collect(now=True)
            waited = (state.stage, list(sources.credentials))
            await made.own(budget_seconds=5)
            ended = await made.ended("uid")

        assert waited == (Stage.QUEUED, [])
        assert ended.stage is Stage.FAILED

    run(law())


def test_an_older_generation_is_refused_whatever_the_state(tmp_path: Path) -> None:
    async def law() -> None:
        async with running(tmp_path, Refusals(GONE), retry=QUICK) as made:
            newer = Want("uid", "m", 5, "memory", "local")
            await made.put(newer)
            with pytest.raises(UsageError) as while_running:
                await made.put(WANT)
            await made.ended("uid")
            with pytest.raises(UsageError) as afterwards:
                await made.put(WANT)
            snapshot = made.snapshot()

        assert while_running.value.code == afterwards.value.code == "StaleGeneration"
        assert [p.generation for p in snapshot.publications] == [5]

    run(law())


def test_a_state_that_does_not_change_ends_the_wait_by_time(tmp_path: Path) -> None:
    async def law() -> None:
        async with running(tmp_path, Refusals(AWAY), retry=SLOW) as made:
            etag = made.snapshot().etag
            same = await made.changed(etag, wait_seconds=0.05)
            other = await made.changed('"another"', wait_seconds=5)

        assert same.etag == other.etag == etag

    run(law())


@pytest.mark.parametrize("error", [AWAY, GATED, GONE], ids=lambda error: type(error).__name__)
def test_every_error_tells_its_reason_code_and_words(tmp_path: Path, error: AiModelsError) -> None:
    async def law() -> None:
        async with running(tmp_path, Refusals(error), retry=SLOW) as made:
            await made.put(WANT)
            state = (await history(made, until=1))[-1]

        assert state.trouble is not None
        assert (state.trouble.reason, state.trouble.code) == (error.reason, error.code)
        assert state.trouble.message == error.message

    run(law())
