"""Pulls that are killed, frozen, or race with each other, as real processes against a registry over HTTP."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aimodels_core import folders, pull
from aimodels_core.registry import Registry
from aimodels_core.transport import HostRules, Transport
from tests.support.artifacts import files_in, sample
from tests.support.processes import wait_for
from tests.support.scripted import Call, Reply, Scripted, ranged, serve

KIB = 1024
PART = 64 * KIB
RANDOM = random.Random(3)
MODEL = sample({"config.json": b"{}", "a.safetensors": RANDOM.randbytes(20 * PART + 5), "b.gguf": RANDOM.randbytes(9)})
LOCAL = HostRules(trusted=frozenset({"127.0.0.1"}))

CHILD = f"""
import pathlib, sys
from aimodels_core import digest, pull, registry, transport
rules = transport.HostRules(trusted=frozenset({{"127.0.0.1"}}))
reader = registry.Registry(sys.argv[1], "local", transport=transport.Transport(rules))
tuning = pull.Tuning(connections=2, part_bytes={PART})
print(pull.pull(reader, digest.Digest.parse(sys.argv[2]), pathlib.Path(sys.argv[3]), tuning=tuning).bytes_transferred)
"""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "models" / "m"
    folders.remove_tree(tmp_path / "models")


def registry(call: Call, hold: Callable[[Call], threading.Event | None] = lambda _: None) -> Reply:
    if "/manifests/" in call.path:
        return Reply(body=MODEL.artifact.manifest)
    wait = hold(call)
    if wait is not None:
        wait.wait(30)
    data = next(data for digest, data in MODEL.blobs.items() if call.path.endswith(digest.hex))
    return ranged(call, data)


def child(server: Scripted, target: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, server.url, str(MODEL.digest), str(target)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def here(server: Scripted, target: Path) -> pull.Pulled:
    reader = Registry(server.url, "local", transport=Transport(LOCAL))
    return pull.pull(reader, MODEL.digest, target, tuning=pull.Tuning(connections=2, part_bytes=PART))


def beside(target: Path) -> list[Path]:
    return [path for path in target.parent.iterdir() if path != target]


def noted(target: Path) -> list[str]:
    return [path.read_text() for path in target.parent.rglob("*.done")]


def first_byte(call: Call) -> int:
    return int(call.headers["range"].removeprefix("bytes=").partition("-")[0])


@pytest.mark.parametrize("parts_done", [1, 10, 19])
def test_a_killed_pull_is_finished_by_the_next_one(parts_done: int, target: Path) -> None:
    never, stuck = threading.Event(), threading.Event()

    def hold(call: Call) -> threading.Event | None:
        if first_byte(call) < parts_done * PART:
            return None
        stuck.set()
        return never

    with serve(lambda call: registry(call, hold)) as server:
        process = child(server, target)
        assert stuck.wait(30)
        wait_for(lambda: noted(target) == [str(parts_done * PART)], "the hashed parts noted")
        process.kill()
        process.communicate()
        never.set()
        assert not target.exists()

        with serve(registry) as good:
            done = here(good, target)

    assert files_in(target) == MODEL.files
    assert done.bytes_transferred == done.bytes_total - parts_done * PART
    assert beside(target) == []


def test_o72_a_frozen_pull_that_thaws_spoils_nothing(target: Path) -> None:
    go_on, stuck = threading.Event(), threading.Event()

    def hold(call: Call) -> threading.Event | None:
        if first_byte(call) < 10 * PART:
            return None
        stuck.set()
        return go_on

    with serve(lambda call: registry(call, hold)) as server, serve(registry) as good:
        process = child(server, target)
        assert stuck.wait(30)
        process.send_signal(signal.SIGSTOP)
        for path in (*beside(target), *(path / "blobs" for path in beside(target))):
            os.utime(path, (1, 1))  # as if it had been frozen for long
        here(good, target)
        assert beside(target) == []
        process.send_signal(signal.SIGCONT)
        go_on.set()
        _, printed = process.communicate(timeout=30)

        assert "StoreUnavailable" in printed or process.returncode == 0
        assert files_in(target) == MODEL.files
        assert here(good, target).bytes_transferred == 0


def test_o72_several_processes_pull_into_one_folder_without_any_lock(target: Path) -> None:
    with serve(registry) as server:
        processes = [child(server, target) for _ in range(4)]
        ends = [process.communicate(timeout=50) for process in processes]

    assert [(process.returncode, end[1]) for process, end in zip(processes, ends, strict=True)] == [(0, "")] * 4
    assert files_in(target) == MODEL.files
    assert beside(target) == []
