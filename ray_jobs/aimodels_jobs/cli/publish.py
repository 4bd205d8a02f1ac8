"""The commands `plan` and `publish`."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aimodels_core import names
from aimodels_core.errors import AiModelsError, Cancelled, NotPublished, PermanentError, TransientError
from aimodels_core.messages import PublicationState, Stage
from aimodels_core.units import human_bytes
from aimodels_jobs.asking import Asking
from aimodels_jobs.cli import assembly, display
from aimodels_jobs.cli.arguments import Command
from aimodels_jobs.cli.stopping import EXITS
from aimodels_jobs.coordinator import Coordinator
from aimodels_jobs.governor import RateGate
from aimodels_jobs.layout import Store
from aimodels_jobs.movers import Movers
from aimodels_jobs.plan import Plan
from aimodels_jobs.sources import hub_api
from aimodels_jobs.sourcing import Sourcing
from aimodels_jobs.survey import survey
from aimodels_jobs.threads import Threads

_ESTIMATE_BYTES_PER_SECOND = 100 * 1024 * 1024


def plan(command: Command, env: Mapping[str, str]) -> int:
    """Print what publishing would do; writes nothing to the store."""
    made = asyncio.run(_plan(command, env))
    if command.out is not None:
        write_parquet(made, command.out)
    if command.json:
        for line in made.lines():
            display.out(line)
    else:
        _print_plan(made)
    return 0


async def _plan(command: Command, env: Mapping[str, str]) -> Plan:
    store = None
    with contextlib.suppress(NotPublished):
        store = Store(assembly.open_objects(command.store, env, create=False))
    hub = assembly.open_hub(command.source, command.store.ca_file, env)
    threads = Threads()

    async def limited(error: AiModelsError | None) -> None:
        if error is not None:
            display.say(error.message)

    source = Asking(Sourcing(hub, short_forms=True).open(assembly.want_of(command), RateGate()), threads, limited)
    try:
        found = await survey(source, store, names.LOCAL, threads, pickle=assembly.pickle_of(command))
    finally:
        source.abort()
        threads.close()
    return found.plan


def _print_plan(made: Plan) -> None:
    display.out(f"{made.source} at {made.revision[:12]}: {made.format}, {len(made.files)} files")
    rows = [
        (row.file.path, human_bytes(row.file.size_bytes), row.layer, row.way.value, str(row.row()["parts"]))
        for row in made.files
    ]
    display.table(("FILE", "SIZE", "LAYER", "WAY", "PARTS"), rows)
    for note in made.notes:
        display.out(f"{'left out' if note.code == 'LeftOut' else 'note'}: {note.subject}: {note.message}")
    seconds = made.seconds(_ESTIMATE_BYTES_PER_SECOND)
    display.out(
        f"total {human_bytes(made.bytes_total)}: {human_bytes(made.bytes_new)} to move in {made.parts} parts, "
        f"{human_bytes(made.bytes_reused)} reused, {made.hub_requests} hub requests, "
        f"about {seconds:.0f} s at {human_bytes(_ESTIMATE_BYTES_PER_SECOND)}/s"
    )


def write_parquet(made: Plan, path: Path) -> None:
    """Write the rows as Parquet; the summary is in the file's metadata under `plan`.

    Raises:
        PermanentError: pyarrow is not installed, or the file cannot be written.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise PermanentError("--out: want the extra `jobs` installed, which brings pyarrow") from error
    import json

    table = pa.Table.from_pylist([row.row() for row in made.files])
    table = table.replace_schema_metadata({"plan": json.dumps(made.summary())})
    try:
        pq.write_table(table, path)
    except OSError as error:
        raise PermanentError(f"{path}: cannot be written: {error.strerror or error}") from error


def publish(command: Command, env: Mapping[str, str]) -> int:
    """Publish a model and print what came of it."""
    return asyncio.run(_publish(command, env))


async def _publish(command: Command, env: Mapping[str, str]) -> int:
    assembly.check_source(command, env)
    coordinator, movers = assembly.open_coordinator(command, env)
    want = assembly.want_of(command)
    progress = display.Progress(command.model)
    started = time.monotonic()
    stop = _on_signals()
    await coordinator.start()
    preloading = asyncio.get_running_loop().run_in_executor(None, hub_api.preload)
    try:
        work = asyncio.ensure_future(_until_ended(coordinator, command, progress))
        either: list[asyncio.Future[Any]] = [work, stop]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            progress.close()
            display.say("stopped; run the same command again to go on from here")
            return EXITS[stop.result()]
        state = work.result()
        result = _result(want.name, state, movers, time.monotonic() - started)
    finally:
        progress.close()
        with contextlib.suppress(Cancelled):
            await coordinator.close()
        await preloading
    _print_result(command, state, result)
    return 0


def _on_signals() -> "asyncio.Future[signal.Signals]":
    """Catch the first SIGINT or SIGTERM; a second one has its usual effect."""
    loop = asyncio.get_running_loop()
    caught: asyncio.Future[signal.Signals] = loop.create_future()

    def catch(number: signal.Signals) -> None:
        for each in EXITS:
            loop.remove_signal_handler(each)
        if not caught.done():
            caught.set_result(number)

    for number in EXITS:
        loop.add_signal_handler(number, catch, number)
    return caught


async def _until_ended(coordinator: Coordinator, command: Command, progress: display.Progress) -> PublicationState:
    """Publish; show how it goes on.

    Raises:
        PermanentError: it failed for good.
        TransientError: it failed for now, longer than the retry budget; WriterBusy: another process writes as long.
    """
    want = assembly.want_of(command)
    budget = command.move.retry_seconds
    await coordinator.put(want)
    owning = asyncio.ensure_future(coordinator.keep_owning(budget_seconds=budget))
    try:
        state = await _watch(coordinator, want.uid, owning, progress, budget)
    finally:
        owning.cancel()
        await asyncio.gather(owning, return_exceptions=True)
    return state


async def _watch(
    coordinator: Coordinator, uid: str, owning: "asyncio.Future[None]", progress: display.Progress, budget: float
) -> PublicationState:
    """Follow a publication to its end, or to the end of the budget."""
    etag, told = "", ""
    while True:
        snapshot = await coordinator.changed(etag, wait_seconds=1.0)
        etag = snapshot.etag
        if owning.done():
            owning.result()
        elif not snapshot.writing and snapshot.holder not in ("", told):
            told = snapshot.holder
            display.say(f"waiting for another writer of this store: {told}")
        state = next(p for p in snapshot.publications if p.uid == uid)
        progress.show(state)
        if state.stage is Stage.READY:
            return state
        trouble = state.trouble
        if trouble is None:
            continue
        if state.stage is Stage.FAILED:
            raise PermanentError(trouble.message, code=trouble.code)
        failing = time.time() - (state.first_failed_at or time.time())
        if state.stage is Stage.WAITING and failing + max(0.0, _until_next(state)) > budget:
            raise TransientError(trouble.message, code=trouble.code)


def _until_next(state: PublicationState) -> float:
    return (state.next_retry_at or 0.0) - time.time()


def _result(name: str, state: PublicationState, movers: Movers, seconds: float) -> dict[str, Any]:
    if state.published is None:
        raise AiModelsError(f"{name}: want a published artifact, got none")
    executor, dispatcher = movers.executor, movers.dispatcher
    backends = {slot.facts.hash_backend for slot in dispatcher.slots} if dispatcher else set()
    return {
        "name": name,
        "digest": state.published.digest,
        "sizeBytes": state.published.size_bytes,
        "bytesTotal": state.bytes_total,
        "bytesTransferred": state.bytes_transferred,
        "bytesReused": state.bytes_reused,
        "seconds": round(seconds, 3),
        "workers": len(dispatcher.slots) if dispatcher else 0,
        "engine": executor.engine if executor else "none",
        "hashBackend": ",".join(sorted(backends)) or "none",
    }


def _print_result(command: Command, state: PublicationState, result: Mapping[str, Any]) -> None:
    if command.json:
        display.out_json(result)
        return
    for note in state.published.notes if state.published else ():
        if not note.startswith("LeftOut"):
            display.say(f"note: {note}")
    moved, reused = human_bytes(int(result["bytesTransferred"])), human_bytes(int(result["bytesReused"]))
    display.out(f"{result['name']}  {result['digest']}")
    number = int(result["workers"])
    workers = f", {number} worker{'s' if number > 1 else ''} ({result['engine']})" if number else ""
    size = human_bytes(int(result["sizeBytes"]))
    display.out(f"{size} in {result['seconds']:.1f} s: {moved} moved, {reused} reused{workers}")
