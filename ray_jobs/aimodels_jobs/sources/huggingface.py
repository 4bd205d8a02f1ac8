"""A model on a Hugging Face hub as a source of files (design 2.2).

    resolve   the commit once (api), the whole listing page by page (api), one access probe (resolve)
    ticket    one resolve per file and lifetime of its signed URL: the hub redirects to its CDN, or serves by itself
    read      bounded ranges only, from where the ticket says, checked to the byte

URLs are parsed in `hub_url`, the API is asked in `hub_api`, answers are judged in `hub_answers` and `hub_ranges`.
"""

import dataclasses
import threading
import urllib.parse
import weakref
from collections.abc import Callable, Mapping

from aimodels_core import hosts
from aimodels_core.errors import (
    Cancelled,
    SourceNotFound,
    SourceUnavailable,
    TicketExpired,
    TransientError,
    UnsafeContent,
)
from aimodels_core.source import Gate, ReadTicket, ResolvedSource, SourceFile
from aimodels_core.transport import Answer, Transport, redact
from aimodels_core.units import MIB
from aimodels_jobs.sources import hub_answers, hub_ranges, hub_settings, hub_url, hub_wire, lfs_pointer
from aimodels_jobs.sources.hub_answers import Asked
from aimodels_jobs.sources.hub_api import HubApi
from aimodels_jobs.sources.hub_settings import HubSettings
from aimodels_jobs.sources.hub_tickets import Fresh, Tickets
from aimodels_jobs.sources.hub_url import HubReference
from aimodels_jobs.sources.hub_wire import RESOLVE, Clock, HubWire, Patience

KIND = "HuggingFace"
MAX_READ_BYTES = 128 * MIB

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
# Whatever else a CDN answers to a signed URL means that the URL is over, never that the caller is refused.
_ANSWERED = frozenset({200, 206, 416})
# What may be wrong with the place, not with the way.
_NEEDS_RESOLVE = frozenset(
    {"LfsPointer", "DigestDiffers", "NotPartial", "WrongRange", "DnsFailed", "ConnectFailed", "ProxyFailed"}
)
_TICKET_WAIT_SECONDS = 600.0
_MAX_HOPS = 5
_PATIENCE = Patience()
_CLOCK = Clock()


def _until(aborted: threading.Event, what: str) -> Callable[[float], None]:
    """Make a sleep that an abort ends with Cancelled."""

    def sleep(seconds: float) -> None:
        if aborted.wait(seconds):
            raise Cancelled(f"{what}: cancelled")

    return sleep


class HuggingFace:
    """A model on a hub: implements `aimodels_core.source.Source`."""

    def __init__(
        self,
        reference: HubReference,
        settings: HubSettings,
        *,
        gate: Gate,
        transport: Transport | None = None,
        patience: Patience = _PATIENCE,
        clock: Clock = _CLOCK,
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            reference: what to publish, with the endpoint to ask.
            settings: how the hub is reached; its endpoint must be the reference's, or empty.
            gate: what every request to the hub's own host passes.
            transport: how bytes travel; one of our own with `host_rules` by default.
            patience: how long and how often to try.
            clock: time.
        """
        self._reference = reference
        self._settings = settings
        self._aborted = threading.Event()
        if clock is _CLOCK:
            clock = dataclasses.replace(clock, sleep=_until(self._aborted, reference.repo))
        self._clock = clock
        self._rules = hub_settings.host_rules(reference.endpoint, settings)
        made = transport or Transport(self._rules, ca_file=settings.ca_file, proxies=settings.proxies)
        if transport is None:
            weakref.finalize(self, made.close)  # sources are many and short-lived, and nobody must remember to close
        self._transport = made
        self._wire = HubWire(
            reference.endpoint, token=settings.token, transport=made, gate=gate, patience=patience, clock=clock
        )
        self._api = HubApi(reference.endpoint, self._wire)
        self._tickets = Tickets(clock=clock.monotonic, wait_seconds=_TICKET_WAIT_SECONDS)
        self._resolved: ResolvedSource | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close idle connections; the source can still be used."""
        self._wire.close()

    def abort(self) -> None:
        """End what is under way, waits included, and refuse what comes (see `Source`)."""
        self._aborted.set()
        self._transport.abort()

    def requests_made(self) -> Mapping[str, int]:
        """Count the requests to the hub's own host so far, by class."""
        return self._wire.requests_made()

    def resolve(self) -> ResolvedSource:
        """Fix the commit, list its files and prove that they may be read. Asked once; then kept.

        Raises:
            UnsupportedSource: the URL names a folder.
            PlanRefused: more files than can be published.
            UnsafeContent: a file's path must not be published, or a pointer stands for a file.
            SourceNotFound, SourceDenied, SourceUnavailable, RateLimited.
        """
        with self._lock:
            if self._resolved is None:
                self._resolved = self._resolve()
                self._probe(self._resolved.files)
            return self._resolved

    def _resolve(self) -> ResolvedSource:
        wanted = self._reference
        if wanted.tail:
            wanted = hub_url.settle(wanted, self._api.names(wanted.repo))
        info = self._api.info(wanted.repo, wanted.revision)
        files = self._api.files(info.id, info.commit)
        self._check_listing(info.names, files, wanted)
        return ResolvedSource(
            kind=KIND,
            requested=wanted.repo,
            canonical=info.id,
            revision=info.commit,
            files=files,
            select=wanted.select,
            public=not self._wire.with_token,
            facts=info.facts,
        )

    def _check_listing(self, names: frozenset[str], files: tuple[SourceFile, ...], wanted: HubReference) -> None:
        listed = {file.path for file in files}
        missing = sorted(names - listed)
        if missing:
            raise SourceUnavailable(
                f"{wanted.repo}: the listing is not complete: want {missing[0]!r} and {len(missing) - 1} more",
                code="ListingIncomplete",
            )
        if wanted.file and wanted.file not in listed:
            raise SourceNotFound(f"{wanted.repo}: no file {wanted.file!r} at this revision", code="FileNotFound")

    def _probe(self, files: tuple[SourceFile, ...]) -> None:
        """Ask for one file that is likely to be needed: a listing is shown to those, too, who may read nothing."""
        readable = [file for file in files if file.size_bytes]
        if not readable:
            return
        weights = [file for file in readable if file.path.endswith(_WEIGHTS) and file.digest]
        try:
            self.ticket(max(weights or readable, key=lambda file: file.size_bytes))
        except BaseException:
            self._resolved = None
            raise

    def ticket(self, file: SourceFile) -> ReadTicket:
        """Return a ticket with a useful rest of life, asking the hub once per file and URL lifetime.

        Raises:
            UnsafeContent: code LfsPointer: the hub serves a pointer in the place of the file.
            SourceDenied, SourceUnavailable, RateLimited.
        """
        return self._tickets.get(file.path, lambda: self._open(file)[0])

    def renew(self, file: SourceFile, refused: ReadTicket) -> ReadTicket:
        """Return a ticket other than `refused`; callers that were refused the same one share a request.

        Raises:
            As `ticket`.
        """
        return self._tickets.get(file.path, lambda: self._open(file)[0], refused=refused)

    def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        """Read [start, stop), renewing tickets and trying again within the budget.

        A file that is read whole is compared with its digest; bytes that differ are fetched once more.

        Raises:
            UnsafeContent: code LfsPointer: twice a pointer in the place of the file.
            DigestMismatch: the whole file differed twice.
            SourceDenied, SourceUnavailable, RateLimited.
        """
        if not 0 <= start <= stop <= file.size_bytes or stop - start > MAX_READ_BYTES:
            raise ValueError(f"{file.path}: want a range of at most {MAX_READ_BYTES} bytes in {file.size_bytes}")
        if start == stop:
            return b""
        reading, tries, expired = hub_ranges.Reading(file, start, stop), self._wire.tries(), 0
        ticket, answer = self._begin(reading)
        while True:
            try:
                return reading.content(answer or self._get(reading, ticket))
            except TicketExpired as error:
                expired += 1
                if expired > 1:  # the first time is what lifetimes are for
                    tries.again(error)
                renewed = True
            except TransientError as error:
                tries.again(error)
                renewed = error.code in _NEEDS_RESOLVE
            ticket, answer = self.renew(file, ticket) if renewed else self.ticket(file), None

    def _begin(self, reading: hub_ranges.Reading) -> tuple[ReadTicket, Answer | None]:
        """Return the ticket, and the range itself where the hub answered with it at once, as it may for small files."""
        file, seen = reading.file, list[Answer]()
        if not hub_ranges.may_come_whole(file):
            return self.ticket(file), None

        def fetch() -> Fresh:
            fresh, answer = self._open(file, reading.start, reading.stop)
            seen.append(answer)
            return fresh

        ticket = self._tickets.get(file.path, fetch)
        return ticket, next((answer for answer in seen if answer.status in _ANSWERED), None)

    def _get(self, reading: hub_ranges.Reading, ticket: ReadTicket) -> Answer:
        """Ask for a range once, from where the ticket says.

        Raises:
            TicketExpired: the ticket is not accepted any more.
            SourceDenied: the hub itself refuses.
        """
        headers = {"Range": hub_ranges.header(reading.start, reading.stop), **dict(ticket.headers)}
        longest = hub_ranges.longest_answer(reading.file, reading.start, reading.stop)
        own = self._wire.is_own(ticket.url)
        if own:
            answer = self._wire.ask_once(ticket.url, kind=RESOLVE, headers=headers, max_bytes=longest)
        else:
            answer = self._wire.fetch_once(ticket.url, headers=headers, max_bytes=longest)
        if answer.status in _ANSWERED:
            return answer
        if own and answer.status in {401, 403, 404}:
            raise hub_answers.refusal(self._asked(), answer.status, answer.headers)
        place = redact(answer.url)
        raise TicketExpired(f"{reading.file.path}: {place}: got status {answer.status}", code="TicketExpired")

    def _open(self, file: SourceFile, start: int = 0, stop: int = 1) -> tuple[Fresh, Answer]:
        """Ask the hub where a file is read, and compare what it says of the file with the listing."""
        answer = self._ask(file, start, stop)
        target = hub_wire.redirect(answer)
        if target is None and hub_ranges.total_bytes(answer) != file.size_bytes:
            answer = self._ask(file, 0, lfs_pointer.MAX_BYTES)
            target = hub_wire.redirect(answer)
            if target is None and hub_ranges.total_bytes(answer) != file.size_bytes:
                raise self._not_the_file(file, answer)
        fresh = self._fresh(file, answer, target or answer.url)
        hub_answers.check_identity(file, self._known().revision, answer.headers)
        return fresh, answer

    def _ask(self, file: SourceFile, start: int, stop: int) -> Answer:
        """Resolve a file; a redirect that names no commit is one of a renamed repository, and is followed."""
        url, headers = self._url(file), {"Range": hub_ranges.header(start, stop)}
        longest = hub_ranges.longest_answer(file, start, stop)
        for _ in range(_MAX_HOPS):
            answer = self._wire.ask(url, kind=RESOLVE, headers=headers, max_bytes=longest)
            if answer.status >= 400:
                raise hub_answers.refusal(self._asked(), answer.status, answer.headers)
            target = hub_wire.redirect(answer)
            if target is None or "x-repo-commit" in answer.headers or not self._wire.is_own(target):
                return answer
            url = target
        raise SourceUnavailable(f"{file.path}: {redact(url)}: want at most {_MAX_HOPS} redirects", code="RedirectLoop")

    def _not_the_file(self, file: SourceFile, answer: Answer) -> UnsafeContent | SourceUnavailable:
        """Say what the hub serves when it serves something of another size, twice."""
        pointer = lfs_pointer.find(answer.body)
        if pointer is not None:
            return hub_ranges.pointer_error(file, pointer)
        got, kind = hub_ranges.total_bytes(answer), answer.headers.get("content-type", "no content type")[:60]
        what = f"{file.path}: want {file.size_bytes} bytes, got {got} ({kind})"
        return SourceUnavailable(what, code="WrongSize")

    def _fresh(self, file: SourceFile, answer: Answer, url: str) -> Fresh:
        own = self._wire.is_own(url)
        if not own and not self._rules.may_redirect(answer.url, url):
            raise SourceUnavailable(
                f"{file.path}: {redact(answer.url)}: want a redirect to the hub or its CDN, got one to {redact(url)}; "
                "another host must be allowed explicitly",
                code="ForeignRedirect",
            )
        now = self._clock.now()
        lifetime = hub_answers.lifetime_seconds(url, answer.headers, now)
        if lifetime is None and not own:
            lifetime = hub_answers.DEFAULT_LIFETIME_SECONDS
        place = hosts.origin(url)
        ticket = ReadTicket(
            url=url,
            headers=self._wire.credentials() if own else (),
            size_bytes=file.size_bytes,
            expires_at=None if lifetime is None else now + lifetime,
            host=hub_wire.host_port(url),
            ca_file=self._settings.ca_file,
            trusted=self._rules.may_be_private(place.host),
            private_cidrs=self._settings.private_cidrs,
            proxy=self._settings.proxies.find(place.host, place.port, tls=place.tls),
        )
        return Fresh(ticket, lifetime)

    def _known(self) -> ResolvedSource:
        return self._resolved or self.resolve()

    def _url(self, file: SourceFile) -> str:
        known = self._known()
        path = urllib.parse.quote(file.path, safe="/")
        return f"{self._reference.endpoint}/{known.canonical}/resolve/{known.revision}/{path}"

    def _asked(self) -> Asked:
        known = self._known()
        return Asked(self._reference.endpoint, known.canonical, known.revision, self._wire.with_token)
