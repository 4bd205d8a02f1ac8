"""The calls at the API server about Pods that models are delivered to: their owners, their nodes, and themselves.

What to write, and when, is decided elsewhere; nothing is retried here. Every call names a verb that `rules` has.
"""

import datetime
from collections.abc import Mapping
from typing import Any

from aimodels_core import names
from aimodels_core.api import Kind, ModelObject
from aimodels_core.errors import ClusterUnavailable
from aimodels_operator.kube import Kube, Raw
from aimodels_operator.placement import Node
from aimodels_operator.pods import Named, Owner, Pod, controller_of, own_annotations

_STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
_METADATA = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}
_FROM_CACHE = {"resourceVersion": "0"}
_RESOURCES = {
    ("apps", "Deployment"): "deployments",
    ("apps", "ReplicaSet"): "replicasets",
    ("apps", "StatefulSet"): "statefulsets",
    ("apps", "DaemonSet"): "daemonsets",
    ("batch", "Job"): "jobs",
    ("batch", "CronJob"): "cronjobs",
    ("", "Pod"): "pods",
}


class PodCalls:
    """Calls about Pods and what is around them.

    Args:
        kube: the API server.
    """

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def pods(self) -> list[Raw]:
        """Read all Pods that models are delivered to.

        Raises:
            ClusterUnavailable.
        """
        query = {"labelSelector": f"{names.LABEL_DELIVERY}=true"}
        return [raw async for raw in self._kube.list_raw("", "pods", query=query)]

    async def pod(self, namespace: str, name: str) -> Raw:
        """Read a Pod.

        Raises:
            ClusterUnavailable: code NotFound among others.
        """
        return await self._kube.call("get", "", "pods", namespace, name)

    async def model(self, named: Named) -> ModelObject | None:
        """Read a Model; None when there is none.

        Raises:
            ClusterUnavailable.
        """
        kind: Kind = named.kind
        try:
            return await self._kube.get_model(kind, named.namespace, named.name)
        except ClusterUnavailable as error:
            if error.code == "NotFound":
                return None
            raise

    async def nodes(self) -> tuple[Node, ...]:
        """Read the nodes that carry our label, and the drivers that kubelet knows there.

        Raises:
            ClusterUnavailable.
        """
        drivers: dict[str, list[str]] = {}
        for raw in (await self._kube.call("list", "storage.k8s.io", "csinodes", query=_FROM_CACHE))["items"]:
            listed = (raw.get("spec") or {}).get("drivers") or ()
            drivers[raw["metadata"]["name"]] = [str(one.get("name", "")) for one in listed]
        query = {**_FROM_CACHE, "labelSelector": f"{names.LABEL_CACHE}=true"}
        found = (await self._kube.call("list", "", "nodes", query=query))["items"]
        return tuple(Node.from_raw(raw, drivers.get(raw["metadata"]["name"], ())) for raw in found)

    async def let_go(self, pod: Pod, patch: Mapping[str, Any]) -> Raw:
        """Patch exactly the version of a Pod that was looked at, by a strategic merge patch.

        Raises:
            ClusterUnavailable: code Conflict when it has changed since.
        """
        return await self._kube.call("patch", "", "pods", pod.namespace, pod.name, body=dict(patch), headers=_STRATEGIC)

    async def delete(self, pod: Pod) -> None:
        """Delete exactly the version of a Pod that was looked at.

        Raises:
            ClusterUnavailable: code Conflict when it has changed since.
        """
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": pod.uid, "resourceVersion": pod.version},
        }
        await self._kube.call("delete", "", "pods", pod.namespace, pod.name, body=options)

    async def owner(self, owner: Owner) -> tuple[Owner, Owner | None] | None:
        """Read annotations and controller of an owner; None when it is gone, another one, or of a kind we do not know.

        Raises:
            ClusterUnavailable.
        """
        group, resource = _resource(owner)
        if not resource:
            return None
        try:
            raw = await self._kube.call("get", group, resource, owner.namespace, owner.name, headers=_METADATA)
        except ClusterUnavailable as error:
            if error.code == "NotFound":
                return None
            raise
        meta = raw["metadata"]
        if meta.get("uid") != owner.uid:
            return None
        made = Owner(owner.api_version, owner.kind, owner.namespace, owner.name, owner.uid, own_annotations(meta))
        return made, controller_of(meta, owner.namespace)

    async def annotate(self, owner: Owner, changes: Mapping[str, str | None]) -> None:
        """Change annotations of an object, if it is still the same one.

        Raises:
            ClusterUnavailable: codes Conflict, NotFound among others.
        """
        group, resource = _resource(owner)
        body = {"metadata": {"uid": owner.uid, "annotations": dict(changes)}}
        await self._kube.call("patch", group, resource, owner.namespace, owner.name, body=body)

    async def outdated(self, pod: Pod) -> bool:
        """Say whether the Pod's StatefulSet would make it anew by another revision.

        Raises:
            ClusterUnavailable.
        """
        owner = pod.owner
        if owner is None or owner.kind != "StatefulSet" or not pod.revision:
            return False
        try:
            raw = await self._kube.call("get", "apps", "statefulsets", pod.namespace, owner.name)
        except ClusterUnavailable as error:
            if error.code == "NotFound":
                return False
            raise
        return raw["metadata"].get("uid") == owner.uid and _would_change(pod, raw)

    async def post(self, about: Owner, note: tuple[str, str, str], at: datetime.datetime) -> None:
        """Post an Event.

        Args:
            about: what it is about.
            note: type (`Normal`, `Warning`), reason, message.
            at: aware.

        Raises:
            ClusterUnavailable.
        """
        found = {"apiVersion": about.api_version, "kind": about.kind, "name": about.name, "uid": about.uid}
        await self._kube.post_about({**found, "namespace": about.namespace}, "Deliver", note, at)


def _resource(owner: Owner) -> tuple[str, str]:
    group = owner.api_version.partition("/")[0] if "/" in owner.api_version else ""
    return group, _RESOURCES.get((group, owner.kind), "")


def _would_change(pod: Pod, raw: Raw) -> bool:
    """Compare revisions (Kubernetes: stateful_set_utils.go, newVersionedStatefulSetPod): not below the partition."""
    status, spec = raw.get("status") or {}, raw.get("spec") or {}
    wanted = str(status.get("updateRevision") or "")
    if not wanted or status.get("observedGeneration") != raw["metadata"].get("generation") or wanted == pod.revision:
        return False
    strategy = spec.get("updateStrategy") or {}
    partition = int((strategy.get("rollingUpdate") or {}).get("partition") or 0)
    ordinal = pod.name.rpartition("-")[2]
    first = int((spec.get("ordinals") or {}).get("start") or 0)
    return strategy.get("type") == "OnDelete" or (ordinal.isdigit() and int(ordinal) >= first + partition)
