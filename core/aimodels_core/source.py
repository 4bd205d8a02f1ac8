"""What a source offers: files at an immutable revision, and tickets to read them. Pure values and one protocol.

How a particular source is asked lives in `aimodels_jobs.sources`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

from aimodels_core.digest import Digest, GitDigest
from aimodels_core.errors import UnsafeContent
from aimodels_core.proxies import Proxy

MAX_PATH_BYTES = 1024


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class SourceFile:
    """One file of a model at a revision.

    Args:
        path: POSIX path relative to the model root, as the source spells it; checked by `check_path`.
        size_bytes: exact size.
        digest: the sha256 that the source publishes, when it does.
        git_digest: the git object id that the source publishes, for files outside LFS.
    """

    path: str
    size_bytes: int
    digest: Digest | None = None
    git_digest: GitDigest | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ResolvedSource:
    """A source at one immutable revision, with its complete listing.

    Args:
        kind: `HuggingFace`, `Ollama`, …: what `status.source.resolvedType` shows.
        requested: the name that was asked for, such as `org/repo`.
        canonical: the name that the source itself uses.
        revision: immutable: a commit, never a branch.
        files: every file of the revision, in order of path.
        select: what the user asked for within the source: a file or a quantisation; empty for the default.
        public: read without any credential, so its blobs may be shared (design 4.1).
        facts: a few small facts about the model that the source declares, such as `pipeline_tag`, `license`.
    """

    kind: str
    requested: str
    canonical: str
    revision: str
    files: tuple[SourceFile, ...]
    select: str = ""
    public: bool = False
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class ReadTicket:
    """Leave to read one file with bounded ranges, for a short time. Holds secrets: never logged.

    Args:
        url: where the ranges are read; redirects are not followed.
        headers: what to send besides Range.
        size_bytes: the total that each Content-Range must name.
        expires_at: Unix seconds; None when the URL does not expire.
        host: the host of `url`, for the governor and for messages.
        ca_file: PEM file to verify TLS with; empty for the system's.
        trusted: the host may have an address that is not global (an endpoint that was set explicitly, or its CDN).
        private_cidrs: networks whose addresses may be dialled though they are not global.
        proxy: what connections to the host go through; None for direct ones.
    """

    url: str = dataclasses.field(repr=False)
    headers: tuple[tuple[str, str], ...] = dataclasses.field(repr=False, default=())
    size_bytes: int = 0
    expires_at: float | None = None
    host: str = ""
    ca_file: str = ""
    trusted: bool = False
    private_cidrs: tuple[str, ...] = ()
    proxy: Proxy | None = dataclasses.field(repr=False, default=None)


class Gate(Protocol):
    """What every request to a source's own host passes: the shared rate governor. Safe from several threads."""

    def wait(self, host: str, kind: str, identity: str) -> None:
        """Block until a request of `kind` (`api` or `resolve`) may be sent to `host` under the token `identity`.

        Raises:
            RateLimited: the wait would be longer than the caller's budget.
        """
        ...

    def learn(self, host: str, kind: str, identity: str, status: int, headers: Mapping[str, str]) -> None:
        """Take in an answer: its status and its headers, names in lower case."""
        ...


class Source(Protocol):
    """A place models come from. Calls block, have deadlines and are safe from several threads."""

    def resolve(self) -> ResolvedSource:
        """Fix the revision and list all files.

        Raises:
            UnsupportedSource, SourceNotFound, SourceDenied, SourceUnavailable, RateLimited.
        """
        ...

    def ticket(self, file: SourceFile) -> ReadTicket:
        """Return a ticket with a useful rest of life, asking the source once per file and URL lifetime.

        Raises:
            SourceDenied, SourceUnavailable, RateLimited, and SourceUnavailable when the identity (commit, sha256, size)
            that the source names is not the file's.
        """
        ...

    def renew(self, file: SourceFile, refused: ReadTicket) -> ReadTicket:
        """Return a ticket other than `refused`; callers that were refused the same ticket share one request."""
        ...

    def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        """Read the half-open range [start, stop), at most 128 MiB, renewing tickets and retrying within its budget.

        Raises:
            SourceDenied, SourceUnavailable, RateLimited.
        """
        ...

    def abort(self) -> None:
        """End every call under way with Cancelled within a second, and refuse later ones."""
        ...

    def requests_made(self) -> Mapping[str, int]:
        """Count the requests to the source's own host so far, by class: `api` and `resolve`."""
        ...


def check_path(path: str) -> str:
    """Return `path` if it is a safe relative POSIX path.

    Raises:
        UnsafeContent: code UnsafePath: empty, absolute, `.` or `..` components, backslash, control characters, drive
            letters, too long.

    >>> check_path("sub/模型 😀.txt")
    'sub/模型 😀.txt'
    """
    why = _unsafe(path)
    if why:
        raise UnsafeContent(path[:200], code="UnsafePath", detail=why)
    return path


def _unsafe(path: str) -> str:
    if not path:
        return "want a file name, got an empty path"
    if len(path.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES:
        return f"want at most {MAX_PATH_BYTES} bytes"
    if "\\" in path or any(ord(c) < 0x20 or ord(c) == 0x7F or 0xD800 <= ord(c) <= 0xDFFF for c in path):
        return "want no backslashes, control characters or broken unicode"
    if any(len(part.encode()) > 255 for part in path.split("/")):
        return "want file names of at most 255 bytes"
    if path.startswith("/") or path[1:3] == ":/" or any(part in {"", ".", ".."} for part in path.split("/")):
        return "want a path inside the model"
    return ""
