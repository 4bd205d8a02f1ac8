"""Small OCI image archives written by hand, always the same bytes for the same content."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True, slots=True)
class Image:
    """A one-layer image, ready to be written anywhere."""

    name: str
    blobs: Mapping[str, bytes] = field(repr=False)
    """Content by hexadecimal sha256: layer, config, manifest."""
    manifest: str
    """Which of the blobs is the manifest."""
    unpacked_bytes: int

    def write(self, file: Path) -> Path:
        """Write an OCI archive that `ctr images import` and skopeo read."""
        descriptor = {
            "mediaType": MANIFEST,
            "digest": f"sha256:{self.manifest}",
            "size": len(self.blobs[self.manifest]),
            "annotations": {"io.containerd.image.name": self.name, "org.opencontainers.image.ref.name": self.name},
        }
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}
        files = [("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", _json(index))]
        files += [(f"blobs/sha256/{name}", content) for name, content in self.blobs.items()]
        with tarfile.open(file, "w") as archive:
            for name, content in files:
                _add(archive, name, content)
        return file


def small(name: str, files: Mapping[str, bytes], *, links: Mapping[str, str], command: Iterable[str]) -> Image:
    """An image of a few executable files and symbolic links; its folders are writable by all in /tmp only."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777), ("var", 0o755)):
            _folder(archive, folder, mode)
        for path, content in files.items():
            _add(archive, path, content, mode=0o755)
        for path, target in links.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return _image(name, raw.getvalue(), {"Cmd": list(command), "Env": ["PATH=/bin"]})


def busybox(name: str, program: Path, libraries: Iterable[Path], more: Mapping[str, bytes] = {}) -> Image:
    """An image with busybox under all its names, the libraries that it is linked to, and more programs by their paths.

    A static busybox would need no libraries, but its wget crashes when it looks up names.
    """
    names = "sh ls cat echo sleep true false test mkdir rm cp mv ln chmod chown df du env printenv grep sed awk wc tail"
    names += " head dd sync mount umount id hostname ip ping nc wget httpd date touch stat find sort uniq tr cut md5sum"
    names += " sha256sum sysctl mountpoint readlink realpath seq vi ps kill top tar gzip gunzip losetup blkid mke2fs"
    names += " nslookup uname"
    passwd = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n"
    files = {"bin/busybox": program.read_bytes(), "etc/passwd": passwd, "etc/group": b"root:x:0:\nnobody:x:65534:\n"}
    files |= {str(library).lstrip("/"): library.read_bytes() for library in libraries}
    files |= more
    return small(name, files, links={f"bin/{link}": "busybox" for link in names.split()}, command=("sleep", "infinity"))


def _image(name: str, layer: bytes, config: dict[str, Any]) -> Image:
    packed = gzip.compress(layer, compresslevel=1, mtime=0)
    content = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_sha256(layer)}"]},
    }
    configured = _json(content)
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, configured),
            "layers": [_descriptor(LAYER, packed)],
        }
    )
    blobs = {_sha256(blob): blob for blob in (packed, configured, manifest)}
    return Image(name, blobs, _sha256(manifest), len(layer))


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{_sha256(content)}", "size": len(content)}


def _folder(archive: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    archive.addfile(entry)


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
