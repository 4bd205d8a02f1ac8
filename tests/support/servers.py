"""Real servers as child processes: each on a free port of 127.0.0.1, ready when the context starts, gone when it ends.

How they are built is in `tests.support.binaries`, how they are run in `tests.support.processes`.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support import binaries
from tests.support.binaries.debian import program
from tests.support.processes import HOST, Server, ServerError, answers, free_port, started, stop, wait_for

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

__all__ = [
    "S3Server",
    "Server",
    "ServerError",
    "free_port",
    "moto",
    "nginx",
    "registry",
    "seaweedfs",
    "started",
    "stop",
    "versitygw",
    "wait_for",
]

ACCESS_KEY, SECRET_KEY, REGION, BUCKET = "test-access", "test-secret-key", "us-east-1", "models"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running S3 server with one empty bucket."""

    endpoint: str
    server: Server = field(repr=False)
    bucket: str = BUCKET
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY
    region: str = REGION
    folder: Path | None = None
    """Where the bucket's objects lie as files, for servers that store them so."""

    def environment(self) -> dict[str, str]:
        """The usual AWS variables for it."""
        keys = {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}
        return {**keys, "AWS_DEFAULT_REGION": self.region, "AWS_REGION": self.region}

    def client(self, **extra: Any) -> "S3Client":
        """A plain boto3 client, independent of our own."""
        import boto3
        from botocore.config import Config

        config = Config(
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=config,
            **extra,
        )


@contextlib.contextmanager
def registry(
    root: Path,
    *,
    binary: str = "registry",
    s3: S3Server | None = None,
    readonly: bool = True,
    redirect: bool = False,
    more: Mapping[str, Any] = {},
) -> Iterator[str]:
    """A registry over a folder, or over the prefix `root` of a bucket; yields its base URL.

    Args:
        root: the folder that holds `docker/registry/v2`; with `s3`, the prefix within its bucket.
        binary: `registry` (distribution v3, built from its module) or `docker-registry` (Debian's 2.8).
        s3: the server whose bucket holds the files.
        readonly: maintenance mode; False lets clients push.
        redirect: send readers to the object store.
        more: further sections of its configuration, such as `auth`.
    """
    path = str(binaries.path("registry")) if binary == "registry" else _debian(binary)
    with tempfile.TemporaryDirectory(prefix="registry-") as folder:
        config = Path(folder) / "config.yml"

        def command(port: int) -> list[str]:
            document = {**_registry_config(root, port, s3, readonly=readonly, redirect=redirect), **more}
            config.write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML
            return [path, "serve", str(config)]

        with started(command, ready=lambda port: answers(port, path="/v2/")) as server:
            yield server.url


def _registry_config(
    root: Path, port: int, s3: S3Server | None, *, readonly: bool, redirect: bool
) -> dict[str, object]:
    storage: dict[str, object] = {
        "delete": {"enabled": False},
        "redirect": {"disable": not redirect},
        "maintenance": {"uploadpurging": {"enabled": False}, "readonly": {"enabled": readonly}},
    }
    if s3 is None:
        storage["filesystem"] = {"rootdirectory": str(root)}
    else:
        storage["s3"] = {
            "accesskey": s3.access_key,
            "secretkey": s3.secret_key,
            "region": s3.region,
            "regionendpoint": s3.endpoint,
            "forcepathstyle": True,
            "bucket": s3.bucket,
            "secure": s3.endpoint.startswith("https:"),
            "v4auth": True,
            "rootdirectory": "/" + str(root).strip("/."),
        }
    return {
        "version": "0.1",
        "log": {"level": "info", "accesslog": {"disabled": False}},
        "storage": storage,
        "http": {"addr": f"{HOST}:{port}", "secret": "of-tests", "headers": {"X-Content-Type-Options": ["nosniff"]}},
    }


def _debian(name: str) -> str:
    """Path of a program of a Debian package, installed now if it is missing."""
    if program(name) is None:
        binaries.install("base")
    found = program(name)
    if found is None:
        raise ServerError(f"{name}: want it installed, got nothing on PATH")
    return found


@contextlib.contextmanager
def versitygw(
    root: Path, *, cert: tuple[Path, Path] | None = None, options: Sequence[str] = (), bucket: str = BUCKET
) -> Iterator[S3Server]:
    """Versity Gateway over the folder `root`; each bucket is a folder in it.

    Args:
        root: its folder; must lie on a file system with extended attributes.
        cert: certificate and key files to serve TLS with.
        options: more options before `posix`.
        bucket: made if it does not exist.
    """
    path = str(binaries.path("versitygw"))
    root.mkdir(parents=True, exist_ok=True)
    tls = ("--cert", str(cert[0]), "--key", str(cert[1])) if cert else ()

    def command(port: int) -> list[str]:
        return [path, "--port", f"{HOST}:{port}", "--quiet", *tls, *options, "posix", str(root)]

    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with started(command, env=keys, tls=cert is not None) as server:
        s3 = S3Server(server.url, server, bucket=bucket, folder=root / bucket)
        if not (root / bucket).exists():
            (s3.client() if cert is None else s3.client(verify=False)).create_bucket(Bucket=bucket)
        yield s3


@contextlib.contextmanager
def seaweedfs(root: Path) -> Iterator[S3Server]:
    """SeaweedFS with master, volume server, filer and S3 gateway in one process, its data in `root`.

    It never gives space back on delete: use a fresh folder.
    """
    root.mkdir(parents=True, exist_ok=True)
    config = root / "s3.json"
    credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    actions = ["Admin", "Read", "List", "Tagging", "Write"]
    identity = {"name": "tests", "credentials": credentials, "actions": actions}
    config.write_text(json.dumps({"identities": [identity]}), encoding="utf-8")
    weed = Path(sys.executable).with_name("weed")

    def command(port: int) -> list[str]:
        ports = [
            f"-{part}.{kind}={free_port()}" for part in ("master", "volume", "filer") for kind in ("port", "port.grpc")
        ]
        where = [f"-dir={root}", f"-ip={HOST}", f"-ip.bind={HOST}", "-volume.max=20"]
        s3_options = ["-s3", f"-s3.port={port}", f"-s3.port.grpc={free_port()}", f"-s3.config={config}"]
        return [str(weed), "server", *where, *ports, *s3_options, "-master.volumeSizeLimitMB=256"]

    with started(command, cwd=root, seconds=60) as server:
        s3 = S3Server(server.url, server)
        _make_bucket(s3, seconds=60)
        yield s3


@contextlib.contextmanager
def moto() -> Iterator[S3Server]:
    """moto's S3 in memory, for faults that no real server gives."""
    path = Path(sys.executable).with_name("moto_server")
    with started(lambda port: [str(path), "-H", HOST, "-p", str(port)]) as server:
        s3 = S3Server(server.url, server)
        _make_bucket(s3, seconds=20)
        yield s3


def _make_bucket(s3: S3Server, *, seconds: float) -> None:
    """Make the bucket; a gateway may answer before its parts are there."""
    from botocore.exceptions import BotoCoreError, ClientError

    client = s3.client()

    def made() -> bool:
        try:
            client.create_bucket(Bucket=s3.bucket)
            client.put_object(Bucket=s3.bucket, Key="probe", Body=b"x")
            client.delete_object(Bucket=s3.bucket, Key="probe")
        except ClientError as error:
            return error.response.get("Error", {}).get("Code") == "BucketAlreadyOwnedByYou"
        except BotoCoreError:
            return False
        return True

    wait_for(made, "a bucket that takes an object", seconds=seconds, pause_seconds=0.2)


@contextlib.contextmanager
def nginx(root: Path, *, lines: str = "", cert: tuple[Path, Path] | None = None, workers: int = 1) -> Iterator[Server]:
    """Debian's nginx serving the folder `root`.

    Args:
        root: what it serves.
        lines: more directives within `server`, such as `limit_rate 20m;` or a `location`.
        cert: certificate and key files to serve TLS with.
        workers: worker processes.
    """
    path = _debian("nginx")
    with tempfile.TemporaryDirectory(prefix="nginx-") as folder:
        config = Path(folder) / "nginx.conf"
        temporary = "\n".join(
            f"  {kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        tls = f"ssl_certificate {cert[0]}; ssl_certificate_key {cert[1]};" if cert else ""
        user = "user root;" if os.geteuid() == 0 else ""

        def command(port: int) -> list[str]:
            listen = f"listen {HOST}:{port}{' ssl' if cert else ''} backlog=1024;"
            config.write_text(
                f"daemon off; {user} worker_processes {workers}; pid {folder}/pid; error_log stderr warn;\n"
                "events { worker_connections 1024; }\nhttp {\n"
                f"{temporary}\n  access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000;\n"
                f"  server {{ {listen} {tls}\n    root {root};\n    {lines}\n  }}\n}}\n",
                encoding="utf-8",
            )
            return [path, "-e", "stderr", "-p", folder, "-c", str(config)]

        with started(command, tls=cert is not None) as server:
            yield server
