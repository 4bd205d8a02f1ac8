"""The hub simulator against the hub's own client library."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import HfApi, constants, errors
from huggingface_hub.hf_api import RepoFile, RepoFolder
from huggingface_hub.utils.tqdm import disable_progress_bars

from tests.support.hub.bodies import GeneratedBody, pieces
from tests.support.hub.limits import Limits
from tests.support.hub.plain import get
from tests.support.hub.repository import Access, Content, File, Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub

MIB = 1024 * 1024
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


def test_a_hundred_thousand_files_are_listed() -> None:
    files = {f"f{number:06}.json": b"{}" for number in range(100_000)}
    with Hub() as hub:
        hub.add(Repository("org/many", files))
        listed = HfApi(endpoint=hub.url, token=False).list_repo_tree("org/many", recursive=True)

        assert sum(1 for _ in listed) == 100_000
        assert len(hub.log.select(on=On.TREE)) == 100
