"""Reading a published artifact back through the registry, with what a node would use to read it (design 2.1, "Ready").

The manifest and the config are read and compared with their digests; of every layer the registry must tell the right
size. The token is that of this Pod's ServiceAccount, exchanged at the registry's issuer for one repository and `pull`.
"""

import asyncio
import datetime
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from aimodels_core import modelpack, oci
from aimodels_core.digest import Digest
from aimodels_core.dmcr import Place, rules_of
from aimodels_core.errors import (
    AiModelsError,
    ArtifactInvalid,
    DigestMismatch,
    NotPublished,
    SourceUnavailable,
    TransientError,
)
from aimodels_core.registry import Registry
from aimodels_core.transport import Policy, Transport
from aimodels_operator.known import Memory
from aimodels_operator.meters import Meters
from aimodels_operator.pacing import back_off
from aimodels_operator.readings import Reading
from aimodels_operator.writes import ReadBack

log = logging.getLogger(__name__)

MODELS_AT_ONCE = 4
SECONDS = 300.0
"""Longest reading of one artifact, but for the last call."""
_BLOBS_AT_ONCE = 4
_POLICY = Policy(connect_seconds=5.0, read_seconds=10.0, attempts=2, budget_seconds=15.0)
_DIFFER = "the coordinator has stored it, so the registry does not serve the coordinator's store"


class Reader:
    """Reads artifacts, a few at once, in threads.

    Args:
        place: where they are read.
        authorities: PEM text of the authorities of the registry, its issuer and its store; asked for every artifact.
        policy: of each call.
        seconds: for one artifact.
        clock: monotonic seconds.

    Raises:
        UsageError: a place that would get the token in the clear.
    """

    def __init__(
        self,
        place: Place,
        authorities: Callable[[], str] = lambda: "",
        *,
        policy: Policy = _POLICY,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._authorities = authorities
        self._rules = rules_of(place)
        self._policy = policy
        self._seconds = seconds
        self._clock = clock
        self._pool = ThreadPoolExecutor(MODELS_AT_ONCE, thread_name_prefix="readback")
        self._lock = threading.Lock()
        self._transports: set[Transport] = set()

    async def read(self, scope: str, digest: str) -> None:
        """Read an artifact; that it returns is the proof that a node can.

        Args:
            scope: repository of the model.
            digest: of its manifest.

        Raises:
            ArtifactInvalid: code StoresDiffer: what the coordinator has stored is not there; other codes: no model.
            AiModelsError: of any other kind: the registry or its issuer does not answer, or refuses.
        """
        await asyncio.get_running_loop().run_in_executor(self._pool, self._read, scope, digest)

    def close(self) -> None:
        """End what is being read, and the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for transport in self._transports:
                transport.abort()

    def _read(self, scope: str, digest: str) -> None:
        transport = Transport(self._rules, policy=self._policy, authorities=self._authorities())
        with self._lock:
            self._transports.add(transport)
        try:
            registry = Registry(self._place.url, scope, transport=transport, credential=self._place.credential)
            self._check(registry, Digest.parse(digest))
        except (NotPublished, DigestMismatch) as error:
            raise _differ(error.message) from error
        finally:
            with self._lock:
                self._transports.discard(transport)
            transport.close()

    def _check(self, registry: Registry, digest: Digest) -> None:
        deadline = self._clock() + self._seconds
        manifest = oci.parse_manifest(registry.manifest(digest))
        if manifest.config.size_bytes > modelpack.MAX_CONFIG_BYTES:
            raise ArtifactInvalid(f"config: want at most {modelpack.MAX_CONFIG_BYTES} bytes")
        config = bytearray(manifest.config.size_bytes)
        registry.read(manifest.config.digest, len(config), 0, memoryview(config))
        if violations := oci.validate(manifest, bytes(config)):
            raise ArtifactInvalid(f"{digest}: not a model: {violations[0]}")

        def check(blob: tuple[Digest, int]) -> None:
            if self._clock() > deadline:
                message = f"{digest}: not read back within {self._seconds:g} s"
                raise SourceUnavailable(message, code="TimedOut")
            wanted = blob[1]
            if (got := registry.size(blob[0])) != wanted:
                raise _differ(f"blob {blob[0]}: want {wanted} bytes, got {got}")

        pool = ThreadPoolExecutor(_BLOBS_AT_ONCE, thread_name_prefix="readback-blobs")
        try:
            for _ in pool.map(check, manifest.blobs.items()):
                pass
        finally:
            pool.shutdown(cancel_futures=True)


def _differ(words: str) -> ArtifactInvalid:
    return ArtifactInvalid(f"{words}; {_DIFFER}", code="StoresDiffer")


class Source(Protocol):
    """Where artifacts are read back from."""

    async def read(self, scope: str, digest: str) -> None:
        """Read an artifact.

        Raises:
            AiModelsError: it cannot be read.
        """
        ...


class ReadBacks:
    """Carries out `writes.ReadBack` in the background; what it shows is kept in the memory of the model.

    Args:
        source: where artifacts are read back from.
        meters: counts.
        clock: seconds, monotonic.
        now: aware.
    """

    def __init__(
        self, source: Source, meters: Meters, *, clock: Callable[[], float], now: Callable[[], datetime.datetime]
    ) -> None:
        self._source = source
        self._meters = meters
        self._clock = clock
        self._now = now
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, memory: Memory, write: ReadBack, done: Callable[[], None]) -> None:
        """Begin to read unless this model is being read already; `done` is called when something is known."""
        if memory.being_read:
            return
        memory.being_read = True
        task = asyncio.get_running_loop().create_task(self._read(memory, write, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, memory: Memory, write: ReadBack, done: Callable[[], None]) -> None:
        began = self._clock()
        error: AiModelsError | None = None
        try:
            await self._source.read(write.scope, write.digest)
        except AiModelsError as found:
            error = found
        except Exception:
            log.exception("reading back broke", extra={"model": memory.model.path})
            error = TransientError("internal error, see the log of the operator", code="Internal")
        finally:
            memory.being_read = False
        self._meters.read_back(self._clock() - began, good=error is None)
        if error is None:
            memory.reading = Reading(write.digest)
        else:
            self._meters.count(error.code)
            log.warning("not read back", extra={"model": memory.model.path, "error": error.message})
            pause = back_off(memory.reading.of(write.digest).failures + 1, first_seconds=1.0)
            memory.reading = memory.reading.failed(write.digest, error, self._now(), pause)
        done()
