"""Looks at all that decisions about shared claims are made of. It writes nothing and decides nothing."""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

from aimodels_operator import sharedpvc_use
from aimodels_operator.kube import Raw
from aimodels_operator.kube_claims import ClaimCalls
from aimodels_operator.sharedpvc_objects import Claim, Job, JobState, StorageClass
from aimodels_operator.sharedpvc_use import ClaimName
from aimodels_operator.sharedpvc_values import Trouble, Use

_WARNING_SECONDS = 5.0
_WARNINGS_MOST = 1000
_JOB_NAME = "batch.kubernetes.io/job-name"

Key = tuple[str, str]
"""Namespace and name of a claim."""


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What the API server has shown.

    Args:
        classes: of storage.
        claims: ours, and those of others that are in the way.
        jobs: by the claims that they work on.
        troubles: by the claims of the Jobs, then by the names of the Jobs.
    """

    classes: tuple[StorageClass, ...]
    claims: Mapping[Key, Claim]
    jobs: Mapping[Key, tuple[Job, ...]]
    troubles: Mapping[Key, Mapping[str, Trouble]]


class Looker:
    """Looks at claims and Jobs.

    Args:
        calls: the API server.
        claim_name: names the claim of a model.
        now: Unix seconds.
    """

    def __init__(self, calls: ClaimCalls, claim_name: ClaimName, now: Callable[[], float]) -> None:
        self._calls = calls
        self._claim_name = claim_name
        self._now = now
        self._lists: dict[tuple[str, str], asyncio.Task[list[Raw]]] = {}
        self._warnings: dict[tuple[str, str, str], tuple[float, str]] = {}

    async def look(self, needed: Iterable[Key]) -> Snapshot:
        """Look at everything; also at claims of others, if they have a name that is needed.

        Raises:
            ClusterUnavailable.
        """
        self._lists.clear()
        classes, claims, jobs = await asyncio.gather(self._calls.classes(), self._calls.claims(), self._calls.jobs())
        found = {(claim.namespace, claim.name): claim for claim in claims}
        for key in needed:
            if key not in found and (foreign := await self._calls.claim(*key)) is not None:
                found[key] = foreign
        of_claims: dict[Key, tuple[Job, ...]] = {}
        for job in jobs:
            key = (job.namespace, job.claim)
            of_claims[key] = (*of_claims.get(key, ()), job)
        open_jobs = [job for job in jobs if job.state is not JobState.DONE and not job.deleting]
        return Snapshot(classes, found, of_claims, await self._troubles(open_jobs))

    async def use(self, key: Key) -> Use:
        """Find out who refers to a claim, as of the last look or later.

        Raises:
            ClusterUnavailable.
        """
        namespace, name = key
        use = sharedpvc_use.use_of_pods(name, await self._once("pods", namespace, self._calls.pods))
        if use.referred:
            return use
        workloads = await self._once("workloads", namespace, self._calls.workloads)
        referred = any(sharedpvc_use.refers(workload, name, self._claim_name) for workload in workloads)
        return dataclasses.replace(use, referred=referred)

    async def _once(
        self, what: str, namespace: str, call: Callable[[str], Coroutine[None, None, list[Raw]]]
    ) -> list[Raw]:
        """Read a list of a namespace once per look, whoever asks."""
        task = self._lists.get((what, namespace))
        if task is None:
            task = self._lists[what, namespace] = asyncio.ensure_future(call(namespace))
        return await task

    async def _troubles(self, jobs: Sequence[Job]) -> dict[Key, dict[str, Trouble]]:
        """Find out why Jobs do not go on, or have failed."""
        pods: dict[Key, list[Raw]] = {}
        for pod in await self._calls.job_pods() if jobs else ():
            name = str((pod["metadata"].get("labels") or {}).get(_JOB_NAME, ""))
            pods.setdefault((pod["metadata"]["namespace"], name), []).append(pod)
        found: dict[Key, dict[str, Trouble]] = {}
        for job in jobs:
            trouble = await self._trouble(job, pods.get((job.namespace, job.name), []))
            if trouble is not None:
                found.setdefault((job.namespace, job.claim), {})[job.name] = trouble
        return found

    async def _trouble(self, job: Job, pods: Sequence[Raw]) -> Trouble | None:
        newest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)
        if newest is None:
            return await self._warning(job.namespace, "Job", job.name) if job.state is JobState.RUNNING else None
        trouble = sharedpvc_use.trouble_of_pod(newest)
        if trouble is None and sharedpvc_use.is_waiting(newest):
            return await self._warning(job.namespace, "Pod", newest["metadata"]["name"])
        return trouble

    async def _warning(self, namespace: str, kind: str, name: str) -> Trouble | None:
        """Read the newest warning about an object, now and then."""
        now, key = self._now(), (namespace, kind, name)
        at, words = self._warnings.get(key, (float("-inf"), ""))
        if now - at >= _WARNING_SECONDS:
            words = sharedpvc_use.last_warning(await self._calls.events(namespace, kind, name))
            if len(self._warnings) >= _WARNINGS_MOST:
                self._warnings.clear()
            self._warnings[key] = (now, words)
        return sharedpvc_use.trouble_of(words) if words else None
