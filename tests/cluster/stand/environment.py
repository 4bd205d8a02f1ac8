"""Environment variables of a command inside a stand (pure but for asking which Python this is)."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.stand.layout import STATE_VARIABLE, Layout, node_name


def of(layout: Layout, outer: Mapping[str, str]) -> dict[str, str]:
    """Variables of a command inside: the cluster, the programs, the CA."""
    first = layout.node(node_name(0))
    path = os.pathsep.join([str(layout.bin), str(Path(sys.executable).parent), outer.get("PATH", os.defpath)])
    return {
        STATE_VARIABLE: str(layout.root),
        "KUBECONFIG": str(layout.kubeconfig),
        "PATH": f"{path}:/usr/sbin:/sbin",
        "CONTAINERD_ADDRESS": str(first / "containerd.sock"),
        "CONTAINERD_NAMESPACE": "k8s.io",
        "STAND_CA": str(layout.ca),
    }
