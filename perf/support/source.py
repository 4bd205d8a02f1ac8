"""The source that publications read from: the hub's API, and nginx for the payload (plain, TLS, or throttled)."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from perf.support.report import ROOT
from tests.support import servers
from tests.support.certificates import certificates
from tests.support.processes import started

ORG = "bench"

# What CDNs choose for a client that has AES in hardware; the suite decides most of the price of TLS.
_TLS = "ssl_protocols TLSv1.3; ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;"


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A running source.

    Args:
        endpoint: base URL of the hub's API.
        ca_file: to verify the payload host with; empty without TLS.
        pids: its processes.
        payload: base URL of the payload host, without signatures.
    """

    endpoint: str
    ca_file: str
    pids: tuple[int, ...]
    payload: str = ""

    def environment(self) -> dict[str, str]:
        """What the hub's own client needs to read from here."""
        found = {"HF_ENDPOINT": self.endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        return {**found, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}


@contextlib.contextmanager
def serving(
    models: Mapping[str, Path], *, tls: bool = False, bytes_per_second: int = 0, work: Path
) -> Iterator[Source]:
    """Serve folders as repositories `bench/<name>`; all folders lie in one.

    Args:
        models: name of a repository to its folder.
        tls: payload over HTTPS (the API stays plain: it is a few kilobytes).
        bytes_per_second: of one connection to the payload host; 0 for no limit.
        work: where certificates may be written.
    """
    root = next(iter(models.values())).parent
    made = certificates(_made(work / "tls")) if tls else None
    lines = _TLS if tls else ""
    if bytes_per_second:
        lines += f" limit_rate {bytes_per_second};"
    with servers.nginx(root, lines=lines, cert=made.pair if made else None, workers=1) as payload:
        words = [f"{ORG}/{name}={folder}" for name, folder in models.items()]

        def command(port: int) -> list[str]:
            module = [sys.executable, "-m", "perf.support.hub", "--port", str(port), "--payload", payload.url]
            return [*module, *words]

        with started(command, cwd=ROOT, seconds=120) as hub:
            yield Source(hub.url, str(made.ca) if made else "", (payload.process.pid, hub.process.pid), payload.url)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
