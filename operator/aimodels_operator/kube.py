"""The calls at the Kubernetes API that the informer does not make: patches, Secrets, Events, leases, full lists.

The official client supplies addresses, certificates and tokens; calls block and run in threads. Every call names a verb
that `rules` has. What to write, and when, is decided elsewhere; nothing is retried here.
"""

import asyncio
import base64
import concurrent.futures
import datetime
import json
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

from aimodels_core import api, names
from aimodels_core.api import Kind, ModelObject
from aimodels_core.errors import ClusterUnavailable, UsageError
from aimodels_operator import rules

_MAX_BYTES = 32 * 1024 * 1024
_MAX_WORDS = 500
_MAX_NOTE = 1000
_TIMEOUT_SECONDS = 15.0
_THREADS = 16
_LEASE_THREADS = 3
"""A renewal is given up after 7 s, its call only after 15 s."""
_PAGE = 500
_COMPONENT = "ai-models"
_MERGE = "application/merge-patch+json"
_JSON = "application/json"
_VERBS = {"get": "GET", "list": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
_CODES = {403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Gone", 422: "Refused"}

Raw = dict[str, Any]


def configuration(kubeconfig: str) -> client.Configuration:
    """Find out how the API server is reached: a kubeconfig file, or the ServiceAccount of this Pod when it is empty.

    Raises:
        UsageError: neither is usable.
    """
    found = client.Configuration()
    try:
        if kubeconfig:
            config.load_kube_config(  # type: ignore[no-untyped-call] # the client has no types here
                kubeconfig, client_configuration=found, persist_config=False
            )
        else:
            config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call] # no types
    except (ConfigException, OSError) as error:
        raise UsageError(f"Kubernetes: want a kubeconfig or a ServiceAccount, got: {error}") from error
    found.connection_pool_maxsize = _THREADS + _LEASE_THREADS
    return found


class Kube:
    """A client of one API server.

    Args:
        found: how it is reached.
    """

    def __init__(self, found: client.Configuration) -> None:
        self._client = client.ApiClient(found)
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, "kube")
        self._for_leases = concurrent.futures.ThreadPoolExecutor(_LEASE_THREADS, "lease")
        self.calls: dict[tuple[str, str, int], int] = {}

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._for_leases.shutdown(wait=False, cancel_futures=True)

    async def list_models(self, kind: Kind, *, page_size: int = _PAGE) -> AsyncIterator[ModelObject]:
        """Read all objects of a kind, page by page.

        Raises:
            ClusterUnavailable.
        """
        async for raw in self.list_raw(names.GROUP, kind.plural, page_size=page_size):
            yield ModelObject.from_raw(kind, raw)

    async def get_model(self, kind: Kind, namespace: str, name: str) -> ModelObject:
        """Read one object.

        Raises:
            ClusterUnavailable: code NotFound among others.
        """
        return ModelObject.from_raw(kind, await self.call("get", names.GROUP, kind.plural, namespace, name))

    async def patch_status(self, model: ModelObject, patch: Mapping[str, Any]) -> ModelObject:
        """Merge into the status of exactly the version of the object that was looked at.

        Raises:
            ClusterUnavailable: code Conflict when it has changed since.
        """
        body = {"metadata": {"resourceVersion": model.resource_version}, "status": patch}
        where = (model.kind.plural + "/status", model.namespace, model.name)
        return ModelObject.from_raw(model.kind, await self.call("patch", names.GROUP, *where, body=body))

    async def set_finalizers(self, model: ModelObject, finalizers: tuple[str, ...]) -> ModelObject:
        """Replace the finalizers of exactly the version of the object that was looked at.

        Raises:
            ClusterUnavailable.
        """
        meta = {"resourceVersion": model.resource_version, "finalizers": list(finalizers)}
        where = (model.kind.plural, model.namespace, model.name)
        raw = await self.call("patch", names.GROUP, *where, body={"metadata": meta})
        return ModelObject.from_raw(model.kind, raw)

    async def read_secret(self, namespace: str, name: str) -> dict[str, str]:
        """Read the values of a Secret; those that are not text are left out.

        Raises:
            ClusterUnavailable: codes NotFound, Forbidden among others; the message has no value.
        """
        return texts_of(await self.call("get", "", "secrets", namespace, name))

    async def get_secret(self, namespace: str, name: str) -> Raw | None:
        """Read a Secret; None when there is none.

        Raises:
            ClusterUnavailable: code Forbidden among others; the message has no value.
        """
        try:
            return await self.call("get", "", "secrets", namespace, name)
        except ClusterUnavailable as error:
            if error.code == "NotFound":
                return None
            raise

    async def put_secret(self, secret: Raw) -> Raw:
        """Create a Secret, or replace exactly the version that `secret` names.

        Raises:
            ClusterUnavailable: codes Conflict when somebody was faster, Forbidden among others.
        """
        meta = secret["metadata"]
        if meta.get("resourceVersion"):
            return await self.call("update", "", "secrets", meta["namespace"], meta["name"], body=secret)
        return await self.call("create", "", "secrets", meta["namespace"], body=secret)

    async def post_event(self, model: ModelObject, note: tuple[str, str, str], at: datetime.datetime) -> None:
        """Post an Event about an object.

        Args:
            model: what it is about.
            note: type (`Normal`, `Warning`), reason, message.
            at: aware.

        Raises:
            ClusterUnavailable.
        """
        about = {"apiVersion": api.API_VERSION, "kind": model.kind.name, "name": model.name, "uid": model.uid}
        if model.namespace:
            about["namespace"] = model.namespace
        await self.post_about(about, "Publish", note, at)

    async def post_about(
        self, about: Mapping[str, str], action: str, note: tuple[str, str, str], at: datetime.datetime
    ) -> None:
        """Post an Event about any object.

        Args:
            about: apiVersion, kind, name, uid, and namespace if it has one.
            action: what was done or tried.
            note: type (`Normal`, `Warning`), reason, message.
            at: aware.

        Raises:
            ClusterUnavailable.
        """
        kind, reason, message = note
        namespace = about.get("namespace") or "default"
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{about['name'][:200].rstrip('.-')}-", "namespace": namespace},
            "eventTime": at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": f"{names.GROUP}/{_COMPONENT}",
            "reportingInstance": _COMPONENT,
            "action": action,
            "reason": reason,
            "note": message[:_MAX_NOTE],
            "type": kind,
            "regarding": dict(about),
        }
        await self.call("create", "events.k8s.io", "events", namespace, body=body)

    async def get_lease(self, namespace: str, name: str) -> Raw | None:
        """Read a lease; None when there is none.

        Raises:
            ClusterUnavailable.
        """
        try:
            return await self.call("get", "coordination.k8s.io", "leases", namespace, name)
        except ClusterUnavailable as error:
            if error.code == "NotFound":
                return None
            raise

    async def put_lease(self, namespace: str, name: str, lease: Raw) -> Raw:
        """Create a lease, or replace exactly the version that `lease` names.

        Raises:
            ClusterUnavailable: code Conflict when somebody was faster.
        """
        if lease["metadata"].get("resourceVersion"):
            return await self.call("update", "coordination.k8s.io", "leases", namespace, name, body=lease)
        return await self.call("create", "coordination.k8s.io", "leases", namespace, body=lease)

    async def review_token(self, token: str, audience: str) -> Raw:
        """Ask whose token this is; returns the status of the review.

        Raises:
            ClusterUnavailable: code Forbidden among others; the message has no token.
        """
        spec = {"token": token, "audiences": [audience]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        found = await self.call("create", "authentication.k8s.io", "tokenreviews", body=body)
        return found["status"] if isinstance(found.get("status"), dict) else {}

    async def list_raw(
        self,
        group: str,
        resource: str,
        namespace: str = "",
        *,
        query: Mapping[str, str] | None = None,
        page_size: int = _PAGE,
    ) -> AsyncIterator[Raw]:
        """Read all objects of a resource, page by page, in a namespace or in all.

        Raises:
            ClusterUnavailable.
        """
        query = {"limit": str(page_size), **(query or {})}
        while True:
            page = await self.call("list", group, resource, namespace, query=query)
            for raw in page.get("items") or ():
                yield raw
            token = page.get("metadata", {}).get("continue", "")
            if not token:
                return
            query["continue"] = token

    async def call(
        self,
        verb: str,
        group: str,
        resource: str,
        namespace: str = "",
        name: str = "",
        *,
        body: Raw | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Raw:
        """Make a call that `rules` has, for modules beside this one that know more kinds.

        Args:
            verb: of Kubernetes; a patch is a merge patch.
            group: of the resource; empty for the core.
            resource: plural, `/subresource` may follow.
            namespace: empty for none.
            name: empty for the collection.
            body: the object, the patch, or options of a deletion.
            query: parameters.
            headers: instead of our usual ones, such as the type of a patch that is no merge patch.

        Raises:
            ClusterUnavailable: codes Conflict, NotFound, Forbidden, Gone, Refused, Unanswered.
        """
        if not rules.allowed(group, resource, verb, name):
            raise ValueError(f"{verb} {resource}.{group}: want a verb of rules.py")
        path = _path(group, resource, namespace, name) + (f"?{urllib.parse.urlencode(query)}" if query else "")
        loop = asyncio.get_running_loop()
        # A renewal never waits for a thread behind other calls: while they are slow is when it matters.
        pool = self._for_leases if resource == "leases" else self._pool
        status, data = await loop.run_in_executor(pool, self._exchange, verb, path, body, headers)
        key = (verb, resource, status)
        self.calls[key] = self.calls.get(key, 0) + 1
        what = f"{verb} {resource} {namespace}/{name}".rstrip("/")
        return _answer(status, data, what)

    def _exchange(self, verb: str, path: str, body: Raw | None, more: Mapping[str, str] | None) -> tuple[int, bytes]:
        """Make one request, in a thread; status 0 and the words of the error when there was no answer."""
        headers = {"Accept": _JSON, "User-Agent": _COMPONENT}
        if body is not None:
            headers["Content-Type"] = _MERGE if verb == "patch" else _JSON
        headers |= more or {}
        self._client.update_params_for_auth(headers, [], ["BearerToken"], path, _VERBS[verb], body)
        try:
            answer = self._client.rest_client.pool_manager.request(
                _VERBS[verb],
                self._client.configuration.host + path,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(total=_TIMEOUT_SECONDS),
                retries=False,
                preload_content=False,
            )
            try:
                return answer.status, answer.read(_MAX_BYTES + 1)
            finally:
                answer.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return 0, f"{type(error).__name__}: {error}".encode()


def texts_of(secret: Raw) -> dict[str, str]:
    """The values of a Secret; those that are not text are left out."""
    found: dict[str, str] = {}
    for key, value in (secret.get("data") or {}).items():
        try:
            found[key] = base64.b64decode(value, validate=True).decode()
        except ValueError:
            continue
    return found


def _path(group: str, resource: str, namespace: str, name: str) -> str:
    """Render the path of an object or a collection; a subresource is written `resource/subresource`."""
    version = api.VERSION if group == names.GROUP else "v1"
    plural, _, subresource = resource.partition("/")
    parts = ["apis", group, version] if group else ["api", version]
    parts += ["namespaces", namespace] if namespace else []
    parts += [plural, *([name] if name else []), *([subresource] if subresource else [])]
    return "/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)


def _answer(status: int, data: bytes, what: str) -> Raw:
    if status == 0:
        raise ClusterUnavailable(
            f"{what}: no answer: {data.decode('utf-8', 'replace')[:_MAX_WORDS]}", code="Unanswered"
        )
    try:
        raw = json.loads(data) if len(data) <= _MAX_BYTES else None
    except ValueError:
        raw = None
    if not isinstance(raw, dict):
        raise ClusterUnavailable(
            f"{what}: want a JSON object, got status {status} and {len(data)} bytes", code="Unanswered"
        )
    if 200 <= status < 300:
        return raw
    words = str(raw.get("message", ""))[:_MAX_WORDS]
    raise ClusterUnavailable(f"{what}: status {status}: {words}", code=_CODES.get(status, "Unanswered"))
