"""The sandbox's own network: bridge, addresses, DNS settings."""

from tests.cluster.stand.layout import ADDRESS, BRIDGE, HUB_ADDRESS, REGISTRY_ADDRESS, S3_ADDRESS
from tests.cluster.stand.waiting import command

RESOLVER = f"nameserver {ADDRESS}\noptions timeout:2 attempts:2\n"
"""resolv.conf of the sandbox, of its nodes and of Pods with `dnsPolicy: Default`."""


def bring_up() -> None:
    """Loopback, the bridge that is the nodes' switch, and the stand's addresses on it."""
    every = (ADDRESS, REGISTRY_ADDRESS, S3_ADDRESS, HUB_ADDRESS)
    batch = ["link set lo up", f"link add {BRIDGE} type bridge"]
    batch += [f"addr add {address}/24 dev {BRIDGE}" for address in every]
    batch += [f"link set {BRIDGE} up"]
    command("ip", "-batch", "-", stdin="\n".join(batch) + "\n")
    command("sysctl", "-qw", "net.ipv4.ip_forward=1")
