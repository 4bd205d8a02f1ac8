"""An administrator's client of the stand's API server: many objects fast, and a watch that remembers every version."""

import dataclasses
import itertools
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import urllib3
from kubernetes import client

from aimodels_operator import kube

MODELS = "/apis/ai.deckhouse.io/v1alpha1"
_THREADS = 12
_SECONDS = 60.0
_PAGE = 500

Object = dict[str, Any]


class AdminError(RuntimeError):
    """The API server refused; the message has its words."""


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A version of an object, as a watch told of it at a time (monotonic seconds)."""

    at: float
    uid: str
    status: Mapping[str, Any]


class Admin:
    """Calls by path.

    Args:
        kubeconfig: of an administrator.
    """

    def __init__(self, kubeconfig: str) -> None:
        found = kube.configuration(kubeconfig)
        found.connection_pool_maxsize = 2 * _THREADS
        self._pool: urllib3.PoolManager = client.ApiClient(found).rest_client.pool_manager
        self._host: str = found.host

    def call(self, method: str, path: str, body: Object | None = None) -> Object:
        """Make a call; a PATCH is a merge patch.

        Raises:
            AdminError.
        """
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind}
        answer = self._pool.request(method, self._host + path, body=data, headers=headers, timeout=_SECONDS)
        found: Object = json.loads(answer.data)
        if answer.status >= 300:
            raise AdminError(f"{method} {path}: status {answer.status}: {found.get('message')}")
        return found

    def each(self, calls: Iterable[tuple[str, str, Object | None]]) -> None:
        """Make many calls, as fast as the API server takes them."""
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(lambda words: self.call(*words), calls):
                pass

    def items(self, path: str) -> Iterator[Object]:
        """All objects of a collection, page by page."""
        following = ""
        while True:
            query = urllib.parse.urlencode({"limit": _PAGE, "continue": following})
            page = self.call("GET", f"{path}?{query}")
            yield from page["items"]
            following = page["metadata"].get("continue", "")
            if not following:
                return

    def versions(self, path: str) -> dict[str, str]:
        """Resource versions of a collection by uid."""
        return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in self.items(path)}

    def watch(self, path: str) -> "Watch":
        """Begin to watch a collection."""
        since = self.call("GET", f"{path}?limit=1")["metadata"]["resourceVersion"]
        url = f"{self._host}{path}?watch=1&resourceVersion={since}"
        return Watch(lambda: self._pool.request("GET", url, preload_content=False, timeout=urllib3.Timeout(_SECONDS)))


class Watch:
    """What changed in a collection since; the answer is read in a thread until `stop`."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        self.changes: list[Change] = []
        self._answer = opened()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="watch")
        self._thread.start()

    def stop(self) -> list[Change]:
        """End it, and return all that changed.

        Raises:
            AdminError: it had ended by itself, so that changes may be missing.
        """
        if not self._thread.is_alive():
            raise AdminError("watch: want it to last, got its end")
        self._stopping = True
        return list(self.changes)

    def _run(self) -> None:
        rest = b""
        for piece in self._answer.stream(1 << 16):
            at = time.monotonic()
            *lines, rest = (rest + piece).split(b"\n")
            for event in map(json.loads, lines):
                found = event["object"]
                self.changes.append(Change(at, found["metadata"]["uid"], found.get("status") or {}))
            if self._stopping:
                self._answer.close()
                return


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """A change of a status: of which object, when, and whether only numbers of its progress are new."""

    at: float
    uid: str
    progress: bool


def writes(changes: Iterable[Change]) -> list[Write]:
    """What was written to statuses, in order.

    >>> moved = {"phase": "Publishing", "progress": "1%"}
    >>> seen = [Change(0, "u", {}), Change(1, "u", moved), Change(2, "u", moved | {"progress": "2%"})]
    >>> [(write.at, write.progress) for write in writes(seen)]
    [(1, False), (2, True)]
    """
    found: list[Write] = []
    before: dict[str, Mapping[str, Any]] = {}
    for change in changes:
        old = before.get(change.uid, {})
        if change.status != old:
            found.append(Write(change.at, change.uid, _gist(change.status) == _gist(old)))
        before[change.uid] = change.status
    return found


def most_in(times: Iterable[float], seconds: float) -> int:
    """Most events in any window of so many seconds.

    >>> most_in([0.0, 0.5, 0.9, 1.2, 5.0], 1.0)
    3
    """
    ordered = sorted(times)
    most = first = 0
    for last, at in enumerate(ordered):
        while at - ordered[first] >= seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


def shortest_gap(found: Iterable[Write]) -> float:
    """Shortest time between a write of progress and the write to the same object before it."""
    pairs = (pair for each in _by_object(found) for pair in itertools.pairwise(each))
    return min((after.at - before.at for before, after in pairs if after.progress), default=float("inf"))


def most_progress(found: Iterable[Write]) -> float:
    """Writes of progress of one object for each 5 s of its publication, those of the object with most."""
    shares = (
        sum(write.progress for write in each) / (int((each[-1].at - each[0].at) / 5.0) + 1)
        for each in _by_object(found)
    )
    return max(shares, default=0.0)


def _by_object(found: Iterable[Write]) -> Iterable[list[Write]]:
    by_object: dict[str, list[Write]] = {}
    for write in found:
        by_object.setdefault(write.uid, []).append(write)
    return by_object.values()


def _gist(status: Mapping[str, Any]) -> tuple[object, ...]:
    conditions = [(c["type"], c["status"], c["reason"]) for c in status.get("conditions", ())]
    return status.get("phase"), status.get("artifact"), status.get("source"), conditions
