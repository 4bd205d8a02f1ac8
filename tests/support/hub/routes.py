"""What a request to the API host asks for. Pure: segments in, a route out."""

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass


class On(enum.StrEnum):
    """Kinds of request, as faults and the log name them."""

    INFO = "info"
    TREE = "tree"
    REFS = "refs"
    PATHS_INFO = "paths-info"
    WHOAMI = "whoami"
    RESOLVE = "resolve"
    RAW = "raw"
    CACHE = "resolve-cache"
    CDN = "cdn"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Route:
    """A parsed request. `revision` is None where the request names none; `path` is "" for the whole repository."""

    on: On
    repository: str = ""
    revision: str | None = None
    path: str = ""


_API_WORDS = {"revision": On.INFO, "tree": On.TREE, "refs": On.REFS, "paths-info": On.PATHS_INFO}
_COMMIT = re.compile("[0-9a-f]{40}")
_FILE_WORDS = {"resolve": On.RESOLVE, "raw": On.RAW}


def parse(segments: Sequence[str]) -> Route:
    """Read the decoded segments of a path. A revision is exactly one segment, whatever it contains.

    >>> parse(["api", "models", "org", "name", "tree", "refs/pr/1"])
    Route(on=<On.TREE: 'tree'>, repository='org/name', revision='refs/pr/1', path='')
    >>> parse(["gpt2", "resolve", "main", "a", "b.json"])
    Route(on=<On.RESOLVE: 'resolve'>, repository='gpt2', revision='main', path='a/b.json')
    """
    match list(segments):
        case ["api", "whoami-v2"]:
            return Route(On.WHOAMI)
        case ["api", "resolve-cache", "models", *rest] if len(rest) > 2:
            size = 1 if _COMMIT.fullmatch(rest[1]) else 2
            return Route(On.CACHE, "/".join(rest[:size]), rest[size], "/".join(rest[size + 1 :]))
        case ["api", "models", *rest] if rest:
            return _api(rest)
        case rest:
            return _file(rest)


def _api(rest: list[str]) -> Route:
    for size in (1, 2):
        if len(rest) > size and rest[size] in _API_WORDS:
            on = _API_WORDS[rest[size]]
            revision = rest[size + 1] if len(rest) > size + 1 else None
            return Route(on, "/".join(rest[:size]), revision, "/".join(rest[size + 2 :]))
    return Route(On.INFO, "/".join(rest)) if len(rest) <= 2 else Route(On.UNKNOWN)


def _file(rest: list[str]) -> Route:
    for size in (1, 2):
        if len(rest) > size + 2 and rest[size] in _FILE_WORDS:
            on = _FILE_WORDS[rest[size]]
            return Route(on, "/".join(rest[:size]), rest[size + 1], "/".join(rest[size + 2 :]))
    return Route(On.UNKNOWN)
