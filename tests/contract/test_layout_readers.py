"""What `layout` writes is read by registries and clients that know nothing of us: from a folder and from a bucket."""

import http.client
import json
import os
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimodels_core.digest import Digest
from aimodels_jobs.folder import Folder
from aimodels_jobs.layout import Store
from tests.support import binaries, servers
from tests.support.binaries.debian import program
from tests.support.stores import artifact, bucket, publish

FILES = {
    "config.json": b'{"model_type": "bert"}',
    "empty.txt": b"",
    "model.safetensors": os.urandom(5 * 1024 * 1024 + 1),
    "sub/notes.md": b"# notes\n",
}
REPOSITORY, TAG = "ns/demo", "4f2d7c1e-9a33-4a55-8f10-0c7b8e3f9a21"
PREFIX = "some/prefix"


@pytest.fixture(scope="module")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.S3Server]:
    with servers.versitygw(tmp_path_factory.mktemp("versity")) as server:
        yield server


@pytest.fixture(scope="module", params=["folder", "bucket"])
def where(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, servers.S3Server | None]:
    """A published model, and how a registry finds it."""
    if request.param == "folder":
        root = tmp_path_factory.mktemp("store")
        publish(Store(Folder(root)), REPOSITORY, TAG, FILES)
        return root, None
    server = request.getfixturevalue("versitygw")
    publish(Store(bucket(server, PREFIX)), REPOSITORY, TAG, FILES)
    return Path(PREFIX), server


@pytest.fixture(scope="module", params=["registry", "docker-registry"])
def url(request: pytest.FixtureRequest, where: tuple[Path, servers.S3Server | None]) -> Iterator[str]:
    root, server = where
    with servers.registry(root, binary=request.param, s3=server) as base:
        yield base


def _get(base: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(base).netloc, timeout=20)
    try:
        connection.request(method, path, headers={"Accept": "application/vnd.oci.image.manifest.v1+json", **headers})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_a_registry_serves_the_manifest_by_tag_and_by_digest(url: str) -> None:
    made = artifact(FILES)

    by_tag = _get(url, f"/v2/{REPOSITORY}/manifests/{TAG}")
    by_digest = _get(url, f"/v2/{REPOSITORY}/manifests/{made.digest}")

    assert by_tag[0] == by_digest[0] == 200
    assert by_tag[2] == by_digest[2] == made.manifest
    assert by_tag[1]["docker-content-digest"] == str(made.digest)


def test_a_registry_serves_every_blob(url: str) -> None:
    for data in (*FILES.values(), artifact(FILES).config):
        path = f"/v2/{REPOSITORY}/blobs/{Digest.of(data)}"
        status, headers, _ = _get(url, path, "HEAD")
        assert (status, int(headers["content-length"])) == (200, len(data))
        assert _get(url, path)[2] == data


def test_a_registry_serves_ranges_of_a_blob(url: str) -> None:
    data = FILES["model.safetensors"]
    status, _, body = _get(url, f"/v2/{REPOSITORY}/blobs/{Digest.of(data)}", Range="bytes=1000-1999")

    assert (status, body) == (206, data[1000:2000])


def test_a_registry_lists_the_tag(url: str) -> None:
    assert json.loads(_get(url, f"/v2/{REPOSITORY}/tags/list")[2]) == {"name": REPOSITORY, "tags": [TAG]}


def test_a_blob_is_not_readable_through_another_repository(url: str) -> None:
    digest = Digest.of(FILES["model.safetensors"])

    assert _get(url, f"/v2/ns/other/blobs/{digest}", "HEAD")[0] == 404


def test_skopeo_copies_the_model_out(url: str, tmp_path: Path) -> None:
    if program("skopeo") is None:
        binaries.install("base")
    source = f"docker://{urllib.parse.urlsplit(url).netloc}/{REPOSITORY}:{TAG}"
    done = subprocess.run(
        ["skopeo", "copy", "--src-tls-verify=false", "--preserve-digests", source, f"oci:{tmp_path}/out:x"],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert done.returncode == 0, done.stderr
    blobs = tmp_path / "out/blobs/sha256"
    assert {path.name for path in blobs.iterdir()} == {
        Digest.of(data).hex for data in (*FILES.values(), artifact(FILES).config, artifact(FILES).manifest)
    }
    assert (blobs / Digest.of(FILES["model.safetensors"]).hex).read_bytes() == FILES["model.safetensors"]


@pytest.mark.parametrize("binary", ["registry", "docker-registry"])
def test_what_is_removed_is_not_served_any_more(tmp_path: Path, binary: str) -> None:
    store = Store(Folder(tmp_path))
    publish(store, REPOSITORY, "first", FILES)
    publish(store, REPOSITORY, "second", {"config.json": b"{}", "model.safetensors": b"other"})
    store.remove(REPOSITORY, "first")

    with servers.registry(tmp_path, binary=binary) as base:
        assert json.loads(_get(base, f"/v2/{REPOSITORY}/tags/list")[2])["tags"] == ["second"]
        assert _get(base, f"/v2/{REPOSITORY}/manifests/first")[0] == 404
        assert _get(base, f"/v2/{REPOSITORY}/manifests/{artifact(FILES).digest}")[0] == 404
        assert _get(base, f"/v2/{REPOSITORY}/manifests/second")[0] == 200
