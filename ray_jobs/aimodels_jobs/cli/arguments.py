"""The options of the command line, parsed once into frozen values. No I/O."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

DEFAULT_STORE = "./dmcr"

_SOURCE_HELP = "what to publish: https://huggingface.co/<org>/<repo>, with /tree/<rev>, /blob/<rev>/<file> or :<quant>"


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
        connections: to each payload host, for all movers together; 0 for 16 per mover.
        retry_seconds: how long transient failures are tried again.
    """

    workers: int
    connections: int
    retry_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A parsed command line; options that a command does not have keep their defaults.

    Args:
        name: such as `publish`.
        json: print one JSON object on stdout.
        verbose: log to stderr.
        model: the name of a model in the store.
        directory: where to pull to or what to verify.
        out: where the plan is written as Parquet.
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
    )


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    where = common.add_argument_group("store")
    where.add_argument("--store", default=DEFAULT_STORE, metavar="PLACE", help="folder or s3://bucket/prefix (./dmcr)")
    where.add_argument("--s3-endpoint", default="", metavar="URL", help="S3 server; credentials by the AWS variables")
    where.add_argument("--ca-file", default="", metavar="FILE", help="PEM file to verify S3 and sources with")
    common.add_argument("--json", action="store_true", help="print one JSON object")
    common.add_argument("-v", "--verbose", action="store_true", help="log to stderr")
    parser = argparse.ArgumentParser(
        prog="ai-models",
        description="Fetch models once, in parallel, verified to the byte, and keep them as artifacts.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[*parents, common])

    source, move = _source_options(), _move_options()
    plan = add("plan", "Say what publishing would do; nothing is written to the store.", source)
    plan.add_argument("--out", type=Path, metavar="FILE.parquet", help="write the plan's rows as Parquet")
    publish = add("publish", "Publish a model into the store.", source, move)
    publish.add_argument("--name", required=True, help="name of the model in the store")
    add("ls", "List the models of the store.")
    pull = add("pull", "Write a model into a folder, verified.")
    pull.add_argument("name", metavar="NAME")
    pull.add_argument("--to", dest="directory", type=Path, required=True, metavar="DIR")
    verify = add("verify", "Verify a model in the store, or a pulled folder, against its digests.")
    verify.add_argument("name", metavar="NAME", nargs="?")
    verify.add_argument("--dir", dest="directory", type=Path, metavar="DIR", help="a folder made by pull")
    remove = add("rm", "Remove a model from the store; its blobs go with the next gc.")
    remove.add_argument("name", metavar="NAME")
    add("gc", "Delete blobs that no model uses.")
    add("doctor", "Examine the store and this installation.")
    return parser


def _source_options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("source", metavar="SOURCE", help=_SOURCE_HELP)
    group = options.add_argument_group("source")
    group.add_argument("--revision", default="", help="branch, tag or commit")
    group.add_argument("--endpoint", default="", metavar="URL", help="another hub (or HF_ENDPOINT); trusted as it is")
    group.add_argument("--allow-host", action="append", default=[], metavar="HOST", help="redirects may lead there too")
    group.add_argument("--refuse-pickle", action="store_true", help="refuse repositories with torch weights only")
    return options


def _move_options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    group = options.add_argument_group("transfer")
    group.add_argument("--workers", type=_count, default=0, metavar="N", help="move with N Ray workers")
    group.add_argument(
        "--connections", type=_count, default=0, metavar="N", help="to each host, in all (16 per worker)"
    )
    group.add_argument("--retry-seconds", type=_seconds, default=600.0, metavar="S", help="how long to try again (600)")
    return options


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1024:
        raise argparse.ArgumentTypeError("want a number from 1 to 1024")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 7 * 86400:
        raise argparse.ArgumentTypeError("want seconds from 0 to 604800")
    return number
