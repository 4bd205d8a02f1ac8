"""A bucket as a place that keeps objects: multipart uploads to the final key, completed from the recorded parts only.

How the server is talked to is in `s3_client`, uploads in `s3_uploads`, what it must be able to do in `s3_probe`.
Bytes of blobs do not pass here: movers send them with presigned requests.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from botocore.exceptions import BotoCoreError

from aimodels_core.errors import ArtifactInvalid, NotPublished, StoreUnavailable, TransientError
from aimodels_jobs import s3_findings, s3_probe, s3_uploads
from aimodels_jobs.objects import Finding, ObjectInfo, Upload, check_tiling
from aimodels_jobs.orders import ChecksumKind, PartRecord, S3PartTicket
from aimodels_jobs.s3_client import ATTEMPTS, Client, Refusal, S3Settings

_ABSENT = ("404", "NoSuchKey", "NotFound")
_DELETE_SECONDS = 10
_COPY_LIMIT_BYTES = 5 * 1024**3


class S3:
    """Objects in a bucket, below a prefix. Implements `objects.Objects`.

    Args:
        settings: where the bucket is.
        client: how it is talked to.
        copy_limit_bytes: what one CopyObject may copy; larger objects go in parts.
    """

    def __init__(
        self, settings: S3Settings, *, client: Client | None = None, copy_limit_bytes: int = _COPY_LIMIT_BYTES
    ) -> None:
        self.settings = settings
        self.client = client or Client(settings)
        self._prefix = f"{settings.prefix.strip('/')}/" if settings.prefix.strip("/") else ""
        self._copy_limit_bytes = copy_limit_bytes
        self._fence: Callable[[], float] = lambda: float(_DELETE_SECONDS)
        self._lock = threading.Lock()
        self._findings: tuple[Finding, ...] = ()

    @property
    def description(self) -> str:
        """Where it is, for people."""
        where = f" at {self.settings.endpoint}" if self.settings.endpoint else ""
        return f"s3://{self.settings.bucket}/{self._prefix}{where}"

    @property
    def checksum(self) -> ChecksumKind:
        """Parts are named by their CRC64NVME."""
        return ChecksumKind.CRC64NVME

    def full_key(self, key: str) -> dict[str, str]:
        """Name an object as the server knows it."""
        if any(part in {"", ".", ".."} for part in key.split("/")):
            raise ValueError(f"key: want a relative path without empty or dot segments, got {key[:200]!r}")
        return {"Bucket": self.settings.bucket, "Key": self._prefix + key}

    def fence_with(self, fence: Callable[[], float]) -> None:
        """Let every deletion depend on `fence`: it gives the seconds for which we surely are the writer, or raises."""
        self._fence = fence

    def head(self, key: str) -> ObjectInfo | None:
        """Look an object up; None when there is none."""
        answer = self.client.ask(f"look up {key}", "head_object", self.full_key(key), accept=_ABSENT)
        if isinstance(answer, Refusal):
            return None
        return ObjectInfo(key, answer["ContentLength"], answer["LastModified"].timestamp())

    def get(self, key: str, *, max_bytes: int, start: int = 0, stop: int | None = None) -> bytes | None:
        """Read an object, or [start, stop) of it; None when there is none. A body that ends early is read again.

        Raises:
            ArtifactInvalid: longer than `max_bytes`.
            StoreUnavailable.
        """
        if stop is not None and stop <= start:
            return b"" if self.head(key) else None
        params: dict[str, Any] = dict(self.full_key(key))
        if start or stop is not None:
            params["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"

        def read(client: Any) -> bytes:
            answer = client.get_object(**params)
            with answer["Body"] as body:
                if answer["ContentLength"] > max_bytes:
                    raise ArtifactInvalid(
                        f"{key}: want at most {max_bytes} bytes, got {answer['ContentLength']}", code="TooLong"
                    )
                data: bytes = body.read(max_bytes + 1)
            if len(data) != answer["ContentLength"]:
                raise _ShortBodyError
            return data

        data = self.client.call(f"read {key}", read, accept=(*_ABSENT, "416", "InvalidRange"))
        if isinstance(data, Refusal):
            return b"" if data.status == 416 else None
        return data

    def put(self, key: str, data: bytes) -> None:
        """Write an object, replacing what was there."""
        self.client.ask(f"write {key}", "put_object", {**self.full_key(key), "Body": data})

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object only if the key is free; False when it is taken (by other bytes: an answer may be lost)."""
        answer = self.client.ask(
            f"write {key} if it is free",
            "put_object",
            {**self.full_key(key), "Body": data, "IfNoneMatch": "*"},
            accept=("412", "PreconditionFailed", "409", "ConditionalRequestConflict"),
        )
        if not isinstance(answer, Refusal):
            return True
        return self.get(key, max_bytes=max(len(data), 64 * 1024)) == data

    def delete(self, key: str) -> None:
        """Remove an object by a request that the server refuses a few seconds later.

        Raises:
            WriterBusy: the fence does not hold any more.
        """
        name = self.full_key(key)
        for attempt in range(1, ATTEMPTS + 1):
            seconds = min(_DELETE_SECONDS, int(self._fence()))
            url = self.client.presigned("delete_object", name, max(1, seconds))
            try:
                status, _, body = self.client.send(f"remove {key}", "DELETE", url)
            except TransientError:
                if attempt == ATTEMPTS:
                    raise
                status, body = 0, b""
            if status in {200, 204, 404}:
                return
            if attempt == ATTEMPTS or (400 <= status < 500 and b"xpired" not in body):
                raise StoreUnavailable(f"remove {key}: want 204, got {status}: {_error_code(body)}")
            self.client.wait(attempt)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List all objects whose key starts with `prefix`, through every page."""
        params = {"Bucket": self.settings.bucket, "Prefix": self._prefix + prefix, "MaxKeys": self.settings.page}
        token = ""
        while True:
            more = {"ContinuationToken": token} if token else {}
            page = self.client.ask(f"list {prefix}", "list_objects_v2", {**params, **more})
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix(self._prefix)
                if not key.endswith("/"):
                    yield ObjectInfo(key, found["Size"], found["LastModified"].timestamp())
            following = page.get("NextContinuationToken", "") if page.get("IsTruncated") else ""
            if not following:
                return
            if following == token:
                raise StoreUnavailable(f"list {prefix}: want another page, got the same one again")
            token = following

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store, in parts above the limit of one request."""
        found = self.head(source)
        if found is None:
            raise NotPublished(f"{source}: no such object to copy", code="NoSuchObject")
        origin, name = self.full_key(source), self.full_key(target)
        if found.size_bytes > self._copy_limit_bytes:
            s3_uploads.copy_in_parts(self.client, origin, name, found.size_bytes, self._copy_limit_bytes)
        else:
            self.client.ask(f"copy to {target}", "copy_object", {**name, "CopySource": origin})
        copied = self.head(target)
        if copied is None or copied.size_bytes != found.size_bytes:
            raise StoreUnavailable(f"copy to {target}: want {found.size_bytes} bytes there, got {copied}")

    def create_upload(self, key: str, size_bytes: int) -> Upload:
        """Begin a multipart upload, with a checksum over the whole object where the store can do that."""
        if size_bytes <= 0:
            raise ValueError(f"{key}: want an upload of at least one byte, got {size_bytes}")
        upload_id = s3_uploads.create(self.client, self.full_key(key), full_object=self._can("full-object-checksum"))
        return Upload(key, upload_id, size_bytes, self.client.clock())

    def part_ticket(self, upload: Upload, number: int, start: int, stop: int) -> S3PartTicket:
        """Sign one UploadPart.

        The checksum is not among the headers: servers refuse headers of theirs that were not signed, and its value
        is not known yet. Servers that compute it answer with `x-amz-checksum-crc64nvme`.
        """
        if not (1 <= number <= s3_uploads.MAX_PARTS and 0 <= start < stop <= upload.size_bytes):
            raise ValueError(f"part {number}: want a range within {upload.size_bytes} bytes, got [{start}, {stop})")
        params = {**self.full_key(upload.key), "UploadId": upload.id, "PartNumber": number}
        expires_at = self.client.clock() + self.settings.part_ticket_seconds
        url = self.client.presigned("upload_part", params, self.settings.part_ticket_seconds)
        return S3PartTicket(url, expires_at=expires_at, ca_file=self.settings.ca_file)

    def kept_parts(self, upload: Upload, records: Sequence[PartRecord]) -> frozenset[int]:
        """Say which recorded parts the store has, by size, ETag and checksum.

        Raises:
            NotPublished: code UploadGone.
        """
        found = s3_uploads.parts(self.client, self.full_key(upload.key), upload)
        etags_tell = self._can("part-etag-is-md5")
        return frozenset(
            record.number
            for record in records
            if any(
                part.matches(record) and (etags_tell or part.checksum == record.checksum)
                for part in found.get(record.number, ())
            )
        )

    def complete(self, upload: Upload, records: Sequence[PartRecord], *, recheck: bool) -> None:
        """Make the blob visible at its key from exactly the recorded parts; a lost answer is decided by looking.

        With `recheck`, a store that may take another attempt of a part than the named one completes nothing: whoever
        still writes to this upload does not know the next one.

        Raises:
            NotPublished: code UploadGone.
            StoreUnavailable: code PartsDiffer.
        """
        check_tiling(upload, records)
        name = self.full_key(upload.key)
        full_object = self._can("full-object-checksum")
        if recheck and not (full_object or self._can("named-etags")):
            raise StoreUnavailable(
                f"{upload.key}: want parts that one attempt wrote, got some that two may have", code="PartsDiffer"
            )
        s3_uploads.complete(self.client, name, upload, records, full_object=full_object)

    def abort(self, upload: Upload) -> None:
        """Drop an upload and its parts."""
        s3_uploads.abort(self.client, self.full_key(upload.key), upload.id)

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """List uploads in progress below `prefix`; the server does not tell their sizes."""
        for key, upload_id, created in s3_uploads.in_progress(self.client, self.settings.bucket, self._prefix + prefix):
            yield Upload(key.removeprefix(self._prefix), upload_id, 0, created)

    def probe(self, *, anew: bool = False) -> tuple[Finding, ...]:
        """Try what correctness needs of this bucket, unless a process did in the last days; see `s3_findings`."""
        with self._lock:
            if anew or not self._findings:
                self._findings = s3_findings.obtain(self, lambda: s3_probe.probe(self), anew=anew)
            return self._findings

    def _can(self, name: str) -> bool:
        return any(finding.name == name and finding.passed for finding in self.probe())


class _ShortBodyError(BotoCoreError):
    """The body ended early: asked for again, like a lost connection."""

    fmt = "the body ended early"


def _error_code(body: bytes) -> str:
    _, _, rest = body.partition(b"<Code>")
    return rest.partition(b"</Code>")[0][:60].decode("ascii", "replace")
