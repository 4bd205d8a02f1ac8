"""A Ray cluster of a head and two raylets that may be killed, with a hub, apart from everything else on the machine.

`Arena` starts this module as a process in network and PID namespaces of its own, where only the loopback exists and
nothing outlives the namespace; what is to be done there is asked for by a line of JSON and answered by one. What is
killed and when is in `tests.support.killing`.
"""

import contextlib
import dataclasses
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Self

_ROOT = Path(__file__).parents[2]
_ENTER = ("unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")
_FIRST_PROCESS = 'ip link set lo up; "$@"; exit $?'
"""A shell stays the first process: it reaps what a killed raylet leaves, else Ray takes zombies for alive."""
_LINE_BYTES = 1 << 20


class ArenaError(RuntimeError):
    """The arena did not do what it was asked for; the message ends with what it printed last."""


class Arena:
    """The process in its namespaces.

    Args:
        folder: for stores and logs.
    """

    def __init__(self, folder: Path) -> None:
        self._log = folder / "arena.log"
        self._short = Path(tempfile.mkdtemp(prefix="rk"))  # paths of Ray's sockets have little room
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*_ENTER, "bash", "-c", _FIRST_PROCESS, "arena", *self._command(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=_ROOT,
                env=_of_no_ray(),
                start_new_session=True,
            )

    def _command(self, folder: Path) -> tuple[str, ...]:
        return (sys.executable, "-m", __name__, str(folder), str(self._short))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def play(self, kind: str, seed: int, *, seconds: float = 150.0) -> Any:
        """Play a scenario and return what was seen.

        Raises:
            ArenaError: it broke, or took longer.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"kind": kind, "seed": seed}).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._line(seconds) or b'{"error": "ended"}')
        if "error" in answer:
            raise ArenaError(f"{kind}, seed {seed}: {answer['error']}\n{self.printed()}")
        return answer

    def printed(self) -> str:
        """The end of what was printed inside."""
        return ending(self._log)

    def close(self) -> None:
        """End everything inside."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # unshare takes the namespace with it
        self._process.wait(20)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        shutil.rmtree(self._short, ignore_errors=True)

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        deadline, line = time.monotonic() + seconds, b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise ArenaError(f"arena: want an answer within {seconds} s\n{self.printed()}")
            more = os.read(self._process.stdout.fileno(), _LINE_BYTES)
            if not more:
                return b""
            line += more
        return line


def ending(log: Path) -> str:
    """The end of a log, for people."""
    return log.read_bytes()[-6000:].decode("utf-8", "replace")


def _of_no_ray() -> dict[str, str]:
    """Our environment without what a Ray of this process has put there: its token would be the first to be taken."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}


# Inside


@dataclasses.dataclass(slots=True)
class RayCluster:
    """A head without CPUs and two raylets, started from this process.

    Args:
        folder: for sockets and logs; its path must be short.
        cpus: of each raylet, enough for all movers: what a killed one ran must fit on the other.
    """

    folder: Path
    cpus: int = 4
    _cluster: Any = None

    def start(self) -> None:
        """Start all three."""
        from ray.cluster_utils import Cluster

        self.folder.mkdir(exist_ok=True)

        common = {"include_dashboard": False, "object_store_memory": 80 * 1024 * 1024, "temp_dir": str(self.folder)}
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})
        self.complete()

    def complete(self) -> None:
        """Bring the raylets back to two."""
        more = {"num_cpus": self.cpus, "object_store_memory": 80 * 1024 * 1024, "temp_dir": str(self.folder)}
        while len(self._cluster.worker_nodes) < 2:
            self._cluster.add_node(**more)

    @property
    def address(self) -> str:
        """Where its head answers."""
        return str(self._cluster.address)

    @property
    def raylets(self) -> dict[int, Any]:
        """Process ids of the raylets that are not the head's, and their nodes."""
        found = {}
        for node in self._cluster.worker_nodes:
            for info in node.all_processes["raylet"]:
                found[info.process.pid] = node
        return dict(sorted(found.items()))

    def kill_raylet(self, pid: int) -> None:
        """Kill a raylet and see it reaped."""
        node = self.raylets[pid]
        for info in node.all_processes["raylet"]:
            info.process.kill()
            info.process.wait()
        self._cluster.worker_nodes.discard(node)

    def kill_all(self) -> None:
        """Kill every process of the cluster, the head first, and forget it."""
        head = self._cluster.head_node
        for node in (head, *self._cluster.worker_nodes):
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        self._cluster = None


def workers(title: str) -> list[int]:
    """Process ids of Ray workers that run an actor of a class, in order."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "cmdline").read_bytes().startswith(f"ray::{title}".encode()):
                    found.append(int(entry.name))
    return sorted(found)


def processes() -> set[int]:
    """Process ids of everything in the namespace that runs."""
    return {
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and command_line(int(entry.name))
    }


def command_line(pid: int) -> str:
    """Command line of a process, for people; empty when it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")[:200]
    except OSError:
        return ""


def parent(pid: int) -> int:
    """Process id of the parent: a worker's raylet."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def set_environment(short: Path) -> None:
    """Set what Ray's processes start with."""
    from aimodels_jobs.fleet import cluster

    os.environ.update({name: value for name, value in cluster.ENVIRONMENT.items() if name not in os.environ})
    os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # programs that were built outside
    os.environ.update({"HOME": str(short), "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": str(short)})


def answer_requests(play: Callable[[str, int], Any], answers: BinaryIO) -> None:
    """Answer what is asked by a line each, until the other side closes."""
    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            answer = play(request["kind"], int(request["seed"]))
        except Exception as error:
            import traceback

            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def answers_only() -> BinaryIO:
    """What was standard output; whatever prints, prints to the log from now on."""
    kept = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return kept


def main() -> int:
    """Answer requests until the other side closes."""
    from tests.support.killing import Stage

    answers = answers_only()
    folder, short = Path(sys.argv[1]), Path(sys.argv[2])
    set_environment(short)
    with Stage(folder, RayCluster(short / "ray")) as stage:
        answer_requests(stage.play, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
