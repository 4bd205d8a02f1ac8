"""Configuration files of a node as text, and its image folder as links into a template."""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.cluster.stand.certificates import Pair
from tests.cluster.stand.layout import ADDRESS, POD_RANGE

PAUSE_IMAGE = "localhost/pause:1"
CONTAINERD_FOLDER = "/var/lib/containerd"
SNAPSHOTS = "io.containerd.snapshotter.v1.overlayfs"
BLOBS = "io.containerd.content.v1.content/blobs/sha256"


def containerd(socket: Path, *, hosts: Path, root: str = CONTAINERD_FOLDER, state: str = "/run/containerd") -> str:
    """Configuration of containerd 2 (version 3)."""
    return f"""
version = 3
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "/var/lib/cni/net.d"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "{hosts}"
"""


def network(number: int) -> str:
    """CNI configuration of the Pods of the node with this number."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": "/run/cni",
            "ranges": [[{"subnet": f"10.88.{number}.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]})


def kubelet(*, address: str, cgroup: str, ca: Path, pair: Pair, socket: Path) -> str:
    """Configuration of kubelet."""
    content: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(ca)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pair.certificate),
        "tlsPrivateKeyFile": str(pair.key),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "address": address,
        "healthzBindAddress": "127.0.0.1",
        "clusterDomain": "cluster.local",
        "clusterDNS": [ADDRESS],
        "containerRuntimeEndpoint": f"unix://{socket}",
        "enforceNodeAllocatable": ["pods"],
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        # The disk is the machine's: another's files must not make this node throw its images away.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeLeaseDurationSeconds": 12,
        "nodeStatusUpdateFrequency": "5s",
        # Two names of one image: kubelet would want credentials for the second once the first was pulled.
        "imagePullCredentialsVerificationPolicy": "NeverVerify",
        "registryPullQPS": 0,
        "serializeImagePulls": False,
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        "shutdownGracePeriod": "0s",
    }
    return json.dumps(content)


def proxy(node: str, *, kubeconfig: Path) -> str:
    """Configuration of kube-proxy; nftables mode does not work on every kernel that iptables mode works on."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clusterCIDR": POD_RANGE,
            "hostnameOverride": node,
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
    )


def link_images(template: Path, root: Path) -> None:
    """Give a node the images of a template: its databases are copied, layers and blobs are links.

    Nothing writes below a committed snapshot or into a blob, so all nodes of all stands may share them.
    """
    if root.exists():
        return  # the node was here before
    snapshots, blobs = Path(SNAPSHOTS) / "snapshots", Path(BLOBS)
    for shared in (snapshots, blobs):
        (root / shared).mkdir(parents=True)
        for source in (template / shared).iterdir():
            (root / shared / source.name).symlink_to(source)
    for database in (Path("io.containerd.metadata.v1.bolt/meta.db"), Path(SNAPSHOTS) / "metadata.db"):
        (root / database).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(template / database, root / database)
