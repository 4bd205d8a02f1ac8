"""kopf as an informer: it lists and watches, and says which object changed. The only module that knows kopf.

It runs in a thread and an event loop of its own; it writes nothing, keeps nothing, and decides nothing.
"""

import asyncio
import collections
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import kopf

from aimodels_core import api, names
from aimodels_core.api import Kind

log = logging.getLogger(__name__)

_STOP_SECONDS = 10.0
_IDENTITY = "ai-models-operator"
_PASSED_AT_ONCE = 100

Seen = Callable[[Kind, dict[str, Any], bool], None]
"""Told of a kind, an object, and whether it is gone; on the main event loop."""

PODS = Kind("Pod", "pods", ("po",), namespaced=True)
"""Not of our group; only those that models are delivered to are watched."""


class Informer:
    """Watches kinds until it is stopped; ends by itself only when it cannot go on.

    Args:
        kinds: what to watch.
        kubeconfig: a file, or empty for the ServiceAccount of this Pod.
        seen: called on `loop`.
        loop: the main event loop.
    """

    def __init__(self, kinds: Sequence[Kind], kubeconfig: str, seen: Seen, loop: asyncio.AbstractEventLoop) -> None:
        self._kinds = kinds
        self._kubeconfig = kubeconfig
        self._seen = seen
        self._main = loop
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="informer", daemon=True)
        self._told: collections.deque[tuple[Kind, dict[str, Any], bool]] = collections.deque()
        self.ended: asyncio.Future[str] = loop.create_future()

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    async def stop(self) -> None:
        """End the watches and wait for the thread."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, _STOP_SECONDS)

    @property
    def alive(self) -> bool:
        """Whether it still watches."""
        return self._thread.is_alive()

    def _run(self) -> None:
        words = "stopped"
        loop = asyncio.new_event_loop()
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(
                kopf.operator(
                    registry=self._registry(),
                    settings=settings(),
                    # Without one kopf looks for the name of its user, which a container need not have.
                    identity=_IDENTITY,  # type: ignore[arg-type] # a NewType that kopf does not export
                    standalone=True,
                    clusterwide=True,
                    stop_flag=self._stop,
                )
            )
        except Exception as error:
            log.exception("informer broke")
            words = f"{type(error).__name__}: {error}"
        finally:
            loop.close()
            self._call(self._end, words)

    def _end(self, words: str) -> None:
        if not self.ended.done():
            self.ended.set_result(words)

    def _tell(self, kind: Kind, raw: dict[str, Any], gone: bool) -> None:  # noqa: FBT001 - the call-back's arguments
        """Hand over what was seen; the main loop is woken once for many, since a wake-up can cost milliseconds."""
        self._told.append((kind, raw, gone))
        if len(self._told) == 1:
            self._call(self._take)

    def _take(self) -> None:
        """Pass on what was told meanwhile, some at a time; on the main loop."""
        try:
            for _ in range(min(len(self._told), _PASSED_AT_ONCE)):
                self._seen(*self._told.popleft())
        finally:
            if self._told:
                self._main.call_soon(self._take)

    def _call(self, call: Callable[..., None], *arguments: Any) -> None:
        """Have the main loop call something, unless it is closed already."""
        if not self._main.is_closed():
            self._main.call_soon_threadsafe(call, *arguments)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        login = kopf.login_with_kubeconfig if self._kubeconfig else kopf.login_with_service_account
        kopf.on.login(registry=registry)(login)
        for kind in self._kinds:
            self._watch(registry, kind)
        return registry

    def _watch(self, registry: kopf.OperatorRegistry, kind: Kind) -> None:
        group, version = ("", "v1") if kind is PODS else (names.GROUP, api.VERSION)

        @kopf.on.event(group, version, kind.plural, registry=registry, id=f"see-{kind.plural}")
        async def see(event: kopf.RawEvent, **_: Any) -> None:
            raw = dict(event["object"])
            self._tell(kind, raw, event["type"] == "DELETED")


class _NoBase(kopf.DiffBaseStorage):
    """Nothing is compared with a former version: kopf would copy each object twice for that."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return what is worth comparing: nothing."""
        return cast(kopf.BodyEssence, {})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Return the former version: none."""
        return None

    def store(self, **_: Any) -> None:
        """Keep no version."""


def settings() -> kopf.OperatorSettings:
    """The settings of an informer over thousands of objects (measured: docs of the settings say why)."""
    found = kopf.OperatorSettings()
    found.scanning.disabled = True  # the definitions are ours and there before we start
    found.posting.enabled = False  # Events are posted by the executor, within its rate
    found.queueing.worker_limit = None  # a limit below the number of objects slows the first list to a crawl
    found.queueing.idle_timeout = 0.2
    found.watching.chunk_size = 500
    found.watching.server_timeout = 600
    found.watching.client_timeout = 660
    found.watching.connect_timeout = 15
    found.watching.label_selectors["", "v1", PODS.plural] = f"{names.LABEL_DELIVERY}=true"
    found.networking.request_timeout = 30
    found.networking.enforce_retry_after = True
    found.peering.standalone = True
    found.persistence.diffbase_storage = _NoBase()
    found.execution.max_workers = 2
    return found
