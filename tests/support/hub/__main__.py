"""The simulator as a process: `python -m tests.support.hub --models minilm,gemma-gguf`.

Prints one JSON object on its first line ({"url", "cdnUrl", "repositories"}) and serves until its parent ends or it
gets SIGTERM or SIGINT. `GET /-/stats` tells what was asked and sent; `POST /-/throttle` ({"bytesPerSecond"}),
`/-/fault` (the fields of a rule) and `/-/reset` (the log and the faults) change it.
"""

import argparse
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.support import models, weights
from tests.support.hub import bodies
from tests.support.hub.bodies import FileBody
from tests.support.hub.limits import Limits
from tests.support.hub.repository import File, Repository, folder
from tests.support.hub.server import Hub

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_PARENT_POLL_SECONDS = 0.5


def size_bytes(text: str) -> int:
    """Read a size such as 64M, 1.5G or 1000.

    Raises:
        argparse.ArgumentTypeError: it is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:iB)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"size {text}: want a number with K, M, G or T")
    return int(float(match[1]) * _UNITS[match[2]])


def _generated(text: str) -> Repository:
    """NAME=SIZE or NAME=SIZExCOUNT: safetensors of that size; above 8 GiB the digest is one that no content has."""
    name, _, what = text.partition("=")
    size, _, count = what.partition("x")
    files: dict[str, bytes | File] = {"config.json": weights.llama_config()}
    total = int(count or "1")
    for number in range(1, total + 1):
        path = "model.safetensors" if total == 1 else f"model-{number:05}-of-{total:05}.safetensors"
        body = weights.safetensors_of_size(size_bytes(size), seed=number, name=f"layer{number}.weight")
        digest = f"{number:064x}" if body.size_bytes > bodies.HASHABLE_BYTES else None
        files[path] = File(path, body, lfs=True, sha256=digest)
    return Repository(name, files)


def _from_folder(text: str) -> Repository:
    """NAME=PATH: the files of a folder, or one file."""
    name, _, place = text.partition("=")
    path = Path(place)
    if path.is_file():
        return Repository(name, {path.name: File(path.name, FileBody(path))})
    return Repository(name, folder(path))


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.support.hub", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default="", help=f"comma list of {', '.join(models.CATALOG)}")
    parser.add_argument("--generated", action="append", default=[], metavar="NAME=SIZE[xCOUNT]")
    parser.add_argument("--folder", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--host", default="127.0.0.1", help="address or name of the API host")
    parser.add_argument("--cdn-host", default="127.0.0.1", help="address or name of the CDN host")
    parser.add_argument("--port", type=int, default=0, help="port of the API host (0: any)")
    parser.add_argument("--throttle", type=size_bytes, metavar="SIZE", help="bytes a second of one CDN connection")
    parser.add_argument("--token", action="append", default=[], help="a token that is accepted and granted everything")
    parser.add_argument("--url-lifetime-seconds", type=float, default=3600)
    parser.add_argument("--max-rangeless", type=size_bytes, default=50 * 1000**3, metavar="SIZE")
    parser.add_argument("--no-rate-limit", action="store_true", help="for load tests")
    parser.add_argument("--parent", type=int, help="process id to end with (default: the parent)")
    return parser.parse_args(words)


def _repositories(options: argparse.Namespace) -> list[Repository]:
    named = [models.CATALOG[name]() for name in options.models.split(",") if name]
    found = [*named, *map(_generated, options.generated), *map(_from_folder, options.folder)]
    for repository in found:
        repository.granted = frozenset(options.token)
        for file in repository.head.files.values():
            _ = file.git_hex  # hash now, not while the first request waits
    return found


def _gone(parent: int) -> bool:
    """Whether the process to end with has ended."""
    try:
        os.kill(parent, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def main(words: Sequence[str]) -> int:
    """Serve until told to stop."""
    parent_at_start = os.getppid()
    options = _arguments(words)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with Hub(
        tokens={token: f"user-{at}" for at, token in enumerate(options.token)},
        limits=Limits.unlimited() if options.no_rate_limit else None,
        url_lifetime_seconds=options.url_lifetime_seconds,
        max_rangeless_bytes=options.max_rangeless,
        host=options.host,
        cdn_host=options.cdn_host,
        other_cdn_host=options.cdn_host,
        port=options.port,
    ) as hub:
        hub.throttle(options.throttle)
        names = [hub.add(repository).id for repository in _repositories(options)]
        print(json.dumps({"url": hub.url, "cdnUrl": hub.cdn_url, "repositories": names}), flush=True)
        while not stop.wait(_PARENT_POLL_SECONDS):
            orphan = os.getppid() != parent_at_start if options.parent is None else _gone(options.parent)
            if orphan:
                break
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
