"""Looks after shared claims: remembers what gated Pods need, has it decided what is to be done, and does it.

Decisions are made in `sharedpvc`; no write passes without the fence of the leader and the one rate limit. Nothing here
has to outlive the process: Pods that wait ask again, the rest is in the API server.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from aimodels_core.errors import ClusterUnavailable, LeadershipLost
from aimodels_operator import sharedpvc, sharedpvc_use
from aimodels_operator.kube_claims import ClaimCalls
from aimodels_operator.sharedpvc_bodies import Puller
from aimodels_operator.sharedpvc_look import Key, Looker, Snapshot
from aimodels_operator.sharedpvc_objects import Claim
from aimodels_operator.sharedpvc_use import ClaimName
from aimodels_operator.sharedpvc_values import (
    FILLING,
    GRACE_SECONDS,
    Answer,
    Blocked,
    CreateClaim,
    CreateJob,
    Decision,
    DeleteClaim,
    DeleteJob,
    GrowClaim,
    Need,
    NoteContents,
    Open,
    Seen,
    Trouble,
    Use,
    Write,
)

log = logging.getLogger(__name__)

BUSY_SECONDS = 1.0
CALM_SECONDS = 5.0
IDLE_SECONDS = 30.0
"""Between two looks: while something moves, while Pods wait and nothing does, while none waits."""
FRESH_SECONDS = 2.0
"""How old what was seen may be when a Pod is let go on its ground."""
NEED_SECONDS = 180.0
"""What was not asked for again for so long is not needed any more."""
TELL_SECONDS = 60.0
"""Whoever waits is told so often that it may ask again."""
_AT_ONCE = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What the administrator says about shared claims.

    Args:
        class_setting: the class of storage; empty for the one that is found.
        grace_seconds: how long what nobody uses is kept.
    """

    class_setting: str = ""
    grace_seconds: float = GRACE_SECONDS


@dataclasses.dataclass(slots=True)
class _Memory:
    """What is kept of a claim; lost at a restart without harm.

    Args:
        need: of the Pods that wait; None when none does.
        asked_at: Unix seconds of the last question.
        digest: that the answer is about.
        answer: the last one.
        refusal: of the last write.
        unused_since: see `sharedpvc_values.Seen`.
    """

    need: Need | None = None
    asked_at: float = 0.0
    digest: str = ""
    answer: Answer | None = None
    refusal: Trouble | None = None
    unused_since: dict[str, float] = dataclasses.field(default_factory=dict)


class SharedClaims:
    """All shared claims of the cluster.

    Args:
        calls: the API server.
        admit: waits for the rate limit and passes the fence; raises LeadershipLost.
        puller: what Jobs have in common, now; its authorities are empty while they are not known.
        claim_name: names the claim of a model.
        changed: is told of namespaces and claims whose Pods may go on, or have to be told something else.
        options: of the administrator.
        now: Unix seconds.
        sleep: waits.
    """

    def __init__(
        self,
        calls: ClaimCalls,
        admit: Callable[[], Awaitable[None]],
        puller: Callable[[], Puller],
        claim_name: ClaimName,
        changed: Callable[[Iterable[Key]], None],
        *,
        options: Options = Options(),
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._calls = calls
        self._admit = admit
        self._puller = puller
        self._looker = Looker(calls, claim_name, now)
        self._changed = changed
        self._options = options
        self._now = now
        self._sleep = sleep
        self._memories: dict[Key, _Memory] = {}
        self._lock = asyncio.Lock()
        self._woken = asyncio.Event()
        self._looked_at = self._told_at = float("-inf")
        self._moves = self._waits = False

    async def answer(self, needs: Sequence[Need]) -> Answer:
        """Say whether a Pod that needs all this may go, and remember that it is needed.

        A Pod that waits asks again when `changed` has told of one of its claims.

        Raises:
            ClusterUnavailable: it cannot be found out now.
            LeadershipLost.
        """
        for need in needs:
            memory = self._memories.setdefault((need.namespace, need.claim), _Memory())
            memory.need, memory.asked_at = need, self._now()
        async with self._lock:
            if self._now() - self._looked_at >= FRESH_SECONDS or any(self._known(need) is None for need in needs):
                await self.look()
                self._woken.set()
        for need in needs:
            found = self._known(need) or Blocked(FILLING, f"claim {need.claim} is being looked at")
            if isinstance(found, Blocked):
                return found
        return Open()

    async def run(self) -> None:
        """Look until cancelled.

        Raises:
            LeadershipLost.
        """
        pause = BUSY_SECONDS
        while True:
            try:
                async with self._lock:
                    await self.look()
            except ClusterUnavailable as error:
                log.warning("shared claims not looked at", extra={"error": error.message})
            pause = BUSY_SECONDS if self._moves else min(pause * 1.5, CALM_SECONDS)
            await self._sleep(pause)
            if not self._waits and not self._woken.is_set():
                await self._idle()
            self._woken.clear()

    async def look(self) -> None:
        """Look at everything once, decide, and do it.

        Raises:
            ClusterUnavailable: at what it could not be looked.
            LeadershipLost.
        """
        began = self._now()
        seen = await self._looker.look([key for key, memory in self._memories.items() if memory.need is not None])
        keys = sorted(self._memories.keys() | seen.claims.keys())
        before = {key: self._memories.setdefault(key, _Memory()).answer for key in keys}
        self._moves = self._waits = False
        slots = asyncio.Semaphore(_AT_ONCE)

        async def work(key: Key) -> None:
            async with slots:
                await self._work(key, self._memories[key], seen)

        results = await asyncio.gather(*map(work, keys), return_exceptions=True)
        for key, result in zip(keys, results, strict=True):
            if isinstance(result, LeadershipLost):
                raise result
            if isinstance(result, BaseException):
                self._waits = True
                log.warning("shared claim not looked after", extra={"claim": "/".join(key), "error": str(result)})
        self._looked_at = began
        self._tell([key for key in keys if self._memories[key].answer != before[key]])
        for key in keys:
            if self._memories[key].need is None and key not in seen.claims:
                del self._memories[key]

    async def _idle(self) -> None:
        """Sleep until somebody asks, or it is time to look after what nobody uses."""
        waiting = [asyncio.ensure_future(self._woken.wait()), asyncio.ensure_future(self._sleep(IDLE_SECONDS))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def _tell(self, changed: Sequence[Key]) -> None:
        now = self._now()
        if now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            changed = [key for key, memory in self._memories.items() if memory.need is not None]
        if changed:
            self._moves = True
            self._changed(changed)

    def _known(self, need: Need) -> Answer | None:
        memory = self._memories.get((need.namespace, need.claim))
        return memory.answer if memory is not None and memory.digest == need.digest else None

    async def _work(self, key: Key, memory: _Memory, seen: Snapshot) -> None:
        if memory.need is not None and self._now() - memory.asked_at > NEED_SECONDS:
            memory.need = None
        need = memory.need
        if need is not None:
            for used in ("", need.digest):
                memory.unused_since.pop(used, None)
        decision = sharedpvc.decide(self._seen(key, memory, seen, None))
        if decision.asks_use:
            use = await self._looker.use(key)
            self._note_unused(memory, seen.claims.get(key), use)
            decision = sharedpvc.decide(dataclasses.replace(self._seen(key, memory, seen, use), need=need))
        memory.answer, memory.digest = decision.answer, need.digest if need is not None else ""
        self._waits = self._waits or isinstance(decision.answer, Blocked)
        await self._carry_out(key, memory, decision)

    async def _carry_out(self, key: Key, memory: _Memory, decision: Decision) -> None:
        """Do what was decided, up to the first write that is refused."""
        for write in decision.writes:
            await self._admit()
            try:
                await self._write(key, write)
            except ClusterUnavailable as error:
                log.warning("shared claim: write refused", extra={"claim": "/".join(key), "error": error.message})
                if error.code not in ("Conflict", "NotFound"):
                    refused = error.code in ("Forbidden", "Refused")
                    again_at = self._now() + (sharedpvc.RETRY_SECONDS if refused else BUSY_SECONDS)
                    memory.refusal = sharedpvc_use.trouble_of(error.message, again_at)
                    if isinstance(memory.answer, Blocked):
                        memory.answer = memory.refusal.blocked
                return
            memory.refusal = None
            self._moves = self._waits = True

    async def _write(self, key: Key, write: Write) -> None:
        log.info("shared claim: write", extra={"claim": "/".join(key), "write": type(write).__name__})
        match write:
            case CreateClaim():
                await self._calls.create_claim(*key, write.class_name, write.size_bytes)
            case GrowClaim():
                await self._calls.grow(write)
            case NoteContents():
                await self._calls.note(write)
            case DeleteClaim():
                await self._calls.delete_claim(write.claim)
            case DeleteJob():
                await self._calls.delete_job(write.job)
            case CreateJob():
                puller = self._puller()
                if not puller.authorities:
                    words = "the certificate authority of the registry is not known yet"
                    raise ClusterUnavailable(words, code="Refused")
                await self._calls.create_job(write, puller)

    def _seen(self, key: Key, memory: _Memory, seen: Snapshot, use: Use | None) -> Seen:
        return Seen(
            name=key[1],
            now=self._now(),
            need=memory.need,
            claim=seen.claims.get(key),
            jobs=seen.jobs.get(key, ()),
            classes=seen.classes,
            class_setting=self._options.class_setting,
            use=use,
            unused_since=memory.unused_since,
            troubles=seen.troubles.get(key, {}),
            refusal=memory.refusal,
            grace_seconds=self._options.grace_seconds,
        )

    def _note_unused(self, memory: _Memory, claim: Claim | None, use: Use) -> None:
        """Remember since when nobody uses the claim, and what lies in it."""
        unused = {digest for digest in (claim.contents if claim is not None else ()) if digest not in use.digests}
        unused |= set() if use.referred else {""}
        memory.unused_since = {what: memory.unused_since.get(what, self._now()) for what in unused}
