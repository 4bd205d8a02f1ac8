"""What the answers of a hub and of its CDN mean. Pure: status and headers in, values and errors out.

Asking lives in `hub_wire` and `huggingface`.
"""

import dataclasses
import datetime
import email.utils
import re
import urllib.parse
from collections.abc import Mapping

from aimodels_core.errors import AiModelsError, SourceDenied, SourceNotFound, SourceUnavailable
from aimodels_core.source import SourceFile

DEFAULT_LIFETIME_SECONDS = 15 * 60.0
_LONGEST_LIFETIME_SECONDS = 7 * 24 * 3600.0
_MESSAGE_CHARACTERS = 200
_HEX = re.compile(r"[0-9a-f]+")
_CONTENT_RANGE = re.compile(r"bytes (?P<first>\d{1,19})-(?P<last>\d{1,19})/(?P<total>\d{1,19})")
_SHA256_DIGITS = 64
_SHA1_DIGITS = 40


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, for messages.

    Args:
        endpoint: base URL of the hub.
        repo: repository.
        revision: revision, or empty.
        with_token: a token was sent.
    """

    endpoint: str
    repo: str
    revision: str = ""
    with_token: bool = False

    @property
    def place(self) -> str:
        """Where a person looks at the model."""
        return f"{self.endpoint}/{self.repo}"


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """What a Content-Range says: the half-open range [start, stop) of `total_bytes`."""

    start: int
    stop: int
    total_bytes: int


def refusal(asked: Asked, status: int, headers: Mapping[str, str]) -> AiModelsError:
    """Tell apart why the hub refused: gated, private or missing, disabled, a bad token, no such revision.

    A 404 for a caller with a token means "missing" only if the hub accepts the token; that is the caller's to find out.
    """
    code = headers.get("x-error-code", "")
    message = said(headers)
    if code == "GatedRepo":
        return _gated(asked, message)
    if code == "RevisionNotFound":
        return SourceNotFound(f"{asked.place}: no revision {asked.revision!r}", code="RevisionNotFound")
    if code == "EntryNotFound":
        return SourceUnavailable(f"{asked.place}: a listed file is not served: {message}", code="EntryNotFound")
    if "disabled" in message.lower() or status == 451:
        return SourceDenied(f"{asked.place}: disabled by the hub: {message}", code="Disabled")
    if status in {401, 403, 404}:
        return _no_access(asked, status, code, message)
    return SourceUnavailable(f"{asked.place}: got status {status}: {message}", code="UnexpectedStatus")


def _gated(asked: Asked, message: str) -> SourceDenied:
    if not asked.with_token:
        how = f"accept its terms at {asked.place} and give a token of that account"
    else:
        how = f"accept its terms at {asked.place} with the account that the token belongs to"
    return SourceDenied(f"{asked.place}: gated: {how}; the hub says: {message}", code="Gated")


def _no_access(asked: Asked, status: int, code: str, message: str) -> AiModelsError:
    if asked.with_token and status == 404:
        return SourceNotFound(f"{asked.place}: no such model, or the token may not see it", code="RepoNotFound")
    if asked.with_token:
        return SourceDenied(
            f"{asked.place}: the hub refuses the token with status {status}: {message}; give a valid one that may read "
            "this model",
            code="TokenRefused",
        )
    if status == 403 and not code:
        return SourceDenied(f"{asked.place}: forbidden: {message}; a token may be needed", code="PrivateOrMissing")
    how = "check the name; a private model needs a token"
    return SourceDenied(f"{asked.place}: not found or private: {how}", code="PrivateOrMissing")


def said(headers: Mapping[str, str]) -> str:
    """Return the hub's own words, short and printable."""
    text = headers.get("x-error-message", "")
    clean = "".join(c if c.isprintable() else " " for c in text[:_MESSAGE_CHARACTERS]).strip()
    return clean or "nothing more"


def check_identity(file: SourceFile, commit: str, headers: Mapping[str, str]) -> None:
    """Compare what the hub says of a file with its listing: commit, digest and size.

    Raises:
        SourceUnavailable: codes WrongCommit, WrongDigest, WrongSize.
    """
    got = headers.get("x-repo-commit", "")
    if got != commit:
        raise _differs(file, "WrongCommit", commit, got[:60] or "none")
    got = etag(headers.get("x-linked-etag") or headers.get("etag", ""))
    want = _published(file, got)
    if want and got != want:
        raise _differs(file, "WrongDigest", want, got)
    size = headers.get("x-linked-size", "")
    if size and size != str(file.size_bytes):
        raise _differs(file, "WrongSize", f"{file.size_bytes} bytes", f"{size[:20]} bytes")


def _published(file: SourceFile, got: str) -> str:
    """Return the published digest of the kind that `got` is, or nothing to compare with."""
    if not _HEX.fullmatch(got):
        return ""
    if len(got) == _SHA256_DIGITS and file.digest:
        return file.digest.hex
    if len(got) == _SHA1_DIGITS and file.git_digest and file.digest is None:
        return file.git_digest.hex
    return ""


def _differs(file: SourceFile, code: str, want: str, got: str) -> SourceUnavailable:
    return SourceUnavailable(f"{file.path}: the hub names another file: want {want}, got {got}", code=code)


def etag(value: str) -> str:
    """Return an entity tag without quotes and weakness mark.

    >>> etag('W/"0967ef42"')
    '0967ef42'
    """
    return value.strip().removeprefix("W/").strip('"')


def content_range(headers: Mapping[str, str]) -> Extent | None:
    """Parse Content-Range; None when absent or not one.

    >>> content_range({"content-range": "bytes 0-9/20"})
    Extent(start=0, stop=10, total_bytes=20)
    """
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    return None if found is None else Extent(int(found["first"]), int(found["last"]) + 1, int(found["total"]))


def lifetime_seconds(url: str, headers: Mapping[str, str], now: float) -> float | None:
    """Return how long a signed URL lives, counted on the clock of the host that signed it.

    None when the URL does not say; an end that is past already gives 15 minutes: a refusal will say more.

    Args:
        url: the signed URL.
        headers: of the answer that named it; its Date is that host's clock.
        now: Unix seconds of our own clock, for an answer without Date.
    """
    query = {key.lower(): value for key, value in urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query)}
    end = _end(query)
    if end is None:
        return None
    lifetime = end - _date(headers, now)
    return min(lifetime, _LONGEST_LIFETIME_SECONDS) if lifetime > 0 else DEFAULT_LIFETIME_SECONDS


def _end(query: Mapping[str, str]) -> float | None:
    """Return when a signed query ends, in Unix seconds of the signer's clock."""
    try:
        if "x-amz-expires" in query:
            begin = datetime.datetime.strptime(query.get("x-amz-date", "") + "+0000", "%Y%m%dT%H%M%SZ%z")
            return begin.timestamp() + float(query["x-amz-expires"])
        for name in ("expires", "exp", "x-expires"):
            if name in query:
                return float(query[name])
    except ValueError:
        return None
    return None


def _date(headers: Mapping[str, str], now: float) -> float:
    try:
        return email.utils.parsedate_to_datetime(headers.get("date", "")).timestamp()
    except (ValueError, TypeError, OverflowError):
        return now
