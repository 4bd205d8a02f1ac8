"""Which programs there are: Go module, package, build flags, and the cache key of each (reads go.mod and go.sum only).

Versions are not repeated here: they are in `go/<module>/go.mod`, with `go.sum` beside it. To raise one,
edit go.mod, run `go mod tidy` there, and the key changes with the files.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "go"


class BinaryError(RuntimeError):
    """A program cannot be had; the message says which one and why."""


@dataclass(frozen=True, slots=True)
class Binary:
    """One program: how it is built."""

    name: str
    """File name of the program."""
    module: str
    """Folder under `go/` whose go.mod pins it."""
    package: str
    """Go import path of its main package."""
    ldflags: str = "-s -w"
    """Linker flags."""
    tags: str = ""
    """Build tags, comma-separated."""
    data: str = ""
    """Folder of the module's source to keep beside the program."""

    @property
    def folder(self) -> Path:
        """The folder with the go.mod that pins this program."""
        return MODULES / self.module

    def key(self) -> str:
        """Hash of everything that decides the program: locked versions and flags."""
        flags = [self.package, self.ldflags, self.tags, *filter(None, [self.data])]
        hasher = hashlib.sha256()
        for part in (*flags, _text(self.folder / "go.mod"), _text(self.folder / "go.sum")):
            hasher.update(part.encode() + b"\0")
        return hasher.hexdigest()[:16]


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


_KUBERNETES = (
    "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3"
    " -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"
)
"""Without these a server calls itself v0.0.0 and clients refuse it."""

_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_CONTAINERD_TAGS = "no_btrfs,no_devmapper,no_zfs"

_ALL = (
    Binary("registry", "registry", "github.com/distribution/distribution/v3/cmd/registry"),
    Binary("versitygw", "versitygw", "github.com/versity/versitygw/cmd/versitygw"),
    *(
        Binary(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES)
        for name in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
            "kubectl",
        )
    ),
    Binary("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    *(
        Binary(name, "containerd", f"{_CONTAINERD}/{name}", tags=_CONTAINERD_TAGS)
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    ),
    Binary("coredns", "coredns", "github.com/coredns/coredns"),
    Binary("helm", "helm", "helm.sh/helm/v3/cmd/helm"),
    Binary("local-path-provisioner", "local-path-provisioner", "github.com/rancher/local-path-provisioner"),
    Binary("csi-sanity", "csi-sanity", "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"),
    Binary("promtool", "prometheus", "github.com/prometheus/prometheus/cmd/promtool", tags="remove_all_sd"),
    Binary("kuberay-operator", "kuberay", "github.com/ray-project/kuberay/ray-operator", data="config/crd/bases"),
)

_APART = frozenset({"csi-sanity", "kuberay-operator", "promtool"})
"""Of single tests; a cluster does without them."""

BINARIES = {binary.name: binary for binary in _ALL}

GROUPS = {
    "servers": ("registry", "versitygw"),
    "cluster": tuple(binary.name for binary in _ALL if binary.name not in _APART),
    "kuberay": ("kuberay-operator",),
}
"""Names for several programs at once."""


def find(name: str) -> Binary:
    """The program of that name.

    Raises:
        BinaryError: no such program is pinned.
    """
    if name not in BINARIES:
        raise BinaryError(f"binary {name!r}: want one of {', '.join(sorted(BINARIES))}")
    return BINARIES[name]


def expand(names: tuple[str, ...]) -> tuple[str, ...]:
    """Replace group names by their members, in order and without repeats.

    >>> expand(("servers", "registry"))
    ('registry', 'versitygw')
    """
    return tuple(dict.fromkeys(member for name in names for member in GROUPS.get(name, (name,))))
