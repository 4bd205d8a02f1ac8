"""Names, addresses and folders of a stand, in one place (pure)."""

import os
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
"""The repository root: working directory of commands inside a stand."""

BRIDGE = "kc0"
ADDRESS = "10.77.0.1"
"""The stand's own address: API server, DNS, and whatever a test serves."""
REGISTRY_ADDRESS = "10.77.0.2"
S3_ADDRESS = "10.77.0.3"
HUB_ADDRESS = "10.77.0.4"
"""Where the names of huggingface.co, its CDN and ollama.com lead; a test puts its simulator there."""
SERVICE_RANGE = "10.96.0.0/16"
POD_RANGE = "10.88.0.0/16"
FIRST_NODE = 11
"""Last byte of the first node's address."""
MAX_NODES = 16

REGISTRY_HOST = "registry.example.com"
S3_HOST = "s3.example.com"
HUB_DOMAINS = ("huggingface.co", "hf.co", "ollama.com", "ollama.ai")
"""Domains (with every name below them) that CoreDNS answers with HUB_ADDRESS."""

KUBELET_ROOT = "/var/lib/kubelet"
STATE_VARIABLE = "AI_MODELS_STAND"
"""Environment variable that tells a command inside where the stand's folder is."""


class StandError(RuntimeError):
    """The stand cannot do what was asked; the message says what was wanted and what was found."""


def cache_root() -> Path:
    """Folder for everything that outlives a stand."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "ai-models"


def stands_root() -> Path:
    """Folder with one folder per stand, live or dead."""
    return cache_root() / "stands"


@dataclass(frozen=True, slots=True)
class Layout:
    """Folder tree of one stand."""

    root: Path

    @property
    def id(self) -> str:
        """Short random name, the folder's own."""
        return self.root.name

    @property
    def cgroup(self) -> str:
        """Name of the stand's folder in every cgroup hierarchy."""
        return f"ai-models-{self.id}"

    @property
    def lock(self) -> Path:
        """Locked as long as the front or the janitor of this stand lives."""
        return self.root / "lock"

    @property
    def bin(self) -> Path:
        """Links to the programs under their plain names."""
        return self.root / "bin"

    @property
    def logs(self) -> Path:
        """One log per part."""
        return self.root / "logs"

    @property
    def pids(self) -> Path:
        """One process-id file per part."""
        return self.root / "pids"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.root / "pki"

    @property
    def ca(self) -> Path:
        """Certificate of the stand's one CA."""
        return self.pki / "ca.crt"

    @property
    def kubeconfig(self) -> Path:
        """Administrator's kubeconfig."""
        return self.root / "admin.kubeconfig"

    @property
    def hosts(self) -> Path:
        """containerd's registry hosts."""
        return self.root / "certs.d"

    @property
    def shared(self) -> Path:
        """Folder behind the RWX storage class: every node sees it at this same path."""
        return self.root / "shared"

    @property
    def settings(self) -> Path:
        """What the supervisor tells the inside, as JSON."""
        return self.root / "settings.json"

    @property
    def front(self) -> Path:
        """Process id, as the machine numbers it, of the sandbox's parent."""
        return self.root / "front.pid"

    def node(self, name: str) -> Path:
        """A node's own disk."""
        return self.root / "nodes" / name

    def make(self) -> None:
        """Create the folders."""
        for folder in (self.bin, self.logs, self.pids, self.pki, self.hosts, self.shared, self.root / "nodes"):
            folder.mkdir(parents=True, exist_ok=True)


def node_name(index: int) -> str:
    """Name of the n-th node, from 0.

    >>> node_name(0), node_name(2)
    ('node-a', 'node-c')
    """
    return f"node-{chr(ord('a') + index)}"


def node_number(name: str) -> int:
    """Last byte of a node's address, and third byte of its Pod range.

    >>> node_number("node-a")
    11
    """
    return FIRST_NODE + ord(name.removeprefix("node-")) - ord("a")


def node_address(name: str) -> str:
    """Address of a node.

    >>> node_address("node-b")
    '10.77.0.12'
    """
    return f"10.77.0.{node_number(name)}"
