"""A reader of OCI registries: manifests, blobs by ranges, tags. It never writes.

Everything read by digest is compared with it here (manifests) or by who asked (blobs, in `aimodels_core.pull`).
Source: OCI distribution-spec v1.1, "Pull" and "Content Discovery".
"""

import functools
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from aimodels_core import hosts
from aimodels_core.digest import Digest
from aimodels_core.errors import (
    ArtifactInvalid,
    DigestMismatch,
    NotPublished,
    SourceDenied,
    SourceUnavailable,
    TicketExpired,
    UsageError,
)
from aimodels_core.registry_auth import Tokens
from aimodels_core.transport import Answer, Transport, location, redact

MAX_MANIFEST_BYTES = 4 * 1024 * 1024
_MAX_PAGE_BYTES = 4 * 1024 * 1024
_MAX_PAGES = 10_000
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TARGET_SECONDS = 600.0
_ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.oci.image.index.v1+json",
    )
)
# distribution-spec, "Pulling manifests": <name> and <reference> as a tag.
_NAME = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")


class Registry:
    """One repository of a registry, for reading. Safe from several threads.

    Args:
        base_url: scheme, host and port of the registry.
        repository: its name.
        transport: whose host rules name the registry, its token issuer and where it may redirect to.
        credential: see `aimodels_core.registry_auth.Tokens`.
        clock: monotonic seconds.

    Raises:
        UsageError: a repository name that no registry has.
    """

    def __init__(
        self,
        base_url: str,
        repository: str,
        *,
        transport: Transport,
        credential: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not _NAME.fullmatch(repository) or len(repository) > 255:
            raise UsageError(f"repository: want a name such as cluster or ns/team, got {repository[:80]!r}")
        self._root = f"{base_url.rstrip('/')}/v2/{repository}"
        self.repository = repository
        self._transport, self._clock = transport, clock
        self._tokens = Tokens(transport, credential=credential, clock=clock)
        self._lock = threading.Lock()
        self._targets: dict[Digest, tuple[str, float]] = {}

    def resolve(self, tag: str) -> tuple[Digest, bytes]:
        """Return the digest that `tag` names now, and the manifest; the digest is computed from its bytes.

        Raises:
            NotPublished, ArtifactInvalid, DigestMismatch, SourceDenied, SourceUnavailable, RateLimited, UsageError.
        """
        if not _TAG.fullmatch(tag):
            raise UsageError(f"tag: want at most 128 of letters, digits, `_.-`, got {tag[:140]!r}")
        answer = self._manifest(tag)
        digest = Digest.of(answer.body)
        claimed = answer.headers.get("docker-content-digest", "").strip()
        if claimed.startswith("sha256:") and claimed != str(digest):
            raise DigestMismatch(f"{self.repository}:{tag}", want=claimed[:80], got=str(digest))
        return digest, answer.body

    def manifest(self, digest: Digest) -> bytes:
        """Return the manifest named `digest`, compared with it.

        Raises:
            NotPublished, ArtifactInvalid, DigestMismatch, SourceDenied, SourceUnavailable, RateLimited.
        """
        body = self._manifest(str(digest)).body
        got = Digest.of(body)
        if got != digest:
            raise DigestMismatch(f"{self.repository}@{digest}", want=str(digest), got=str(got))
        return body

    def _manifest(self, reference: str) -> Answer:
        url = f"{self._root}/manifests/{reference}"
        try:
            answer = self._call(url, {"Accept": _ACCEPT}, max_bytes=MAX_MANIFEST_BYTES, follow=True)
        except SourceUnavailable as error:
            if error.code == "TooLong":
                raise ArtifactInvalid(error.message, code="ManifestTooLarge") from error
            raise
        if answer.status != 200:
            self._refuse(answer, f"{self.repository}:{reference}")
        return answer

    def tags(self) -> Iterator[str]:
        """Yield the tags of the repository through every page, whatever the registry's links look like.

        Raises:
            NotPublished, SourceDenied, SourceUnavailable, RateLimited.
        """
        url, seen = f"{self._root}/tags/list?n=1000", set[str]()
        while url:
            if url in seen or len(seen) >= _MAX_PAGES:
                raise SourceUnavailable(f"{redact(url)}: want pages that end, got a loop", code="BadAnswer")
            seen.add(url)
            answer = self._call(url, {}, max_bytes=_MAX_PAGE_BYTES)
            if answer.status != 200:
                self._refuse(answer, self.repository)
            yield from _tags(answer)
            url = next_page(answer)

    def read(self, digest: Digest, size_bytes: int, start: int, into: memoryview) -> None:
        """Fill `into` with the bytes of a blob from `start` on, in one bounded range. They are not hashed here.

        Args:
            digest: the blob.
            size_bytes: its whole size, which the registry must confirm.
            start: offset of the first byte.
            into: where they go; its length says how many.

        Raises:
            NotPublished: code BlobUnknown.
            SourceDenied, SourceUnavailable, RateLimited.
        """
        if not 0 <= start <= start + len(into) <= size_bytes:
            raise ValueError(f"range: want it within {size_bytes} bytes, got {start}+{len(into)}")
        if not into:
            return
        headers = {"Range": f"bytes={start}-{start + len(into) - 1}"}
        ok = (200, 206) if len(into) == size_bytes else (206,)
        for _ in range(2):
            try:
                answer = self._read_once(digest, headers, ok, into)
            except TicketExpired:
                continue
            _confirm(answer, start, len(into), size_bytes)
            return
        raise SourceUnavailable(f"blob {digest}: the signed URL was refused twice", code="TicketExpired")

    def size(self, digest: Digest) -> int:
        """Return how many bytes a blob has, as the registry tells without sending them.

        Raises:
            NotPublished: code BlobUnknown.
            SourceDenied, SourceUnavailable, RateLimited.
        """
        answer = self._call(f"{self._root}/blobs/{digest}", {}, method="HEAD", max_bytes=0, follow=True)
        if answer.status != 200:
            self._refuse(answer, f"blob {digest}", missing="BlobUnknown")
        length = answer.headers.get("content-length", "")
        if not re.fullmatch(r"\d{1,19}", length):
            message = f"{redact(answer.url)}: want the length of a blob, got {length[:40]!r}"
            raise SourceUnavailable(message, code="BadAnswer")
        return int(length)

    def _read_once(self, digest: Digest, headers: dict[str, str], ok: tuple[int, ...], into: memoryview) -> Answer:
        target = self._target(digest)
        if not target:
            url = f"{self._root}/blobs/{digest}"
            answer = self._call(url, headers, max_bytes=len(into), ok=(*ok, *_REDIRECTS), into=into)
            if answer.status not in _REDIRECTS:
                if answer.status not in ok:
                    self._refuse(answer, f"blob {digest}", missing="BlobUnknown")
                return answer
            target = self._remember(digest, answer)
        answer = self._at_target(target, headers, ok, into)
        if answer.status in {401, 403}:
            with self._lock:
                self._targets.pop(digest, None)
            raise TicketExpired(f"{redact(target)}: got status {answer.status}")
        if answer.status not in ok:
            self._refuse(answer, f"blob {digest}", missing="BlobUnknown")
        return answer

    def _at_target(self, target: str, headers: dict[str, str], ok: tuple[int, ...], into: memoryview) -> Answer:
        try:
            return self._transport.call(
                "GET", target, headers=headers, max_bytes=len(into), ok=ok, into=into, follow=True
            )
        except SourceUnavailable as error:
            if error.code in {"DnsFailed", "ConnectFailed", "AddressRefused"}:
                place = hosts.origin(target).host
                message = f"{error.message}; the registry redirects its blobs to {place}: make that host reachable, or "
                raise SourceUnavailable(
                    message + "turn the registry's storage redirect off", code=error.code
                ) from error
            raise

    def _target(self, digest: Digest) -> str:
        with self._lock:
            url, until = self._targets.get(digest, ("", 0.0))
        return url if self._clock() < until else ""

    def _remember(self, digest: Digest, answer: Answer) -> str:
        url = location(answer.url, answer.headers.get("location", ""))
        if not self._transport.rules.may_redirect(answer.url, url):
            raise SourceUnavailable(
                f"{redact(answer.url)}: want a redirect to an allowed host, got {redact(url)}", code="ForeignRedirect"
            )
        with self._lock:
            self._targets[digest] = (url, self._clock() + _lifetime(url))
        return url

    def _call(self, url: str, headers: dict[str, str], *, method: str = "GET", **limits: Any) -> Answer:
        """Make a request with the token there is; a 401 gets one new token. `limits` as of `Transport.call`."""
        authorization = self._tokens.header()
        send = functools.partial(self._transport.call, method, url, **limits)
        answer = send(headers={**headers, **authorization})
        if answer.status != 401:
            return answer
        self._tokens.answer(answer, used=authorization.get("Authorization", ""))
        return send(headers={**headers, **self._tokens.header()})

    def _refuse(self, answer: Answer, what: str, *, missing: str = "") -> NoReturn:
        said = _said(answer)
        if answer.status in {401, 403}:
            raise SourceDenied(f"{what}: access refused with status {answer.status}{said}")
        if answer.status == 404:
            raise NotPublished(f"{what}: not in the registry{said}", code=missing)
        raise SourceUnavailable(f"{what}: got status {answer.status}{said}", code="UnexpectedStatus")


def _lifetime(url: str) -> float:
    """Return for how many seconds a redirect may be used again: 80 % of what its query says, at most ten minutes."""
    query = {k.lower(): v for k, v in urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query, max_num_fields=100)}
    seconds = query.get("x-amz-expires", "")
    return min(_TARGET_SECONDS, int(seconds) * 0.8) if re.fullmatch(r"\d{1,9}", seconds) else 60.0


def _confirm(answer: Answer, start: int, length: int, size_bytes: int) -> None:
    """Check that a partial answer is the range that was asked for."""
    if answer.status != 206:
        return
    got = answer.headers.get("content-range", "").strip()
    want = f"bytes {start}-{start + length - 1}/"
    if got not in {f"{want}{size_bytes}", f"{want}*"}:
        message = f"{redact(answer.url)}: want range {want}{size_bytes}, got {got[:80]!r}"
        raise SourceUnavailable(message, code="WrongRange")


def _said(answer: Answer) -> str:
    """Return the registry's own error codes for a message (distribution-spec, "Error Codes")."""
    try:
        codes = [str(error["code"]) for error in json.loads(answer.body)["errors"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    shown = ", ".join(code for code in codes[:3] if re.fullmatch(r"[A-Z_]{1,40}", code))
    return f" ({shown})" if shown else ""


def _tags(answer: Answer) -> list[str]:
    try:
        tags = json.loads(answer.body)["tags"] or []
    except (ValueError, KeyError, TypeError, RecursionError):
        tags = None
    if not isinstance(tags, list) or not all(isinstance(tag, str) and _TAG.fullmatch(tag) for tag in tags):
        raise SourceUnavailable(f"{redact(answer.url)}: want a list of tags, got something else", code="BadAnswer")
    return tags


def next_page(answer: Answer) -> str:
    """Return the URL of the next page by the Link header, empty for the last (RFC 8288).

    Raises:
        SourceUnavailable: code ForeignRedirect: it leads to another place.
    """
    for link in re.finditer(r"<([^>]*)>([^,<]*)", answer.headers.get("link", "")):
        if re.search(r';\s*rel\s*=\s*"?([^";]*\s)?next(\s[^";]*)?"?\s*(;|$)', link[2], re.IGNORECASE):
            url = location(answer.url, link[1])
            if hosts.origin(url) != hosts.origin(answer.url):
                message = f"{redact(answer.url)}: want its next page in the same place, got {redact(url)}"
                raise SourceUnavailable(message, code="ForeignRedirect")
            return url
    return ""
