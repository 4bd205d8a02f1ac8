"""First process of the sandbox: mounts, network, cluster, then the command; it reaps what others leave.

When it ends, the kernel kills everything else in the sandbox.
"""

import os
import socket
import sys
import time
from pathlib import Path

from tests.cluster.stand import addresses, cgroups, chart, environment
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.control import Settings
from tests.cluster.stand.layout import (
    CHECKOUT,
    Layout,
    StandError,
    node_name,
)
from tests.cluster.stand.waiting import command


def main() -> int:
    """Usage: inside STAND-FOLDER."""
    layout = Layout(Path(sys.argv[1]))
    settings = Settings.load(layout)
    cgroups.enter(f"{layout.cgroup}/control-plane")
    os.environ.update(environment.of(layout, os.environ))
    socket.sethostname("stand")
    mount_all(layout)
    addresses.bring_up()
    started = time.monotonic()
    cluster = Cluster(layout)
    try:
        cluster.start([node_name(index) for index in range(settings.nodes)], images=settings.template)
    except StandError as error:
        print(f"error: {error}\n{cluster.tails()}", file=sys.stderr)
        return 1
    print(f"stand {layout.id}: {settings.nodes} nodes Ready after {time.monotonic() - started:.1f} s", file=sys.stderr)
    if settings.install:
        try:
            chart.install_whole()
        except StandError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        print(f"stand {layout.id}: ai-models works after {time.monotonic() - started:.1f} s", file=sys.stderr)
    return run(settings.command)


def mount_all(layout: Layout) -> None:
    """Give the sandbox its own /run, and names that the stand's DNS resolves."""
    command("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for folder in ("netns", "lock"):
        (Path("/run") / folder).mkdir()
    command("mount", "--bind", "/run/netns", "/run/netns")
    command("mount", "--make-shared", "/run/netns")
    resolver = layout.root / "resolv.conf"
    resolver.write_text(addresses.RESOLVER)
    command("mount", "--bind", resolver, "/etc/resolv.conf")


def run(words: tuple[str, ...]) -> int:
    """Run the command to its end; its exit code, 128 + n for signal n. Orphans are reaped meanwhile."""
    child = os.fork()
    if child == 0:
        os.chdir(CHECKOUT)
        try:
            os.execvp(words[0], words)
        except OSError as error:
            print(f"error: {words[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    while True:
        try:
            pid, status = os.wait()
        except KeyboardInterrupt:
            continue  # the terminal sent it to the command as well
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
