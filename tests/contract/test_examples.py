"""The examples do what they say: run as they are, by the programs that they are for."""

import json
import os
import subprocess
import urllib.request
from pathlib import Path

import pytest

from aimodels_jobs.folder import Folder
from aimodels_jobs.layout import Store
from tests.support import binaries
from tests.support.binaries.debian import program
from tests.support.processes import answers, started
from tests.support.stores import publish

CONFIG = Path(__file__).parents[2] / "examples/registry/config.yml"
FILES = {"config.json": b'{"model_type": "bert"}', "model.safetensors": os.urandom(1024 * 1024 + 1)}


@pytest.mark.parametrize("name", ["registry", "docker-registry"])
def test_a_registry_with_the_example_configuration_serves_a_store(name: str, tmp_path: Path) -> None:
    publish(Store(Folder(tmp_path / "dmcr")), "local", "minilm", FILES)
    path = str(binaries.path("registry")) if name == "registry" else program(name)
    assert path is not None

    def command(port: int) -> list[str]:
        changes = (f"REGISTRY_HTTP_ADDR=127.0.0.1:{port}", f"REGISTRY_STORAGE_FILESYSTEM_ROOTDIRECTORY={tmp_path}/dmcr")
        return ["env", *changes, path, "serve", str(CONFIG)]

    with started(command, ready=lambda port: answers(port, path="/v2/")) as server:
        request = urllib.request.Request(
            f"{server.url}/v2/local/manifests/minilm", headers={"Accept": "application/vnd.oci.image.manifest.v1+json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            manifest = json.load(answer)
        assert len(manifest["layers"]) == len(FILES)

        source = f"docker://{server.url.removeprefix('http://')}/local:minilm"
        target = tmp_path / "copied"
        copy = ["skopeo", "copy", "--src-tls-verify=false", "--insecure-policy", source, f"dir:{target}"]
        subprocess.run(copy, check=True, capture_output=True, timeout=50)
        pushed = ["skopeo", "copy", "--dest-tls-verify=false", "--insecure-policy", f"dir:{target}", f"{source}-again"]
        refused = subprocess.run(pushed, check=False, capture_output=True, timeout=50)

    copied = {layer["digest"].removeprefix("sha256:") for layer in manifest["layers"]}
    assert copied <= {path.name for path in target.iterdir()}
    assert refused.returncode != 0
