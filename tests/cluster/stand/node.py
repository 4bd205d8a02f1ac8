"""One node: a network namespace, a mount namespace, containerd, kubelet and kube-proxy.

Its /run, /var/lib and /var/log are its own, so that a hostPath means a folder of that node and every
node has the usual paths. What is in /var/lib survives a kill, what is in /run does not, as on a machine.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.stand import cgroups, nodefiles
from tests.cluster.stand.certificates import Authority
from tests.cluster.stand.layout import ADDRESS, BRIDGE, KUBELET_ROOT, Layout, StandError, node_address, node_number
from tests.cluster.stand.process import Part
from tests.cluster.stand.waiting import attempt, command, until

CONTAINERD_SECONDS = 20.0

_HOLD = """
set -eu
for pair in run:/run lib:/var/lib log:/var/log; do mkdir -p "$0/${pair%%:*}"; done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns /run/lock
mount --bind "$0/lib" /var/lib
mount --bind "$0/log" /var/log
exec sleep infinity
"""
"""Makes the node's own folders and keeps its namespaces alive; `$0` is the node's disk."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the stand, running or not."""

    layout: Layout
    name: str

    @property
    def disk(self) -> Path:
        """Folder with the node's own files, as seen from outside it."""
        return self.layout.node(self.name)

    @property
    def cgroup(self) -> str:
        """The node's cgroup; its Pods are below."""
        return f"{self.layout.cgroup}/{self.name}"

    @property
    def socket(self) -> Path:
        """containerd's socket, reachable from the whole sandbox."""
        return self.disk / "containerd.sock"

    @property
    def link(self) -> str:
        """The sandbox's end of the node's network cable."""
        return f"v-{self.name}"

    def prepare(self, authority: Authority, *, images: Path) -> None:
        """Write the node's configuration and give it the images of a template."""
        for folder in ("lib", "log", "lib/cni/net.d"):
            (self.disk / folder).mkdir(parents=True, exist_ok=True)
        nodefiles.link_images(images, self.disk / "lib" / "containerd")
        address = node_address(self.name)
        pair = authority.server(f"kubelet-{self.name}", address, self.name)
        authority.kubeconfig(f"system:node:{self.name}", "system:nodes", into=self.disk / "kubelet.kubeconfig")
        files = {
            "containerd.toml": nodefiles.containerd(self.socket, hosts=self.layout.hosts),
            "lib/cni/net.d/10-bridge.conflist": nodefiles.network(node_number(self.name)),
            "kubelet.yaml": nodefiles.kubelet(
                address=address, cgroup=f"/{self.cgroup}", ca=self.layout.ca, pair=pair, socket=self.socket
            ),
            "proxy.yaml": nodefiles.proxy(self.name, kubeconfig=self.layout.root / "kube-proxy.kubeconfig"),
        }
        for name, content in files.items():
            (self.disk / name).write_text(content)

    def power_on(self) -> None:
        """Connect the network and start containerd; kubelet comes with `join`."""
        cgroups.make(self.cgroup)
        self._connect_network()
        self.holder.start()
        self._wait_for_mounts()
        self.containerd.start()

    def join(self) -> None:
        """Start kube-proxy and kubelet, once containerd answers."""
        self.wait_for_containerd()
        self.proxy.start()
        self.kubelet.start()

    def start(self) -> None:
        """Everything: power on and join."""
        self.power_on()
        self.join()

    def kill(self) -> None:
        """Pull the plug: every process and mount of the node is gone at once, its disk stays.

        Raises:
            StandError: a process would not die.
        """
        left = cgroups.kill(self.cgroup)
        if left:
            raise StandError(f"node {self.name}: want no process after the kill, got {len(left)}")
        with contextlib.suppress(StandError):
            command("ip", "link", "delete", self.link)
        command("ip", "netns", "delete", self.name)
        self.socket.unlink(missing_ok=True)
        cgroups.remove(self.cgroup)

    def freeze(self) -> None:
        """Stop every process of the node where it is, Pods included."""
        cgroups.freeze(self.cgroup)

    def thaw(self) -> None:
        """Let a frozen node go on."""
        cgroups.thaw(self.cgroup)

    def disconnect(self) -> None:
        """Pull the network cable: the node runs on, unreachable."""
        command("ip", "link", "set", self.link, "down")

    def connect(self) -> None:
        """Put the network cable back."""
        command("ip", "link", "set", self.link, "up")

    def shape(self, megabits_per_second: int) -> None:
        """Limit the node's NIC, in each direction."""
        rate = f"{megabits_per_second}mbit"
        tail = ("root", "tbf", "rate", rate, "burst", "1mb", "latency", "50ms")
        command("tc", "-n", self.name, "qdisc", "replace", "dev", "eth0", *tail)
        command("tc", "qdisc", "replace", "dev", self.link, *tail)

    def unshape(self) -> None:
        """Take the limit off the node's NIC; no limit is no error."""
        attempt("tc", "-n", self.name, "qdisc", "delete", "dev", "eth0", "root")
        attempt("tc", "qdisc", "delete", "dev", self.link, "root")

    def run(self, *arguments: str, seconds: float = 60.0) -> str:
        """Run a program in the node's namespaces, as its administrator would; returns its output."""
        return command(*self._enter, *arguments, seconds=seconds)

    def import_image(self, archive: Path, *, seconds: float = 300.0) -> None:
        """Import an OCI archive into the node."""
        command(
            self.layout.bin / "ctr", "-a", self.socket, "-n", "k8s.io", "images", "import", archive, seconds=seconds
        )

    def wait_for_containerd(self) -> None:
        """Wait until containerd answers (its socket file is there earlier)."""
        until(
            lambda: (
                self.socket.exists() and attempt(self.layout.bin / "ctr", "-a", self.socket, "version").returncode == 0
            ),
            what=f"containerd of {self.name}",
            seconds=CONTAINERD_SECONDS,
            pause=0.1,
        )

    @property
    def holder(self) -> Part:
        """The process that keeps the node's namespaces."""
        enter = ["nsenter", f"--net=/run/netns/{self.name}", "unshare", "--mount", "--propagation", "shared"]
        return Part(self.layout, f"{self.name}.holder", ["sh", "-c", _HOLD, self.disk], self.cgroup, enter)

    @property
    def containerd(self) -> Part:
        """The container runtime; Pods outlive it."""
        return self._part("containerd", "containerd", "-c", str(self.disk / "containerd.toml"))

    @property
    def kubelet(self) -> Part:
        """The node agent of Kubernetes; Pods outlive it."""
        return self._part(
            "kubelet",
            "kubelet",
            f"--config={self.disk}/kubelet.yaml",
            f"--kubeconfig={self.disk}/kubelet.kubeconfig",
            f"--hostname-override={self.name}",
            f"--root-dir={KUBELET_ROOT}",
            f"--node-ip={node_address(self.name)}",
        )

    @property
    def proxy(self) -> Part:
        """Service addresses on this node."""
        return self._part("kube-proxy", "kube-proxy", f"--config={self.disk}/proxy.yaml")

    @property
    def parts(self) -> tuple[Part, ...]:
        """The node's programs, in the order of their start."""
        return (self.holder, self.containerd, self.proxy, self.kubelet)

    @property
    def _enter(self) -> list[str]:
        pid = self.holder.pid()
        if pid is None:
            raise StandError(f"node {self.name}: want it powered on, got it off")
        return ["nsenter", f"--target={pid}", "--mount", "--net"]

    def _part(self, name: str, *arguments: str) -> Part:
        enter = self._enter if self.holder.pid() else ()
        program = self.layout.bin / arguments[0]
        return Part(self.layout, f"{self.name}.{name}", [program, *arguments[1:]], self.cgroup, enter)

    def _wait_for_mounts(self) -> None:
        """Wait until the holder has become `sleep`: then the node's mounts are complete."""
        pid = self.holder.pid()
        comm = Path(f"/proc/{pid}/comm")
        until(lambda: comm.read_text().strip() == "sleep", what=f"mounts of {self.name}", seconds=10.0, pause=0.01)

    def _connect_network(self) -> None:
        number, address, name = node_number(self.name), node_address(self.name), self.name
        batches = {
            "": f"""
                link add {self.link} type veth peer name eth0 netns {name}
                link set {self.link} master {BRIDGE} up
                route replace 10.88.{number}.0/24 via {address}""",
            name: f"""
                addr add {address}/24 dev eth0
                link set eth0 up
                link set lo up
                route add default via {ADDRESS}""",
        }
        command("ip", "netns", "add", name)
        for namespace, batch in batches.items():
            command("ip", *(["-n", namespace] if namespace else []), "-batch", "-", stdin=batch)
        command("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.ip_forward=1")
