"""An S3 server that costs next to nothing: `python -m perf.support.lean_s3 --port N`. Large bodies are thrown away.

It speaks what publishing needs, keeps small objects in memory, compares the ETags and checksums of a Complete with
those of the parts, and refuses expired signatures; it does not verify signatures, nor compute the checksum of a large
part. Correctness is tested against real servers; this one is only in nobody's way.
"""

import argparse
import base64
import hashlib
import itertools
import mmap
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from xml.sax.saxutils import escape

from awscrt.checksums import combine_crc64nvme, crc64nvme

from perf.support import orphans

_KEPT_BYTES = 1024 * 1024
_BEGINNING_BYTES = 64 * 1024
_SLICE_BYTES = 1024 * 1024
_SCRAP_BYTES = 8 * 1024 * 1024
_HEAD_BYTES = 64 * 1024
_PART = re.compile(rb"<Part>(.*?)</Part>", re.DOTALL)
_CHECKSUM = "x-amz-checksum-crc64nvme"


@dataclass(frozen=True, slots=True)
class Stored:
    """An object or a part; `data` is its beginning, as far as it was kept, `crc` None when nobody named it."""

    size: int
    etag: str
    crc: int | None
    data: bytes
    modified: float = field(default_factory=time.time)

    def read(self, start: int, stop: int) -> bytes:
        """Bytes of a range; zeros where they were thrown away."""
        kept = self.data[start:stop]
        return kept + bytes(stop - start - len(kept))


@dataclass(slots=True)
class Upload:
    """A multipart upload."""

    key: str
    full_object: bool
    began: float = field(default_factory=time.time)
    parts: dict[int, Stored] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    length: int | None = None


class Request:
    """A request whose body is still on the socket."""

    def __init__(self, method: str, target: str, headers: Mapping[str, str], line: "Line") -> None:
        path, _, query = target.partition("?")
        self.method, self.headers = method, headers
        self.bucket, _, self.key = urllib.parse.unquote(path).lstrip("/").partition("/")
        self.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        self.size = int(headers.get("content-length", "0"))
        self._line = line

    def small(self) -> bytes:
        """The whole body, of a request that is known to be small."""
        return self._line.read(min(self.size, 16 * _KEPT_BYTES))

    def stored(self, number: int) -> Stored:
        """Take the body in: keep it when it is small, else only its beginning, where headers of weights are."""
        named = self.headers.get(_CHECKSUM)
        crc = int.from_bytes(base64.b64decode(named), "big") if named else None
        if self.size > _KEPT_BYTES:
            data = self._line.read(_BEGINNING_BYTES)
            self._line.discard(self.size - len(data))
            return Stored(self.size, f'"lean-{number}"', crc, data)
        data = self.small()
        etag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        return Stored(self.size, etag, crc64nvme(data) if data else 0, data)

    @property
    def expired(self) -> bool:
        """Whether the signature in the query has ended."""
        if "X-Amz-Expires" not in self.query:
            return False
        began = time.strptime(self.query["X-Amz-Date"], "%Y%m%dT%H%M%SZ")
        return time.time() > _utc(began) + float(self.query["X-Amz-Expires"])


def _utc(moment: time.struct_time) -> float:
    import calendar

    return calendar.timegm(moment)


class Line:
    """One connection: requests in, answers out."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._pending = b""
        # Never written to: it only says how much may be taken at once.
        self._scrap = memoryview(mmap.mmap(-1, _SCRAP_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def request(self) -> Request | None:
        """Read the head of the next request; None at the end."""
        while (end := self._pending.find(b"\r\n\r\n")) < 0:
            more = self._socket.recv(_HEAD_BYTES)
            if not more or len(self._pending) > _HEAD_BYTES:
                return None
            self._pending += more
        head, self._pending = self._pending[:end].decode("latin-1"), self._pending[end + 4 :]
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("expect"):
            self._socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Request(method, target, headers, self)

    def read(self, size: int) -> bytes:
        """Read exactly this much of a body."""
        while len(self._pending) < size:
            more = self._socket.recv(_SLICE_BYTES)
            if not more:
                raise ConnectionError("body: cut")
            self._pending += more
        data, self._pending = self._pending[:size], self._pending[size:]
        return data

    def discard(self, size: int) -> None:
        """Take a body off the socket without copying it (tcp(7), MSG_TRUNC), waking up as rarely as can be."""
        size -= len(self.read(min(size, len(self._pending))))
        while size:
            got = self._socket.recv_into(
                self._scrap, min(size, len(self._scrap)), socket.MSG_TRUNC | socket.MSG_WAITALL
            )
            if not got:
                raise ConnectionError("body: cut")
            size -= got

    def answer(self, answer: Answer, *, bare: bool) -> None:
        """Send an answer; without its body when `bare`."""
        length = len(answer.body) if answer.length is None else answer.length
        lines = [f"HTTP/1.1 {answer.status} X", f"Content-Length: {length}", f"Date: {formatdate(usegmt=True)}"]
        lines += [f"{name}: {value}" for name, value in answer.headers]
        self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (b"" if bare else answer.body))


class Lean:
    """The state of the server, and its answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, Stored] = {}
        self._uploads: dict[str, Upload] = {}
        self._numbers = itertools.count(1)

    def answer(self, request: Request) -> Answer:
        """Answer one request, its body read."""
        if request.expired:
            request.small()
            return _error(403, "AccessDenied")
        if not request.key:
            return self._bucket(request)
        upload = request.query.get("uploadId")
        match request.method:
            case "PUT" if upload is not None:
                return self._part(request, upload)
            case "PUT":
                return self._put(request)
            case "POST" if upload is None:
                return self._create(request)
            case "POST":
                return self._complete(request, str(upload))
            case "GET" if upload is not None:
                return self._parts(upload)
            case "GET" | "HEAD":
                return self._get(request)
            case "DELETE":
                with self._lock:
                    gone = self._uploads.pop(upload, None) if upload else self._objects.pop(request.key, None)
                return _error(404, "NoSuchUpload") if upload and gone is None else Answer(204)
            case _:
                return _error(405, "MethodNotAllowed")

    def _bucket(self, request: Request) -> Answer:
        query = request.query
        if request.method in ("PUT", "HEAD"):
            request.small()
            return Answer(200)
        if "uploads" in query:
            return _xml("ListMultipartUploadsResult", "".join(self._listed_uploads(query.get("prefix", ""))))
        if "versioning" in query:
            return _xml("VersioningConfiguration", "")
        for name in ("object-lock", "lifecycle", "encryption"):
            if name in query:
                return _error(404, f"NoSuch{name.title().replace('-', '')}Configuration")
        prefix = query.get("prefix", "")
        with self._lock:
            found = sorted((key, each) for key, each in self._objects.items() if key.startswith(prefix))
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{each.size}</Size><LastModified>{_iso(each.modified)}"
            f"</LastModified><ETag>{escape(each.etag)}</ETag></Contents>"
            for key, each in found
        )
        return _xml("ListBucketResult", f"<IsTruncated>false</IsTruncated><KeyCount>{len(found)}</KeyCount>{rows}")

    def _listed_uploads(self, prefix: str) -> Iterator[str]:
        with self._lock:
            found = [(upload_id, upload) for upload_id, upload in self._uploads.items()]
        for upload_id, upload in sorted(found, key=lambda pair: pair[1].key):
            if upload.key.startswith(prefix):
                yield f"<Upload><Key>{escape(upload.key)}</Key><UploadId>{upload_id}</UploadId>"
                yield f"<Initiated>{_iso(upload.began)}</Initiated></Upload>"

    def _put(self, request: Request) -> Answer:
        origin = request.headers.get("x-amz-copy-source")
        stored = request.stored(next(self._numbers)) if origin is None else self._copied(request, origin)
        with self._lock:
            if request.headers.get("if-none-match") == "*" and request.key in self._objects:
                return _error(412, "PreconditionFailed")
            self._objects[request.key] = stored
        if origin is not None:
            return _xml("CopyObjectResult", f"<ETag>{escape(stored.etag)}</ETag>")
        return Answer(200, headers=(("ETag", stored.etag),))

    def _copied(self, request: Request, origin: str) -> Stored:
        request.small()
        key = urllib.parse.unquote(origin).lstrip("/").partition("/")[2]
        with self._lock:
            return self._objects[key]

    def _create(self, request: Request) -> Answer:
        request.small()
        upload_id = f"{next(self._numbers)}-{os.urandom(8).hex()}"
        full = request.headers.get("x-amz-checksum-type") == "FULL_OBJECT"
        with self._lock:
            self._uploads[upload_id] = Upload(request.key, full)
        return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload_id}</UploadId>")

    def _part(self, request: Request, upload_id: str) -> Answer:
        origin = request.headers.get("x-amz-copy-source")
        part = request.stored(next(self._numbers)) if origin is None else self._copied(request, origin)
        with self._lock:
            upload = self._uploads.get(upload_id)
            if upload is None:
                return _error(404, "NoSuchUpload")
            upload.parts[int(request.query["partNumber"])] = part
        if origin is not None:
            return _xml("CopyPartResult", f"<ETag>{escape(part.etag)}</ETag>")
        return Answer(200, headers=(("ETag", part.etag),))

    def _parts(self, upload_id: str) -> Answer:
        with self._lock:
            upload = self._uploads.get(upload_id)
            if upload is None:
                return _error(404, "NoSuchUpload")
            found = sorted(upload.parts.items())
        rows = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(part.etag)}</ETag><Size>{part.size}</Size>"
            + (f"<ChecksumCRC64NVME>{_text(part.crc)}</ChecksumCRC64NVME>" if part.crc is not None else "")
            + f"<LastModified>{_iso(part.modified)}</LastModified></Part>"
            for number, part in found
        )
        return _xml("ListPartsResult", f"<IsTruncated>false</IsTruncated>{rows}")

    def _complete(self, request: Request, upload_id: str) -> Answer:
        named = [_fields(match) for match in _PART.findall(request.small())]
        with self._lock:
            upload = self._uploads.get(upload_id)
            if upload is None:
                return _error(404, "NoSuchUpload")
            parts = [upload.parts.get(int(each["PartNumber"])) for each in named]
            kept = [part for part in parts if part is not None]
            if len(kept) != len(named) or any(p.etag != n["ETag"] for p, n in zip(kept, named, strict=True)):
                return _error(400, "InvalidPart")
            whole = _joined(kept, f'"{next(self._numbers)}-{len(kept)}"')
            claimed = request.headers.get(_CHECKSUM)
            if _differs(kept, named) or (claimed and whole.crc is not None and claimed != _text(whole.crc)):
                return _error(400, "BadDigest")
            self._objects[upload.key] = whole
            del self._uploads[upload_id]
        return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(whole.etag)}</ETag>")

    def _get(self, request: Request) -> Answer:
        with self._lock:
            found = self._objects.get(request.key)
        if found is None:
            return _error(404, "NoSuchKey")
        headers = [("ETag", found.etag), ("Last-Modified", formatdate(found.modified, usegmt=True))]
        if found.crc is not None and request.headers.get("x-amz-checksum-mode"):
            headers += [(_CHECKSUM, _text(found.crc)), ("x-amz-checksum-type", "FULL_OBJECT")]
        if request.method == "HEAD":
            return Answer(200, headers=tuple(headers), length=found.size)
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        if match is None:
            return Answer(200, found.read(0, found.size), tuple(headers))
        start, stop = int(match[1]), min(int(match[2]) + 1, found.size)
        if start >= found.size:
            return _error(416, "InvalidRange")
        headers.append(("Content-Range", f"bytes {start}-{stop - 1}/{found.size}"))
        return Answer(206, found.read(start, stop), tuple(headers))


def _joined(parts: list[Stored], etag: str) -> Stored:
    whole: int | None = 0
    for part in parts:
        whole = None if whole is None or part.crc is None else combine_crc64nvme(whole, part.crc, part.size)
    data = b""
    for part in parts:
        data += part.data
        if len(part.data) < part.size:
            break
    return Stored(sum(part.size for part in parts), etag, whole, data)


def _differs(parts: list[Stored], named: list[dict[str, str]]) -> bool:
    """Whether a part is named with another checksum than it has, as far as that is known."""
    pairs = zip(parts, named, strict=True)
    return any(
        part.crc is not None and each.get("ChecksumCRC64NVME", _text(part.crc)) != _text(part.crc)
        for part, each in pairs
    )


def _fields(part: bytes) -> dict[str, str]:
    found = re.findall(r"<(\w+)>([^<]*)</", part.decode("utf-8"))
    return {name: value.replace("&quot;", '"').replace("&#34;", '"') for name, value in found}


def _text(crc: int | None) -> str:
    return "" if crc is None else base64.b64encode(crc.to_bytes(8, "big")).decode("ascii")


def _iso(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(moment))


def _xml(name: str, content: str) -> Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    return Answer(200, f"{text}{content}</{name}>".encode(), (("Content-Type", "application/xml"),))


def _error(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())


def serve(connection: socket.socket, lean: Lean) -> None:
    """Answer the requests of one connection."""
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = Line(connection)
        try:
            while (request := line.request()) is not None:
                line.answer(lean.answer(request), bare=request.method == "HEAD")
        except ConnectionError:
            return


def main(words: list[str]) -> int:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m perf.support.lean_s3")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(words)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    lean = Lean()
    orphans.end_with_parent()
    with socket.create_server(("127.0.0.1", options.port), backlog=1024) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection, lean), daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
