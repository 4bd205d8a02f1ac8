"""The CDN host: signed URLs to bytes, by range. Decides answers; `server` puts them on the wire."""

import hashlib
import re
import urllib.parse
from dataclasses import dataclass, field

from tests.support.hub.bodies import BytesBody
from tests.support.hub.repository import File, Repository
from tests.support.hub.signing import Signer
from tests.support.hub.wire import Answer, Request

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True, slots=True)
class Target:
    """What a CDN path stands for."""

    repository: str
    file: File


@dataclass(slots=True)
class Cdn:
    """The paths handed out so far and the rules of the host.

    A GET without a range is refused above `max_rangeless_bytes`.
    """

    signer: Signer
    max_rangeless_bytes: int
    targets: dict[str, Target] = field(default_factory=dict)

    def publish(self, repository: Repository, file: File, origin: str) -> str:
        """Make a signed URL of a file on the host at `origin`."""
        key = hashlib.sha256(f"{repository.id}\n{file.path}".encode()).hexdigest()[:24]
        path = f"/xet-bridge-us/{key}/{file.sha256_hex}"
        self.targets[path] = Target(repository.id, file)
        name = urllib.parse.quote(f'inline; filename="{file.path.rpartition("/")[2]}";', safe="")
        return f"{origin}{path}?{self.signer.query(path)}&response-content-disposition={name}"

    def answer(self, request: Request, target: Target | None) -> Answer:
        """Answer a request, without faults."""
        if target is None:
            return denied(404, "NoSuchKey")
        if "authorization" in request.headers:
            return denied(400, "Only one auth mechanism allowed")
        query = {name: value for name, value in request.query.items() if name != "response-content-disposition"}
        if (problem := self.signer.problem(request.path, query)) is not None:
            return denied(403, problem)
        if (
            request.method == "GET"
            and "range" not in request.headers
            and target.file.body.size_bytes > self.max_rangeless_bytes
        ):
            return denied(400, "RangeRequired")
        # As on the real CDN, the entity tag has nothing to do with the digest that the hub names.
        tag = hashlib.md5(target.file.sha256_hex.encode(), usedforsecurity=False).hexdigest()
        return ranged(request, target.file, (("ETag", f'"{tag}"'), ("Content-Type", "application/octet-stream")))


def denied(status: int, message: str) -> Answer:
    """An error as object stores word it."""
    text = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code><Message>{message}</Message></Error>'
    return Answer(status, (("Content-Type", "application/xml"),), BytesBody(text.encode()))


def ranged(request: Request, file: File, headers: tuple[tuple[str, str], ...]) -> Answer:
    """The whole file, or the single range that the request asks for: 200, 206 or 416."""
    size = file.body.size_bytes
    headers = (*headers, ("Accept-Ranges", "bytes"))
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if match is None or match[1] == match[2] == "":
        return Answer(200, headers, file.body)
    tag = next((value for name, value in headers if name == "ETag"), "")
    if request.headers.get("if-range", tag) != tag:
        return Answer(200, headers, file.body)
    start = int(match[1]) if match[1] else max(0, size - int(match[2]))
    stop = min(size, int(match[2]) + 1) if match[1] and match[2] else size
    if start >= size or start >= stop:
        return Answer(416, (*headers, ("Content-Range", f"bytes */{size}")))
    return Answer(206, (*headers, ("Content-Range", f"bytes {start}-{stop - 1}/{size}")), file.body, start, stop)
