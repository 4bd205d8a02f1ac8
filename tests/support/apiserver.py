"""An API server that keeps objects, as far as our calls need one: lists by label, and what changes single objects.

Source: Kubernetes API conventions: "Verbs on Resources", "Concurrency Control and Consistency"; RFC 7396; for strategic
merge patches "Update API Objects in Place Using kubectl patch": of those only entries that are deleted by their names.
"""

import contextlib
import dataclasses
import itertools
import json
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kubernetes import client

from aimodels_operator.kube import Kube
from tests.support.scripted import Call, Reply, serve

Object = dict[str, Any]


@dataclasses.dataclass(slots=True)
class ApiServer:
    """Objects by resource, namespace and name.

    Args:
        objects: what there is.
        refuse: returns the words of a 403 for a call, or nothing.
        invalid: names of objects whose changes get a 422.
        budget_spent: whether evictions get a 429.
    """

    objects: dict[tuple[str, str, str], Object] = dataclasses.field(default_factory=dict)
    refuse: Callable[[str, str], str] = lambda _method, _resource: ""
    invalid: set[str] = dataclasses.field(default_factory=set)
    budget_spent: bool = False
    _versions: Iterator[int] = dataclasses.field(default_factory=lambda: itertools.count(1))

    def put(self, resource: str, content: Mapping[str, Any]) -> Object:
        """Have an object, without asking."""
        meta = {
            "namespace": "",
            "uid": str(uuid.uuid4()),
            **content["metadata"],
            "resourceVersion": str(next(self._versions)),
        }
        made = {**content, "metadata": meta}
        self.objects[resource, meta["namespace"], meta["name"]] = made
        return made

    def change(self, resource: str, namespace: str, name: str, patch: Mapping[str, Any]) -> Object:
        """Change an object, as a controller would."""
        return self.put(resource, merged(self.objects[resource, namespace, name], patch))

    def all(self, resource: str) -> list[Object]:
        """All objects of a resource."""
        return [content for (kind, _, _), content in sorted(self.objects.items()) if kind == resource]

    def __call__(self, call: Call) -> Reply:
        """Answer a request."""
        path, _, query = call.path.partition("?")
        namespace, resource, name = _parts(path)
        body = json.loads(call.body) if call.body else {}
        if words := self.refuse(call.method, resource):
            return _status(403, words)
        if name in self.invalid and call.method != "GET":
            return _status(422, "not valid")
        if call.method == "GET" and not name:
            return self._list(resource, namespace, urllib.parse.parse_qs(query))
        if call.method == "POST" and path.endswith("/eviction"):
            return _status(429, "the budget") if self.budget_spent else self._evicted(namespace, name)
        if call.method == "POST":
            body["metadata"].setdefault("name", f"{body['metadata'].get('generateName', '')}{next(self._versions)}")
            if (resource, namespace, body["metadata"]["name"]) in self.objects:
                return _status(409, "already exists")
            return _reply(201, self.put(resource, {**body, "metadata": {**body["metadata"], "namespace": namespace}}))
        found = self.objects.get((resource, namespace, name))
        if found is None:
            return _status(404, "not found")
        if call.method == "DELETE":
            return self._delete(resource, found, body.get("preconditions") or {})
        if call.method == "PUT":
            if body["metadata"].get("resourceVersion") not in (None, found["metadata"]["resourceVersion"]):
                return _status(409, "the object has been modified")
            return _reply(200, self.put(resource, {**body, "metadata": {**found["metadata"], **body["metadata"]}}))
        if call.method == "PATCH":
            wanted = body.get("metadata", {}).get("resourceVersion")
            if wanted not in (None, found["metadata"]["resourceVersion"]):
                return _status(409, "the object has been modified")
            if "strategic" in call.headers.get("content-type", ""):
                body = _by_name(found, body)
            return _reply(200, self.put(resource, merged(found, body)))
        return _reply(200, found)

    def _list(self, resource: str, namespace: str, query: Mapping[str, list[str]]) -> Reply:
        wanted = dict(word.split("=") for word in query.get("labelSelector", [""])[0].split(",") if word)
        fields = dict(word.split("=") for word in query.get("fieldSelector", [""])[0].split(",") if word)
        items = [one for one in self.all(resource) if not namespace or one["metadata"]["namespace"] == namespace]
        items = [one for one in items if wanted.items() <= (one["metadata"].get("labels") or {}).items()]
        if name := fields.get("involvedObject.name"):
            items = [one for one in items if one["involvedObject"]["name"] == name]
        return _reply(200, {"kind": "List", "metadata": {}, "items": items})

    def _evicted(self, namespace: str, name: str) -> Reply:
        found = self.objects.get(("pods", namespace, name))
        return self._delete("pods", found, {}) if found else _status(404, "not found")

    def _delete(self, resource: str, found: Object, preconditions: Mapping[str, str]) -> Reply:
        meta = found["metadata"]
        if any(meta.get(key) != value for key, value in preconditions.items()):
            return _status(409, "the precondition failed")
        if meta.get("finalizers"):
            self.put(resource, merged(found, {"metadata": {"deletionTimestamp": "2027-01-15T08:00:00Z"}}))
        else:
            del self.objects[resource, meta["namespace"], meta["name"]]
        return _reply(200, {"kind": "Status", "status": "Success"})


def _by_name(old: Any, patch: Any) -> Any:
    """Make a merge patch of a strategic one, over lists whose entries are deleted by their names."""
    if isinstance(patch, Mapping):
        kept = old if isinstance(old, Mapping) else {}
        return {key: _by_name(kept.get(key), value) for key, value in patch.items()}
    if isinstance(patch, list) and any(isinstance(one, Mapping) and one.get("$patch") == "delete" for one in patch):
        names = {one["name"] for one in patch}
        return [one for one in old or () if one["name"] not in names]
    return patch


def merged(old: Any, patch: Any) -> Any:
    """Merge a patch (RFC 7396, 2)."""
    if not isinstance(patch, Mapping):
        return patch
    kept = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = merged(kept.get(key), value)
    return kept


@contextlib.contextmanager
def api_server() -> Iterator[tuple[ApiServer, Kube]]:
    """Run one, with a client of it."""
    made = ApiServer()
    with serve(made) as server:
        configuration = client.Configuration()
        configuration.host = server.url
        kube = Kube(configuration)
        try:
            yield made, kube
        finally:
            kube.close()


def _parts(path: str) -> tuple[str, str, str]:
    """Namespace, resource and name of a path; empty where it has none."""
    parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return namespace, rest[0], rest[1] if len(rest) > 1 else ""


def _reply(status: int, content: Mapping[str, Any]) -> Reply:
    return Reply(status, json.dumps(content).encode(), (("Content-Type", "application/json"),))


def _status(status: int, words: str) -> Reply:
    return _reply(status, {"kind": "Status", "status": "Failure", "code": status, "message": words})
