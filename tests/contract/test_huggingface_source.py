"""The Hugging Face source against the hub simulator: what is listed, what is refused, what travels and how often."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aimodels_core.digest import Digest, GitDigest
from aimodels_core.errors import (
    AiModelsError,
    DigestMismatch,
    PlanRefused,
    RateLimited,
    SourceDenied,
    SourceNotFound,
    SourceUnavailable,
    UnsafeContent,
    UnsupportedSource,
)
from aimodels_core.source import SourceFile
from aimodels_jobs.sources import hub_api, hub_url
from aimodels_jobs.sources.hub_settings import HubSettings
from aimodels_jobs.sources.hub_wire import Clock, Patience
from aimodels_jobs.sources.huggingface import HuggingFace
from tests.support.hub.bodies import BytesBody
from tests.support.hub.faults import Fault
from tests.support.hub.limits import Limits
from tests.support.hub.repository import Access, File, Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.hub.signing import Style

WEIGHTS = bytes(range(256)) * 4000
FILES = {"config.json": b"{}\n", "model.safetensors": WEIGHTS, "README.md": b"# name\n"}
GRANTED = frozenset({"hf_good"})
QUICK = Patience(attempts=3, first_pause_seconds=0.001)


class OpenGate:
    """Lets every request pass, and remembers what it was told."""

    def __init__(self) -> None:
        self.waits: list[tuple[str, str, str]] = []
        self.answers: list[tuple[str, int, Mapping[str, str]]] = []

    def wait(self, host: str, kind: str, identity: str) -> None:
        self.waits.append((host, kind, identity))

    def learn(self, host: str, kind: str, identity: str, status: int, headers: Mapping[str, str]) -> None:
        self.answers.append((kind, status, headers))


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(tokens={"hf_good": "u", "hf_other": "v"}) as made:
        made.add(Repository("org/name", FILES))
        yield made


def source(hub: Hub, path: str = "org/name", *, token: str = "", **fields: object) -> HuggingFace:
    settings = HubSettings(endpoint=hub.url, token=token)
    reference = hub_url.parse(f"{hub.url}/{path}", endpoint=hub.url)
    known: dict[str, object] = {"settings": settings, "gate": OpenGate(), "patience": QUICK, **fields}
    made = HuggingFace(reference, **known)  # type: ignore[arg-type]  # fields are those of the constructor
    _open.append(made)
    return made


_open: list[HuggingFace] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Close what a test opened: the connections of a source live as long as it."""
    yield
    while _open:
        _open.pop().close()


def file_of(made: HuggingFace, path: str) -> SourceFile:
    return next(file for file in made.resolve().files if file.path == path)


def read_all(made: HuggingFace, path: str) -> bytes:
    file = file_of(made, path)
    return made.read(file, 0, file.size_bytes)


def refused(made: HuggingFace) -> AiModelsError:
    with pytest.raises(AiModelsError) as caught:
        made.resolve()
    return caught.value


# Listing and identity


def test_a_model_is_listed_with_sizes_and_digests(hub: Hub) -> None:
    found = source(hub).resolve()

    assert found.kind == "HuggingFace"
    assert found.canonical == "org/name"
    assert len(found.revision) == 40
    assert found.public
    assert found.files == (
        SourceFile("README.md", 7, git_digest=GitDigest.of(b"# name\n")),
        SourceFile("config.json", 3, git_digest=GitDigest.of(b"{}\n")),
        SourceFile("model.safetensors", len(WEIGHTS), digest=Digest.of(WEIGHTS)),
    )


def test_the_commit_is_fixed_once_and_kept_while_the_branch_moves(hub: Hub) -> None:
    repository = hub.add(Repository("org/moving", FILES))
    made = source(hub, "org/moving")
    first = made.resolve()
    repository.update({"config.json": b'{"new": 1}\n'})

    assert made.resolve() is first
    assert read_all(made, "config.json") == b"{}\n"
    assert source(hub, "org/moving").resolve().revision != first.revision


def test_a_source_read_with_a_token_is_not_public(hub: Hub) -> None:
    assert not source(hub, token="hf_good").resolve().public


def test_o07_a_renamed_repository_is_followed_and_both_names_are_kept(hub: Hub) -> None:
    hub.rename("org/name", "org/new")
    made = source(hub)
    found = made.resolve()

    assert (found.requested, found.canonical) == ("org/name", "org/new")
    assert read_all(made, "model.safetensors") == WEIGHTS
    assert read_all(made, "config.json") == b"{}\n"


def test_o07_a_repository_renamed_after_its_listing_is_still_read(hub: Hub) -> None:
    made = source(hub)
    made.resolve()
    hub.rename("org/name", "org/new")

    assert read_all(made, "config.json") == b"{}\n"


def test_o07_an_api_redirect_to_another_host_is_refused_without_the_token(hub: Hub) -> None:
    with Hub(tokens={"hf_good": "u"}) as other:
        other.add(Repository("org/name", FILES))
        hub.fault(Fault.REDIRECT, on=On.INFO, location=f"{other.url}/api/models/org/name")
        error = refused(source(hub, token="hf_good"))

        assert isinstance(error, SourceUnavailable)
        assert error.code == "ForeignRedirect"
        assert len(other.log) == 0


def test_o08_letter_case_does_not_make_another_identity(hub: Hub) -> None:
    one, two = source(hub, "org/name").resolve(), source(hub, "Org/NAME").resolve()

    assert one.canonical == two.canonical == "org/name"
    assert (one.revision, one.files) == (two.revision, two.files)


@pytest.mark.parametrize(
    ("revision", "path"),
    [
        ("refs/pr/1", "org/name/tree/refs/pr/1"),
        ("refs/pr/1", "org/name?revision=refs/pr/1"),
        ("feature/x", "org/name/tree/feature/x"),
        ("feature/x", "org/name/tree/feature%2Fx"),
        ("feature/x", "org/name/blob/feature/x/sub/a.json"),
        ("my%25branch", "org/name/tree/my%2525branch"),
    ],
)
def test_o09_revisions_with_slashes_and_percent(hub: Hub, revision: str, path: str) -> None:
    repository = Repository("org/name", FILES)
    commit = repository.commit({**FILES, "sub/a.json": b"[]\n"}, revision=revision)
    hub.add(repository)
    found = source(hub, path).resolve()

    assert found.revision == commit.hex
    assert found.select == ("sub/a.json" if "blob" in path else "")


def test_o10_reserved_characters_in_names_of_files(hub: Hub) -> None:
    names = ["C1_or_C2?_premise/a b+c#1%20.json", "x@main.txt", "模型 😀.txt", "a;b&c=d,e.txt", "%2e%2e.txt"]
    contents = {name: f"bytes {number:4}".encode() for number, name in enumerate(names)}
    hub.add(Repository("org/odd", dict(contents)))
    made = source(hub, "org/odd")

    assert {name: read_all(made, name) for name in names} == contents
    assert {file.path for file in made.resolve().files} == set(names)
    for name in names:
        assert sum(each.path == name and each.sent_bytes == len(contents[name]) for each in hub.log) == 1


def test_o11_all_pages_are_read(hub: Hub) -> None:
    hub.page_size = 1000
    hub.add(Repository("org/many", {f"f{number:04}.json": b"%d" % number for number in range(1500)}))
    hub.fault(Fault.LIST_CUT, on=On.INFO, count=1000)
    made = source(hub, "org/many")

    assert len(made.resolve().files) == 1500
    assert made.requests_made()["api"] == 3


def test_o11_no_siblings_are_no_error(hub: Hub) -> None:
    hub.fault(Fault.SIBLINGS_NULL, on=On.INFO)

    assert len(source(hub).resolve().files) == 3


def test_o11_a_listing_shorter_than_the_siblings_is_refused(hub: Hub) -> None:
    hub.fault(Fault.LIST_CUT, on=On.TREE, count=2)
    error = refused(source(hub))

    assert error.code == "ListingIncomplete"


def test_o11_a_listing_that_loops_is_refused(hub: Hub) -> None:
    hub.page_size = 1
    hub.fault(Fault.LINK_LOOP, on=On.TREE)
    error = refused(source(hub))

    assert (type(error), error.code) == (SourceUnavailable, "ListingLoop")


def test_o11_a_listing_that_goes_on_at_another_host_is_refused_without_the_token(hub: Hub) -> None:
    with Hub() as other:
        hub.fault(Fault.LINK_AWAY, on=On.TREE, location=f"{other.url}/api/models/org/name/tree/main")
        error = refused(source(hub, token="hf_good"))

        assert error.code == "ForeignRedirect"
        assert len(other.log) == 0


def test_more_files_than_can_be_published_are_refused_early(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_api, "MAX_FILES", 25)
    hub.page_size = 10
    hub.add(Repository("org/many", {f"f{number:04}.json": b"1" for number in range(100)}))
    made = source(hub, "org/many")

    assert isinstance(refused(made), PlanRefused)
    assert made.requests_made() == {"api": 4, "resolve": 0}


def test_an_unsafe_path_is_refused(hub: Hub) -> None:
    hub.add(Repository("org/bad", {"../up.json": b"{}"}))
    error = refused(source(hub, "org/bad"))

    assert (type(error), error.code) == (UnsafeContent, "UnsafePath")


def test_half_a_document_is_not_a_listing(hub: Hub) -> None:
    hub.fault(Fault.BAD_JSON, on=On.TREE)
    error = refused(source(hub))

    assert (type(error), error.code) == (SourceUnavailable, "BadAnswer")


def test_an_empty_repository_has_no_files(hub: Hub) -> None:
    hub.add(Repository("org/empty", {}))
    made = source(hub, "org/empty")

    assert made.resolve().files == ()
    assert made.requests_made() == {"api": 2, "resolve": 0}


def test_a_file_of_a_url_must_exist(hub: Hub) -> None:
    assert source(hub, "org/name/blob/main/config.json").resolve().select == "config.json"
    assert refused(source(hub, "org/name/blob/main/other.json")).code == "FileNotFound"


def test_a_folder_of_a_url_is_refused(hub: Hub) -> None:
    assert isinstance(refused(source(hub, "org/name/tree/other/sub")), UnsupportedSource)


# Access


def test_o13_a_gated_model_is_refused_before_anything_is_scheduled(hub: Hub) -> None:
    hub.add(Repository("org/gated", FILES, access=Access.GATED, granted=GRANTED))
    anonymous, other = refused(source(hub, "org/gated")), refused(source(hub, "org/gated", token="hf_other"))

    assert type(anonymous) is type(other) is SourceDenied
    assert anonymous.code == other.code == "Gated"
    assert f"{hub.url}/org/gated" in other.message
    assert "give a token" in anonymous.message
    assert "hf_other" not in other.message
    assert not hub.log.payload_bytes()


def test_o13_a_granted_token_opens_a_gated_model_and_stays_with_the_hub(hub: Hub) -> None:
    hub.add(Repository("org/gated", FILES, access=Access.GATED, granted=GRANTED))
    made = source(hub, "org/gated", token="hf_good")

    assert read_all(made, "model.safetensors") == WEIGHTS
    assert {each.token for each in hub.log if each.on is On.CDN} == {False}
    assert {each.token for each in hub.log if each.on is not On.CDN} == {True}


def test_o13_after_a_refusal_the_same_source_may_be_asked_again(hub: Hub) -> None:
    repository = hub.add(Repository("org/gated", FILES, access=Access.GATED))
    made = source(hub, "org/gated", token="hf_good")
    refused(made)
    hub.add(Repository("org/gated", FILES, access=Access.GATED, granted=GRANTED))

    assert made.resolve().canonical == repository.id


@pytest.mark.parametrize(
    ("path", "token", "kind", "code"),
    [
        ("org/private", "", SourceDenied, "PrivateOrMissing"),
        ("org/private", "hf_other", SourceNotFound, "RepoNotFound"),
        ("org/missing", "", SourceDenied, "PrivateOrMissing"),
        ("org/missing", "hf_good", SourceNotFound, "RepoNotFound"),
        ("org/name", "hf_bad", SourceDenied, "TokenRefused"),
        ("org/disabled", "hf_good", SourceDenied, "Disabled"),
        ("org/name/tree/nope", "", SourceNotFound, "RevisionNotFound"),
    ],
)
def test_o13_refusals_are_told_apart(hub: Hub, path: str, token: str, kind: type[AiModelsError], code: str) -> None:
    hub.add(Repository("org/private", FILES, access=Access.PRIVATE, granted=GRANTED))
    hub.add(Repository("org/disabled", FILES, access=Access.DISABLED))
    error = refused(source(hub, path, token=token))

    assert (type(error), error.code) == (kind, code)
    assert not token or token not in error.message


def test_o13_a_private_model_is_read_with_its_token(hub: Hub) -> None:
    hub.add(Repository("org/private", FILES, access=Access.PRIVATE, granted=GRANTED))

    assert read_all(source(hub, "org/private", token="hf_good"), "config.json") == b"{}\n"


# Tickets


def test_one_resolve_per_file_and_url_lifetime(hub: Hub) -> None:
    made = source(hub)
    file = file_of(made, "model.safetensors")
    with ThreadPoolExecutor(8) as pool:
        pieces = list(pool.map(lambda at: made.read(file, at, at + 1000), range(0, 100_000, 1000)))

    assert b"".join(pieces) == WEIGHTS[:100_000]
    assert made.requests_made() == {"api": 2, "resolve": 1}
    assert len(hub.log.select(on=On.RESOLVE)) == 1


def test_a_publication_stays_within_the_requests_that_are_allowed(hub: Hub) -> None:
    made = source(hub)
    for file in made.resolve().files:
        assert len(made.read(file, 0, file.size_bytes)) == file.size_bytes
    asked = made.requests_made()
    own = [each for each in hub.log if each.on is not On.CDN]

    assert asked["api"] == 2
    assert asked["resolve"] == 3
    assert len(own) == sum(asked.values())


def test_every_request_to_the_hub_passes_the_gate_with_its_class_and_identity(hub: Hub) -> None:
    gate = OpenGate()
    made = source(hub, token="hf_good", gate=gate)
    read_all(made, "config.json")
    host = hub.url.removeprefix("http://")

    assert [kind for _, kind, _ in gate.waits] == ["api", "api", "resolve", "resolve"]
    assert {where for where, _, _ in gate.waits} == {host}
    assert len({identity for *_, identity in gate.waits}) == 1
    assert "hf_good" not in gate.waits[0][2]
    assert [status for _, status, _ in gate.answers] == [200, 200, 302, 206]
    assert all("ratelimit" in headers for *_, headers in gate.answers)


@pytest.mark.parametrize("style", list(Style))
def test_a_ticket_says_when_it_ends_and_is_renewed_before(style: Style) -> None:
    now = [0.0]
    clock = Clock(monotonic=lambda: now[0])
    with Hub(url_lifetime_seconds=1000, url_style=style) as hub:
        hub.add(Repository("org/name", FILES))
        made = source(hub, clock=clock)
        file = file_of(made, "model.safetensors")
        first = made.ticket(file)
        now[0] = 790.0
        assert made.ticket(file) == first
        now[0] = 810.0

        assert made.ticket(file) != first
        assert first.expires_at is not None
        assert first.size_bytes == file.size_bytes
        assert first.headers == ()
        assert first.trusted
        assert "Signature" not in repr(first)


def test_o05_an_expired_url_is_replaced_once_for_all_that_hold_it(hub: Hub) -> None:
    made = source(hub)
    file = file_of(made, "model.safetensors")
    old = made.ticket(file)
    hub.fault(Fault.EXPIRED, on=On.CDN, times=1)
    ready = threading.Barrier(4)

    def work(at: int) -> bytes:
        ready.wait(10)
        return made.read(file, at, at + 1000)

    with ThreadPoolExecutor(4) as pool:
        pieces = list(pool.map(work, range(0, 4000, 1000)))

    assert b"".join(pieces) == WEIGHTS[:4000]
    assert made.ticket(file) != old
    assert made.renew(file, old) == made.ticket(file)
    assert made.requests_made()["resolve"] == 2


def test_o05_a_url_that_ends_in_the_middle_of_a_body(hub: Hub) -> None:
    made = source(hub)
    hub.fault(Fault.EXPIRED, on=On.CDN, times=1, after_bytes=600_000)

    assert read_all(made, "model.safetensors") == WEIGHTS
    assert made.requests_made()["resolve"] == 2


def test_o05_a_url_that_is_never_accepted_ends_in_time_and_is_no_denial(hub: Hub) -> None:
    made = source(hub)
    file = file_of(made, "model.safetensors")
    hub.fault(Fault.EXPIRED, on=On.CDN)
    with pytest.raises(AiModelsError) as caught:
        made.read(file, 0, 10)

    assert caught.value.retryable
    assert made.requests_made()["resolve"] <= 2 + QUICK.attempts
    assert "Signature" not in caught.value.message


def test_the_cdn_host_may_change(hub: Hub) -> None:
    made = source(hub)
    file = file_of(made, "model.safetensors")
    first = made.ticket(file)
    hub.fault(Fault.OTHER_CDN, on=On.RESOLVE)
    second = made.renew(file, first)

    assert first.host != second.host
    assert made.read(file, 0, 10) == WEIGHTS[:10]


@pytest.mark.parametrize(
    "location",
    ["https://evil.example/x", "http://10.0.0.1/x", "https://169.254.169.254/latest", "https://hf.co.evil.example/x"],
)
def test_a_redirect_to_a_foreign_place_is_refused(hub: Hub, location: str) -> None:
    hub.fault(Fault.REDIRECT, on=On.RESOLVE, location=location)
    error = refused(source(hub))

    assert (type(error), error.code) == (SourceUnavailable, "ForeignRedirect")


def test_a_redirect_loop_ends(hub: Hub) -> None:
    hub.fault(Fault.REDIRECT_LOOP, on=On.RESOLVE)
    made = source(hub)

    assert refused(made).code == "RedirectLoop"
    assert made.requests_made()["resolve"] <= 6


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (Fault.NO_COMMIT, "WrongCommit"),
        (Fault.WRONG_COMMIT, "WrongCommit"),
        (Fault.WRONG_DIGEST, "WrongDigest"),
        (Fault.WRONG_SIZE, "WrongSize"),
    ],
)
def test_a_redirect_that_names_another_file_is_refused(hub: Hub, kind: Fault, code: str) -> None:
    hub.fault(kind, on=On.RESOLVE, path="model.safetensors")
    error = refused(source(hub))

    assert (type(error), error.code) == (SourceUnavailable, code)


@pytest.mark.parametrize("kind", [Fault.WEAK_ETAG, Fault.NO_ETAG])
def test_o12_weak_or_absent_entity_tags_are_fine(hub: Hub, kind: Fault) -> None:
    hub.fault(kind)
    made = source(hub)

    assert read_all(made, "config.json") == b"{}\n"
    assert read_all(made, "model.safetensors") == WEIGHTS


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_hub_that_sends_small_files_to_its_own_cache(name: str) -> None:
    with Hub(resolve_cache=True, tokens={"hf_good": "u"}) as hub:
        hub.add(Repository("org/name", FILES, access=Access.PRIVATE, granted=GRANTED))
        made = source(hub, token="hf_good")

        assert read_all(made, name) == FILES[name]
        assert sum(made.requests_made().values()) == sum(each.on is not On.CDN for each in hub.log)


# Reading


def test_o04_an_empty_file_needs_no_request(hub: Hub) -> None:
    hub.add(Repository("org/empty", {"__init__.py": b"", "config.json": b"{}\n"}))
    made = source(hub, "org/empty")
    file = file_of(made, "__init__.py")
    before = len(hub.log)

    assert file.size_bytes == 0
    assert made.read(file, 0, 0) == b""
    assert len(hub.log) == before


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 4), (3, 2), (4, 4)])
def test_ranges_outside_the_file_are_refused(hub: Hub, start: int, stop: int) -> None:
    made = source(hub)
    with pytest.raises(ValueError, match=r"config\.json"):
        made.read(file_of(made, "config.json"), start, stop)


@pytest.mark.parametrize(
    "kind",
    [
        Fault.TRUNCATE,
        Fault.RESET,
        Fault.SHORT,
        Fault.IGNORE_RANGE,
        Fault.WRONG_RANGE,
        Fault.WRONG_TOTAL,
        Fault.NO_CONTENT_RANGE,
        Fault.GZIP,
        Fault.HTML,
        Fault.POINTER,
        Fault.STATUS,
        Fault.FLIP_BIT,
        Fault.OTHER_BYTES,
        Fault.LONG,
    ],
)
@pytest.mark.parametrize(("name", "on"), [("model.safetensors", On.CDN), ("config.json", On.RESOLVE)])
def test_a_fault_that_passes_does_no_harm(hub: Hub, kind: Fault, name: str, on: On) -> None:
    made = source(hub)
    made.resolve()
    hub.fault(kind, on=on, path=name, times=1, after_bytes=1)

    assert read_all(made, name) == FILES[name]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (Fault.TRUNCATE, "ShortBody"),
        (Fault.SHORT, "ShortBody"),
        (Fault.IGNORE_RANGE, "NotPartial"),
        (Fault.WRONG_RANGE, "WrongRange"),
        (Fault.WRONG_TOTAL, "WrongRange"),
        (Fault.NO_CONTENT_RANGE, "WrongRange"),
        (Fault.GZIP, "Encoded"),
        (Fault.HTML, "NotPartial"),
        (Fault.STATUS, "ServerError"),
    ],
)
def test_o02_a_fault_that_stays_is_an_error_that_says_what_came(hub: Hub, kind: Fault, code: str) -> None:
    made = source(hub)
    file = file_of(made, "model.safetensors")
    hub.fault(kind, on=On.CDN, after_bytes=635)
    with pytest.raises(SourceUnavailable) as caught:
        made.read(file, 0, file.size_bytes)

    assert caught.value.code == code
    assert "Signature" not in caught.value.message


def test_bytes_that_differ_twice_are_final_and_name_both_digests(hub: Hub) -> None:
    made = source(hub)
    file = file_of(made, "model.safetensors")
    hub.fault(Fault.OTHER_BYTES, on=On.CDN)
    with pytest.raises(DigestMismatch) as caught:
        made.read(file, 0, file.size_bytes)

    assert caught.value.want == str(Digest.of(WEIGHTS))
    assert caught.value.got not in ("", caught.value.want)


def test_o01_a_pointer_that_the_hub_serves_twice_is_refused(hub: Hub) -> None:
    hub.fault(Fault.POINTER, on=On.RESOLVE, path="model.safetensors")
    error = refused(source(hub))

    assert isinstance(error, UnsafeContent)
    assert (error.code, error.path) == ("LfsPointer", "model.safetensors")
    assert str(len(WEIGHTS)) in error.message


def test_o01_a_pointer_that_the_hub_serves_once_does_no_harm(hub: Hub) -> None:
    hub.fault(Fault.POINTER, on=On.RESOLVE, path="model.safetensors", times=1)

    assert read_all(source(hub), "model.safetensors") == WEIGHTS


def test_o01_a_pointer_on_the_cdn_is_refused_after_a_second_resolve(hub: Hub) -> None:
    made = source(hub)
    hub.fault(Fault.POINTER, on=On.CDN)
    with pytest.raises(UnsafeContent) as caught:
        read_all(made, "model.safetensors")

    assert caught.value.code == "LfsPointer"
    assert made.requests_made()["resolve"] == 2


def test_o01_a_pointer_kept_as_an_ordinary_file_is_refused(hub: Hub) -> None:
    pointer = File("model.safetensors", BytesBody(WEIGHTS), lfs=True).pointer
    hub.add(Repository("org/copy", {"model.safetensors": File("model.safetensors", BytesBody(pointer), lfs=False)}))
    with pytest.raises(UnsafeContent) as caught:
        read_all(source(hub, "org/copy"), "model.safetensors")

    assert caught.value.code == "LfsPointer"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("on", [On.INFO, On.TREE, On.RESOLVE, On.CDN])
def test_o06_a_passing_refusal_is_tried_again(hub: Hub, status: int, on: On) -> None:
    hub.fault(Fault.STATUS, on=on, status=status, retry_after="0", times=2)
    clock = Clock(jitter=lambda: 0.0)

    assert read_all(source(hub, clock=clock), "model.safetensors") == WEIGHTS


@pytest.mark.parametrize("retry_after", ["7", None])
def test_o06_four_imports_under_a_strict_limit_all_finish(hub: Hub, retry_after: str | None) -> None:
    contents = {f"f{number:02}.json": b"%d" % number for number in range(60)}
    hub.add(Repository("org/many", dict(contents)))
    hub.fault(Fault.STATUS, on=On.INFO, status=429, retry_after=retry_after, every=3)
    hub.fault(Fault.STATUS, on=On.RESOLVE, status=429, retry_after=retry_after, every=3)
    slept: list[float] = []
    clock = Clock(sleep=slept.append)

    def run(_: int) -> dict[str, bytes]:
        made = source(hub, "org/many", clock=clock)
        return {file.path: made.read(file, 0, file.size_bytes) for file in made.resolve().files}

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [contents] * 4
    assert min(slept) >= (7 if retry_after else 2)


def test_o06_a_window_that_is_used_up_is_waited_for_by_the_hubs_own_header() -> None:
    now = [1_750_000_000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = Clock(now=lambda: now[0], monotonic=lambda: now[0], sleep=sleep, jitter=lambda: 0.0)
    with Hub(clock=lambda: now[0], limits=Limits(resolvers=10)) as hub:
        contents = {f"f{number:02}.json": b"%d" % number for number in range(35)}
        hub.add(Repository("org/many", dict(contents)))
        made = source(hub, "org/many", clock=clock)
        found = {file.path: made.read(file, 0, file.size_bytes) for file in made.resolve().files}

    assert found == contents
    assert 900 <= now[0] - 1_750_000_000 <= 910
    assert len(hub.log.select(on=On.RESOLVE, status=429)) == 3


class ClosedGate(OpenGate):
    """Refuses, as the governor does when the wait would be too long."""

    def wait(self, host: str, kind: str, identity: str) -> None:
        raise RateLimited(f"{host}: {kind} requests are used up", retry_after_seconds=240)


def test_a_refusal_of_the_gate_reaches_the_caller_and_no_request_is_made(hub: Hub) -> None:
    error = refused(source(hub, gate=ClosedGate()))

    assert isinstance(error, RateLimited)
    assert error.retry_after_seconds == 240
    assert len(hub.log) == 0


def test_a_refused_range_is_not_asked_for_ever(hub: Hub) -> None:
    made = source(hub)
    file = file_of(made, "model.safetensors")
    hub.fault(Fault.STATUS, on=On.CDN, status=416)
    with pytest.raises(SourceUnavailable):
        made.read(file, 0, 10)

    assert len(hub.log.select(on=On.CDN)) <= QUICK.attempts


def test_over_tls_with_the_authority_that_was_given(tmp_path: Path) -> None:
    with Hub(tls=True, host="localhost", cdn_host="localhost") as hub:
        hub.add(Repository("org/name", FILES))
        ca_file = tmp_path / "ca.pem"
        ca_file.write_bytes(hub.ca_pem)
        made = source(hub, settings=HubSettings(endpoint=hub.url, ca_file=str(ca_file)))

        assert read_all(made, "model.safetensors") == WEIGHTS
        assert refused(source(hub)).code == "TlsFailed"


def test_two_hubs_at_once_do_not_mix(hub: Hub) -> None:
    """The hub library has one client per process; each source's requests must still take their own way."""
    with Hub() as other:
        other.add(Repository("org/name", {"config.json": b"[]\n"}))
        with ThreadPoolExecutor(8) as pool:
            hubs = [hub, other] * 8
            found = list(pool.map(lambda each: source(each).resolve(), hubs))

        assert {len(each.files) for each in found[::2]} == {3}
        assert {len(each.files) for each in found[1::2]} == {1}
