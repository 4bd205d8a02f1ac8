"""The hub's API through `huggingface_hub`: a model's commit and facts, its listing, its branches and tags.

`huggingface_hub` builds the requests, follows the pages and parses the answers. It has one HTTP client per process and
would follow a page's link to any host, token included; it also sleeps and tries again by itself. So its client is given
a transport of ours that hands each request to `HubWire`: one gate, one budget, one set of host rules, and the library
never holds the token.
"""

import contextvars
import dataclasses
import functools
import importlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from aimodels_core.digest import Digest, GitDigest
from aimodels_core.errors import PlanRefused, SourceDenied, SourceNotFound, SourceUnavailable
from aimodels_core.source import SourceFile, check_path
from aimodels_core.transport import Answer, redact
from aimodels_jobs.sources import hub_answers
from aimodels_jobs.sources.hub_answers import Asked
from aimodels_jobs.sources.hub_wire import API, HubWire

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import HfApi

MAX_FILES = 100_000

_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_MAX_FACT_CHARACTERS = 200

_installing = threading.Lock()
_asking: contextvars.ContextVar[Callable[[str], Answer] | None] = contextvars.ContextVar("_asking", default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class HubInfo:
    """A model at one commit.

    Args:
        id: the hub's own name of it.
        commit: 40 hex digits.
        names: names of files that the hub mentions; it may leave some out.
        facts: what the hub declares, few and short.
    """

    id: str
    commit: str
    names: frozenset[str]
    facts: Mapping[str, str]


def preload() -> None:
    """Import the library, which takes 0.2 s: beside the wait for something else."""
    with suppress(ImportError):  # told by whoever needs it
        importlib.import_module("huggingface_hub.hf_api")


class HubApi:
    """Asks the API of one hub. Safe from several threads."""

    def __init__(self, endpoint: str, wire: HubWire) -> None:
        self._endpoint = endpoint
        self._wire = wire

    def info(self, repo: str, revision: str | None) -> HubInfo:
        """Fix the commit of a revision (None: the default branch).

        Raises:
            SourceNotFound, SourceDenied, SourceUnavailable, RateLimited.
        """
        with self._calling(Asked(self._endpoint, repo, revision or "", self._wire.with_token)) as api:
            found = api.model_info(repo, revision=revision)
            commit = GitDigest(found.sha or "").hex
            names = frozenset(sibling.rfilename for sibling in found.siblings or ())
            return HubInfo(str(found.id), commit, names, _facts(found))

    def files(self, repo: str, commit: str) -> tuple[SourceFile, ...]:
        """List all files of a commit, page by page to the end, in order of path.

        Raises:
            PlanRefused: more than 100,000 files.
            UnsafeContent: a path that must not be published.
            SourceNotFound, SourceDenied, SourceUnavailable, RateLimited.
        """
        with self._calling(Asked(self._endpoint, repo, commit, self._wire.with_token)) as api:
            return _complete(repo, api.list_repo_tree(repo, recursive=True, revision=commit))

    def names(self, repo: str) -> frozenset[str]:
        """List the names of branches, tags and pull requests, short and full.

        Raises:
            SourceNotFound, SourceDenied, SourceUnavailable, RateLimited.
        """
        with self._calling(Asked(self._endpoint, repo, "", self._wire.with_token)) as api:
            refs = api.list_repo_refs(repo)
            found = [*refs.branches, *refs.converts, *refs.tags]
            return frozenset(name for ref in found for name in (ref.name, ref.ref))

    def accepts_token(self) -> bool:
        """Tell whether the hub accepts the token at all.

        Raises:
            SourceUnavailable, RateLimited.
        """
        answer = self._wire.follow(f"{self._endpoint}/api/whoami-v2", kind=API, max_bytes=_MAX_ANSWER_BYTES)
        return answer.status not in {401, 403}

    @contextmanager
    def _calling(self, asked: Asked) -> "Iterator[HfApi]":
        """Send the requests that the library makes inside through the wire, and translate what it raises."""
        from huggingface_hub import HfApi  # takes 0.2 s, not needed by most commands

        _install()
        token = _asking.set(_Pages(self, asked).ask)
        try:
            yield HfApi(endpoint=self._endpoint, token=False)
        except _foreign() as error:
            what = f"{asked.place}: the hub's answer cannot be used: {type(error).__name__}"
            raise SourceUnavailable(what, code="BadAnswer") from error
        finally:
            _asking.reset(token)

    def get(self, url: str, asked: Asked) -> Answer:
        """Get one document of the API.

        Raises:
            SourceNotFound, SourceDenied, SourceUnavailable, RateLimited.
        """
        answer = self._wire.follow(url, kind=API, max_bytes=_MAX_ANSWER_BYTES)
        if answer.status == 200:
            return answer
        error = hub_answers.refusal(asked, answer.status, answer.headers)
        if isinstance(error, SourceNotFound) and error.code == "RepoNotFound" and not self.accepts_token():
            raise SourceDenied(f"{asked.place}: the hub refuses the token; give a valid one", code="TokenRefused")
        raise error


class _Pages:
    """The requests of one call: each at most once, and only to the hub's own origin."""

    def __init__(self, api: HubApi, asked: Asked) -> None:
        self._api = api
        self._asked = asked
        self._seen: set[str] = set()

    def ask(self, url: str) -> Answer:
        if url in self._seen:
            raise SourceUnavailable(f"{redact(url)}: the listing leads back to a page already read", code="ListingLoop")
        self._seen.add(url)
        return self._api.get(url, self._asked)


def _complete(repo: str, entries: Iterable[Any]) -> tuple[SourceFile, ...]:
    found: dict[str, SourceFile] = {}
    for entry in entries:
        if not hasattr(entry, "blob_id"):
            continue  # a folder
        file = _file(entry)
        if file.path in found:
            raise SourceUnavailable(f"{repo}: {file.path}: listed twice", code="ListingLoop")
        found[file.path] = file
        if len(found) > MAX_FILES:
            raise PlanRefused(f"{repo}: want at most {MAX_FILES} files, got more", code="TooManyFiles")
    return tuple(found[path] for path in sorted(found))


def _file(entry: Any) -> SourceFile:
    """Parse one row of a listing; a git digest is taken only where there is no sha256."""
    path, lfs = check_path(entry.path), entry.lfs
    size = entry.size if lfs is None else lfs.size
    if not isinstance(size, int) or size < 0:
        raise SourceUnavailable(f"{path}: want a size, got {str(size)[:40]!r}", code="BadListing")
    if lfs is not None:
        return SourceFile(path, size, digest=Digest(lfs.sha256))
    return SourceFile(path, size, git_digest=GitDigest(entry.blob_id))


def _facts(found: Any) -> Mapping[str, str]:
    card = found.card_data.to_dict() if found.card_data is not None else {}
    declared = {
        "pipeline_tag": found.pipeline_tag,
        "library_name": found.library_name,
        "license": card.get("license"),
        "gated": str(found.gated).lower() if found.gated else None,
    }
    return {name: value[:_MAX_FACT_CHARACTERS] for name, value in declared.items() if isinstance(value, str) and value}


def _foreign() -> tuple[type[Exception], ...]:
    """List what the library and its parsing of foreign documents raise."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    wrong = (KeyError, TypeError, ValueError, AttributeError, IndexError, json.JSONDecodeError, RuntimeError)
    return (HfHubHTTPError, HFValidationError, httpx2.HTTPError, httpx2.InvalidURL, *wrong)


def _install() -> None:
    """Give the library's one client our transport, once: replacing it closes the one that is in use."""
    with _installing:
        _installed()


@functools.cache
def _installed() -> None:
    """Put the transport in place. Calls from elsewhere in the process still go out as they would."""
    import httpx2
    from huggingface_hub import set_client_factory

    class Bridge(httpx2.BaseTransport):
        @functools.cached_property
        def _plain(self) -> httpx2.HTTPTransport:
            return httpx2.HTTPTransport()

        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            ask = _asking.get()
            return self._plain.handle_request(request) if ask is None else _handed_over(request, ask)

    set_client_factory(lambda: httpx2.Client(transport=Bridge(), follow_redirects=True, timeout=60.0))


def _handed_over(request: "httpx2.Request", ask: Callable[[str], Answer]) -> "httpx2.Response":
    import httpx2

    if request.method != "GET":
        raise SourceUnavailable(f"{redact(str(request.url))}: want GET, got {request.method}", code="BadAnswer")
    answer = ask(str(request.url))
    kept = {name: answer.headers[name] for name in ("content-type", "link") if name in answer.headers}
    return httpx2.Response(answer.status, headers=kept, content=answer.body, request=request)
