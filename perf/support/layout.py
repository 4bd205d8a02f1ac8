"""An OCI layout of a folder, for tools that copy layouts: `python -m perf.support.layout FOLDER LAYOUT`.

Each file is read once for its digest and hard-linked, which is the least that such a tool can do.
"""

import hashlib
import json
import mmap
import os
import sys
from pathlib import Path
from typing import Any

CONFIG_TYPE = "application/vnd.cncf.model.config.v1+json"
LAYER_TYPE = "application/vnd.cncf.model.weight.v1.raw"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


def descriptor(media_type: str, digest: str, size: int) -> dict[str, Any]:
    """A descriptor by the OCI image specification."""
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def manifest(layers: list[dict[str, Any]], config: bytes = b"{}") -> bytes:
    """A manifest over layers."""
    about = descriptor(CONFIG_TYPE, hashlib.sha256(config).hexdigest(), len(config))
    return json.dumps({"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": about, "layers": layers}).encode()


def file_digest(path: Path, scrap: memoryview) -> str:
    """SHA-256 of a file, through memory that is used again."""
    sha256 = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while got := file.readinto(scrap):
            sha256.update(scrap[:got])
    return sha256.hexdigest()


def scrap_memory(size: int = 1024 * 1024) -> memoryview:
    """Page-aligned memory."""
    return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def main(words: list[str]) -> int:
    """Write the layout."""
    source, target = Path(words[0]), Path(words[1])
    blobs = target / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layers, scrap = [], scrap_memory()
    for path in sorted(path for path in source.iterdir() if path.is_file()):
        digest = file_digest(path, scrap)
        os.link(path, blobs / digest)
        layers.append(descriptor(LAYER_TYPE, digest, path.stat().st_size))
    made = manifest(layers)
    for content in (b"{}", made):
        (blobs / hashlib.sha256(content).hexdigest()).write_bytes(content)
    entry = descriptor(MANIFEST_TYPE, hashlib.sha256(made).hexdigest(), len(made))
    entry["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    (target / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (target / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
