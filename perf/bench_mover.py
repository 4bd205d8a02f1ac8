"""What a mover spends per byte: client CPU against SHA-256 alone, plain and TLS, into S3 and a folder (R2)."""

import dataclasses
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perf.support import report, spent, stores
from perf.support.bench import Bench
from perf.support.moves import Task
from tests.support import servers
from tests.support.certificates import certificates

QUESTION = "How much CPU does a mover take per byte, against hashlib.sha256 alone?"

_TLS = "ssl_protocols TLSv1.3; ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;"
_FILES = 4
_STREAMS = 2  # with two runs of 64 MiB each: what fits the mover's memory


def run(bench: Bench, result: report.Result) -> None:
    """Move four files through one mover, two at a time."""
    data = bench.work / "data"
    data.mkdir()
    digest = _write(data / "file", bench.file_bytes)
    (bench.work / "tls").mkdir()
    made = certificates(bench.work / "tls")
    with (
        tempfile.TemporaryDirectory(dir=bench.work) as folder,
        servers.nginx(data) as plain,
        servers.nginx(data, lines=_TLS, cert=made.pair) as tls,
        stores.lean_s3() as store,
    ):
        base = Task(f"{plain.url}/file", bench.file_bytes, _FILES, _STREAMS, "", "s3", store.endpoint)
        secure = dataclasses.replace(base, url=f"{tls.url}/file", ca_file=str(made.ca))
        for file in range(_FILES):
            with Path(folder, str(file)).open("wb") as handle:
                os.posix_fallocate(handle.fileno(), 0, bench.file_bytes)
        tasks = {
            "hashlib alone": dataclasses.replace(base, sink="hash", target=str(data / "file")),
            "http -> hash": dataclasses.replace(base, sink="nowhere"),
            "http -> hash -> S3": base,
            "https -> hash -> S3": secure,
            "http -> hash -> folder": dataclasses.replace(base, sink="folder", target=folder),
        }
        groups = {"source": (plain.process.pid, tls.process.pid), "target": (store.server.process.pid,)}
        bench.rounds({name: _once(task, groups, digest) for name, task in tasks.items()}, result)
    alone = result.per_gb("hashlib alone", "client")
    for goal, name, want in (
        ("R2a", "http -> hash -> S3", 2.2),
        ("R2b", "https -> hash -> S3", 4.0),
    ):
        ratio = result.per_gb(name, "client") / alone
        result.goals.append(report.Goal(goal, f"{name}: client CPU of hashlib alone", want, ratio, at_least=False))
    rss = max(sample.rss_bytes for samples in result.samples.values() for sample in samples) / 2**20
    result.goals.append(
        report.Goal("R9", "largest resident memory of the mover's process, MiB", 400, rss, at_least=False)
    )


def _once(task: Task, groups: Mapping[str, Sequence[int]], digest: str) -> Callable[[], report.Sample]:
    command = [sys.executable, "-m", "perf.support.moves", json.dumps(dataclasses.asdict(task))]

    def once() -> report.Sample:
        watch = spent.Watch(groups)
        done = spent.run(command, env=dict(os.environ), cwd=report.ROOT)
        told = json.loads(done.out)
        roles, foreign = watch.stop(done.cpu_seconds)
        if task.sink != "hash" and told["digests"] != [digest]:
            raise ValueError(f"digest: want {digest}, got {told['digests']}")
        payload = task.size_bytes * task.files
        cpu = {"client": told["cpu"], **roles}
        return report.Sample(told["seconds"], payload, cpu, told["rss"], done.written_bytes, foreign)

    return once


def _write(path: Path, size_bytes: int) -> str:
    """Write a file of random bytes; return its digest."""
    sha = hashlib.sha256()
    with path.open("wb") as file:
        for at in range(0, size_bytes, 2**20):
            block = os.urandom(min(2**20, size_bytes - at))
            sha.update(block)
            file.write(block)
    return sha.hexdigest()
