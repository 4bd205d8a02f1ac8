"""The coordinator's server: who writes, what it follows, how it is had once and replaced, what it tells nobody."""

import concurrent.futures
import dataclasses
import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimodels_core import names
from aimodels_core.errors import AiModelsError, TransientError, UsageError
from aimodels_core.messages import Want
from aimodels_core.watched import Certificate, Secret
from aimodels_jobs import host_options
from aimodels_jobs.fleet import detached as fleet_detached
from aimodels_jobs.fleet.cluster import Ray
from aimodels_jobs.host_options import HostSettings
from aimodels_jobs.hosting import Host
from aimodels_jobs.writer import FolderWriter
from tests.support import weights
from tests.support.certificates import certificates
from tests.support.coordinators import TOKEN, Api, Detached, Here
from tests.support.hub.limits import Limits
from tests.support.hub.repository import Repository
from tests.support.hub.server import Hub
from tests.support.processes import HOST, free_port, wait_for

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def settings(tmp_path: Path) -> HostSettings:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    return HostSettings(store=str(tmp_path / "store"), token_file=str(token), port=free_port(), inline=True)


def status(api: Api, token: str = "") -> int:
    try:
        return api.call("GET", "/v1/state", token=token).status
    except (OSError, http.client.HTTPException):
        return 0


def replace(path: Path, text: bytes) -> None:
    """As a mounted Secret changes: another file takes the name."""
    other = path.with_name(f"{path.name}.new")
    other.write_bytes(text)
    other.rename(path)


def test_a_changed_token_file_is_followed_and_an_empty_one_is_not(settings: HostSettings) -> None:
    served = Here(settings)
    try:
        replace(Path(settings.token_file), b"another-token\n")
        wait_for(lambda: status(served.api, "another-token") == 200, "the new token in force")
        old = status(served.api)
        replace(Path(settings.token_file), b"")
        replace(Path(settings.token_file), b"\n")
        wait_for(lambda: status(served.api, "another-token") == 200, "the last good token in force")

        assert old == 401
        assert status(served.api, " ") == 401
    finally:
        served.close()


def test_a_renewed_certificate_is_served_without_a_restart(settings: HostSettings, tmp_path: Path) -> None:
    first = certificates(tmp_path)
    (tmp_path / "next").mkdir()
    second = certificates(tmp_path / "next")
    secure = dataclasses.replace(settings, tls_cert=str(first.cert), tls_key=str(first.key))
    served = Here(secure)
    try:
        old = Api(served.api.port, tls=ssl.create_default_context(cafile=str(first.ca)))
        new = Api(served.api.port, tls=ssl.create_default_context(cafile=str(second.ca)))
        epoch = old.snapshot().epoch
        refused = status(new)
        replace(first.cert, second.cert.read_bytes())  # for a moment the two files do not match
        wait_for(lambda: status(old) == 200, "the old pair in force")
        replace(first.key, second.key.read_bytes())
        wait_for(lambda: status(new) == 200, "the new certificate")

        assert refused == 0
        assert new.snapshot().epoch == epoch
        assert status(old) == 0
        assert status(served.api) == 0, "no plain HTTP"
    finally:
        served.close()


def test_a_second_coordinator_names_the_writer_and_follows_when_it_stops(settings: HostSettings) -> None:
    first = Here(settings)
    first.api.writing()
    second = Here(dataclasses.replace(settings, port=free_port()))
    try:
        wait_for(lambda: bool(second.api.snapshot().holder), "a name of who writes")
        held = second.api.snapshot()
        refused = second.api.delete("m", names.CLUSTER)
    finally:
        first.close()
    second.api.writing(seconds=10)
    second.close()

    assert not held.writing
    assert f"process {os.getpid()}" in held.holder
    assert (refused.status, refused.json["code"]) == (503, "WriterBusy")


def test_who_lost_the_store_takes_it_again(settings: HostSettings) -> None:
    served = Here(settings)
    try:
        served.api.writing()
        lock = Path(settings.store) / names.writer_prefix() / "lock"
        lock.unlink()  # as when a folder is restored from a copy
        other = FolderWriter(Path(settings.store))
        other.acquire(5.0)
        wait_for(lambda: not served.api.snapshot().writing, "it sees that it does not write any more")
        other.release()
        served.api.writing()
    finally:
        served.close()


def test_a_taken_port_is_told_and_taken_when_it_is_free(settings: HostSettings) -> None:
    with socket.socket() as holder:
        holder.bind((HOST, settings.port))
        holder.listen()
        with pytest.raises(TransientError, match=f"cannot listen on 127.0.0.1:{settings.port}"):
            Here(settings, ready_seconds=2.0)
    served = Here(settings)
    served.close()


def test_who_waits_for_news_does_not_hold_up_the_end(settings: HostSettings) -> None:
    served = Here(settings)
    served.api.writing()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        known = {"If-None-Match": served.api.call("GET", "/v1/state").headers["etag"]}
        waits = pool.submit(served.api.call, "GET", "/v1/state?wait=60", headers=known)
        wait_for(lambda: connected(settings.port) > 0, "a connection of the one who waits")
        began = time.monotonic()
        served.close()
        took = time.monotonic() - began
        with pytest.raises((OSError, http.client.HTTPException)):
            waits.result(10)

    assert took < 4.5, "the server would wait 5 s for it"


def connected(port: int) -> int:
    """How many clients are connected to a port of this machine."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(1 for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "01")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token_file": "/nowhere/token"}, "/nowhere/token: cannot be read"),
        ({"hub_endpoint": "ftp://hub"}, "endpoint"),
        ({"hub_token_file": "/nowhere/hub"}, "/nowhere/hub"),
        ({"store": "s3://bucket/x", "s3_credentials": "/nowhere"}, "/nowhere/accessKey"),
        ({"tls_cert": "/nowhere/crt", "tls_key": "/nowhere/key"}, "/nowhere/crt"),
        ({"store": "/proc/nowhere/store"}, "/proc/nowhere"),
    ],
)
def test_what_cannot_be_served_says_why(settings: HostSettings, change: dict[str, str], words: str) -> None:
    with pytest.raises(AiModelsError, match=words):
        Here(dataclasses.replace(settings, **change), ready_seconds=1.0)  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    "words",
    [
        ["--store", "ftp://x", "--token-file", "t"],
        ["--store", "s3://key:secret@bucket/x", "--token-file", "t"],
        ["--store", "d", "--token-file", ""],
        ["--store", "d", "--token-file", "t", "--tls-cert", "c"],
        ["--store", "s3://b/x", "--s3-endpoint", "https://k:s@h", "--token-file", "t"],
    ],
)
def test_options_that_do_not_fit_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        host_options.parse(words)

    assert "secret" not in caught.value.message


def test_a_secret_or_certificate_that_is_no_good_at_first_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "two").write_text("a b")
    made = certificates(tmp_path)

    for name in ("empty", "two", "missing"):
        with pytest.raises(UsageError, match=name):
            Secret(tmp_path / name)
    with pytest.raises(UsageError):
        Certificate(made.cert, made.ca)


@pytest.fixture
def detached(ray_instance: None, settings: HostSettings) -> Iterator[Detached]:
    made = Detached(dataclasses.replace(settings, movers=1, inline=False), "coordinator-of-host-tests")
    yield made
    made.close()


def test_an_actor_is_had_once_and_replaced_when_its_settings_change(detached: Detached, settings: HostSettings) -> None:
    epoch = detached.api.writing()
    pid = detached.pid()
    again = detached.ensure()
    same = (detached.pid(), detached.api.writing())
    moved = dataclasses.replace(settings, port=free_port(), movers=1, inline=False)
    other = Api(detached.ensure(moved))

    assert (again, same) == (detached.api.port, (pid, epoch))
    assert other.port == moved.port
    assert other.writing(seconds=8) != epoch, "the old one gave the store back: nobody waits for a lease to expire"
    assert status(detached.api) == 0
    detached.api.port = other.port


def test_an_actor_that_hangs_is_replaced(detached: Detached, settings: HostSettings) -> None:
    epoch = detached.api.writing()
    os.kill(detached.pid(), signal.SIGSTOP)
    detached.place.ensure(Host, dataclasses.replace(settings, movers=1, inline=False), ready_seconds=10.0)

    assert detached.api.writing(other_than=epoch) != epoch


def test_an_actor_that_waits_for_a_node_that_is_not_there_gives_way(ray_instance: None, settings: HostSettings) -> None:
    nowhere = fleet_detached.Detached(Ray(""), "coordinator-of-nowhere", on={"ai-models/role": "nowhere"})
    with pytest.raises(AiModelsError, match=r"coordinator-of-nowhere: silent"):
        nowhere.ensure(Host, settings, ready_seconds=1.0)
    place = fleet_detached.Detached(Ray(""), "coordinator-of-nowhere")
    try:
        assert Api(place.ensure(Host, settings, ready_seconds=10.0)).writing()
    finally:
        place.remove()


def test_secrets_are_in_no_environment_command_line_or_argument(
    detached: Detached, settings: HostSettings, tmp_path: Path
) -> None:
    with Hub(limits=Limits.unlimited(), tokens={"hf_very_secret": "ann"}) as hub:
        hub.add(Repository("org/tiny", weights.tiny_safetensors()))
        secret = tmp_path / "hub-token"
        secret.write_text("hf_very_secret")
        changed = dataclasses.replace(
            settings, port=free_port(), movers=1, inline=False, hub_endpoint=hub.url, hub_token_file=str(secret)
        )
        detached.api.port = detached.ensure(changed)
        detached.api.writing()
        want = Want("m", "m", 1, f"{hub.url}/org/tiny", names.CLUSTER, credential="hf_very_secret")
        detached.api.put(want)
        state = detached.api.ready("m")

    found = b"".join(_told(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    logs = b"".join(path.read_bytes() for path in Path("/tmp/ray/session_latest/logs").rglob("*") if path.is_file())
    for each in (b"hf_very_secret", TOKEN.encode()):
        assert each not in found
        assert each not in logs
        assert each not in repr(state).encode() + repr(changed).encode()


def _told(process: Path) -> bytes:
    """What anybody on the machine may read of a process of Ray; this one is the test's and knows everything."""
    if process.name == str(os.getpid()):
        return b""
    try:
        command = (process / "cmdline").read_bytes()
        return command + (process / "environ").read_bytes() if b"ray" in command else b""
    except OSError:
        return b""


def test_the_entry_point_tells_usage_from_temporary(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "aimodels_jobs.host", *words]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
        return subprocess.run(command, capture_output=True, text=True, timeout=40, check=False, env=kept)

    usage = run("--store", "ftp://x", "--token-file", "t")
    away = run("--store", str(tmp_path), "--token-file", "t", "--ray-address", f"{HOST}:{free_port()}")

    assert (usage.returncode, usage.stdout) == (2, "")
    assert "store: want a folder" in usage.stderr
    assert (away.returncode, away.stdout) == (75, "")
    assert "ray: not started: ConnectionRefusedError" in away.stderr
