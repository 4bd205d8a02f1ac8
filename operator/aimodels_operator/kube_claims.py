"""The calls at the API server about shared claims: claims, classes, Jobs, their policies, and who uses them.

What to write, and when, is decided elsewhere; nothing is retried here. Every call names a verb that `rules` has.
"""

from collections.abc import Mapping
from typing import Any

from aimodels_core import names
from aimodels_core.errors import ClusterUnavailable
from aimodels_operator import sharedpvc_bodies as bodies
from aimodels_operator.kube import Kube, Raw
from aimodels_operator.sharedpvc_bodies import Puller
from aimodels_operator.sharedpvc_objects import Claim, Job, StorageClass
from aimodels_operator.sharedpvc_values import CreateJob, GrowClaim, NoteContents

_CLAIMS = "persistentvolumeclaims"
_POLICIES = "networking.k8s.io", "networkpolicies"
_OURS = {"labelSelector": f"{names.LABEL_SHARED}=true"}
_DELIVERED = {"labelSelector": f"{names.LABEL_DELIVERY}=true"}
_WORKLOADS = (
    ("apps", "deployments"),
    ("apps", "statefulsets"),
    ("apps", "daemonsets"),
    ("batch", "jobs"),
    ("batch", "cronjobs"),
)


class ClaimCalls:
    """Calls about shared claims.

    Args:
        kube: the API server.
    """

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def classes(self) -> tuple[StorageClass, ...]:
        """Read all classes of storage.

        Raises:
            ClusterUnavailable.
        """
        return tuple(StorageClass.from_raw(raw) for raw in await self._list("storage.k8s.io", "storageclasses"))

    async def claims(self) -> tuple[Claim, ...]:
        """Read all shared claims.

        Raises:
            ClusterUnavailable.
        """
        return tuple(Claim.from_raw(raw) for raw in await self._list("", _CLAIMS, query=_OURS))

    async def claim(self, namespace: str, name: str) -> Claim | None:
        """Read a claim, whosever it is; None when there is none.

        Raises:
            ClusterUnavailable.
        """
        try:
            return Claim.from_raw(await self._kube.call("get", "", _CLAIMS, namespace, name))
        except ClusterUnavailable as error:
            if error.code == "NotFound":
                return None
            raise

    async def jobs(self) -> tuple[Job, ...]:
        """Read all Jobs of ours.

        Raises:
            ClusterUnavailable.
        """
        found = (Job.from_raw(raw) for raw in await self._list("batch", "jobs", query=_OURS))
        return tuple(job for job in found if job is not None)

    async def job_pods(self) -> list[Raw]:
        """Read the Pods of all Jobs of ours.

        Raises:
            ClusterUnavailable.
        """
        return await self._list("", "pods", query=_OURS)

    async def pods(self, namespace: str) -> list[Raw]:
        """Read the Pods of a namespace that models are delivered to.

        Raises:
            ClusterUnavailable.
        """
        return await self._list("", "pods", namespace, query=_DELIVERED)

    async def workloads(self, namespace: str) -> list[Raw]:
        """Read the workloads of a namespace.

        Raises:
            ClusterUnavailable.
        """
        return [raw for group, resource in _WORKLOADS for raw in await self._list(group, resource, namespace)]

    async def events(self, namespace: str, kind: str, name: str) -> list[Raw]:
        """Read the Events about an object.

        Raises:
            ClusterUnavailable.
        """
        about = {"fieldSelector": f"involvedObject.kind={kind},involvedObject.name={name}"}
        return await self._list("", "events", namespace, query=about)

    async def create_claim(self, namespace: str, name: str, class_name: str, size_bytes: int) -> None:
        """Make a claim.

        Raises:
            ClusterUnavailable: codes Conflict when there is one, Forbidden among others.
        """
        body = bodies.claim_body(namespace, name, class_name, size_bytes)
        await self._kube.call("create", "", _CLAIMS, namespace, body=body)

    async def grow(self, write: GrowClaim) -> None:
        """Ask for more room.

        Raises:
            ClusterUnavailable.
        """
        storage = {"storage": bodies.quantity(write.size_bytes)}
        await self._patch(write.claim, {}, {"spec": {"resources": {"requests": storage}}})

    async def note(self, write: NoteContents) -> None:
        """Write down what lies in a claim.

        Raises:
            ClusterUnavailable: code Conflict when it has changed since.
        """
        notes = {names.ANNOTATION_SHARED_CONTENTS: bodies.rendered(write.contents)}
        await self._patch(write.claim, {"annotations": notes}, {})

    async def delete_claim(self, claim: Claim) -> None:
        """Delete exactly the claim that was looked at.

        Raises:
            ClusterUnavailable: code Conflict when it has changed since.
        """
        await self._delete(
            "", _CLAIMS, claim.namespace, claim.name, {"uid": claim.uid, "resourceVersion": claim.version}
        )

    async def create_job(self, write: CreateJob, puller: Puller) -> None:
        """Make a Job, after the policy of whom its Pods may talk to.

        Raises:
            ClusterUnavailable: codes Conflict when there is one, Forbidden among others.
        """
        await self._put_policy(bodies.policy_body(puller, write.claim))
        scope = write.need.scope if write.need is not None else ""
        size_bytes = write.need.size_bytes if write.need is not None else 0
        body = bodies.job_body(puller, write.claim, write.work, write.digest, scope=scope, size_bytes=size_bytes)
        await self._kube.call("create", "batch", "jobs", write.claim.namespace, body=body)

    async def delete_job(self, job: Job) -> None:
        """Delete exactly the Job that was looked at, and its Pods.

        Raises:
            ClusterUnavailable.
        """
        await self._delete("batch", "jobs", job.namespace, job.name, {"uid": job.uid})

    async def _put_policy(self, body: Raw) -> None:
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        try:
            await self._kube.call("create", *_POLICIES, namespace, body=body)
        except ClusterUnavailable as error:
            if error.code != "Conflict":
                raise
            there = await self._kube.call("get", *_POLICIES, namespace, name)
            if (there["metadata"].get("labels") or {}).get(names.LABEL_SHARED) != "true":
                words = f"NetworkPolicy {namespace}/{name} is there and is not of ai-models: delete it"
                raise ClusterUnavailable(words, code="Refused") from error
            await self._kube.call("patch", *_POLICIES, namespace, name, body=body)

    async def _patch(self, claim: Claim, meta: Raw, rest: Raw) -> None:
        body = {**rest, "metadata": {**meta, "resourceVersion": claim.version}}
        await self._kube.call("patch", "", _CLAIMS, claim.namespace, claim.name, body=body)

    async def _delete(self, group: str, resource: str, namespace: str, name: str, preconditions: Raw) -> None:
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": "Background",
        }
        try:
            await self._kube.call("delete", group, resource, namespace, name, body=options)
        except ClusterUnavailable as error:
            if error.code != "NotFound":
                raise

    async def _list(
        self, group: str, resource: str, namespace: str = "", *, query: Mapping[str, Any] | None = None
    ) -> list[Raw]:
        return [raw async for raw in self._kube.list_raw(group, resource, namespace, query=query)]
