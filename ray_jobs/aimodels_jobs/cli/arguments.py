"""The options of the command line, parsed once into frozen values. No I/O."""

import argparse
import dataclasses
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path

from aimodels_core import names
from aimodels_core.errors import UsageError

DEFAULT_STORE = "./dmcr"
_COUNT_MOST = 1024
_SECONDS_MOST = 7 * 86400

_SOURCE_HELP = (
    "https://huggingface.co/ORG/REPO or ORG/REPO; /tree/REVISION, /blob/REVISION/FILE and, for GGUF, :QUANT may follow"
)
_NAME_HELP = "name of the model in the store, as `ai-models ls` shows it"
_EPILOG = """\
examples:
  ai-models publish sentence-transformers/all-MiniLM-L6-v2 --name minilm
  ai-models pull minilm --to ./minilm
  ai-models publish ORG/REPO --name big --store s3://bucket/models --s3-endpoint https://s3.example --workers 8

proxies: https_proxy, http_proxy and no_proxy hold for hubs; parts go to S3 without one

exit codes:
  0 done   1 failed for good   2 usage   3 verify found a difference
  75 failed for now: run it again   130, 143 stopped by a signal: run it again to go on
"""


@dataclasses.dataclass(frozen=True, slots=True)
class StoreOptions:
    """Where the store is.

    Args:
        store: a folder, or `s3://bucket/prefix`.
        s3_endpoint: URL of the S3 server; empty for Amazon's.
        ca_file: PEM file to verify S3 and sources with; empty for the system's.
    """

    store: str
    s3_endpoint: str
    ca_file: str


@dataclasses.dataclass(frozen=True, slots=True)
class SourceOptions:
    """How sources are asked.

    Args:
        source: what the user wrote.
        revision: overrides the one in the source.
        endpoint: of the hub; empty for `HF_ENDPOINT` or the hub itself.
        allow_hosts: further hosts that redirects may lead to.
        refuse_pickle: refuse repositories that have torch weights only.
    """

    source: str
    revision: str
    endpoint: str
    allow_hosts: tuple[str, ...]
    refuse_pickle: bool


@dataclasses.dataclass(frozen=True, slots=True)
class MoveOptions:
    """How wide a publication may be.

    Args:
        workers: Ray movers; 0 decides by size.
        connections: to each payload host, for all movers together; 0 for 4 to 16 per mover, as many as prove worth it.
        retry_seconds: how long transient failures are tried again.
    """

    workers: int
    connections: int
    retry_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class RegistryOptions:
    """From which registry a pull reads, instead of a store.

    Args:
        address: `https://host/repository@sha256:hex`; empty for none.
        token_file: shown to the registry's issuer; empty for none.
        redirect_url: where the registry sends readers of blobs; empty when it serves them itself.
    """

    address: str = ""
    token_file: str = ""
    redirect_url: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A parsed command line; options that a command does not have keep their defaults.

    Args:
        name: such as `publish`.
        json: print one JSON object on stdout.
        verbose: log to stderr.
        model: the name of a model in the store.
        directory: where to pull to, what to verify or to remove.
        registry: where a pull reads.
        out: where the plan is written as Parquet.
        config: the file of a ModuleConfig; `-` is stdin.
        leave_out: leave settings out that are not served, instead of refusing them.
    """

    name: str
    store: StoreOptions
    source: SourceOptions
    move: MoveOptions
    json: bool
    verbose: bool
    model: str
    directory: Path | None
    out: Path | None
    registry: RegistryOptions = RegistryOptions()
    config: Path = Path("-")
    leave_out: bool = False


def parse(argv: Sequence[str]) -> Command:
    """Parse a command line; prints usage and exits with 2 when it is wrong."""
    raw = _parser().parse_args(argv)
    return Command(
        name=raw.command,
        store=StoreOptions(raw.store, raw.s3_endpoint, raw.ca_file),
        source=SourceOptions(
            getattr(raw, "source", ""),
            getattr(raw, "revision", ""),
            getattr(raw, "endpoint", ""),
            tuple(getattr(raw, "allow_host", ())),
            getattr(raw, "refuse_pickle", False),
        ),
        move=MoveOptions(
            getattr(raw, "workers", 0), getattr(raw, "connections", 0), getattr(raw, "retry_seconds", 0.0)
        ),
        json=raw.json,
        verbose=raw.verbose,
        model=getattr(raw, "name", None) or "",
        directory=getattr(raw, "directory", None),
        out=getattr(raw, "out", None),
        registry=RegistryOptions(
            getattr(raw, "address", ""), getattr(raw, "token_file", ""), getattr(raw, "redirect_url", "")
        ),
        config=getattr(raw, "config", Path("-")),
        leave_out=getattr(raw, "leave_out", False),
    )


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    where = common.add_argument_group("store")
    where.add_argument(
        "--store", default=DEFAULT_STORE, metavar="PLACE", help="a folder, or s3://bucket/prefix (default: ./dmcr)"
    )
    where.add_argument(
        "--s3-endpoint",
        default="",
        metavar="URL",
        help="S3 server, if not Amazon's; credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    )
    where.add_argument("--ca-file", default="", metavar="FILE", help="PEM file of authorities for S3 and sources")
    common.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    common.add_argument("-v", "--verbose", action="store_true", help="log what happens on stderr")
    parser = argparse.ArgumentParser(
        prog="ai-models",
        description="Fetch models once, in parallel, verified to the byte, and keep them as OCI artifacts in a store.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("ai-models")
    parser.add_argument("--version", action="version", version=f"ai-models {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[*parents, common])

    source, move = _source_options(), _move_options()
    plan = add("plan", "Say what publishing would do; nothing is written to the store.", source)
    plan.add_argument("--out", type=Path, metavar="FILE.parquet", help="also write the rows as Parquet")
    publish = add("publish", "Publish a model into the store; again after a stop or a failure to go on.", source, move)
    publish.add_argument("--name", required=True, type=_name, help=_NAME_HELP)
    add("ls", "List the models of the store.")
    pull = add("pull", "Write a model into a folder; it appears whole and verified, or not at all.")
    pull.add_argument("name", metavar="NAME", nargs="?", type=_name, help=_NAME_HELP)
    pull.add_argument("--to", dest="directory", type=Path, required=True, metavar="DIR", help="a new or empty folder")
    _registry_options(pull)
    verify = add("verify", "Verify a model in the store, or a pulled folder, against its digests.")
    verify.add_argument("name", metavar="NAME", nargs="?", type=_name, help=_NAME_HELP)
    verify.add_argument(
        "--dir", dest="directory", type=Path, metavar="DIR", help="a folder made by pull, instead of NAME"
    )
    remove = add("rm", "Remove a model from the store; its blobs go with the next gc.")
    remove.add_argument("name", metavar="NAME", nargs="?", type=_name, help=_NAME_HELP)
    remove.add_argument(
        "--dir", dest="directory", type=Path, metavar="DIR", help="a folder made by pull, instead of NAME"
    )
    add("gc", "Delete blobs that no model uses.")
    add("doctor", "Examine the store and this installation.")
    values = add("values", "Print the values of the Helm chart that a ModuleConfig stands for.")
    values.add_argument("config", type=Path, metavar="FILE", help="YAML with a ModuleConfig ai-models; - is stdin")
    values.add_argument("--leave-out", action="store_true", help="leave settings out that this version does not serve")
    return parser


def _registry_options(pull: argparse.ArgumentParser) -> None:
    group = pull.add_argument_group("registry")
    group.add_argument(
        "--from",
        dest="address",
        default="",
        metavar="ADDRESS",
        help="instead of NAME: https://HOST/REPOSITORY@sha256:HEX in a registry",
    )
    group.add_argument("--token-file", default="", metavar="FILE", help="token to show to the registry's issuer")
    group.add_argument("--redirect-url", default="", metavar="URL", help="where the registry may send for its blobs")


def _source_options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("source", metavar="SOURCE", help=_SOURCE_HELP)
    group = options.add_argument_group("source")
    group.add_argument("--revision", default="", metavar="REVISION", help="branch, tag or commit (default: main)")
    group.add_argument("--endpoint", default="", metavar="URL", help="another hub, trusted as it is (or HF_ENDPOINT)")
    group.add_argument(
        "--allow-host", action="append", default=[], metavar="HOST", help="let redirects lead to HOST too"
    )
    group.add_argument("--refuse-pickle", action="store_true", help="refuse a model that has torch weights only")
    return options


def _move_options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    group = options.add_argument_group("transfer")
    group.add_argument(
        "--workers", type=_count, default=0, metavar="N", help="move with N Ray workers (default: by size)"
    )
    group.add_argument(
        "--connections", type=_count, default=0, metavar="N", help="at most N to each host (default: 4-16 per worker)"
    )
    group.add_argument(
        "--retry-seconds",
        type=_seconds,
        default=600.0,
        metavar="S",
        help="give up after failing that long (default: 600)",
    )
    return options


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_COUNT_MOST)) and 1 <= int(text) <= _COUNT_MOST):
        raise argparse.ArgumentTypeError(f"want a number from 1 to {_COUNT_MOST}, got {text[:80]!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= _SECONDS_MOST:
        raise argparse.ArgumentTypeError(f"want seconds from 0 to {_SECONDS_MOST}, got {text[:80]!r}")
    return number


def _name(text: str) -> str:
    try:
        text.encode()
        names.model_tag(text)
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError("want UTF-8, got other bytes") from error
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.message.removeprefix("name: ")) from error
    return text
