"""The hub's API beside an nginx with the payload: `python -m perf.support.hub --port N --payload URL NAME=FOLDER…`.

The listing, the commits and the redirects are the simulator's; the redirect leads to nginx, which costs far less CPU
than Python, so that what is measured is the client. Signatures are not checked by anybody here.
"""

import argparse
import dataclasses
import signal
import sys
import threading
import urllib.parse
from pathlib import Path

from perf.support import orphans
from tests.support.hub.cdn import Cdn
from tests.support.hub.limits import Limits
from tests.support.hub.repository import File, Repository, folder
from tests.support.hub.server import Hub


@dataclasses.dataclass(slots=True)
class Elsewhere(Cdn):
    """Redirects to files of a web server instead of the simulator's own CDN host.

    Args:
        payload_url: where `<folder name>/<path>` can be read.
        folders: the name of the folder of each repository.
    """

    payload_url: str = ""
    folders: dict[str, str] = dataclasses.field(default_factory=dict)

    def publish(self, repository: Repository, file: File, origin: str) -> str:
        """Make the URL of a file."""
        del origin
        path = f"/{self.folders[repository.id]}/{file.path}"
        return f"{self.payload_url}{urllib.parse.quote(path)}?{self.signer.query(path)}"


def main(words: list[str]) -> int:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m perf.support.hub")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--payload", required=True, metavar="URL")
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER")
    options = parser.parse_args(words)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    places = {name: Path(place) for name, _, place in (text.partition("=") for text in options.models)}
    repositories = [Repository(name, folder(place)) for name, place in places.items()]
    for repository in repositories:
        for file in repository.head.files.values():
            _ = file.git_hex  # hash now, not while the first request waits
    with Hub(limits=Limits.unlimited(), port=options.port) as hub:
        names = {name: place.name for name, place in places.items()}
        hub.cdn = Elsewhere(hub.signer, hub.cdn.max_rangeless_bytes, payload_url=options.payload, folders=names)
        for repository in repositories:
            hub.add(repository)
        orphans.end_with_parent()
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
