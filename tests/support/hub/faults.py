"""Faults on demand: which request goes wrong, and how its answer is spoiled.

`Rules` decides which rules a request meets; `spoil` turns a right answer into a wrong one. Faults of listings and of
redirects that need to know the hub are read by `api` and `server` from the rules that matched.
"""

import enum
import fnmatch
import gzip
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tests.support.hub.bodies import BytesBody, FlippedBody, GeneratedBody, JoinedBody, OtherBody, RepeatedBody, pieces
from tests.support.hub.routes import On
from tests.support.hub.wire import Answer, Cut, End, Request


class Fault(enum.StrEnum):
    """Everything that can be made to go wrong. Parameters in brackets are fields of the rule."""

    STATUS = "status"
    """Answer `status` (with `retry_after`, `code`, `message`)."""
    DELAY = "delay"
    """Wait `seconds` before answering."""
    TRUNCATE = "truncate"
    """Announce the whole body, close after `after_bytes` of it (None: before the head)."""
    RESET = "reset"
    """As TRUNCATE, with a TCP reset."""
    STALL = "stall"
    """Send `after_bytes`, then nothing for `seconds`, then close."""
    SLOW = "slow"
    """Send with `bytes_per_second`."""
    SHORT = "short"
    """Announce and send only `after_bytes`."""
    LONG = "long"
    """Announce and send `after_bytes` more than there are."""
    ENDLESS = "endless"
    """A terabyte of blanks, of no announced length, before anything else."""
    UNSIZED = "unsized"
    """No Content-Length: the connection's end ends the body."""
    FLIP_BIT = "flip-bit"
    """One bit differs, at the file's `offset` (None: first byte of the range)."""
    OTHER_BYTES = "other-bytes"
    """Right size, all bytes differ."""
    IGNORE_RANGE = "ignore-range"
    """200 with the whole file for a range request."""
    WRONG_RANGE = "wrong-range"
    """Content-Range says another place than asked for."""
    WRONG_TOTAL = "wrong-total"
    """Content-Range says another total size."""
    NO_CONTENT_RANGE = "no-content-range"
    GZIP = "gzip"
    """Content-Encoding: gzip, unasked."""
    HTML = "html"
    """An HTML page with `status` (200) instead of the content."""
    POINTER = "pointer"
    """The LFS pointer instead of the file."""
    REDIRECT = "redirect"
    """302 to `location`."""
    REDIRECT_LOOP = "redirect-loop"
    """302 to itself."""
    EXPIRED = "expired"
    """The signed URL ends: 403 at once, or after `after_bytes` of the body; from then on it is refused always."""
    OTHER_CDN = "other-cdn"
    """The redirect names the second CDN host."""
    NO_COMMIT = "no-commit"
    WRONG_COMMIT = "wrong-commit"
    WRONG_DIGEST = "wrong-digest"
    WRONG_SIZE = "wrong-size"
    """X-Repo-Commit missing or another; X-Linked-Etag another; X-Linked-Size one more."""
    NO_ERROR_CODE = "no-error-code"
    """A refusal without X-Error-Code, as some of the hub's endpoints answer."""
    NO_ETAG = "no-etag"
    WEAK_ETAG = "weak-etag"
    LINK_LOOP = "link-loop"
    """The listing's next page is the same page."""
    LINK_AWAY = "link-away"
    """The listing's next page lies at `location`, on another host."""
    LIST_CUT = "list-cut"
    """The listing (of a tree, or siblings) ends after `count` rows and says that it is complete."""
    SIBLINGS_NULL = "siblings-null"
    BAD_JSON = "bad-json"
    """Half of the JSON document."""


_NEEDS_BODY = frozenset(
    {
        Fault.TRUNCATE,
        Fault.STALL,
        Fault.SLOW,
        Fault.SHORT,
        Fault.LONG,
        Fault.FLIP_BIT,
        Fault.OTHER_BYTES,
        Fault.IGNORE_RANGE,
        Fault.GZIP,
    }
)
_FIRST_BYTE_DEFAULTS = {Fault.TRUNCATE: End.CLOSE, Fault.RESET: End.RESET, Fault.STALL: End.STALL}


@dataclass(slots=True)
class Rule:
    """One fault: where (`on`, `path`, `repository`, `method`), when (`skip`, `every`, `times`, `offset`), and how.

    `path` is a glob over the file's path. `skip` lets the first n matching requests pass; `every` takes each n-th;
    `times` ends the rule after n hits (None: never). With `offset` only requests whose range holds that byte match.
    """

    kind: Fault
    on: On | None = None
    path: str = "*"
    repository: str = "*"
    method: str | None = None
    times: int | None = None
    skip: int = 0
    every: int = 1
    offset: int | None = None
    when: Callable[[Request], bool] | None = None
    after_bytes: int | None = 0
    seconds: float = 3600
    bytes_per_second: float = 1024 * 1024
    status: int | None = None
    retry_after: str | None = None
    code: str | None = None
    message: str | None = None
    location: str = "http://127.0.0.1:9/"
    count: int = 0
    seen: int = 0
    hits: int = 0


@dataclass(slots=True)
class Rules:
    """The rules in force."""

    _rules: list[Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        with self._lock:
            self._rules.remove(rule)

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def take(self, on: On, request: Request, repository: str, path: str) -> list[Rule]:
        """Rules that this request meets, each counted as hit."""
        with self._lock:
            return [rule for rule in self._rules if _matches(rule, on, request, repository, path) and _due(rule)]


def _matches(rule: Rule, on: On, request: Request, repository: str, path: str) -> bool:
    if rule.kind in _NEEDS_BODY and request.method == "HEAD":
        return False
    places = (rule.on in (None, on), rule.method in (None, request.method), rule.when is None or rule.when(request))
    named = path == rule.path or fnmatch.fnmatchcase(path, rule.path)
    owned = fnmatch.fnmatchcase(repository.lower(), rule.repository.lower())
    return all(places) and named and owned and (rule.offset is None or _holds(request, rule.offset))


def _holds(request: Request, offset: int) -> bool:
    first, _, last = request.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
    return first.isdecimal() and int(first) <= offset and (not last.isdecimal() or offset <= int(last))


def _due(rule: Rule) -> bool:
    rule.seen += 1
    turn = rule.seen - rule.skip
    if turn <= 0 or (turn - 1) % rule.every or (rule.times is not None and rule.hits >= rule.times):
        return False
    rule.hits += 1
    return True


def find(rules: Sequence[Rule], kind: Fault) -> Rule | None:
    """The first rule of a kind."""
    return next((rule for rule in rules if rule.kind is kind), None)


def spoil(answer: Answer, rule: Rule, request: Request) -> Answer:
    """Turn a right answer into what the rule asks for. Kinds that need more than the answer are left alone."""
    changed = _spoil_whole(answer, rule, request) or _spoil_head(answer, rule) or _spoil_body(answer, rule)
    return changed or answer


def _spoil_whole(answer: Answer, rule: Rule, request: Request) -> Answer | None:
    match rule.kind:
        case Fault.STATUS:
            status = 500 if rule.status is None else rule.status
            extra = (("Retry-After", rule.retry_after), ("X-Error-Code", rule.code), ("X-Error-Message", rule.message))
            kept = tuple(header for header in answer.headers if header[0].startswith("RateLimit"))
            told = tuple((name, value) for name, value in extra if value is not None)
            if status == 416:
                told = (*told, ("Content-Range", f"bytes */{answer.body.size_bytes}"))
            body = BytesBody(b'{"error":"%d"}' % status)
            return Answer(status, (*kept, ("Content-Type", "application/json"), *told), body)
        case Fault.HTML:
            page = BytesBody(b"<!DOCTYPE html><html><body><h1>We are down for maintenance</h1></body></html>")
            return Answer(rule.status or 200, (("Content-Type", "text/html; charset=utf-8"),), page)
        case Fault.REDIRECT:
            return Answer(rule.status or 302, (("Location", rule.location),))
        case Fault.REDIRECT_LOOP:
            return Answer(rule.status or 302, (("Location", request.target),))
        case Fault.DELAY:
            return replace(answer, delay_seconds=rule.seconds)
        case Fault.TRUNCATE | Fault.RESET | Fault.STALL:
            return replace(answer, cut=Cut(_FIRST_BYTE_DEFAULTS[rule.kind], rule.after_bytes, rule.seconds))
        case Fault.SLOW:
            return replace(answer, bytes_per_second=rule.bytes_per_second)
        case _:
            return None


def _spoil_head(answer: Answer, rule: Rule) -> Answer | None:
    match rule.kind:
        case Fault.NO_CONTENT_RANGE:
            return without(answer, "content-range")
        case Fault.NO_ETAG:
            return without(answer, "etag")
        case Fault.NO_ERROR_CODE:
            return without(answer, "x-error-code")
        case Fault.NO_COMMIT:
            return without(answer, "x-repo-commit")
        case Fault.WEAK_ETAG:
            return with_header(answer, "ETag", "W/" + header(answer, "etag").removeprefix("W/"))
        case Fault.WRONG_COMMIT:
            return with_header(answer, "X-Repo-Commit", "f" * 40)
        case Fault.WRONG_DIGEST:
            return with_header(answer, "X-Linked-Etag", f'"{"e" * 64}"')
        case Fault.WRONG_SIZE:
            return with_header(answer, "X-Linked-Size", str(int(header(answer, "x-linked-size") or "0") + 1))
        case Fault.WRONG_TOTAL:
            place, _, total = header(answer, "content-range").partition("/")
            return with_header(answer, "Content-Range", f"{place}/{int(total or '0') + 1}")
        case Fault.WRONG_RANGE:
            first = f"bytes {answer.start + 1}-{answer.end}"
            return with_header(answer, "Content-Range", f"{first}/{answer.body.size_bytes}")
        case _:
            return None


def _spoil_body(answer: Answer, rule: Rule) -> Answer | None:
    match rule.kind:
        case Fault.SHORT:
            return replace(answer, stop=min(answer.end, answer.start + (rule.after_bytes or 0)))
        case Fault.LONG:
            more = rule.after_bytes or 1
            body = JoinedBody((_slice(answer), GeneratedBody(more)))
            return replace(answer, body=body, start=0, stop=body.size_bytes)
        case Fault.FLIP_BIT:
            place = answer.start if rule.offset is None else rule.offset
            return replace(answer, body=FlippedBody(answer.body, place))
        case Fault.OTHER_BYTES:
            return replace(answer, body=OtherBody(answer.body))
        case Fault.IGNORE_RANGE:
            return replace(without(answer, "content-range"), status=200, start=0, stop=None)
        case Fault.GZIP:
            packed = BytesBody(gzip.compress(_slice(answer).content, compresslevel=1))
            return replace(with_header(answer, "Content-Encoding", "gzip"), body=packed, start=0, stop=None)
        case Fault.ENDLESS:
            return replace(answer, body=_BLANKS, start=0, stop=None, unsized=True)
        case Fault.UNSIZED:
            return replace(answer, unsized=True)
        case Fault.BAD_JSON:
            return replace(answer, stop=answer.end // 2)
        case _:
            return None


_BLANKS = RepeatedBody(10**12, b" ")


def _slice(answer: Answer) -> BytesBody:
    return BytesBody(b"".join(pieces(answer.body, answer.start, answer.end)))


def header(answer: Answer, name: str) -> str:
    """Value of a header of an answer, "" when absent. `name` is lower case."""
    return next((value for known, value in answer.headers if known.lower() == name), "")


def without(answer: Answer, name: str) -> Answer:
    """The answer without a header. `name` is lower case."""
    return replace(answer, headers=tuple(pair for pair in answer.headers if pair[0].lower() != name))


def with_header(answer: Answer, name: str, value: str) -> Answer:
    """The answer with one header set."""
    return replace(answer, headers=(*without(answer, name.lower()).headers, (name, value)))
