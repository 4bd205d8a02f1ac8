"""Lean clients: `python -m perf.support.lean_client WAY HUB REPOSITORY REGISTRY NAME FOLDER`; no more than they must.

`sequential`: each file to disk, read again for its digest, sent to the registry. `relay`: four files at once from the
hub's socket through SHA-256 to the registry's socket. Both check the hub's digests; neither can resume.
"""

import hashlib
import http.client
import json
import socket
import sys
import urllib.parse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from perf.support.layout import LAYER_TYPE, MANIFEST_TYPE, descriptor, file_digest, manifest, scrap_memory

_RELAYS = 4


class Hub:
    """Just enough of the hub's API."""

    def __init__(self, url: str, repository: str) -> None:
        self._url = urllib.parse.urlsplit(url)
        self._repository = repository

    def files(self) -> list[tuple[str, int, str]]:
        """Path, size, and sha256 where the hub publishes it."""
        response = self._get(f"/api/models/{self._repository}/tree/main?recursive=true")
        rows: list[dict[str, Any]] = json.loads(response.read())
        return [(row["path"], row["size"], row.get("lfs", {}).get("oid", "")) for row in rows if row["type"] == "file"]

    def open(self, path: str) -> http.client.HTTPResponse:
        """The content of a file, one redirect followed."""
        response = self._get(f"/{self._repository}/resolve/main/{urllib.parse.quote(path)}")
        if response.status != 302:
            return response
        target = urllib.parse.urlsplit(response.headers["Location"])
        response.read()
        return _get(str(target.hostname), int(target.port or 80), f"{target.path}?{target.query}")

    def _get(self, target: str) -> http.client.HTTPResponse:
        return _get(str(self._url.hostname), int(self._url.port or 80), target)


def _get(host: str, port: int, target: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(host, port)
    connection.request("GET", target)
    return connection.getresponse()


class Registry:
    """Just enough of the distribution API (OCI distribution specification, "Pushing blobs monolithically")."""

    def __init__(self, url: str, name: str) -> None:
        self._url = urllib.parse.urlsplit(url)
        self._name = name

    def put_blob(self, digest: str, size: int, send: Callable[[socket.socket], None]) -> None:
        """Send a blob; `send` writes its bytes to the socket."""
        connection = http.client.HTTPConnection(str(self._url.hostname), int(self._url.port or 80))
        connection.request("POST", f"/v2/{self._name}/blobs/uploads/", headers={"Content-Length": "0"})
        begun = connection.getresponse()
        begun.read()
        place = urllib.parse.urlsplit(begun.headers["Location"])
        connection.putrequest("PUT", f"{place.path}?{place.query}&digest=sha256:{digest}")
        connection.putheader("Content-Length", str(size))
        connection.putheader("Content-Type", "application/octet-stream")
        connection.endheaders()
        send(connection.sock)
        _expect(connection, 201)

    def put_manifest(self, content: bytes) -> None:
        """Publish as `latest`."""
        connection = http.client.HTTPConnection(str(self._url.hostname), int(self._url.port or 80))
        connection.request("PUT", f"/v2/{self._name}/manifests/latest", content, {"Content-Type": MANIFEST_TYPE})
        _expect(connection, 201)


def _expect(connection: http.client.HTTPConnection, status: int) -> None:
    response = connection.getresponse()
    body = response.read()
    if response.status != status:
        raise SystemExit(f"registry: want {status}, got {response.status}: {body[:500]!r}")
    connection.close()


def _sequential(hub: Hub, registry: Registry, folder: Path, row: tuple[str, int, str]) -> dict[str, Any]:
    path, size, claimed = row
    place, scrap = folder / path, scrap_memory()
    with hub.open(path) as response, place.open("wb", buffering=0) as out:
        while got := response.readinto(scrap):
            out.write(scrap[:got])
    digest = file_digest(place, scrap)
    _check(path, claimed, digest)
    with place.open("rb") as file:
        registry.put_blob(digest, size, lambda sock: _sendfile(sock, file))
    return descriptor(LAYER_TYPE, digest, size)


def _sendfile(sock: socket.socket, file: Any) -> None:
    sock.sendfile(file)


def _relay(hub: Hub, registry: Registry, folder: Path, row: tuple[str, int, str]) -> dict[str, Any]:
    path, size, claimed = row
    sha256, scrap = hashlib.sha256(), scrap_memory()
    if not claimed:
        return _sequential(hub, registry, folder, row)

    def send(sock: socket.socket) -> None:
        with hub.open(path) as response:
            while got := response.readinto(scrap):
                sha256.update(scrap[:got])
                sock.sendall(scrap[:got])

    registry.put_blob(claimed, size, send)
    _check(path, claimed, sha256.hexdigest())
    return descriptor(LAYER_TYPE, claimed, size)


def _check(path: str, want: str, got: str) -> None:
    if want and want != got:
        raise SystemExit(f"{path}: want sha256 {want}, got {got}")


def main(words: list[str]) -> int:
    """Move a model."""
    way, hub_url, repository, registry_url, name, place = words
    hub, registry, folder = Hub(hub_url, repository), Registry(registry_url, name), Path(place)
    folder.mkdir(parents=True, exist_ok=True)
    move, at_once = (_relay, _RELAYS) if way == "relay" else (_sequential, 1)
    with ThreadPoolExecutor(at_once) as pool:
        layers = list(pool.map(lambda row: move(hub, registry, folder, row), hub.files()))
    config = b"{}"
    layout_digest = hashlib.sha256(config).hexdigest()
    registry.put_blob(layout_digest, len(config), lambda sock: sock.sendall(config))
    registry.put_manifest(manifest(layers, config))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
