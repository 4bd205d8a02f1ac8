"""Who uses a shared claim, and why its Jobs do not go on: read off Pods, workloads and Events. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aimodels_core import names
from aimodels_core.api import CLUSTER_MODEL, MODEL, Kind
from aimodels_operator.sharedpvc_values import Trouble, Use

Raw = Mapping[str, Any]
ClaimName = Callable[[Kind, str], str]

_ENDED = ("Succeeded", "Failed")
_ANNOTATIONS = ((names.ANNOTATION_MODEL, MODEL), (names.ANNOTATION_CLUSTER_MODEL, CLUSTER_MODEL))
# Why a container waits that will not start by itself soon (kubelet: pkg/kubelet/images/types.go, kuberuntime).
_STUCK = ("BackOff", "Err", "Invalid", "CreateContainer", "RunContainerError")
_MAX_WORDS = 500


def is_quota(words: str) -> bool:
    """Say whether a refusal is a quota's (Kubernetes: plugin/resourcequota/controller.go: exceeded, failed).

    >>> is_quota('pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2')
    True
    """
    return "exceeded quota" in words or "failed quota" in words


def trouble_of(words: str, again_at: float = 0.0) -> Trouble:
    """Make a trouble of somebody's words."""
    return Trouble(words[:_MAX_WORDS], is_quota(words), again_at)


def use_of_pods(claim: str, pods: Iterable[Raw]) -> Use:
    """Say what Pods have of a claim; those that have ended have nothing of it."""
    referred, digests = False, set[str]()
    for pod in pods:
        volumes = pod.get("spec", {}).get("volumes") or ()
        if pod.get("status", {}).get("phase") in _ENDED or not any(_claim_of(volume) == claim for volume in volumes):
            continue
        referred = True
        notes = pod["metadata"].get("annotations") or {}
        found = {str(value) for key, value in notes.items() if key.startswith(names.ANNOTATION_RESOLVED_DIGEST)}
        digests |= found
    return Use(referred, frozenset(digests))


def refers(workload: Raw, claim: str, claim_name: ClaimName) -> bool:
    """Say whether a workload will make Pods that mount a claim: its annotations, or those of its Pods, say so."""
    conditions = (workload.get("status") or {}).get("conditions") or ()
    if any(one.get("type") in ("Complete", "Failed") and one.get("status") == "True" for one in conditions):
        return False  # a Job that has ended
    spec = workload.get("spec") or {}
    template = spec.get("template") or ((spec.get("jobTemplate") or {}).get("spec") or {}).get("template") or {}
    for meta in (workload["metadata"], template.get("metadata") or {}):
        notes = meta.get("annotations") or {}
        for annotation, kind in _ANNOTATIONS:
            listed = (name.strip() for name in str(notes.get(annotation) or "").split(","))
            if any(claim_name(kind, name) == claim for name in listed if name):
                return True
    return False


def trouble_of_pod(pod: Raw) -> Trouble | None:
    """Say why a Job's Pod does not go on, or has failed, as far as its status tells."""
    status = pod.get("status") or {}
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return trouble_of(f"{one.get('reason', '')}: {one.get('message', '')}")
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        reason = str(waiting.get("reason", ""))
        if any(word in reason for word in _STUCK):
            return trouble_of(f"{reason}: {waiting.get('message', '')}")
        if ended.get("exitCode"):
            said = str(ended.get("message") or ended.get("reason") or "").strip().splitlines()
            return trouble_of(f"exit code {ended['exitCode']}: {said[-1] if said else ''}")
    return None


def is_waiting(pod: Raw) -> bool:
    """Say whether a Pod is on a node and has not started."""
    status = pod.get("status") or {}
    return status.get("phase") == "Pending" and bool((pod.get("spec") or {}).get("nodeName"))


def last_warning(events: Iterable[Raw]) -> str:
    """Take the words of the newest warning; empty when there is none."""
    found = [one for one in events if one.get("type") == "Warning"]
    newest = max(found, key=_when, default=None)
    return f"{newest.get('reason', '')}: {newest.get('message', '')}"[:_MAX_WORDS] if newest is not None else ""


def _when(event: Raw) -> str:
    times = (event.get("lastTimestamp"), event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    return str(next(filter(None, times), ""))[:19]


def _claim_of(volume: Raw) -> str:
    return str((volume.get("persistentVolumeClaim") or {}).get("claimName", ""))
