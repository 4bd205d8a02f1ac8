"""What the coordinator's server is told: values, and the options of `python -m aimodels_jobs.host`. No I/O.

Settings become arguments of an actor, which Ray keeps and shows: paths of secrets are in them, never secrets.
"""

import argparse
import dataclasses
import urllib.parse
from collections.abc import Sequence
from typing import Any

from aimodels_core.errors import UsageError
from aimodels_core.proxies import Proxies

PORT = 18270


@dataclasses.dataclass(frozen=True, slots=True)
class HostSettings:
    """How a coordinator is run.

    Args:
        store: a folder that all movers see, or `s3://bucket/prefix`.
        token_file: file with the token that callers must show; followed when it changes.
        s3_endpoint: URL of the S3 server; empty for Amazon's.
        s3_region: of signatures.
        s3_credentials: folder with the files `accessKey` and `secretKey`; empty for the usual AWS variables.
        s3_virtual_host: the bucket in the host name and not in the path.
        s3_ca_file: PEM file to verify the S3 server with; empty for the system's.
        hub_endpoint: of the administrator's hub; empty for huggingface.co.
        hub_token_file: file with the token for wants that bring none; empty for no token.
        hub_ca_file: PEM file to verify hubs with; empty for the system's.
        allow_hosts: further hosts that redirects may lead to.
        private_cidrs: networks that are not global and may be reached all the same.
        http_proxy: URL of the proxy for http URLs of hubs, without credentials; empty for none.
        https_proxy: URL of the proxy for https URLs of hubs, without credentials; empty for none.
        no_proxy: what is reached without them, between commas.
        refuse_pickle: refuse repositories that have torch weights only.
        bind: address to listen on.
        port: to listen on; 0 for any.
        tls_cert: PEM file of the server's certificate chain, followed when it changes; empty for no TLS.
        tls_key: PEM file of its key.
        movers: how many; 0 for one per node.
        nodes: how many nodes of the cluster are waited for, a minute at most, before movers start.
        connections: to each payload host, for all movers together; 0 for 16 per mover.
        agents: nodes of the cluster may have caches, whose agents are told and asked.
        inline: one mover in the coordinator's own process instead of Ray's.
        capacity_limit: most bytes that the store may hold; 0 for no limit.
        log_level: Debug, Info, Warn or Error.
    """

    store: str
    token_file: str
    s3_endpoint: str = ""
    s3_region: str = "us-east-1"
    s3_credentials: str = ""
    s3_virtual_host: bool = False
    s3_ca_file: str = ""
    hub_endpoint: str = ""
    hub_token_file: str = ""
    hub_ca_file: str = ""
    allow_hosts: tuple[str, ...] = ()
    private_cidrs: tuple[str, ...] = ()
    http_proxy: str = ""
    https_proxy: str = ""
    no_proxy: str = ""
    refuse_pickle: bool = False
    bind: str = "127.0.0.1"
    port: int = PORT
    tls_cert: str = ""
    tls_key: str = ""
    movers: int = 0
    nodes: int = 0
    connections: int = 0
    agents: bool = False
    inline: bool = False
    capacity_limit: int = 0
    log_level: str = "Info"

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            UsageError.
        """
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UsageError("tls: want both a certificate and a key file, or neither")
        if not self.token_file:
            raise UsageError("token file: want a path, got none")
        if "://" in self.store:
            place = urllib.parse.urlsplit(self.store)
            if place.scheme != "s3" or not place.netloc or place.query or place.fragment or "@" in place.netloc:
                raise UsageError("store: want a folder or s3://bucket/prefix")
        elif not self.store:
            raise UsageError("store: want a folder or s3://bucket/prefix, got nothing")
        if self.capacity_limit < 0:
            raise UsageError(f"capacity limit: want a number of bytes, 0 for no limit, got {self.capacity_limit}")
        if "@" in urllib.parse.urlsplit(self.s3_endpoint).netloc:
            raise UsageError("s3 endpoint: want a URL without credentials in it")
        if "@" in self.http_proxy + self.https_proxy:
            raise UsageError("proxy: want a URL without credentials in it")
        _ = self.proxies

    @property
    def proxies(self) -> Proxies:
        """What requests to hubs go through."""
        return Proxies.parse(self.http_proxy, self.https_proxy, self.no_proxy)


@dataclasses.dataclass(frozen=True, slots=True)
class HostOptions:
    """A parsed command line.

    Args:
        settings: of the server.
        ray_address: of the cluster; empty for the one that this process is part of, or that RAY_ADDRESS names.
        on: labels of the node that the actor must run on.
        ready_seconds: how long to wait until it serves.
        remove: end the coordinator cleanly instead.
    """

    settings: HostSettings
    ray_address: str
    on: tuple[tuple[str, str], ...]
    ready_seconds: float
    remove: bool


def parse(argv: Sequence[str]) -> HostOptions:
    """Parse a command line; prints usage and exits with 2 when it is wrong.

    Raises:
        UsageError: options that do not fit together.
    """
    raw = vars(_parser().parse_args(argv))
    own = {field.name for field in dataclasses.fields(HostSettings)}
    settings: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in raw.items() if n in own}
    return HostOptions(
        HostSettings(**settings), raw["ray_address"], tuple(raw["on"]), raw["ready_seconds"], raw["remove"]
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="aimodels_jobs.host", description="Run the coordinator in a Ray cluster.")
    add = parser.add_argument
    add("--store", required=True, metavar="PLACE", help="folder or s3://bucket/prefix")
    add("--token-file", required=True, metavar="FILE", help="the token that callers must show")
    add("--s3-endpoint", default="", metavar="URL")
    add("--s3-region", default="us-east-1", metavar="NAME")
    add("--s3-credentials", default="", metavar="DIR", help="folder with the files accessKey and secretKey")
    add("--s3-virtual-host", action="store_true")
    add("--s3-ca-file", default="", metavar="FILE")
    add("--hub-endpoint", default="", metavar="URL", help="trusted as it is")
    add("--hub-token-file", default="", metavar="FILE", help="for wants that bring no token")
    add("--hub-ca-file", default="", metavar="FILE")
    add("--allow-host", dest="allow_hosts", action="append", default=[], metavar="HOST")
    add("--allow-private-cidr", dest="private_cidrs", action="append", default=[], metavar="CIDR")
    add("--http-proxy", default="", metavar="URL", help="for http URLs of hubs; without credentials")
    add("--https-proxy", default="", metavar="URL", help="for https URLs of hubs; without credentials")
    add("--no-proxy", default="", metavar="LIST", help="hosts, domains, addresses, networks that go without")
    add("--refuse-pickle", action="store_true")
    add("--bind", default="127.0.0.1", metavar="ADDRESS")
    add("--port", type=int, default=PORT)
    add("--tls-cert", default="", metavar="FILE")
    add("--tls-key", default="", metavar="FILE")
    add("--movers", type=int, default=0, metavar="N", help="0: one per node")
    add("--nodes", type=int, default=0, metavar="N", help="wait a minute at most for that many before movers start")
    add("--connections", type=int, default=0, metavar="N", help="to each payload host, in all; 0: 16 per mover")
    add("--agents", action="store_true", help="tell and ask the agents of nodes that have caches")
    add("--inline", action="store_true", help="one mover in the coordinator's own process")
    add("--capacity-limit", type=int, default=0, metavar="BYTES", help="most that the store may hold; 0: no limit")
    add("--log-level", default="Info", choices=("Debug", "Info", "Warn", "Error"))
    add("--ray-address", default="", metavar="ADDRESS")
    add("--on", action="append", type=_label, default=[], metavar="LABEL=VALUE", help="label of the node to run on")
    add("--remove", action="store_true", help="end the coordinator cleanly; it does not come back")
    add("--ready-seconds", type=float, default=120.0, metavar="S")
    return parser


def _label(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not name or not found:
        raise argparse.ArgumentTypeError("want LABEL=VALUE")
    return name, value
