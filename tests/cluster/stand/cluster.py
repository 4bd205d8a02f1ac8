"""The cluster of a stand as a whole: start it, add nodes, find its parts again from any process inside."""

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.stand import cgroups
from tests.cluster.stand.addons import Addons
from tests.cluster.stand.certificates import Authority
from tests.cluster.stand.control import Settings
from tests.cluster.stand.controlplane import ControlPlane
from tests.cluster.stand.kubectl import Kubectl, condition
from tests.cluster.stand.layout import STATE_VARIABLE, Layout, StandError
from tests.cluster.stand.node import Node
from tests.cluster.stand.process import Part
from tests.cluster.stand.waiting import command, until

NODES_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """All parts of one stand."""

    layout: Layout

    @classmethod
    def attach(cls) -> "Cluster":
        """The cluster beside which this process runs.

        Raises:
            StandError: this process is not inside a stand.
        """
        folder = os.environ.get(STATE_VARIABLE)
        if not folder:
            raise StandError(f"stand: want {STATE_VARIABLE} set, as inside `tests/cluster/run COMMAND`, got nothing")
        return cls(Layout(Path(folder)))

    @property
    def authority(self) -> Authority:
        """The stand's CA."""
        return Authority(self.layout)

    @property
    def control_plane(self) -> ControlPlane:
        """etcd, API server, controller manager, scheduler."""
        return ControlPlane(self.layout)

    @property
    def addons(self) -> Addons:
        """DNS, storage, registry, S3, KubeRay."""
        return Addons(self.layout)

    def node(self, name: str) -> Node:
        """A node by name."""
        return Node(self.layout, name)

    @property
    def nodes(self) -> list[Node]:
        """Every node that was ever added, by name."""
        return [self.node(path.name) for path in sorted((self.layout.root / "nodes").iterdir())]

    @property
    def parts(self) -> list[Part]:
        """Every program of the stand."""
        return [*self.control_plane.parts, *self.addons.parts, *(part for node in self.nodes for part in node.parts)]

    def start(self, names: Sequence[str], *, images: Path) -> None:
        """Start everything and wait until all nodes are Ready.

        Raises:
            StandError: a part did not come up in time.
        """
        authority = self.authority
        self.control_plane.start(authority)
        nodes = [self.node(name) for name in names]
        with ThreadPoolExecutor(len(nodes) + 1) as pool:
            started = [pool.submit(self._power_on, node, authority, images) for node in nodes]
            self.addons.start_servers(authority)
            self.addons.start_dns()
            for future in started:
                future.result()
            self.control_plane.wait()
            self.control_plane.start_controllers()
            joined = [pool.submit(node.join) for node in nodes]
            self.addons.start_storage()
            for future in joined:
                future.result()
        self.wait_for_nodes(*names)

    def add_node(self, name: str) -> Node:
        """Add a node to the running cluster and wait until it is Ready.

        Raises:
            StandError: there is such a node, or it did not come up in time.
        """
        node = self.node(name)
        if node.disk.exists():
            raise StandError(f"node {name}: want a new name, got one that exists")
        self._power_on(node, self.authority, Settings.load(self.layout).template)
        node.join()
        self.wait_for_nodes(name)
        return node

    def remove_node(self, node: Node) -> None:
        """Kill a node, delete its object and its disk."""
        if node.holder.running():
            node.kill()
        command("kubectl", "delete", "node", node.name, "--ignore-not-found")
        shutil.rmtree(node.disk)

    def wait_for_nodes(self, *names: str, status: str = "True", seconds: float = NODES_SECONDS) -> None:
        """Wait until each node's Ready condition has a status.

        Raises:
            StandError: the deadline passed.
        """

        def as_wanted() -> bool:
            found = {node["metadata"]["name"]: condition(node, "Ready") for node in Kubectl().items("nodes")}
            return all(found.get(name) == status for name in names)

        until(as_wanted, what=f"nodes {', '.join(names)} with Ready={status}", seconds=seconds, pause=0.2)

    def memory_bytes(self) -> int:
        """Memory of everything in the stand, page cache not counted."""
        return cgroups.memory_bytes(self.layout.cgroup)

    def tails(self) -> str:
        """Last log lines of every part that was started, those that died first."""
        parts = sorted((part for part in self.parts if part.pid()), key=lambda part: part.running())
        states = {part.name: "running" if part.running() else "stopped" for part in parts}
        return "\n".join(f"--- {part.name} ({states[part.name]})\n{part.tail(6)}" for part in parts)

    @staticmethod
    def _power_on(node: Node, authority: Authority, images: Path) -> None:
        node.prepare(authority, images=images)
        node.power_on()
