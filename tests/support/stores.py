"""Stores for tests: send the parts of a blob as a mover would, without a mover; small artifacts."""

import contextlib
import fcntl
import hashlib
import http.client
import os
import secrets
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

import xxhash
from awscrt.checksums import crc64nvme

from aimodels_core import modelpack, names, oci
from aimodels_core.digest import Digest
from aimodels_jobs.layout import Store
from aimodels_jobs.objects import Objects, Upload
from aimodels_jobs.orders import ChecksumKind, FilePartTicket, PartRecord, S3PartTicket, WriteTicket
from aimodels_jobs.s3 import S3
from aimodels_jobs.s3_client import S3Settings
from tests.support.servers import S3Server

PART_BYTES = 5 * 1024 * 1024


def bucket(server: S3Server, prefix: str = "", **more: object) -> S3:
    """Our own client of a server's bucket, below a prefix of its own unless one is given."""
    settings = S3Settings(
        server.bucket,
        prefix=prefix or f"stores/{secrets.token_hex(4)}",
        endpoint=server.endpoint,
        region=server.region,
        access_key=server.access_key,
        secret_key=server.secret_key,
        **more,  # type: ignore[arg-type]  # tests pass fields of S3Settings
    )
    return S3(settings)


def checksum(kind: ChecksumKind, data: bytes) -> str:
    """Checksum of a part as movers name it."""
    return f"{crc64nvme(data):016x}" if kind is ChecksumKind.CRC64NVME else str(xxhash.xxh3_64_hexdigest(data))


def put_part(ticket: WriteTicket, data: bytes) -> str:
    """Send one part; gives its ETag, empty for a folder."""
    match ticket:
        case FilePartTicket():
            handle = os.open(ticket.path, os.O_WRONLY)
            try:
                with contextlib.suppress(OSError):  # file systems without locks
                    fcntl.flock(handle, fcntl.LOCK_SH)
                os.pwrite(handle, data, ticket.offset)
            finally:
                os.close(handle)
            return ""
        case S3PartTicket():
            return _put_part(ticket, data)
        case _:
            raise TypeError(ticket)


def _put_part(ticket: S3PartTicket, data: bytes) -> str:
    url = urllib.parse.urlsplit(ticket.url)
    connection = http.client.HTTPConnection(url.netloc, timeout=30)
    try:
        connection.request("PUT", f"{url.path}?{url.query}", body=data, headers=dict(ticket.headers))
        answer = connection.getresponse()
        body = answer.read(4096)
        assert answer.status == 200, (answer.status, body)
        return answer.headers["ETag"]
    finally:
        connection.close()


def cut(data: bytes, part_bytes: int = PART_BYTES) -> list[tuple[int, int, bytes]]:
    """Cut bytes into (number, start, bytes)."""
    return [(at // part_bytes + 1, at, data[at : at + part_bytes]) for at in range(0, len(data), part_bytes)]


def send(
    objects: Objects, upload: Upload, data: bytes, *, numbers: Sequence[int] = (), part_bytes: int = PART_BYTES
) -> list[PartRecord]:
    """Send the parts of a blob, or those with these numbers."""
    records = []
    for number, start, piece in cut(data, part_bytes):
        if not numbers or number in numbers:
            ticket = objects.part_ticket(upload, number, start, start + len(piece))
            etag = put_part(ticket, piece)
            records.append(PartRecord(number, start, len(piece), etag, checksum(objects.checksum, piece)))
    return records


def blob_key(data: bytes) -> str:
    """Where a blob of these bytes belongs."""
    return names.blob_data(Digest(hashlib.sha256(data).hexdigest()))


def stored(store: Store, repository: str, data: bytes) -> Digest:
    """Bring a blob into a store, through an upload when it has bytes, and link it."""
    digest = Digest.of(data)
    if data:
        upload = store.objects.create_upload(store.blob_key(digest), len(data))
        store.objects.complete(upload, send(store.objects, upload, data), recheck=False)
    else:
        store.put_blob(data)
    store.link(repository, digest)
    return digest


def artifact(files: dict[str, bytes]) -> oci.Artifact:
    """A small artifact of these files."""
    listed = [oci.ArtifactFile(path, len(data), Digest.of(data)) for path, data in files.items()]
    return oci.build(oci.RECIPE, listed, modelpack.ConfigFacts())


def publish(store: Store, repository: str, tag: str, files: dict[str, bytes]) -> Digest:
    """Publish a small model."""
    made = artifact(files)
    for data in files.values():
        stored(store, repository, data)
    store.link(repository, store.put_blob(made.config))
    return store.put_manifest(repository, tag, made.manifest)


def tree(root: Path) -> dict[str, int]:
    """Every file below a folder and its size."""
    return {str(path.relative_to(root)): path.stat().st_size for path in sorted(root.rglob("*")) if path.is_file()}
