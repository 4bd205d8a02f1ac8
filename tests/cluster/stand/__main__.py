"""`python -m tests.cluster.stand`: what `tests/cluster/run` and the make targets call."""

import argparse
import shutil
import sys
from pathlib import Path

from tests.cluster.stand import supervisor
from tests.cluster.stand.images import images_root
from tests.cluster.stand.layout import CHECKOUT, StandError

LOGS = CHECKOUT / "build" / "cluster"


def main() -> int:
    """Exit code of the command; 2 when the stand itself fails."""
    parser = argparse.ArgumentParser(prog="tests/cluster/run", description="Run a command beside a fresh Kubernetes.")
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="how many nodes (3)")
    parser.add_argument("--install", action="store_true", help="install the chart first, and wait until it works")
    parser.add_argument("--enter", metavar="ID", help="run the command in the stand of this name, which must live")
    parser.add_argument("--no-images", action="store_true", help="do without the product's images: nothing to build")
    parser.add_argument("--prepare", action="store_true", help="install and build what is missing; run nothing")
    parser.add_argument(
        "--clean", action="store_true", help="remove what dead stands left, and cached images; run nothing"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND…", help="an interactive shell by default")
    arguments = parser.parse_args()
    try:
        return clean() if arguments.clean else start(arguments)
    except StandError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def start(arguments: argparse.Namespace) -> int:
    """Run the command in a stand.

    Raises:
        StandError: the stand fails.
    """
    words = supervisor.command_line(arguments.command)
    if arguments.enter:
        return supervisor.enter(arguments.enter, words)
    chosen = {"product": not arguments.no_images, "install": arguments.install}
    request = supervisor.Request(words, arguments.nodes, **chosen, keep_logs=LOGS)
    if arguments.prepare:
        supervisor.prepare(request)
        return 0
    return supervisor.run(request)


def clean() -> int:
    """Sweep dead stands, then delete cached images and kept logs, unless a stand lives."""
    left = supervisor.sweep()
    for words in left:
        print(f"left: {words}", file=sys.stderr)
    live = supervisor.live()
    if live:
        raise StandError(f"images: want no live stand, got {', '.join(layout.id for layout in live)}")
    for folder in (images_root(), LOGS):
        shutil.rmtree(Path(folder), ignore_errors=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
