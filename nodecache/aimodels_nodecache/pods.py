"""Pods as the API server has them: two reads with the token of this process's ServiceAccount, each bounded.

No Kubernetes client: it alone would cost as much memory as this process may have.
"""

import asyncio
import dataclasses
import json
import ssl
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from aimodels_core import names
from aimodels_core.errors import ClusterUnavailable, UsageError
from aimodels_core.watched import Followed, Secret, read_bytes
from aimodels_nodecache.grants import LivePod

GET_SECONDS = 4.0
_LIST_SECONDS = 30.0
_MAX_BYTES = 4 * 1024 * 1024
_PAGE = 250
_MAX_PAGES = 64
_CONNECTIONS = 4
_NAMES_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """How the API server is reached.

    Args:
        url: https://<host>:<port>.
        token: file of a ServiceAccount's token, followed.
        authority: file of the authority of its certificate, followed.
    """

    url: str
    token: Path
    authority: Path


class Pods:
    """Reads Pods; to be made and closed in the loop that uses it.

    Args:
        access: how the API server is reached.

    Raises:
        UsageError: a file that cannot be used.
    """

    def __init__(self, access: Access) -> None:
        self._url = access.url.rstrip("/")
        self._token = Secret(access.token)
        self._tls = Followed((access.authority,), lambda: _trusting(access.authority))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS), auto_decompress=False, trust_env=False
        )
        self.calls: Counter[tuple[str, int]] = Counter()

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def get(self, namespace: str, name: str) -> LivePod | None:
        """Read a Pod; None when there is none. Its name and namespace are DNS names.

        Raises:
            ClusterUnavailable: codes Unanswered, Refused.
        """
        found = await self._read("get", f"/api/v1/namespaces/{namespace}/pods/{name}", {}, GET_SECONDS)
        return None if found is None else _live(found)

    async def uids_on(self, node: str) -> frozenset[str]:
        """Return the uids of all Pods that are bound to a node.

        Raises:
            ClusterUnavailable: codes Unanswered, Refused.
        """
        uids, query = set[str](), {"fieldSelector": f"spec.nodeName={node}", "limit": str(_PAGE)}
        until = time.monotonic() + _LIST_SECONDS
        for _ in range(_MAX_PAGES):
            page = await self._read("list", "/api/v1/pods", query, max(0.1, until - time.monotonic())) or {}
            try:
                uids |= {str(one["metadata"]["uid"]) for one in page["items"] or ()}
                following = str(page["metadata"].get("continue") or "")
            except (KeyError, TypeError, AttributeError) as error:
                raise ClusterUnavailable("pods: want a list, got something else", code="Refused") from error
            if not following:
                return frozenset(uids)
            query["continue"] = following
        raise ClusterUnavailable(f"pods: want at most {_PAGE * _MAX_PAGES} on a node", code="Refused")

    async def block_devices(self) -> list[Mapping[str, Any]]:
        """Return all BlockDevice objects with our label; none where there is no such kind.

        Raises:
            ClusterUnavailable: codes Unanswered, Refused.
        """
        query = {"labelSelector": f"{names.LABEL_CACHE}=true"}
        found = await self._read("find", "/apis/storage.deckhouse.io/v1alpha1/blockdevices", query, _LIST_SECONDS) or {}
        items = found.get("items") if isinstance(found, dict) else None
        return [one for one in items or () if isinstance(one, dict)]

    async def _read(self, verb: str, path: str, query: Mapping[str, str], seconds: float) -> Any:
        """Read an object; None for 404."""
        status = 0
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.get(
                    self._url + path,
                    params=query,
                    headers=self._headers(verb),
                    ssl=self._trust(),
                    allow_redirects=False,
                ) as answer,
            ):
                status = answer.status
                data = await _whole(answer) if status == 200 else b""
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            words = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
            raise ClusterUnavailable(f"{verb} pods: {words}", code="Unanswered") from error
        finally:
            self.calls[verb, status] += 1
        if status == 404:
            return None
        if status != 200:
            code = "Unanswered" if status >= 500 or status == 429 else "Refused"
            raise ClusterUnavailable(f"{verb} pods: HTTP {status}", code=code)
        try:
            return json.loads(data)
        except ValueError as error:
            raise ClusterUnavailable(f"{verb} pods: want JSON, got something else", code="Refused") from error

    def _headers(self, verb: str) -> dict[str, str]:
        self._token.refresh()
        accept = _NAMES_ONLY if verb == "list" else "application/json"
        return {"Accept": accept, "Authorization": f"Bearer {self._token()}"}

    def _trust(self) -> ssl.SSLContext:
        self._tls.refresh()
        return self._tls()


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for chunk in answer.content.iter_any():
        data += chunk
        if len(data) > _MAX_BYTES:
            raise ClusterUnavailable(f"pods: want at most {_MAX_BYTES} bytes", code="Refused")
    return bytes(data)


def _live(found: Mapping[str, Any]) -> LivePod:
    try:
        meta, spec = found["metadata"], found["spec"]
        resolved = (meta.get("annotations") or {}).get(names.ANNOTATION_RESOLVED_MODELS)
        return LivePod(
            uid=str(meta["uid"]),
            node=str(spec.get("nodeName") or ""),
            deleting="deletionTimestamp" in meta,
            resolved=None if resolved is None else str(resolved),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ClusterUnavailable("get pods: want a Pod, got something else", code="Refused") from error


def _trusting(authority: Path) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=read_bytes(authority).decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"{authority}: want certificates, got {type(error).__name__}", code="Tls") from error
    # From 3.13 on Python also wants extensions that authorities of clusters lack.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
