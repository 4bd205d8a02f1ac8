"""What was found when a bucket was tried out, kept in the bucket, so that not every process tries again.

A cache: without it, or when it is old, damaged or of another endpoint, the bucket is tried again. Only what allows
publishing is kept; a bucket that was refused is tried each time.
"""

import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aimodels_core import names
from aimodels_core.errors import AiModelsError
from aimodels_jobs.objects import Finding, ObjectInfo

if TYPE_CHECKING:
    from aimodels_jobs.s3 import S3
    from aimodels_jobs.s3_client import S3Settings

log = logging.getLogger(__name__)

VERSION = 1
"""Of the checks: to be raised when one is added or asks for more."""
KEPT_SECONDS = 7 * 24 * 3600.0
_AHEAD_SECONDS = 300.0
_MAX_BYTES = 64 * 1024

Findings = tuple[Finding, ...]


def obtain(objects: "S3", examine: Callable[[], Findings], *, anew: bool) -> Findings:
    """Return what is known of a bucket, or try it out and keep what was found.

    Args:
        objects: the bucket.
        examine: tries it out.
        anew: try it out whatever is known.

    Raises:
        StoreUnsafe, StoreUnavailable: as `examine` does.
    """
    known = () if anew else _load(objects)
    if known:
        return known
    findings = examine()
    _keep(objects, findings)
    return findings


def render(findings: Sequence[Finding], at: float) -> bytes:
    """Render as JSON; `at` is Unix seconds.

    >>> found = (Finding("clock", passed=True, fatal=False, detail="works"),)
    >>> parse(render(found, 1000.0), 1001.0) == found
    True
    """
    document = {"version": VERSION, "at": at, "findings": [dataclasses.asdict(finding) for finding in findings]}
    return json.dumps(document).encode()


def parse(data: bytes, now: float) -> Findings:
    """Parse what `render` made; empty for what is too old, from the future, or of other checks than today's.

    Raises:
        ValueError: not of that shape.
    """
    try:
        document = json.loads(data)
        if document["version"] != VERSION or not -_AHEAD_SECONDS <= now - float(document["at"]) <= KEPT_SECONDS:
            return ()
        return tuple(
            Finding(str(f["name"]), passed=f["passed"] is True, fatal=f["fatal"] is True, detail=str(f["detail"]))
            for f in document["findings"]
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"findings: want version {VERSION}, got {type(error).__name__}") from error


def key(settings: "S3Settings") -> str:
    """Name the object: the same bucket behind another endpoint may be another server."""
    return names.probe_findings(json.dumps([settings.endpoint, settings.bucket, settings.prefix.strip("/")]))


def may_be_used(info: ObjectInfo, now: float) -> bool:
    """Say whether an object below the probe's prefix is one of these, and not too old."""
    return info.key.endswith(".json") and now - info.modified <= KEPT_SECONDS


def _refuses(findings: Sequence[Finding]) -> bool:
    return any(finding.fatal and not finding.passed for finding in findings)


def _load(objects: "S3") -> Findings:
    try:
        data = objects.get(key(objects.settings), max_bytes=_MAX_BYTES)
        found = parse(data, objects.client.clock()) if data else ()
    except (AiModelsError, ValueError) as error:  # what is wrong with the store, trying it out tells better
        log.info("findings not readable", extra={"error": type(error).__name__})
        return ()
    return () if _refuses(found) else found


def _keep(objects: "S3", findings: Findings) -> None:
    try:
        if _refuses(findings):
            objects.delete(key(objects.settings))
        else:
            objects.put(key(objects.settings), render(findings, objects.client.clock()))
    except AiModelsError as error:
        log.info("findings not kept", extra={"error": error.code})
