"""What was published is read by registries and by skopeo, which know nothing of us: from a folder and from a bucket."""

import hashlib
import json
import subprocess
import urllib.parse
from pathlib import Path

import pytest

from aimodels_core.messages import Stage
from tests.support import binaries, servers
from tests.support.binaries.debian import program
from tests.support.hub.server import Hub
from tests.support.publishing import Desk, Place, bucket_place, folder_place, good_model, wanted

SCOPE, NAME = "ns/team", "m"


@pytest.mark.parametrize("binary", ["registry", "docker-registry"])
@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_skopeo_copies_a_published_model_out_of_a_registry(
    kind: str, binary: str, hub: Hub, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    s3: servers.S3Server | None = request.getfixturevalue("versity") if kind == "s3" else None
    root = Path(f"readers/{binary}") if s3 else tmp_path / "dmcr"
    place: Place = bucket_place(s3, str(root)) if s3 else folder_place(root)
    repository = hub.add(good_model("org/name"))
    with Desk(place) as desk:
        state = desk.publish(wanted(hub, NAME, scope=SCOPE))
    assert state.stage is Stage.READY
    assert state.published
    if program("skopeo") is None:
        binaries.install("base")
    with servers.registry(root, binary=binary, s3=s3) as base:
        source = f"docker://{urllib.parse.urlsplit(base).netloc}/{SCOPE}:{NAME}"
        copy = ("skopeo", "copy", "--src-tls-verify=false", "--preserve-digests", source, f"dir:{tmp_path}/out")
        done = subprocess.run(copy, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    manifest = (tmp_path / "out/manifest.json").read_bytes()
    document = json.loads(manifest)
    copied = {
        layer["annotations"]["org.cncf.model.filepath"]: _sha256(tmp_path / "out" / layer["digest"].split(":")[1])
        for layer in document["layers"]
    }

    assert f"sha256:{hashlib.sha256(manifest).hexdigest()}" == state.published.digest
    assert document["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    assert copied == {path: file.sha256_hex for path, file in repository.head.files.items()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
