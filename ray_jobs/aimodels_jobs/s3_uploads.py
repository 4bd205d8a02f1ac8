"""Multipart uploads: create, list, complete from exactly the recorded parts, copy in parts, abort.

The server's dictionaries are parsed here and go no further.
"""

import base64
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from awscrt.checksums import combine_crc64nvme

from aimodels_core.errors import AiModelsError, NotPublished, StoreUnavailable
from aimodels_jobs.objects import Upload
from aimodels_jobs.orders import PartRecord
from aimodels_jobs.s3_client import ATTEMPTS, Client, Refusal

MAX_PARTS = 10_000
_GONE = ("NoSuchUpload", "404")


@dataclasses.dataclass(frozen=True, slots=True)
class StoredPart:
    """A part as the server lists it; `checksum` is empty when it does not say."""

    etag: str
    size_bytes: int
    checksum: str

    def matches(self, record: PartRecord) -> bool:
        """Say whether this is the recorded attempt, as far as the server tells."""
        same = self.etag == record.etag.strip('"') and self.size_bytes == record.size_bytes
        return same and self.checksum in {"", record.checksum}


def create(client: Client, name: Mapping[str, str], *, full_object: bool) -> str:
    """Begin an upload; gives its id."""
    more = {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"} if full_object else {}
    answer = client.ask(f"begin {name['Key']}", "create_multipart_upload", {**name, **more})
    return str(answer["UploadId"])


def parts(client: Client, name: Mapping[str, str], upload: Upload) -> dict[int, list[StoredPart]]:
    """List the parts of an upload by number, through every page; some servers list every attempt of a part.

    Raises:
        NotPublished: code UploadGone.
    """
    found: dict[int, list[StoredPart]] = {}
    marker, page_size = 0, client.settings.page
    while True:
        params: dict[str, Any] = {**name, "UploadId": upload.id, "PartNumberMarker": marker, "MaxParts": page_size}
        page = client.ask(f"list parts of {upload.key}", "list_parts", params, accept=_GONE)
        if isinstance(page, Refusal):
            raise NotPublished(f"{upload.key}: the upload is gone", code="UploadGone")
        for part in page.get("Parts", ()):
            stored = StoredPart(part["ETag"].strip('"'), part["Size"], _hex(part.get("ChecksumCRC64NVME", "")))
            found.setdefault(part["PartNumber"], []).append(stored)
        last = max(found, default=0)
        if not page.get("IsTruncated") or last <= marker:
            return found
        marker = last


def complete(
    client: Client, name: Mapping[str, str], upload: Upload, records: Sequence[PartRecord], *, full_object: bool
) -> None:
    """Complete an upload; whatever the answer, what is at the key afterwards decides.

    Raises:
        NotPublished: code UploadGone.
        StoreUnavailable: code PartsDiffer.
        StoreFull.
    """
    combined = _combined(records)
    try:
        stored = parts(client, name, upload)
    except NotPublished:
        if is_there(client, name, upload, combined):
            return
        raise
    differing = [r.number for r in records if not any(p.matches(r) for p in stored.get(r.number, ()))]
    if differing:
        raise StoreUnavailable(
            f"{upload.key}: parts {differing[:10]} are not those that were hashed", code="PartsDiffer"
        )
    request = complete_request(name, upload, records, combined if full_object else "")
    for attempt in range(1, ATTEMPTS + 1):
        lost = _completed(client, upload, request)
        if is_there(client, name, upload, combined):
            return
        if attempt == ATTEMPTS or isinstance(lost, NotPublished):
            raise lost or StoreUnavailable(f"{upload.key}: want it there after it was completed, got nothing")
        client.wait(attempt)


def is_there(client: Client, name: Mapping[str, str], upload: Upload, combined: str) -> bool:
    """Look whether the object is at its key with the right size and checksum.

    Raises:
        StoreUnavailable: code PartsDiffer: other bytes are.
    """
    answer = client.ask(
        f"look up {upload.key}",
        "head_object",
        {**name, "ChecksumMode": "ENABLED"},
        accept=("404", "NoSuchKey", "NotFound"),
    )
    if isinstance(answer, Refusal):
        return False
    whole = answer.get("ChecksumType", "") == "FULL_OBJECT"
    checksum = _hex(answer.get("ChecksumCRC64NVME", "")) if whole else ""
    if answer["ContentLength"] != upload.size_bytes or checksum not in {"", combined}:
        raise StoreUnavailable(
            f"{upload.key}: want {upload.size_bytes} bytes with CRC64NVME {combined},"
            f" got {answer['ContentLength']} bytes with {checksum or 'none'}",
            code="PartsDiffer",
        )
    return True


def abort(client: Client, name: Mapping[str, str], upload_id: str) -> None:
    """Drop an upload; dropping what is gone is not an error."""
    client.ask(
        f"drop upload of {name['Key']}",
        "abort_multipart_upload",
        {**name, "UploadId": upload_id},
        accept=_GONE,
    )


def in_progress(client: Client, bucket: str, prefix: str) -> Iterator[tuple[str, str, float]]:
    """List uploads as (key, id, created), through every page."""
    markers: dict[str, str] = {}
    while True:
        params: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "MaxUploads": client.settings.page, **markers}
        page = client.ask("list uploads", "list_multipart_uploads", params, accept=("InvalidArgument",))
        if isinstance(page, Refusal):
            if not markers.get("UploadIdMarker"):
                raise StoreUnavailable(f"list uploads: {page.code}")
            markers = {"KeyMarker": markers["KeyMarker"]}  # some servers refuse the marker that they gave themselves
            continue
        for found in page.get("Uploads", ()):
            if found["Key"].startswith(prefix):
                yield found["Key"], found["UploadId"], found["Initiated"].timestamp()
        following = {"KeyMarker": page.get("NextKeyMarker", ""), "UploadIdMarker": page.get("NextUploadIdMarker", "")}
        if not page.get("IsTruncated") or following == markers:
            return
        markers = following


def copy_in_parts(
    client: Client, origin: Mapping[str, str], name: Mapping[str, str], size_bytes: int, step_bytes: int
) -> None:
    """Copy an object that is too large for one request; nothing is visible before all of it is."""
    upload_id = create(client, name, full_object=False)
    try:
        done = []
        for number, start in enumerate(range(0, size_bytes, step_bytes), start=1):
            params: dict[str, Any] = {
                **name,
                "UploadId": upload_id,
                "PartNumber": number,
                "CopySource": origin,
                "CopySourceRange": f"bytes={start}-{min(start + step_bytes, size_bytes) - 1}",
            }
            answer = client.ask(f"copy to {name['Key']}", "upload_part_copy", params)
            done.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
        client.ask(
            f"complete {name['Key']}",
            "complete_multipart_upload",
            {**name, "UploadId": upload_id, "MultipartUpload": {"Parts": done}},
            accept=_GONE,  # the first answer was lost; the caller looks at the target
        )
    except BaseException:
        abort(client, name, upload_id)
        raise


def checksum_text(checksum: str) -> str:
    """Render a checksum of ours (hex) as the server wants it (base64)."""
    return base64.b64encode(bytes.fromhex(checksum)).decode("ascii")


def _completed(client: Client, upload: Upload, request: Mapping[str, Any]) -> AiModelsError | None:
    """Send one Complete; gives the error of an answer that decides nothing."""
    try:
        answer = client.ask(
            f"complete {upload.key}",
            "complete_multipart_upload",
            request,
            accept=(*_GONE, "InvalidPart", "BadDigest", "InvalidPartOrder"),
            attempts=1,
        )
    except StoreUnavailable as error:
        return error
    if isinstance(answer, Refusal) and answer.code in {"InvalidPart", "BadDigest", "InvalidPartOrder"}:
        raise StoreUnavailable(f"{upload.key}: {answer.code}: not the recorded parts", code="PartsDiffer")
    if isinstance(answer, Refusal):
        return NotPublished(f"{upload.key}: the upload went while it was completed", code="UploadGone")
    return None


def complete_request(
    name: Mapping[str, str], upload: Upload, records: Sequence[PartRecord], combined: str
) -> dict[str, Any]:
    """Name every part by ETag and checksum; without `combined` (hex) no checksums are named."""
    listed = []
    for record in records:
        part: dict[str, Any] = {"PartNumber": record.number, "ETag": record.etag}
        if combined:
            part["ChecksumCRC64NVME"] = checksum_text(record.checksum)
        listed.append(part)
    more = {"ChecksumCRC64NVME": checksum_text(combined), "ChecksumType": "FULL_OBJECT"} if combined else {}
    return {**name, "UploadId": upload.id, "MultipartUpload": {"Parts": listed}, **more}


def _combined(records: Sequence[PartRecord]) -> str:
    whole = 0
    for record in records:
        whole = combine_crc64nvme(whole, int(record.checksum, 16), record.size_bytes)
    return f"{whole:016x}"


def _hex(text: str) -> str:
    return base64.b64decode(text).hex() if text else ""
