"""The registry reader and the pull against real registries, and against traits that only some registries have."""

import base64
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aimodels_core import folders, oci, pull
from aimodels_core.blobs import Blobs
from aimodels_core.digest import Digest
from aimodels_core.errors import (
    AiModelsError,
    ArtifactInvalid,
    DigestMismatch,
    NotPublished,
    SourceDenied,
    SourceUnavailable,
    UsageError,
)
from aimodels_core.registry import Registry
from aimodels_core.transport import HostRules, Policy, Transport
from tests.support import servers
from tests.support.artifacts import Sample, files_in, sample, write_layout
from tests.support.scripted import Call, Reply, Scripted, ranged, serve

KIB = 1024
LOCAL = HostRules(trusted=frozenset({"127.0.0.1"}))
TUNING = pull.Tuning(connections=4, part_bytes=256 * KIB)
RANDOM = random.Random(2)
MODEL = sample(
    {
        "config.json": b'{"a": 1}',
        "model.safetensors": RANDOM.randbytes(1500 * KIB + 13),
        "copy/config.json": b'{"a": 1}',
        "sub/模型 😀 #?.txt": b"text",
        "sub/__init__.py": b"",
    }
)
SMALL = sample({"model.gguf": b"GGUF" * 20})
WEIGHTS = Digest.of(MODEL.files["model.safetensors"])


def reader(url: str, repository: str = "ns/team", *, credential: Callable[[], str] = lambda: "") -> Registry:
    policy = Policy(read_seconds=5, attempts=2, budget_seconds=2)
    transport = Transport(LOCAL, policy=policy, jitter=lambda: 0.0)
    return Registry(url, repository, transport=transport, credential=credential)


# Real registries.


@pytest.fixture(scope="module", params=["registry", "docker-registry"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("layout")
    write_layout(root, "ns/team", {"first": MODEL, "second": SMALL, **{f"t{i:03}": SMALL for i in range(250)}})
    with servers.registry(root, binary=request.param) as url:
        yield url


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "model"
    folders.remove_tree(tmp_path / "model")


def test_a_tag_and_its_digest_name_the_same_manifest(real: str) -> None:
    digest, data = reader(real).resolve("first")

    assert digest == MODEL.digest
    assert data == reader(real).manifest(digest) == MODEL.artifact.manifest


def test_a_pull_from_a_real_registry_gives_the_folder(real: str, target: Path) -> None:
    blobs: Blobs = reader(real)

    done = pull.pull(blobs, MODEL.digest, target, tuning=TUNING)

    assert files_in(target) == MODEL.files
    assert done.bytes_transferred == sum(map(len, set(MODEL.files.values())))
    assert pull.verify_folder(oci.parse_manifest(MODEL.artifact.manifest), target) == ()


def test_o55_every_tag_is_seen(real: str) -> None:
    tags = list(reader(real).tags())

    assert sorted(tags) == sorted(["first", "second", *(f"t{i:03}" for i in range(250))])


def test_what_is_not_there_is_not_published(real: str) -> None:
    with pytest.raises(NotPublished, match="MANIFEST_UNKNOWN"):
        reader(real).resolve("third")
    with pytest.raises(NotPublished):
        reader(real, "ns/nobody").resolve("first")
    with pytest.raises(NotPublished):
        list(reader(real, "ns/nobody").tags())
    with pytest.raises(NotPublished) as caught:
        reader(real).read(Digest.of(b"nothing"), 10, 0, memoryview(bytearray(10)))

    assert caught.value.code == "BlobUnknown"


@pytest.mark.parametrize(("start", "length"), [(0, 1), (5, 1000), (1500 * KIB, 13), (0, 1500 * KIB + 13), (7, 0)])
def test_ranges_are_exact(real: str, start: int, length: int) -> None:
    data, buffer = MODEL.files["model.safetensors"], bytearray(length)

    reader(real).read(WEIGHTS, len(data), start, memoryview(buffer))

    assert buffer == data[start : start + length]


def test_the_size_of_a_blob_is_told_without_its_bytes(real: str) -> None:
    registry = reader(real)

    assert {digest: registry.size(digest) for digest in MODEL.blobs} == {d: len(b) for d, b in MODEL.blobs.items()}
    with pytest.raises(NotPublished) as caught:
        registry.size(Digest.of(b"nothing"))
    assert caught.value.code == "BlobUnknown"


@pytest.mark.parametrize("length", [-1, 2**70], ids=["none", "absurd"])
def test_a_size_that_is_not_told_is_not_guessed(length: int) -> None:
    with serve(lambda _: Reply(length=length)) as server, pytest.raises(SourceUnavailable) as caught:
        reader(server.url).size(WEIGHTS)

    assert caught.value.code == "BadAnswer"


def test_a_size_that_the_registry_does_not_confirm_is_refused(real: str) -> None:
    with pytest.raises(SourceUnavailable) as caught:
        reader(real).read(WEIGHTS, 1500 * KIB + 14, 0, memoryview(bytearray(100)))

    assert caught.value.code == "WrongRange"


def test_o54_blobs_come_through_the_redirect_to_a_real_object_store(tmp_path: Path, target: Path) -> None:
    with servers.versitygw(tmp_path / "s3") as s3:
        write_layout(tmp_path / "layout", "ns/team", {"first": MODEL})
        client = s3.client()
        for path in (tmp_path / "layout").rglob("*"):
            if path.is_file():
                key = f"dmcr/{path.relative_to(tmp_path / 'layout')}"
                client.put_object(Bucket=s3.bucket, Key=key, Body=path.read_bytes())
        with servers.registry(Path("dmcr"), s3=s3, redirect=True) as url:
            registry = reader(url)
            pull.pull(registry, registry.resolve("first")[0], target, tuning=TUNING)
            size = registry.size(WEIGHTS)

    assert files_in(target) == MODEL.files
    assert size == len(MODEL.files["model.safetensors"])


# A simulator of registries with odd traits.


class Odd:
    """A registry of one repository; each trait can be overridden by `special`."""

    def __init__(self, special: Callable[[Call], Reply | None] = lambda _: None, one: Sample = MODEL) -> None:
        self.special, self.one = special, one

    def __call__(self, call: Call) -> Reply:
        found = self.special(call)
        if found is not None:
            return found
        path = call.path.removeprefix("/v2/ns/team/")
        if path in {"manifests/first", f"manifests/{self.one.digest}"}:
            return Reply(body=self.one.artifact.manifest)
        kind, _, name = path.partition("/")
        if kind == "blobs" and (data := self.one.blobs.get(Digest.parse(name))) is not None:
            return ranged(call, data)
        return Reply(404, b'{"errors": [{"code": "NAME_UNKNOWN"}]}')


def test_o37_no_ping_no_head_no_content_type_no_length(target: Path) -> None:
    def odd(call: Call) -> Reply | None:
        if call.path == "/v2/" or call.method == "HEAD":
            return Reply(404)
        if "/manifests/" in call.path:
            headers = [("Content-Type", "text/plain; charset=utf-8")]
            return Reply(body=MODEL.artifact.manifest, headers=headers, length=-1, close=True)
        return None

    with serve(Odd(odd)) as server:
        registry = reader(server.url)
        digest, _ = registry.resolve("first")
        pull.pull(registry, digest, target, tuning=TUNING)

        assert digest == MODEL.digest
        assert files_in(target) == MODEL.files
        assert {call.method for call in server.calls} == {"GET"}
        assert "/v2/" not in server.paths()


def test_o53_a_manifest_of_more_than_four_mib_is_refused() -> None:
    with (
        serve(lambda _: Reply(body=b" " * (4 * 1024 * KIB + 1), length=-1, close=True)) as server,
        pytest.raises(ArtifactInvalid, match="want at most 4194304 bytes"),
    ):
        reader(server.url).resolve("first")


def test_a_manifest_that_is_not_what_its_name_or_header_says_is_refused() -> None:
    other = str(Digest.of(b"other"))
    with serve(lambda _: Reply(body=b"{}", headers=[("Docker-Content-Digest", other)])) as server:
        with pytest.raises(DigestMismatch):
            reader(server.url).resolve("first")
        with pytest.raises(DigestMismatch) as caught:
            reader(server.url).manifest(MODEL.digest)

    assert (caught.value.want, caught.value.got) == (str(MODEL.digest), str(Digest.of(b"{}")))


def redirecting(target: Callable[[Call], str], status: int = 307) -> Odd:
    return Odd(lambda call: Reply(status, headers=[("Location", target(call))]) if "/blobs/" in call.path else None)


def store(call: Call) -> Reply:
    """A signed place that takes no second kind of authorisation."""
    if "authorization" in call.headers or "X-Amz-Signature" not in call.path:
        return Reply(400, b"<Error><Code>InvalidArgument</Code></Error>")
    return ranged(call, MODEL.blobs[Digest(call.path[1:65])])


def signed(cdn: Scripted) -> Callable[[Call], str]:
    return lambda call: f"{cdn.url}/{call.path[-64:]}?X-Amz-Expires=900&X-Amz-Signature=s3cr3t"


def needs_token(call: Call) -> Reply | None:
    """A registry and its issuer in one: one scope, one token."""
    if call.path.startswith("/token?"):
        return Reply(body=json.dumps({"token": "t0k", "expires_in": 300}).encode())
    if call.headers.get("authorization") != "Bearer t0k":
        challenge = f'Bearer realm="http://{call.headers["host"]}/token",service="r",scope="repository:ns/team:pull"'
        return Reply(401, b"{}", [("WWW-Authenticate", challenge)])
    return None


def test_o54_the_token_does_not_follow_to_the_signed_url(target: Path) -> None:
    with serve(store) as cdn:
        inner = redirecting(signed(cdn))
        with serve(lambda call: needs_token(call) or inner(call)) as server:
            pull.pull(reader(server.url), MODEL.digest, target, tuning=TUNING)

            assert files_in(target) == MODEL.files
            assert sum("/token?" in path for path in server.paths()) == 1
        assert {call.headers.get("authorization") for call in cdn.calls} == {None}


def test_a_signed_url_serves_many_ranges() -> None:
    with serve(store) as cdn, serve(redirecting(signed(cdn))) as server:
        registry, data = reader(server.url), MODEL.files["model.safetensors"]
        for start in range(0, 1000 * KIB, 100 * KIB):
            registry.read(WEIGHTS, len(data), start, memoryview(bytearray(10)))

        assert (len(server.calls), len(cdn.calls)) == (1, 10)


def test_o05_an_expired_signed_url_is_asked_for_again_and_not_for_ever() -> None:
    data, dead = MODEL.files["model.safetensors"], {"s0"}

    def expiring(call: Call) -> Reply:
        return Reply(403, b"AccessDenied") if call.path.rpartition("=")[2] in dead else store(call)

    with serve(expiring) as cdn:
        signatures = iter(f"s{i}" for i in range(99))
        fresh = redirecting(lambda call: f"{cdn.url}/{call.path[-64:]}?X-Amz-Signature={next(signatures)}")
        with serve(fresh) as server:
            registry, buffer = reader(server.url), bytearray(10)
            registry.read(WEIGHTS, len(data), KIB, memoryview(buffer))
            assert bytes(buffer) == data[KIB : KIB + 10]
            assert (len(server.calls), len(cdn.calls)) == (2, 2)

            dead |= {f"s{i}" for i in range(99)}
            with pytest.raises(SourceUnavailable) as caught:
                registry.read(WEIGHTS, len(data), KIB, memoryview(buffer))

    assert caught.value.code == "TicketExpired"


def test_o54_a_store_that_cannot_be_reached_is_named_with_the_setting() -> None:
    rules = HostRules(trusted=frozenset({"127.0.0.1"}), allowed=frozenset({"minio.ns.svc.invalid"}))
    location = "http://minio.ns.svc.invalid/x?X-Amz-Signature=s3cr3t"
    with serve(redirecting(lambda _: location)) as server:
        transport = Transport(rules, policy=Policy(attempts=1), sleep=lambda _: None)
        with pytest.raises(SourceUnavailable) as caught:
            Registry(server.url, "ns/team", transport=transport).read(WEIGHTS, 10**6, 0, memoryview(bytearray(10)))

    assert "minio.ns.svc.invalid" in caught.value.message
    assert "storage redirect" in caught.value.message
    assert "s3cr3t" not in caught.value.message


def test_a_redirect_to_a_foreign_place_is_refused() -> None:
    with serve(redirecting(lambda _: "https://example.com/x")) as server, pytest.raises(SourceUnavailable) as caught:
        reader(server.url).read(WEIGHTS, 10**6, 0, memoryview(bytearray(10)))

    assert caught.value.code == "ForeignRedirect"


def test_o40_ranges_that_are_ignored_or_shifted_are_refused() -> None:
    def shifted(call: Call) -> Reply | None:
        if "/blobs/" not in call.path:
            return None
        return Reply(206, b"x" * 10, [("Content-Range", f"bytes 1-10/{len(MODEL.files['model.safetensors'])}")])

    data = MODEL.files["model.safetensors"]
    with serve(Odd(lambda call: Reply(body=data) if "/blobs/" in call.path else None)) as server:
        with pytest.raises(SourceUnavailable) as ignored:
            reader(server.url).read(WEIGHTS, len(data), 0, memoryview(bytearray(10)))
        whole = bytearray(len(data))
        reader(server.url).read(WEIGHTS, len(data), 0, memoryview(whole))
    with serve(Odd(shifted)) as server, pytest.raises(SourceUnavailable) as moved:
        reader(server.url).read(WEIGHTS, len(data), 0, memoryview(bytearray(10)))

    assert (ignored.value.code, moved.value.code) == ("UnexpectedStatus", "WrongRange")
    assert whole == data


def test_o61_a_cut_range_is_read_again() -> None:
    data = MODEL.files["model.safetensors"]
    cut = Reply(206, data[:400], [("Content-Range", f"bytes 0-999/{len(data)}")], length=1000, close=True)
    with serve(Odd(lambda call: cut if len(server.calls) == 1 else None)) as server:
        buffer = bytearray(1000)
        reader(server.url).read(WEIGHTS, len(data), 0, memoryview(buffer))

        assert (bytes(buffer), len(server.calls)) == (data[:1000], 2)


@pytest.mark.parametrize(
    "link",
    ['</v2/ns/team/tags/list?next_page={n}>; rel="next"', "<{url}/v2/ns/team/tags/list?next_page={n}>; rel=next"],
)
def test_o55_opaque_links_are_followed_to_the_end(link: str) -> None:
    def pages(call: Call) -> Reply:
        number = int(call.path.partition("next_page=")[2] or 0)
        headers = [("Link", link.format(n=number + 1, url=server.url))] if number < 2 else []
        tags = [f"t{number}-{i}" for i in range(100 if number < 2 else 50)]
        return Reply(body=json.dumps({"name": "ns/team", "tags": tags}).encode(), headers=headers)

    with serve(pages) as server:
        assert len(set(reader(server.url).tags())) == 250


@pytest.mark.parametrize(
    ("link", "code"),
    [
        ('</v2/ns/team/tags/list?n=1000>; rel="next"', "BadAnswer"),
        ('<https://example.com/v2/ns/team/tags/list?n=1000>; rel="next"', "ForeignRedirect"),
    ],
)
def test_o55_links_that_loop_or_lead_away_are_refused(link: str, code: str) -> None:
    with (
        serve(lambda _: Reply(body=b'{"tags": null}', headers=[("Link", link)])) as server,
        pytest.raises(SourceUnavailable) as caught,
    ):
        list(reader(server.url).tags())

    assert caught.value.code == code


def test_a_token_is_fetched_once_and_again_when_it_is_refused() -> None:
    valid = ["t1"]

    def registry(call: Call) -> Reply:
        if call.path.startswith("/token?"):
            assert call.headers["authorization"] == "Bearer of-the-pod"
            return Reply(body=json.dumps({"access_token": valid[0]}).encode())
        if call.headers.get("authorization") != f"Bearer {valid[0]}":
            return Reply(401, headers=[("WWW-Authenticate", 'Bearer realm="/token",service="r",scope="s"')])
        return Reply(body=MODEL.artifact.manifest)

    with serve(registry) as server:
        client = reader(server.url, credential=lambda: "Bearer of-the-pod")
        for _ in range(3):
            client.resolve("first")
        valid[0] = "t2"
        for _ in range(3):
            client.resolve("first")

        assert sum("/token?" in path for path in server.paths()) == 2
        assert len(server.calls) == 2 + 2 + 6


def test_a_token_issuer_on_a_foreign_host_gets_no_credential() -> None:
    challenge = 'Bearer realm="https://example.com/token",service="r"'
    with (
        serve(lambda _: Reply(401, headers=[("WWW-Authenticate", challenge)])) as server,
        pytest.raises(SourceUnavailable) as caught,
    ):
        reader(server.url, credential=lambda: "Basic czNjcjN0").resolve("first")

    assert caught.value.code == "ForeignRedirect"


def test_basic_credentials_are_sent_when_asked_for_and_refusals_are_final() -> None:
    right = "Basic " + base64.b64encode(b"user:s3cr3t").decode()

    def registry(call: Call) -> Reply:
        if call.headers.get("authorization") != right:
            return Reply(401, headers=[("WWW-Authenticate", 'Basic realm="here"')])
        return Reply(body=MODEL.artifact.manifest)

    with serve(registry) as server:
        assert reader(server.url, credential=lambda: right).resolve("first")[0] == MODEL.digest
        for credential in ("", "Basic d3Jvbmc6eA=="):
            with pytest.raises(SourceDenied) as caught:
                reader(server.url, credential=lambda value=credential: value).resolve("first")  # type: ignore[misc]  # a lambda with a default
            assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("name", ["Upper/case", "a//b", "../x", "", "a" * 300])
def test_o75_names_that_no_registry_has_are_usage_errors(name: str) -> None:
    with pytest.raises(UsageError):
        reader("http://127.0.0.1:1", name)


def test_every_refusal_is_one_of_our_errors() -> None:
    with serve(lambda call: Reply(int(call.path[-3:]))) as server:
        for status in (204, 301, 400, 401, 403, 404, 410, 416, 418, 429, 500, 503):
            with pytest.raises(AiModelsError):
                reader(server.url).resolve(f"t{status}")
