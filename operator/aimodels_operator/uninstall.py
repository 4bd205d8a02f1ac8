"""`python -m aimodels_operator.uninstall`: what is done before the operator goes: no model keeps a finalizer of ours.

The chart runs it before anything else is uninstalled. The operator's Deployment is scaled to nothing; then its lease is
taken, so that a replica that does not notice cannot put a finalizer back, and not given back, until Helm has removed
that replica's rights. What is published stays. 0 done; 1 not done, another start goes on; 2 wrong settings.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping

from aimodels_core import names, serving
from aimodels_core.api import MODEL_KINDS, Kind, ModelObject
from aimodels_core.errors import AiModelsError, ClusterUnavailable, UsageError
from aimodels_operator import kube
from aimodels_operator.kube import Kube
from aimodels_operator.leader import Leader, Place
from aimodels_operator.pacing import back_off
from aimodels_operator.rules import OPERATOR
from aimodels_operator.settings import PREFIX

log = logging.getLogger("aimodels_uninstall")

EXIT_DONE, EXIT_LEFT, EXIT_USAGE = 0, 1, 2
DEADLINE_SECONDS = 120.0
"""Of one start; the chart's Job allows two of them, and Helm waits for five minutes."""
_BATCH = 500
_AT_ONCE = 16
_SHOWN = 5
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclasses.dataclass(frozen=True, slots=True)
class UninstallSettings:
    """What this process is told.

    Args:
        identity: AI_MODELS_IDENTITY: who takes the lease, required; the Pod's name.
        namespace: AI_MODELS_NAMESPACE: of the operator, its Deployment and its Lease.
        log_level: AI_MODELS_LOG_LEVEL: Debug, Info, Warn or Error.
        kubeconfig: KUBECONFIG: empty for the ServiceAccount of the Pod.
    """

    identity: str
    namespace: str = "d8-ai-models"
    log_level: str = "Info"
    kubeconfig: str = ""


def from_env(env: Mapping[str, str]) -> UninstallSettings:
    """Read the settings.

    Raises:
        UsageError: one is missing, unknown or wrong.
    """
    known = {field.name for field in dataclasses.fields(UninstallSettings)} - {"kubeconfig"}
    own = {name.removeprefix(PREFIX).lower(): value for name, value in env.items() if name.startswith(PREFIX)}
    if unknown := sorted(PREFIX + name.upper() for name in own.keys() - known):
        raise UsageError(f"environment: unknown settings {', '.join(unknown)}")
    found = UninstallSettings(**{"identity": "", **own}, kubeconfig=env.get("KUBECONFIG", ""))
    for name in ("identity", "namespace"):
        if not _NAME.fullmatch(getattr(found, name)):
            raise UsageError(f"{PREFIX}{name.upper()}: want a name of Kubernetes, got {getattr(found, name)[:80]!r}")
    if found.log_level not in serving.LOG_LEVELS:
        want = ", ".join(serving.LOG_LEVELS)
        raise UsageError(f"{PREFIX}LOG_LEVEL: want one of {want}, got {found.log_level[:20]!r}")
    return found


def without_ours(model: ModelObject) -> tuple[str, ...] | None:
    """The finalizers that a model is left with; None when none of them is ours."""
    if names.FINALIZER not in model.finalizers:
        return None
    return tuple(name for name in model.finalizers if name != names.FINALIZER)


class Uninstall:
    """Stops the operator, and takes its finalizer from every model.

    Args:
        cluster: the API server.
        leader: wants the operator's lease.
        home: namespace of the operator.
        sleep: waits.
    """

    def __init__(
        self,
        cluster: Kube,
        leader: Leader,
        home: str,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube = cluster
        self._leader = leader
        self._home = home
        self._sleep = sleep
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.freed = 0

    async def run(self) -> None:
        """Work until no model has our finalizer.

        Raises:
            LeadershipLost.
        """
        await self._until_done(self._stop_operator)
        await self._leader.acquire()
        keeping = asyncio.create_task(self._leader.keep())
        try:
            await self._until_done(self._free_all)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _until_done(self, step: Callable[[], Awaitable[Iterable[str]]]) -> None:
        """Repeat a step until it has no trouble; the trouble is said each time."""
        failures = 0
        while True:
            try:
                troubles = list(await step())
            except ClusterUnavailable as error:
                troubles = [error.message]
            if not troubles:
                return
            failures += 1
            log.warning("not done yet", extra={"troubles": len(troubles), "first": troubles[:_SHOWN]})
            await self._sleep(back_off(failures, first_seconds=0.5, most_seconds=10.0))

    async def _stop_operator(self) -> Iterable[str]:
        """Scale the operator to nothing; one that is gone is stopped, too."""
        body = {"spec": {"replicas": 0}}
        with _absence_is_fine():
            await self._kube.call("patch", "apps", "deployments/scale", self._home, OPERATOR, body=body)
            log.info("operator stopped")
        return ()

    async def _free_all(self) -> Iterable[str]:
        """Free every model once; returns why some were not."""
        troubles: list[str] = []
        for kind in MODEL_KINDS:
            with _absence_is_fine():
                async for batch in self._batches(kind):
                    troubles += filter(None, await asyncio.gather(*map(self._free, batch)))
        return troubles

    async def _batches(self, kind: Kind) -> AsyncIterator[list[ModelObject]]:
        batch: list[ModelObject] = []
        async for model in self._kube.list_models(kind, page_size=_BATCH):
            batch.append(model)
            if len(batch) == _BATCH:
                yield batch
                batch = []
        yield batch

    async def _free(self, model: ModelObject) -> str:
        """Take our finalizer from the version of a model that was seen; returns why it stays, or nothing."""
        finalizers = without_ours(model)
        if finalizers is None:
            return ""
        async with self._slots:
            self._leader.check()
            try:
                with _absence_is_fine():
                    await self._kube.set_finalizers(model, finalizers)
                    self.freed += 1
            except ClusterUnavailable as error:
                return error.message
        return ""


@contextlib.contextmanager
def _absence_is_fine() -> Iterator[None]:
    """Go on where what was asked for is not there, or its kind is not."""
    try:
        yield
    except ClusterUnavailable as error:
        if error.code != "NotFound":
            raise


async def _run(settings: UninstallSettings) -> None:
    cluster = Kube(kube.configuration(settings.kubeconfig))
    leader = Leader(cluster, Place(settings.namespace, OPERATOR, settings.identity))
    with contextlib.closing(cluster):
        work = Uninstall(cluster, leader, settings.namespace)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await work.run()
        finally:
            log.info("models freed", extra={"models": work.freed})


def main() -> int:
    """Run the process; returns the exit code."""
    try:
        settings = from_env(os.environ)
        serving.log_json(settings.log_level, quiet=("urllib3",))
        asyncio.run(_run(settings))
    except UsageError as error:
        print(f"error: {error.message}", file=sys.stderr)  # noqa: T201 - logging may not be set up yet
        return EXIT_USAGE
    except (AiModelsError, TimeoutError) as error:
        log.critical("models keep our finalizer", extra={"error": repr(error)})
        return EXIT_LEFT
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
