"""What a user may write for a model on a Hugging Face hub, parsed once. Pure; nothing is asked of any host.

Names of branches may contain slashes, so `/tree/<a>/<b>` alone does not say where the revision ends. `parse` settles
what the URL itself settles and keeps the rest in `tail`; `settle` finishes with the names that the repository has.
"""

import dataclasses
import re
import urllib.parse
from collections.abc import Collection, Sequence

from aimodels_core.errors import UnsafeContent, UnsupportedSource, UsageError
from aimodels_core.source import check_path

DEFAULT_ENDPOINT = "https://huggingface.co"

_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co"})
_PORTS = {"https": 443, "http": 80}
_MAX_CHARACTERS = 2048
_MAX_REVISION_CHARACTERS = 250
_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_REPO_NAME = re.compile(_NAME)
_QUANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_SHORT_FORM = re.compile(rf"(?P<repo>{_NAME}(?:/{_NAME})?)(?::(?P<quant>[^@/:]*))?(?:@(?P<revision>.*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONTROL = re.compile(r"[\x00-\x20\x7f\\]")
_NOT_MODELS = {"datasets": "a dataset", "spaces": "a space", "buckets": "a bucket", "kernels": "a kernel"}
_RESERVED = frozenset(
    {"api", "blog", "chat", "collections", "docs", "enterprise", "join", "learn", "login", "models", "new"}
    | {"organizations", "papers", "posts", "pricing", "settings", "tasks", "users"}
)
_FILE_WORDS = frozenset({"blob", "resolve", "raw"})


@dataclasses.dataclass(frozen=True, slots=True)
class HubReference:
    """A model on a hub, as the user named it.

    Args:
        endpoint: base URL of the hub, without a slash at the end.
        repo: `org/name`, or `name` for the oldest repositories.
        revision: branch, tag, `refs/pr/N` or commit, decoded; None for the default branch, or while `tail` is open.
        file: one file of the repository, when the URL names one.
        quant: a quantisation such as `Q4_K_M`, when one was written behind the repository.
        tail: segments behind `/tree/` or `/blob/` whose division between revision and file needs `settle`.
        names_file: the URL names a file, so the last segments of `tail` are its path.
    """

    endpoint: str
    repo: str
    revision: str | None = None
    file: str | None = None
    quant: str | None = None
    tail: tuple[str, ...] = ()
    names_file: bool = False

    @property
    def select(self) -> str:
        """What was asked for within the repository: a file, a quantisation, or nothing."""
        return self.file or self.quant or ""


def parse(url: str, *, endpoint: str = "", revision: str = "") -> HubReference:
    """Parse the URL of a model.

    Args:
        url: one of the hub's own forms; with `endpoint` also URLs of that endpoint.
        endpoint: base URL of the hub to ask instead of huggingface.co, as `parse_endpoint` returns it.
        revision: overrides the revision of the URL; taken as it is, never decoded.

    Raises:
        UnsupportedSource: another host, a dataset or space, a bad form; the message says what to write.

    >>> parse("https://huggingface.co/org/name/tree/refs%2Fpr%2F1").revision
    'refs/pr/1'
    >>> parse("https://hf.co/org/name:Q4_K_M").quant
    'Q4_K_M'
    """
    parts = _split(url)
    base = endpoint or DEFAULT_ENDPOINT
    path = _path_below(parts, endpoint)
    if path is None:
        raise _unsupported(url, _why_not_this_host(parts))
    segments = _segments(url, path)
    repo, quant, rest = _repository(url, segments)
    reference = HubReference(base, repo, quant=quant)
    reference = _with_rest(url, reference, rest)
    asked = _asked_revision(url, parts.query)
    if asked and (reference.tail or reference.revision not in (None, asked)):
        raise _unsupported(url, "names two revisions, in its path and behind ?revision=; write one of them")
    return override(dataclasses.replace(reference, revision=reference.revision or asked), revision)


def parse_argument(text: str, *, endpoint: str = "", revision: str = "") -> HubReference:
    """Parse what a command line names: a URL, or `org/name`, `org/name:quant`, `org/name@revision`.

    Raises:
        UnsupportedSource: as `parse`.

    >>> parse_argument("org/name:Q8_0@v1").revision
    'v1'
    """
    if "://" in text:
        return parse(text, endpoint=endpoint, revision=revision)
    found = _SHORT_FORM.fullmatch(text[:_MAX_CHARACTERS])
    if found is None or len(text) > _MAX_CHARACTERS:
        raise _unsupported(text, f"not a model: want {DEFAULT_ENDPOINT}/<org>/<name> or <org>/<name>")
    repo, quant, rest = _repository(text, f"{found['repo']}{_suffix(found['quant'])}".split("/"))
    if rest:
        raise _unsupported(text, "want at most one slash")
    reference = HubReference(endpoint or DEFAULT_ENDPOINT, repo, quant=quant)
    named = None if found["revision"] is None else check_revision(found["revision"])
    return override(dataclasses.replace(reference, revision=named), revision)


def parse_endpoint(text: str) -> str:
    """Return the base URL of a hub that the user or the administrator set, normalised; http is allowed.

    Raises:
        UsageError: not an http(s) URL, or one with credentials, a query or a fragment.

    >>> parse_endpoint("http://Hub.local:8080/")
    'http://hub.local:8080'
    """
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"endpoint {_shown(text)!r}: want http(s)://host[:port]") from error
    if _CONTROL.search(text) or parts.scheme not in _PORTS or not parts.hostname:
        raise UsageError(f"endpoint {_shown(text)!r}: want http(s)://host[:port]")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(f"endpoint {_shown(text)!r}: want no credentials, query or fragment; a token is given apart")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown_port = "" if port in (None, _PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{host}{shown_port}{parts.path.rstrip('/')}"


def override(reference: HubReference, revision: str) -> HubReference:
    """Replace the revision by one that was given apart, when there is one."""
    if not revision:
        return reference
    return dataclasses.replace(reference, revision=check_revision(revision))


def settle(reference: HubReference, names: Collection[str]) -> HubReference:
    """Divide `tail` into revision and file by the names of branches and tags that the repository has.

    The longest name that fits wins; when none does, the first segment is the revision.

    Raises:
        UnsupportedSource: a folder of a repository was named, or no file where one must be.

    >>> reference = parse("https://hf.co/o/n/blob/feature/x/a/b.gguf")
    >>> settle(reference, {"main", "feature/x"}).file
    'a/b.gguf'
    """
    tail = reference.tail
    if not tail:
        return reference
    longest = len(tail) - 1 if reference.names_file else len(tail)
    fits = [count for count in range(1, longest + 1) if "/".join(tail[:count]) in names]
    placed = _placed(_web(reference), tail, max(fits, default=1), names_file=reference.names_file)
    revision = reference.revision or placed[0]
    return dataclasses.replace(reference, revision=revision, file=placed[1], tail=())


def check_revision(revision: str) -> str:
    """Return `revision` if a hub could have it.

    Raises:
        UnsupportedSource: empty, too long, with spaces, control characters, `..`, or slashes at an end.
    """
    bad = _CONTROL.search(revision) or ".." in revision or "//" in revision or revision != revision.strip("/")
    if bad or not 0 < len(revision) <= _MAX_REVISION_CHARACTERS:
        raise UnsupportedSource(f"revision {revision[:80]!r}: want a branch, a tag, refs/pr/<number> or a commit")
    return revision


def _split(url: str) -> urllib.parse.SplitResult:
    if len(url) > _MAX_CHARACTERS:
        raise _unsupported(url, f"want at most {_MAX_CHARACTERS} characters, got {len(url)}")
    if _CONTROL.search(url):
        raise _unsupported(url, "want no spaces, backslashes or control characters")
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise _unsupported(url, f"not a URL: want {DEFAULT_ENDPOINT}/<org>/<name>") from error
    if "@" in parts.netloc:
        raise _unsupported(url, "want no user name or password in the URL; a token is given apart")
    return parts


def _path_below(parts: urllib.parse.SplitResult, endpoint: str) -> str | None:
    """Return the path below the hub that `parts` names, or None if it is no hub we may ask."""
    if endpoint:
        base = urllib.parse.urlsplit(endpoint)
        inside = parts.path == base.path or parts.path.startswith(f"{base.path}/")
        if _origin(parts) == _origin(base) and inside:
            return parts.path[len(base.path) :]
    plain = parts.scheme == "https" and parts.port is None and not parts.netloc.endswith(":")
    return parts.path if plain and (parts.hostname or "") in _HOSTS else None


def _origin(parts: urllib.parse.SplitResult) -> tuple[str, str, int | None]:
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


def _why_not_this_host(parts: urllib.parse.SplitResult) -> str:
    want = f"want {DEFAULT_ENDPOINT}/<org>/<name>"
    if (parts.hostname or "") not in _HOSTS:
        return f"not a host that is served: {want}; a hub of your own is set as endpoint"
    if parts.scheme != "https":
        return f"want https, got {parts.scheme or 'no scheme'}: {want}"
    return f"want no port: {want}"


def _segments(url: str, path: str) -> list[str]:
    """Split a path and decode each segment exactly once."""
    try:
        segments = [urllib.parse.unquote(part, errors="strict") for part in path.removesuffix("/").split("/")[1:]]
    except UnicodeDecodeError as error:
        raise _unsupported(url, "want UTF-8 behind each %") from error
    for segment in segments:
        if segment in {"", ".", ".."} or "\\" in segment or any(ord(c) < 0x20 or ord(c) == 0x7F for c in segment):
            raise _unsupported(url, "want no empty, `.` or `..` segments, backslashes or control characters")
    return segments


def _repository(url: str, segments: Sequence[str]) -> tuple[str, str | None, list[str]]:
    """Take the repository and the quantisation from the front; return the segments behind them."""
    if not segments:
        raise _unsupported(url, f"names no model: want {DEFAULT_ENDPOINT}/<org>/<name>")
    if segments[0] in _NOT_MODELS:
        raise _unsupported(url, f"{_NOT_MODELS[segments[0]]}, not a model: want {DEFAULT_ENDPOINT}/<org>/<name>")
    if segments[0] in _RESERVED:
        raise _unsupported(url, f"a page of the hub, not a model: want {DEFAULT_ENDPOINT}/<org>/<name>")
    one_name = len(segments) == 1 or (len(segments) > 2 and segments[1] in _FILE_WORDS | {"tree", "commit"})
    count = 1 if one_name else 2
    last, colon, quant = segments[count - 1].partition(":")
    names = [*segments[: count - 1], last]
    if not all(_REPO_NAME.fullmatch(name) and "--" not in name and ".." not in name for name in names):
        raise _unsupported(url, "want letters, digits, `-`, `_` and `.` in the names of organisation and model")
    if last.endswith(".git"):
        raise _unsupported(url, "the address for git: leave out `.git`")
    if colon and not _QUANT.fullmatch(quant):
        raise _unsupported(url, "want a quantisation such as Q4_K_M behind the colon")
    return "/".join(names), quant or None, list(segments[count:])


def _with_rest(url: str, reference: HubReference, rest: list[str]) -> HubReference:
    """Take in what stands behind the repository."""
    if not rest:
        return reference
    word, tail = rest[0], tuple(rest[1:])
    if word == "commit" and len(tail) == 1:
        word = "tree"
    names_file = word in _FILE_WORDS
    if word != "tree" and not names_file:
        raise _unsupported(url, f"a page of the model: want {DEFAULT_ENDPOINT}/{reference.repo}")
    if names_file and len(tail) < 2:
        raise _unsupported(url, f"want {DEFAULT_ENDPOINT}/{reference.repo}/{word}/<revision>/<file>")
    if not tail:
        return reference
    certain = _certain(tail, names_file=names_file)
    if certain is None:
        return dataclasses.replace(reference, tail=tail, names_file=names_file)
    revision, file = _placed(url, tail, certain, names_file=names_file)
    return dataclasses.replace(reference, revision=revision, file=file)


def _certain(tail: Sequence[str], *, names_file: bool) -> int | None:
    """Count the segments of the revision when the URL alone settles it."""
    if "/" in tail[0] or _COMMIT.fullmatch(tail[0]) or tail[0] == "main":
        return 1
    if tail[0] == "refs" and len(tail) > 2 and tail[1] in {"pr", "convert"}:
        return 3
    return 1 if len(tail) == 1 + names_file else None


def _placed(url: str, tail: Sequence[str], count: int, *, names_file: bool) -> tuple[str, str | None]:
    revision, rest = check_revision("/".join(tail[:count])), tail[count:]
    if rest and not names_file:
        raise _unsupported(url, "a folder of a model cannot be published by itself; leave the folder out")
    if names_file and not rest:
        raise _unsupported(url, "want a file behind the revision")
    if any("/" in name for name in rest):
        raise _unsupported(url, "want no encoded slash in the name of a file")
    try:
        return revision, check_path("/".join(rest)) if rest else None
    except UnsafeContent as error:
        raise _unsupported(url, error.detail) from error


def _asked_revision(url: str, query: str) -> str | None:
    """Return the value of `?revision=`, decoded once; a plus stays a plus, since names of branches may have one."""
    values = [part.removeprefix("revision=") for part in query.split("&") if part.startswith("revision=")]
    if not values:
        return None
    if len(values) > 1:
        raise _unsupported(url, "want one ?revision=")
    try:
        return check_revision(urllib.parse.unquote(values[0], errors="strict"))
    except UnicodeDecodeError as error:
        raise _unsupported(url, "want UTF-8 behind each %") from error


def _suffix(quant: str | None) -> str:
    return "" if quant is None else f":{quant}"


def _web(reference: HubReference) -> str:
    return f"{reference.endpoint}/{reference.repo}"


def _unsupported(url: str, why: str) -> UnsupportedSource:
    return UnsupportedSource(f"{_shown(url)}: {why}")


def _shown(url: str) -> str:
    """Render a URL that may hold secrets: no user information, no query, no fragment, printable, short."""
    bare = re.split(r"[?#]", url, maxsplit=1)[0]
    bare = re.sub(r"^([^/]*//)?[^/]*@", r"\1", bare)
    return "".join(c if c.isprintable() else "?" for c in bare[:200])
