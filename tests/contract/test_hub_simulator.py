"""The hub simulator against the hub's own client library, and against its own promises."""

import hashlib
import http.client
import json
import ssl
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import HfApi, constants, errors
from huggingface_hub.hf_api import RepoFile, RepoFolder
from huggingface_hub.utils.tqdm import disable_progress_bars

from tests.support.hub.bodies import GeneratedBody, JoinedBody, pieces
from tests.support.hub.faults import Fault
from tests.support.hub.limits import Limits
from tests.support.hub.process import HubProcess
from tests.support.hub.repository import Access, Content, File, Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.hub.signing import Style

MIB = 1024 * 1024
ROOT = Path(__file__).parents[2]
GOOD = "hf_good"
STRANGER = "hf_stranger"
WEIGHTS = GeneratedBody(3 * MIB + 17, seed=1)
WEIGHTS_BYTES = b"".join(pieces(WEIGHTS))
FILES: dict[str, Content | File] = {
    "config.json": b"{}\n",
    "model.safetensors": WEIGHTS,
    "sub/deeper/empty.txt": b"",
    "sub/a b+c#1%20.json": "reserved",
    "模型 😀.txt": "unicode",
    "C1_or_C2?_premise/x@main.txt": "question mark",
}


@pytest.fixture(autouse=True)
def _quiet_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    disable_progress_bars()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(tokens={GOOD: "good", STRANGER: "stranger"}) as running:
        running.add(Repository("org/name", FILES))
        yield running


def get(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """One plain GET, no redirects followed."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def signed_url(hub: Hub, path: str = "model.safetensors", repository: str = "org/name") -> str:
    status, headers, _ = get(f"{hub.url}/{repository}/resolve/main/{path}")
    assert status == 302
    return headers["location"]


# The hub's own client


def test_client_downloads_every_file_of_a_snapshot(hub: Hub, tmp_path: Path) -> None:
    folder = Path(
        huggingface_hub.snapshot_download("org/name", endpoint=hub.url, local_dir=tmp_path / "out", token=False)
    )

    assert (folder / "model.safetensors").read_bytes() == WEIGHTS_BYTES
    assert (folder / "config.json").read_bytes() == b"{}\n"
    assert (folder / "sub/deeper/empty.txt").read_bytes() == b""
    assert (folder / "sub/a b+c#1%20.json").read_text() == "reserved"
    assert (folder / "模型 😀.txt").read_text() == "unicode"
    assert (folder / "C1_or_C2?_premise/x@main.txt").read_text() == "question mark"
    assert hub.log.times_sent("model.safetensors") == {1: WEIGHTS.size_bytes}


@pytest.mark.parametrize("resolve_cache", [False, True])
def test_client_downloads_single_files(tmp_path: Path, resolve_cache: bool) -> None:
    with Hub(resolve_cache=resolve_cache) as hub:
        repository = hub.add(Repository("gpt2", FILES))
        weights = huggingface_hub.hf_hub_download("gpt2", "model.safetensors", endpoint=hub.url, token=False)
        config = huggingface_hub.hf_hub_download("gpt2", "config.json", endpoint=hub.url, token=False)

    assert Path(weights).read_bytes() == WEIGHTS_BYTES
    assert Path(config).read_bytes() == b"{}\n"
    assert repository.head.hex in config


def test_client_lists_a_tree_by_pages() -> None:
    files = {f"d{number % 7}/f{number:04}.txt": str(number) for number in range(250)}
    with Hub(page_size=100) as hub:
        hub.add(Repository("org/many", files))
        listed = list(HfApi(endpoint=hub.url, token=False).list_repo_tree("org/many", recursive=True))

        assert sorted(each.path for each in listed if isinstance(each, RepoFile)) == sorted(files)
        assert sorted(each.path for each in listed if isinstance(each, RepoFolder)) == [f"d{n}" for n in range(7)]
        assert len(hub.log.select(on=On.TREE)) == 3


def test_client_reads_digests_of_both_kinds(hub: Hub) -> None:
    api = HfApi(endpoint=hub.url, token=False)
    tree = {each.path: each for each in api.list_repo_tree("org/name", recursive=True) if isinstance(each, RepoFile)}
    info = api.model_info("org/name", files_metadata=True)
    siblings = {each.rfilename: each for each in info.siblings or []}
    weights, config = tree["model.safetensors"], tree["config.json"]

    assert weights.lfs is not None
    assert weights.lfs.sha256 == hashlib.sha256(WEIGHTS_BYTES).hexdigest()
    assert weights.size == WEIGHTS.size_bytes
    assert config.lfs is None
    assert config.blob_id == hashlib.sha1(b"blob 3\0{}\n").hexdigest()
    assert siblings["model.safetensors"].size == WEIGHTS.size_bytes
    assert siblings["config.json"].blob_id == config.blob_id
    assert api.get_paths_info("org/name", ["config.json", "nothing"])[0].path == "config.json"


def test_client_resolves_revisions(hub: Hub) -> None:
    repository = hub.add(Repository("org/moves", {"config.json": "1"}))
    first = repository.head
    second = repository.update({"config.json": "2"})
    third = repository.commit({"config.json": "3"}, revision="refs/pr/1")
    branch = repository.commit({"config.json": "4"}, revision="feature/x")
    percent = repository.commit({"config.json": "5"}, revision="my%25branch")
    repository.tag("v1", first)
    api = HfApi(endpoint=hub.url, token=False)
    refs = api.list_repo_refs("org/moves", include_pull_requests=True)

    assert api.model_info("org/moves").sha == second.hex
    assert api.model_info("org/moves", revision="v1").sha == first.hex
    assert api.model_info("org/moves", revision=first.hex).sha == first.hex
    assert api.model_info("org/moves", revision="refs/pr/1").sha == third.hex
    assert api.model_info("org/moves", revision="feature/x").sha == branch.hex
    assert api.model_info("org/moves", revision="my%25branch").sha == percent.hex
    assert [each.ref for each in refs.pull_requests or []] == ["refs/pr/1"]
    assert {each.name for each in refs.branches} == {"main", "feature/x", "my%25branch"}
    assert refs.tags[0].target_commit == first.hex
    path = huggingface_hub.hf_hub_download(
        "org/moves", "config.json", revision="refs/pr/1", endpoint=hub.url, token=False
    )
    assert Path(path).read_text() == "3"
    assert get(f"{hub.url}/org/moves/resolve/refs/pr/1/config.json")[0] == 404


@pytest.mark.parametrize(
    ("repository", "revision", "token", "expected"),
    [
        pytest.param("org/gated", None, False, errors.GatedRepoError, id="gated, no token"),
        pytest.param("org/gated", None, STRANGER, errors.GatedRepoError, id="gated, not granted"),
        pytest.param("org/private", None, False, errors.RepositoryNotFoundError, id="private, no token"),
        pytest.param("org/private", None, STRANGER, errors.RepositoryNotFoundError, id="private, not granted"),
        pytest.param("org/nothing", None, GOOD, errors.RepositoryNotFoundError, id="missing"),
        pytest.param("org/disabled", None, GOOD, errors.DisabledRepoError, id="disabled"),
        pytest.param("org/name", "nowhere", GOOD, errors.RevisionNotFoundError, id="revision"),
        pytest.param("org/name", None, "hf_revoked", errors.HfHubHTTPError, id="bad token"),
    ],
)
def test_client_tells_refusals_apart(
    hub: Hub, repository: str, revision: str | None, token: str | bool, expected: type[Exception]
) -> None:
    hub.add(Repository("org/gated", FILES, access=Access.GATED, granted=frozenset({GOOD})))
    hub.add(Repository("org/private", FILES, access=Access.PRIVATE, granted=frozenset({GOOD})))
    hub.add(Repository("org/disabled", FILES, access=Access.DISABLED))
    url = huggingface_hub.hf_hub_url(repository, "config.json", revision=revision, endpoint=hub.url)

    with pytest.raises(expected) as caught:
        huggingface_hub.get_hf_file_metadata(url, token=token)

    assert type(caught.value) is expected


def test_gated_repository_lists_for_all_and_opens_for_the_granted(hub: Hub) -> None:
    hub.add(Repository("org/gated", FILES, access=Access.GATED, granted=frozenset({GOOD})))

    assert HfApi(endpoint=hub.url, token=False).model_info("org/gated").gated == "manual"
    path = huggingface_hub.hf_hub_download("org/gated", "config.json", endpoint=hub.url, token=GOOD)
    assert Path(path).read_bytes() == b"{}\n"


def test_missing_file_and_whoami(hub: Hub) -> None:
    with pytest.raises(errors.EntryNotFoundError):
        huggingface_hub.hf_hub_download("org/name", "nothing.json", endpoint=hub.url, token=False)

    assert HfApi(endpoint=hub.url).whoami(token=GOOD)["name"] == "good"
    with pytest.raises(errors.HfHubHTTPError):
        HfApi(endpoint=hub.url).whoami(token="hf_revoked")


def test_client_follows_a_renamed_repository(hub: Hub) -> None:
    hub.rename("org/name", "new/place")
    info = HfApi(endpoint=hub.url, token=False).model_info("org/name")
    path = huggingface_hub.hf_hub_download("org/name", "model.safetensors", endpoint=hub.url, token=False)

    assert info.id == "new/place"
    assert Path(path).read_bytes() == WEIGHTS_BYTES
    assert len(hub.log.select(status=307)) >= 2


def test_letter_case_does_not_matter(hub: Hub) -> None:
    assert HfApi(endpoint=hub.url, token=False).model_info("ORG/Name").id == "org/name"


def test_client_sees_the_rate_limit() -> None:
    with Hub(limits=Limits(api=2, window_seconds=60)) as hub:
        hub.add(Repository("org/name", FILES))
        api = HfApi(endpoint=hub.url, token=False)
        api.model_info("org/name")
        api.model_info("org/name")
        with pytest.raises(errors.HfHubHTTPError, match="reached your 'api' rate limit") as caught:
            api.model_info("org/name")

    assert caught.value.response is not None
    assert caught.value.response.status_code == 429
    assert caught.value.response.headers["RateLimit-Policy"] == '"fixed window";"api";q=2;w=60'


def test_token_never_reaches_the_cdn_through_the_client(hub: Hub) -> None:
    hub.add(Repository("org/gated", FILES, access=Access.GATED, granted=frozenset({GOOD})))
    huggingface_hub.hf_hub_download("org/gated", "model.safetensors", endpoint=hub.url, token=GOOD)

    assert all(each.token for each in hub.log.select(on=On.RESOLVE))
    assert not any(each.token for each in hub.log.select(on=On.CDN))


# The CDN


@pytest.mark.parametrize("style", list(Style))
def test_signed_urls_end_and_cannot_be_changed(style: Style) -> None:
    now = [1_800_000_000.0]
    with Hub(clock=lambda: now[0], url_lifetime_seconds=60, url_style=style) as hub:
        hub.add(Repository("org/name", FILES))
        url = signed_url(hub)
        assert get(url, Range="bytes=0-9")[0] == 206
        changed = url.replace("Expires=1800000060", "Expires=1900000060").replace("Expires=60", "Expires=6000")
        assert changed != url
        assert get(changed, Range="bytes=0-9")[0] == 403
        now[0] += 61
        assert get(url, Range="bytes=0-9")[0] == 403
        assert get(signed_url(hub), Range="bytes=0-9")[0] == 206


@pytest.mark.parametrize(
    ("asked", "status", "start", "stop"),
    [
        ("bytes=0-0", 206, 0, 1),
        ("bytes=100-199", 206, 100, 200),
        (f"bytes={3 * MIB}-", 206, 3 * MIB, 3 * MIB + 17),
        ("bytes=-5", 206, 3 * MIB + 12, 3 * MIB + 17),
        (f"bytes={3 * MIB}-{9 * MIB}", 206, 3 * MIB, 3 * MIB + 17),
    ],
)
def test_ranges(hub: Hub, asked: str, status: int, start: int, stop: int) -> None:
    code, headers, content = get(signed_url(hub), Range=asked)

    assert code == status
    assert headers["content-range"] == f"bytes {start}-{stop - 1}/{WEIGHTS.size_bytes}"
    assert content == WEIGHTS_BYTES[start:stop]


def test_range_past_the_end_is_416(hub: Hub) -> None:
    code, headers, _ = get(signed_url(hub), Range=f"bytes={WEIGHTS.size_bytes}-")

    assert code == 416
    assert headers["content-range"] == f"bytes */{WEIGHTS.size_bytes}"


def test_large_request_without_a_range_is_refused() -> None:
    with Hub(max_rangeless_bytes=MIB) as hub:
        hub.add(Repository("org/name", FILES))

        assert get(signed_url(hub))[0] == 400
        assert get(signed_url(hub), Range="bytes=0-")[0] == 206


def test_throttle_holds_one_connection_to_its_rate(hub: Hub) -> None:
    hub.throttle(10 * MIB)
    begin = time.monotonic()
    get(signed_url(hub))

    assert 0.2 < time.monotonic() - begin < 3


# Bodies


def test_generated_bodies_are_the_same_whatever_the_ranges() -> None:
    body = GeneratedBody(10**12, seed=7)
    at = 512 * 10**9 + 1

    assert bytes(body.read(at, at + 1000)) == bytes(body.read(at, at + 300)) + bytes(body.read(at + 300, at + 1000))
    assert bytes(body.read(at, at + 100)) != bytes(body.read(at + MIB, at + MIB + 100))
    assert bytes(GeneratedBody(100, seed=None).read(0, 100)) == bytes(100)


def test_a_declared_terabyte_is_served_by_range() -> None:
    body = JoinedBody((GeneratedBody(100, seed=1), GeneratedBody(10**12, seed=2)))
    with Hub() as hub:
        hub.add(Repository("org/huge", {"model.safetensors": File("model.safetensors", body, sha256="a" * 64)}))
        last = 10**12 + 99
        code, headers, content = get(signed_url(hub, repository="org/huge"), Range=f"bytes={last - 9}-{last}")

    assert code == 206
    assert headers["content-range"] == f"bytes {last - 9}-{last}/{10**12 + 100}"
    assert content == bytes(GeneratedBody(10**12, seed=2).read(10**12 - 10, 10**12))


def test_tls_on_both_hosts() -> None:
    with Hub(tls=True, host="localhost") as hub:
        hub.add(Repository("org/name", FILES))
        context = ssl.create_default_context(cadata=hub.ca_pem.decode())
        connection = http.client.HTTPSConnection(
            "localhost", int(hub.url.rpartition(":")[2]), context=context, timeout=10
        )
        connection.request("GET", "/org/name/resolve/main/model.safetensors")
        location = urllib.parse.urlsplit(connection.getresponse().headers["location"])
        connection.close()
        cdn = http.client.HTTPSConnection(location.hostname or "", location.port, context=context, timeout=10)
        cdn.request("GET", f"{location.path}?{location.query}", headers={"Range": "bytes=5-104"})
        content = cdn.getresponse().read()
        cdn.close()

    assert content == WEIGHTS_BYTES[5:105]


# Faults


def test_a_flipped_bit_shows_once(hub: Hub) -> None:
    hub.fault(Fault.FLIP_BIT, on="cdn", path="model.safetensors", offset=150, times=1)
    url = signed_url(hub)
    first = get(url, Range="bytes=100-199")[2]
    second = get(url, Range="bytes=100-199")[2]

    assert second == WEIGHTS_BYTES[100:200]
    assert [index for index in range(100) if first[index] != second[index]] == [50]
    assert first[50] ^ second[50] == 1


@pytest.mark.parametrize("kind", [Fault.TRUNCATE, Fault.STALL])
def test_body_ends_early(hub: Hub, kind: Fault) -> None:
    hub.fault(kind, on=On.CDN, after_bytes=1000, seconds=0.05)

    with pytest.raises(http.client.IncompleteRead) as caught:
        get(signed_url(hub), Range="bytes=0-99999")

    assert caught.value.partial == WEIGHTS_BYTES[:1000]
    assert hub.log.payload_bytes("model.safetensors") == 1000


def test_reset(hub: Hub) -> None:
    hub.fault(Fault.RESET, on=On.CDN, after_bytes=2 * MIB)

    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        get(signed_url(hub))


def test_connection_closed_before_the_answer(hub: Hub) -> None:
    hub.fault(Fault.TRUNCATE, on=On.INFO, after_bytes=None)

    with pytest.raises(http.client.RemoteDisconnected):
        get(f"{hub.url}/api/models/org/name")


def test_status_with_retry_after_on_the_third_and_fourth_request(hub: Hub) -> None:
    rule = hub.fault(Fault.STATUS, on=On.INFO, status=503, retry_after="7", skip=2, times=2)
    codes = [get(f"{hub.url}/api/models/org/name") for _ in range(5)]

    assert [code for code, _, _ in codes] == [200, 200, 503, 503, 200]
    assert codes[2][1]["retry-after"] == "7"
    assert rule.hits == 2


@pytest.mark.parametrize(
    ("kind", "status", "header", "value"),
    [
        (Fault.IGNORE_RANGE, 200, "content-length", str(WEIGHTS.size_bytes)),
        (Fault.WRONG_RANGE, 206, "content-range", f"bytes 11-20/{WEIGHTS.size_bytes}"),
        (Fault.WRONG_TOTAL, 206, "content-range", f"bytes 10-19/{WEIGHTS.size_bytes + 1}"),
        (Fault.NO_CONTENT_RANGE, 206, "content-range", None),
        (Fault.NO_ETAG, 206, "etag", None),
        (Fault.GZIP, 206, "content-encoding", "gzip"),
        (Fault.HTML, 200, "content-type", "text/html; charset=utf-8"),
        (Fault.REDIRECT, 302, "location", "http://127.0.0.1:9/"),
    ],
)
def test_heads_that_lie(hub: Hub, kind: Fault, status: int, header: str, value: str | None) -> None:
    hub.fault(kind, on=On.CDN)
    code, headers, _ = get(signed_url(hub), Range="bytes=10-19")

    assert code == status
    assert headers.get(header) == value


@pytest.mark.parametrize(
    ("kind", "header", "value"),
    [
        (Fault.NO_COMMIT, "x-repo-commit", None),
        (Fault.WRONG_COMMIT, "x-repo-commit", "f" * 40),
        (Fault.WRONG_DIGEST, "x-linked-etag", f'"{"e" * 64}"'),
        (Fault.WRONG_SIZE, "x-linked-size", str(WEIGHTS.size_bytes + 1)),
    ],
)
def test_redirects_that_lie(hub: Hub, kind: Fault, header: str, value: str | None) -> None:
    hub.fault(kind, on=On.RESOLVE)
    code, headers, _ = get(f"{hub.url}/org/name/resolve/main/model.safetensors")

    assert code == 302
    assert headers.get(header) == value


def test_a_signed_url_ends_in_the_middle_of_a_file(hub: Hub) -> None:
    hub.fault(Fault.EXPIRED, on=On.CDN, after_bytes=5000, times=1)
    url = signed_url(hub)
    with pytest.raises(http.client.IncompleteRead):
        get(url, Range="bytes=0-9999")

    assert get(url, Range="bytes=5000-9999")[0] == 403
    assert get(signed_url(hub), Range="bytes=5000-9999")[2] == WEIGHTS_BYTES[5000:10000]


def test_the_cdn_host_changes(hub: Hub) -> None:
    first = signed_url(hub)
    hub.fault(Fault.OTHER_CDN, on=On.RESOLVE)
    second = signed_url(hub)

    assert first.startswith(hub.cdn_url)
    assert second.startswith(hub.other_cdn_url)
    assert get(second, Range="bytes=0-3")[2] == WEIGHTS_BYTES[:4]


def test_lfs_pointer_instead_of_the_file(hub: Hub) -> None:
    hub.fault(Fault.POINTER, on=On.RESOLVE, path="model.safetensors")
    code, _, content = get(f"{hub.url}/org/name/resolve/main/model.safetensors")

    assert code == 200
    assert content.startswith(b"version https://git-lfs.github.com/spec/v1\noid sha256:")


def test_listings_that_loop_leave_or_end_early() -> None:
    with Hub(page_size=10) as hub:
        hub.add(Repository("org/many", {f"f{number:03}": "x" for number in range(25)}))
        url = f"{hub.url}/api/models/org/many/tree/main?recursive=true"
        loop = hub.fault(Fault.LINK_LOOP, on=On.TREE)
        following = get(url)[1]["link"].partition(">")[0].removeprefix("<")
        assert get(following)[1]["link"].partition(">")[0].removeprefix("<") == following
        hub.rules.remove(loop)
        hub.fault(Fault.LINK_AWAY, on=On.TREE, location="http://10.0.0.1/next", times=1)
        assert get(url)[1]["link"] == '<http://10.0.0.1/next>; rel="next"'
        hub.fault(Fault.LIST_CUT, on=On.INFO, count=3)
        assert len(HfApi(endpoint=hub.url, token=False).model_info("org/many").siblings or []) == 3


def test_redirect_loop_on_resolve(hub: Hub) -> None:
    hub.fault(Fault.REDIRECT_LOOP, on=On.RESOLVE)
    url = f"{hub.url}/org/name/resolve/main/model.safetensors"

    assert get(url)[1]["location"].startswith(url)


def test_answers_without_length_and_without_end(hub: Hub) -> None:
    hub.fault(Fault.UNSIZED, on=On.CDN, times=1)
    code, headers, content = get(signed_url(hub), Range="bytes=0-9")
    hub.fault(Fault.ENDLESS, on=On.TREE)
    parts = urllib.parse.urlsplit(hub.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.request("GET", "/api/models/org/name/tree/main")
    endless = connection.getresponse()
    first = endless.read(3 * MIB)
    endless.close()
    connection.close()

    assert (code, content) == (206, WEIGHTS_BYTES[:10])
    assert "content-length" not in headers
    assert first == b" " * 3 * MIB


def test_the_cdn_refuses_a_token(hub: Hub) -> None:
    assert get(signed_url(hub), Authorization=f"Bearer {GOOD}")[0] == 400


def test_the_cdn_may_live_at_another_address() -> None:
    with Hub(cdn_host="127.0.0.2") as hub:
        hub.add(Repository("org/name", FILES))
        url = signed_url(hub)

        assert url.startswith("http://127.0.0.2:")
        assert get(url, Range="bytes=0-3")[2] == WEIGHTS_BYTES[:4]


def test_resolves_have_a_limit_of_their_own_and_say_when_it_ends() -> None:
    with Hub(limits=Limits(resolvers=1, retry_after=True, window_seconds=30)) as hub:
        hub.add(Repository("org/name", FILES))
        signed_url(hub)
        code, headers, _ = get(f"{hub.url}/org/name/resolve/main/model.safetensors")

        assert code == 429
        assert headers["ratelimit"] == f'"resolvers";r=0;t={headers["retry-after"]}'
        assert get(f"{hub.url}/api/models/org/name")[0] == 200


def test_a_hundred_thousand_files_are_listed() -> None:
    files = {f"f{number:06}.json": b"{}" for number in range(100_000)}
    with Hub() as hub:
        hub.add(Repository("org/many", files))
        listed = HfApi(endpoint=hub.url, token=False).list_repo_tree("org/many", recursive=True)

        assert sum(1 for _ in listed) == 100_000
        assert len(hub.log.select(on=On.TREE)) == 100


# As a process


def test_a_process_is_controlled_from_outside() -> None:
    with HubProcess("--generated", "org/big=1Mx2", "--throttle", "10M") as hub:
        hub.fault("status", on="info", status=503, times=1)
        codes = [get(f"{hub.url}/api/models/org/big")[0] for _ in range(2)]
        hub.throttle(None)
        for path in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
            get(get(f"{hub.url}/org/big/resolve/main/{path}")[1]["location"])
        stats = hub.stats()
        hub.reset()

        assert codes == [503, 200]
        assert stats["payloadBytes"] == 2 * MIB
        assert stats["requests"] == {"info": 2, "resolve": 2, "cdn": 2}
        assert hub.stats()["payloadBytes"] == 0


def test_runs_as_a_process_and_ends_with_its_parent() -> None:
    words = ["-m", "tests.support.hub", "--generated", "org/big=4M", "--models", "bge-m3", "--token", GOOD]
    start = f"p = subprocess.Popen([sys.executable, *{words!r}])"
    parent = f"import subprocess, sys, time; {start}; print(p.pid, flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        child = int(process.stdout.readline())
        started = json.loads(process.stdout.readline())
        location = get(f"{started['url']}/org/big/resolve/main/model.safetensors")[1]["location"]
        assert len(get(location)[2]) == 4 * MIB
        stats = json.loads(get(f"{started['url']}/-/stats")[2])
        assert stats["files"]["org/big/model.safetensors"] == {"requests": 1, "bytes": 4 * MIB}
        assert started["repositories"] == ["BAAI/bge-m3", "org/big"]
    finally:
        process.kill()
        process.wait(timeout=10)
        process.stdout.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and "Z" not in _state(child) and time.monotonic() < deadline:
        time.sleep(0.05)

    assert not Path(f"/proc/{child}").exists() or "Z" in _state(child)


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
