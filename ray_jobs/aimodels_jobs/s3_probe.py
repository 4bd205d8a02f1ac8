"""What correctness needs of an S3 bucket, tried out on objects of its own below `ai-models/v1/probe/`.

Each check is one function that raises when the store does not have the property. What follows from a finding is decided
where it is used: `s3` asks for `full-object-checksum`, `named-etags` and `part-etag-is-md5`.
"""

import dataclasses
import hashlib
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from awscrt.checksums import crc64nvme

from aimodels_core import names
from aimodels_core.errors import AiModelsError, StoreUnavailable, StoreUnsafe
from aimodels_jobs import s3_findings, s3_uploads
from aimodels_jobs.objects import Finding, Upload
from aimodels_jobs.orders import PartRecord
from aimodels_jobs.s3_client import Refusal, skew_seconds
from aimodels_jobs.threads import each

if TYPE_CHECKING:
    from aimodels_jobs.s3 import S3

logger = logging.getLogger(__name__)

PREFIX = names.probe_prefix()
_MAX_SKEW_SECONDS = 5.0
_ANY = ("400", "403", "404", "405", "409", "412", "416", "500", "501")
_CLEANED_SECONDS = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Check:
    name: str
    without: str
    run: Callable[["S3", str], str]
    fatal: bool = False


def probe(objects: "S3") -> tuple[Finding, ...]:
    """Try every property, those first without which the rest would tell nothing, then the rest at once.

    A missing one is a finding, an unreachable store an error.

    Raises:
        StoreUnsafe: the bucket is missing, or refuses these credentials.
        StoreUnavailable: the store does not answer.
    """
    findings: list[Finding] = []
    for check in (check for check in _CHECKS if check.fatal):
        findings.append(_tried(check, objects))
        if not findings[-1].passed:
            break
    else:
        keeper = _fresh_key()  # servers over a file system remove a folder with its last object, under others' hands
        objects.put(keeper, b"")
        findings += each(lambda check: _tried(check, objects), [check for check in _CHECKS if not check.fatal])
        objects.delete(keeper)
    _clean(objects)
    return tuple(findings)


def _fresh_key() -> str:
    return f"{PREFIX}{secrets.token_hex(8)}"


def _tried(check: _Check, objects: "S3") -> Finding:
    try:
        detail = check.run(objects, _fresh_key())
    except StoreUnsafe as error:
        if error.code in {"NoBucket", "NoCredentials"}:
            raise
        return Finding(check.name, passed=False, fatal=check.fatal, detail=f"{error}; without it {check.without}")
    except AiModelsError as error:
        if isinstance(error, StoreUnavailable) and error.code in {"Unreachable", "TlsFailed", "ClockSkew"}:
            raise
        return Finding(check.name, passed=False, fatal=check.fatal, detail=f"{error}; without it {check.without}")
    return Finding(check.name, passed=True, fatal=check.fatal, detail=detail)


def _clean(objects: "S3") -> None:
    """Remove what this probe, and earlier ones that were killed, left behind."""
    old = objects.client.clock() - _CLEANED_SECONDS
    try:
        for info in objects.list(PREFIX):
            if info.modified < old and not s3_findings.may_be_used(info, old):
                objects.delete(info.key)
        for upload in objects.uploads(PREFIX):
            if upload.created < old:
                objects.abort(upload)
    except AiModelsError as error:
        logger.warning("Probe objects were not cleaned up", extra={"error": str(error)})


def _want(*, holds: bool, want: str, got: object) -> None:
    if not holds:
        raise StoreUnavailable(f"want {want}, got {got}")


def _round_trip(objects: "S3", key: str) -> str:
    data = secrets.token_bytes(64)
    objects.put(key, data)
    answer = objects.client.ask(f"look up {key}", "head_object", objects.full_key(key))
    framing = answer.get("ContentEncoding", "")
    got = objects.get(key, max_bytes=256)
    objects.delete(key)
    _want(holds=got == data and not framing, want="the bytes that were written", got=framing or "other bytes")
    return "works"


def _empty(objects: "S3", key: str) -> str:
    objects.put(key, b"")
    found = objects.head(key)
    objects.delete(key)
    _want(holds=found is not None and found.size_bytes == 0, want="an empty object", got=found)
    return "works"


def _clock(objects: "S3", key: str) -> str:
    url = objects.client.presigned("get_object", objects.full_key(key), 60)
    _, headers, _ = objects.client.send("compare clocks", "GET", url)
    skew = skew_seconds(headers.get("date", ""), objects.client.clock())
    _want(holds=skew is not None, want="a Date header", got="none")
    _want(holds=abs(skew or 0.0) <= _MAX_SKEW_SECONDS, want="clocks within 5 s", got=f"{skew:+.0f} s")
    return f"differs by {skew:+.0f} s"


def _if_none_match(objects: "S3", key: str) -> str:
    try:
        first, second = objects.put_if_absent(key, b"1"), objects.put_if_absent(key, b"2")
    finally:
        objects.delete(key)
    _want(holds=first and not second, want="the second write refused", got="it accepted")
    return "works"


def _part_etag(objects: "S3", key: str) -> str:
    upload = Upload(key, s3_uploads.create(objects.client, objects.full_key(key), full_object=False), 3)
    try:
        record = _sent(objects, upload, 1, b"abc")
        stored = s3_uploads.parts(objects.client, objects.full_key(key), upload)
    finally:
        objects.abort(upload)
    want = hashlib.md5(b"abc", usedforsecurity=False).hexdigest()
    got = {record.etag.strip('"'), *(part.etag for attempts in stored.values() for part in attempts)}
    _want(holds=got == {want}, want="the MD5 of a part as its ETag", got="another")
    return "works"


def _full_object(objects: "S3", key: str) -> str:
    name = objects.full_key(key)
    upload = Upload(key, s3_uploads.create(objects.client, name, full_object=True), 3)
    try:
        record = _sent(objects, upload, 1, b"abc")
        wrong = dataclasses.replace(record, checksum="0" * 16)
        _want(holds=not _accepts(objects, upload, (wrong,)), want="a wrong checksum refused", got="it accepted")
        _want(holds=_accepts(objects, upload, (record,)), want="the right checksum accepted", got="it refused")
    finally:
        objects.abort(upload)
        objects.delete(key)
    return "works"


def _named_etags(objects: "S3", key: str) -> str:
    """An overwritten attempt is named: the store refuses, or takes the bytes that were named."""
    upload = Upload(key, s3_uploads.create(objects.client, objects.full_key(key), full_object=False), 3)
    try:
        named = _sent(objects, upload, 1, b"abc")
        _sent(objects, upload, 1, b"xyz")
        if not _accepts(objects, upload, (named,), checksums=False):
            return "an overwritten part is refused"
        got = objects.get(key, max_bytes=16)
    finally:
        objects.abort(upload)
        objects.delete(key)
    _want(holds=got == b"abc", want="the named attempt of a part", got="another attempt")
    return "an overwritten part is still the named one"


def _expired_delete(objects: "S3", key: str) -> str:
    """A deletion that was signed for a past time must be refused: a thawed writer relies on it."""
    objects.put(key, b"kept")
    try:
        status, _, _ = objects.client.send("send an expired deletion", "DELETE", _signed_in_the_past(objects, key))
        kept = objects.head(key) is not None
    finally:
        objects.delete(key)
    _want(holds=kept and status in {400, 401, 403}, want="an expired deletion refused", got=status)
    return "works"


def _signed_in_the_past(objects: "S3", key: str) -> str:
    fresh = objects.client.presigned("delete_object", objects.full_key(key), 10)
    base = fresh.partition("?")[0]
    return objects.client.signed_at("DELETE", base, seconds=10, at=objects.client.clock() - 60)


def _part_copy(objects: "S3", key: str) -> str:
    objects.put(key, b"copied")
    target = f"{key}-copy"
    try:
        origin, name = objects.full_key(key), objects.full_key(target)
        s3_uploads.copy_in_parts(objects.client, origin, name, 6, 5 * 1024**3)
        got = objects.get(target, max_bytes=16)
    finally:
        objects.delete(key)
        objects.delete(target)
    _want(holds=got == b"copied", want="the copied bytes", got="others")
    return "works"


def _no_retention(objects: "S3", key: str) -> str:
    del key
    bucket = objects.settings.bucket
    answer = objects.client.ask("read object lock", "get_object_lock_configuration", {"Bucket": bucket}, accept=_ANY)
    if isinstance(answer, Refusal):
        return "none"
    rule = answer.get("ObjectLockConfiguration", {}).get("Rule", {}).get("DefaultRetention", {})
    _want(holds=not rule, want="no default retention (objects could not be removed)", got=rule.get("Mode", "one"))
    return "object lock without default retention"


def _no_versions(objects: "S3", key: str) -> str:
    del key
    bucket = objects.settings.bucket
    answer = objects.client.ask("read versioning", "get_bucket_versioning", {"Bucket": bucket}, accept=_ANY)
    status = "" if isinstance(answer, Refusal) else answer.get("Status", "")
    _want(holds=status != "Enabled", want="no versioning", got=status)
    return status or "off"


def _no_expiry(objects: "S3", key: str) -> str:
    bucket, full = objects.settings.bucket, objects.full_key(key)["Key"]
    base = full[: -len(key)]
    answer = objects.client.ask("read lifecycle", "get_bucket_lifecycle_configuration", {"Bucket": bucket}, accept=_ANY)
    if isinstance(answer, Refusal):
        return "none"
    touching = [rule.get("ID", "?") for rule in answer.get("Rules", ()) if _expires(rule, base)]
    _want(holds=not touching, want="no rule that removes our objects", got=f"rules {touching}")
    return "no rule concerns us"


def _expires(rule: dict[str, Any], base: str) -> bool:
    prefix = rule.get("Filter", {}).get("Prefix", rule.get("Prefix", ""))
    concerned = prefix.startswith(base) or base.startswith(prefix)
    return rule.get("Status") == "Enabled" and concerned and bool({"Expiration", "Transitions"} & set(rule))


def _plain_encryption(objects: "S3", key: str) -> str:
    del key
    bucket = objects.settings.bucket
    answer = objects.client.ask("read encryption", "get_bucket_encryption", {"Bucket": bucket}, accept=_ANY)
    if isinstance(answer, Refusal):
        return "none"
    rules = answer.get("ServerSideEncryptionConfiguration", {}).get("Rules", ())
    kinds = [rule.get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm", "") for rule in rules]
    _want(
        holds=not any(kind.startswith("aws:kms") for kind in kinds), want="no KMS (readers need its key too)", got=kinds
    )
    return ", ".join(kinds) or "none"


def _sent(objects: "S3", upload: Upload, number: int, data: bytes) -> PartRecord:
    ticket = objects.part_ticket(upload, number, 0, len(data))
    status, headers, _ = objects.client.send("send a part", "PUT", ticket.url, data)
    _want(holds=status == 200, want="a presigned part accepted", got=status)
    return PartRecord(number, 0, len(data), headers.get("etag", ""), f"{crc64nvme(data):016x}")


def _accepts(objects: "S3", upload: Upload, records: Sequence[PartRecord], *, checksums: bool = True) -> bool:
    request = s3_uploads.complete_request(
        objects.full_key(upload.key), upload, records, records[0].checksum if checksums else ""
    )
    answer = objects.client.ask("complete a probe", "complete_multipart_upload", request, accept=_ANY, attempts=1)
    return not isinstance(answer, Refusal)


_CHECKS = (
    _Check("no-default-retention", "nothing can be removed", _no_retention, fatal=True),
    _Check("write-read-delete", "nothing can be published", _round_trip, fatal=True),
    _Check("empty-object", "empty files cannot be published", _empty, fatal=True),
    _Check("part-etag-is-md5", "interrupted uploads may be sent again", _part_etag),
    _Check("full-object-checksum", "the store does not check whole blobs", _full_object),
    _Check("named-etags", "blobs with repeated parts are sent again", _named_etags),
    _Check("if-none-match", "a second writer is not kept out", _if_none_match),
    _Check("expired-delete-refused", "a writer that was frozen may delete late", _expired_delete),
    _Check("clock", "signatures may be refused", _clock),
    _Check("part-copy", "files without a published digest above 5 GiB fail", _part_copy),
    _Check("no-versioning", "removed models keep using space", _no_versions),
    _Check("no-expiry", "models may vanish", _no_expiry),
    _Check("no-kms", "readers need the key", _plain_encryption),
)
