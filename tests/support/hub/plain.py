"""A plain client for tests of the simulator: one request, no redirects, no retries, no decoding."""

import http.client
import urllib.parse

from tests.support.hub.server import Hub


def get(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """One GET: status, headers with lower-case names, body."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def signed_url(hub: Hub, path: str = "model.safetensors", repository: str = "org/name") -> str:
    """Address of an LFS file on the CDN host."""
    status, headers, _ = get(f"{hub.url}/{repository}/resolve/main/{path}")
    assert status == 302, status
    return headers["location"]
