"""Entry point of the operator: take the lease, watch, work, and end when anything of that ends.

0 asked to stop; 1 lost the lease or the watch; 2 wrong settings. Whatever ended, the process does: a supervisor starts
it anew, and another replica has the lease by then.
"""

import asyncio
import contextlib
import datetime
import importlib.metadata
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterable
from typing import Any

from aimodels_core import dmcr, names, serving
from aimodels_core.api import MODEL_KINDS, Kind
from aimodels_core.errors import AiModelsError, ClusterUnavailable, UsageError
from aimodels_core.names import HomeSecret
from aimodels_operator import collecting, dataplane, delivery, kube, meters, readback, webhooks
from aimodels_operator.bootstrap import Start
from aimodels_operator.coordinator import CoordinatorClient
from aimodels_operator.dataplane import Dataplane
from aimodels_operator.delivering import Delivering
from aimodels_operator.household import Household
from aimodels_operator.informer import PODS, Informer
from aimodels_operator.kube import Kube
from aimodels_operator.kube_pods import PodCalls
from aimodels_operator.leader import Leader, Place
from aimodels_operator.meters import Meters
from aimodels_operator.nodehome import NodeHome
from aimodels_operator.reconcile import Reconciler
from aimodels_operator.rolling import Rolling
from aimodels_operator.settings import NODE_CACHE, SHARED_PVC, Settings, coordinator_arguments, from_env, sources_of
from aimodels_operator.sharedpvc_look import Key
from aimodels_operator.sharedpvc_loop import SharedClaims
from aimodels_operator.sharedpvc_start import shared_claims
from aimodels_operator.surroundings import Around
from aimodels_operator.warmers import Warmers
from aimodels_operator.writes import Urgency

log = logging.getLogger("aimodels_operator")

EXIT_DONE, EXIT_LOST, EXIT_USAGE = 0, 1, 2
_LOOK_SECONDS = 1.0


class Operator:
    """All parts of one replica.

    Args:
        settings: what it was told.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kube = Kube(kube.configuration(settings.kubeconfig))
        self._meters = Meters()
        self._leader = Leader(self._kube, Place(settings.namespace, settings.lease, settings.identity))
        self._household = Household(self._kube, self._leader.check, settings.namespace, sources_of(settings))
        self._reader = self._of_registry(settings)
        held = settings.node_cache_size if settings.delivery_type == NODE_CACHE else 0
        self._reconciler = Reconciler(
            self._kube, self._leader.check, self._meters, registry=self._reader, node_cache_bytes=held
        )
        self._client = CoordinatorClient(
            settings.coordinator_url,
            self._household.access,
            self._changed,
            now=lambda: datetime.datetime.now(datetime.UTC),
        )
        self._dataplane = self._in_ray(settings)
        self._shared = self._of_claims(settings)
        self._delivering = self._to_pods(settings)
        self._informer: Informer | None = None
        self._registered = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> int:
        """Serve health, wait for the lease, work until something ends; returns the exit code."""
        async with self._serving():
            stopping = asyncio.create_task(stop.wait())
            taking = asyncio.create_task(self._leader.acquire())
            await asyncio.wait({stopping, taking}, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                taking.cancel()
                return EXIT_DONE
            code = await self._lead(stopping)
            stopping.cancel()
        return code

    def _in_ray(self, settings: Settings) -> Dataplane | None:
        """What has the coordinator run in Ray; None when it is started by somebody else."""
        if not settings.ray_url:
            return None
        return Dataplane(
            dataplane.checked_url(settings.ray_url),
            Start.of(coordinator_arguments(settings), importlib.metadata.version("ai-models")),
            (settings.namespace, HomeSecret.RAY.value),
            self._kube,
            check=self._leader.check,
            silent_seconds=self._client.silent_seconds,
            blame=self._client.blame,
        )

    def _of_registry(self, settings: Settings) -> readback.Reader | None:
        """What reads published models back; None when nothing does."""
        if not settings.dmcr_url:
            return None
        place = dmcr.Place(settings.dmcr_url, settings.dmcr_token_file, settings.dmcr_redirect_url)
        return readback.Reader(place, self._authorities)

    def _authorities(self) -> str:
        """Who is trusted as registry, issuer and store."""
        found = ((HomeSecret.SERVING_ROOT, "tls.crt"), (HomeSecret.S3_CA, "ca.crt"))
        return "\n".join(filter(None, (self._household.text(name, key) for name, key in found)))

    def _authority(self) -> str:
        """Who has issued the certificates of our servers."""
        return self._household.text(HomeSecret.SERVING_ROOT, "tls.crt")

    async def _admit(self) -> None:
        """Let a write pass."""
        await self._reconciler.admit(Urgency.PHASE)

    def _of_claims(self, settings: Settings) -> SharedClaims | None:
        """What looks after shared claims; None when models do not come from there."""
        if settings.delivery_type != SHARED_PVC:
            return None

        def changed(claims: Iterable[Key]) -> None:
            if self._delivering is not None:
                self._delivering.claims_changed(claims)

        return shared_claims(settings, self._kube, self._admit, self._authorities, _claim_name, changed)

    def _to_pods(self, settings: Settings) -> Delivering | None:
        """What lets Pods go when their models are there; None when nothing is delivered."""
        if not settings.delivery_type:
            return None
        options = delivery.Options(self._shared is not None, settings.max_gate_wait, settings.node_cache_size)
        around = Around(self._reconciler.known.__contains__, lambda: self._client.nodes, self._shared, _claim_name)
        return Delivering(PodCalls(self._kube), self._reconciler.admit, self._meters, options, around)

    def _warmers(self, delivering: Delivering) -> Warmers:
        """What tells agents of nodes what to hold, and shows what they do."""
        held = self._settings.node_cache_size
        admit = self._reconciler.admit
        return Warmers(delivering, self._client, self._kube, admit, lambda: self._client.nodes, cache_bytes=held)

    def _of_nodes(self) -> dict[str, str]:
        """What agents need to join Ray, and whom they trust."""
        return {"auth_token": self._household.text(HomeSecret.RAY, "auth_token"), "ca.crt": self._authorities()}

    def _see(self, kind: Kind, raw: dict[str, Any], gone: bool) -> None:  # noqa: FBT001 - the informer's call-back
        """Pass on what the informer saw."""
        if kind is not PODS:
            self._reconciler.see(kind, raw, gone)
        if self._delivering is not None:
            if kind is PODS:
                self._delivering.see(raw, gone=gone)
            else:
                self._delivering.see_model(kind, raw, gone=gone)

    def _changed(self, uids: Iterable[str] | None) -> None:
        """Take in what is new of the coordinator."""
        if uids is not None:
            self._meters.moved.take(self._client.states)
        self._reconciler.changed(uids)

    async def _lead(self, stopping: "asyncio.Task[bool]") -> int:
        keeping = asyncio.create_task(self._leader.keep())
        working = asyncio.create_task(self._work())
        tasks: set[asyncio.Task[object]] = {keeping, working, stopping}
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if keeping in done:
            log.critical("lease lost")
            os._exit(EXIT_LOST)  # nothing here may write any more, so nothing is cleaned up
        for task in (working, keeping):
            task.cancel()
        ended = await asyncio.gather(working, keeping, return_exceptions=True)
        if self._informer is not None:
            await self._informer.stop()
        await self._client.close()
        if self._reader is not None:
            self._reader.close()
        with contextlib.suppress(AiModelsError):
            await self._leader.release()
        if stopping in done:
            return EXIT_DONE
        log.critical("work ended", extra={"error": repr(ended[0])})
        return EXIT_LOST

    async def _work(self) -> None:
        """Keep the Secrets, watch and work; ends when the informer does."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._household.keep())
            await self._household.settled.wait()
            if self._dataplane is not None:
                group.create_task(self._dataplane.run())
            if self._settings.dmcr_url:
                group.create_task(Rolling(self._kube, self._leader.check, self._settings.namespace).keep())
            group.create_task(webhooks.keep(self._settings, self._kube, self._admit, self._authority, self._registered))
            await self._wait_for_definitions()
            kinds = MODEL_KINDS if self._delivering is None else (*MODEL_KINDS, PODS)
            self._informer = Informer(kinds, self._settings.kubeconfig, self._see, asyncio.get_running_loop())
            self._informer.start()
            group.create_task(self._client.follow())
            group.create_task(self._reconciler.run(self._client))
            if self._delivering is not None:
                group.create_task(self._delivering.run())
                if self._shared is None:
                    group.create_task(self._warmers(self._delivering).run())
                    group.create_task(NodeHome(self._kube, self._leader.check, self._of_nodes).keep())
            if self._shared is not None:
                group.create_task(self._shared.run())
            known, check = self._reconciler.known, self._leader.check
            group.create_task(collecting.run(self._client, known.memories, check, self._meters))
            words = await self._informer.ended
            raise ClusterUnavailable(f"informer: ended: {words}", code="Informer")

    async def _wait_for_definitions(self) -> None:
        """Wait until the API server serves our kinds: an informer that starts earlier would watch nothing."""
        while True:
            try:
                for kind in MODEL_KINDS:
                    async for _ in self._kube.list_models(kind, page_size=1):
                        break
            except ClusterUnavailable as error:
                log.warning("kinds not served", extra={"error": error.message})
                await asyncio.sleep(_LOOK_SECONDS)
            else:
                return

    def _healthy(self) -> bool:
        return self._informer is None or self._informer.alive

    def _ready(self) -> bool:
        """A standby is ready to take over; a leader when it watches."""
        return not self._leader.leads or (self._informer is not None and self._informer.alive)

    def _metrics(self) -> str:
        gauges = {
            "queue_depth": len(self._reconciler.dirty),
            "home_trouble": len(self._household.troubles),
            "publications_throttled": meters.throttled(self._client.states.values()),
            "leader": float(self._leader.leads),
            "webhooks_registered": float(self._registered.is_set()),
            "ray_answers": float(self._dataplane is not None and self._dataplane.answers),
            "coordinator_answers": float(self._client.link.silent_since is None and bool(self._client.link.epoch)),
        }
        if self._delivering is not None:
            gauges["pods_waiting"] = self._delivering.gated
            gauges |= meters.of_nodes((self._client.nodes or {}).values()) if self._shared is None else {}
        return self._meters.render(self._reconciler.known.models(), self._kube.calls, gauges)

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        app = serving.health(self._healthy, self._ready, self._metrics)
        try:
            async with serving.site(app, self._settings.listen_host, self._settings.listen_port):
                yield
        finally:
            self._kube.close()


def _claim_name(kind: Kind, name: str) -> str:
    return names.shared_claim(kind.singular, name)


async def _run(settings: Settings) -> int:
    return await Operator(settings).run(serving.stop_event())


def main() -> int:
    """Run the operator; returns the exit code."""
    try:
        settings = from_env(os.environ)
        serving.log_json(settings.log_level, quiet=("kopf", "urllib3", "aiohttp"))
        return asyncio.run(_run(settings))
    except UsageError as error:
        print(f"error: {error.message}", file=sys.stderr)  # noqa: T201 - logging may not be set up yet
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
