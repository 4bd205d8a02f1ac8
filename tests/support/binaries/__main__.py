"""`python -m tests.support.binaries [--debian GROUP]… [NAME|GROUP]…`: install, build, and print paths."""

import argparse
import sys

from tests.support.binaries.cache import paths
from tests.support.binaries.catalogue import BINARIES, GROUPS, BinaryError, expand
from tests.support.binaries.debian import install


def main() -> int:
    """Print one path per line, in the order asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.binaries", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join((*GROUPS, *BINARIES))}")
    parser.add_argument(
        "--debian", action="append", default=[], metavar="GROUP", help="install this group of debian.txt"
    )
    arguments = parser.parse_args()
    try:
        for group in arguments.debian:
            installed = install(group)
            print(f"installed: {' '.join(installed) or 'nothing was missing'}", file=sys.stderr)
        for file in paths(expand(tuple(arguments.names))):
            print(file)
    except BinaryError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
