"""A Ray of our own that does not start: nothing is left behind, the cause is told, and the next start works.

Each case runs in a process and namespaces of its own: a process has one Ray, and Ray keeps what it once read.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(150)

_ROOT = Path(__file__).parents[2]
_ENTER = ("unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c")
_FIRST_PROCESS = 'ip link set lo up; "$@"; exit $?'

PRELUDE = """
import json, os, sys, time
import ray
from aimodels_core.errors import MoverLost
from aimodels_jobs.fleet.cluster import Ray
from tests.support import raycluster

def start():
    try:
        return {"started": Ray("local", 1).start()}
    except MoverLost as error:
        return {"code": error.code, "message": error.message}

def works():
    return ray.get(ray.remote(lambda: 41 + 1).remote(), timeout=60)

def left():
    deadline = time.monotonic() + 20
    while (found := raycluster.processes() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [raycluster.command_line(pid) for pid in found]

def tokens():
    return sorted(name for name in os.environ if name.startswith("RAY_AUTH"))

before = raycluster.processes()
seen = {}
"""


def play(script: str, home: Path, **environment: str) -> Any:
    """Run a script and return its `seen`."""
    done = subprocess.run(
        [*_ENTER, _FIRST_PROCESS, "apart", sys.executable, "-c", f"{PRELUDE}{script}\nprint(json.dumps(seen))"],
        cwd=_ROOT,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:].decode()
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def test_a_start_that_breaks_half_way_leaves_no_process_and_the_next_one_works(home: Path) -> None:
    seen = play(
        """
import ray._private.worker as inside
connect = inside.connect
def broken(*_, **__):
    raise ConnectionError("the GCS went away")
inside.connect = broken          # Ray's own function: its processes run, this one does not get to them
seen["first"] = start()
inside.connect = connect
seen["left"], seen["tokens"] = left(), tokens()
seen["second"], seen["works"] = start(), works()
Ray("local").stop()
seen["left after"], seen["tokens after"] = left(), tokens()
""",
        home,
    )

    assert seen["first"]["code"] == "RayUnavailable"
    assert "ConnectionError: the GCS went away" in seen["first"]["message"]
    assert (seen["left"], seen["tokens"]) == ([], [])
    assert (seen["second"], seen["works"]) == ({"started": True}, 42)
    assert (seen["left after"], seen["tokens after"]) == ([], [])
    assert not (home / ".ray").exists(), "the token is kept in memory"


def test_a_start_that_cannot_begin_says_why_and_the_next_one_works(home: Path) -> None:
    seen = play(
        """
os.environ["RAY_TMPDIR"] = "/proc/nowhere"
seen["first"] = start()
del os.environ["RAY_TMPDIR"]
seen["left"] = left()
seen["second"], seen["works"] = start(), works()
""",
        home,
    )

    assert seen["first"]["code"] == "RayUnavailable"
    assert "/proc/nowhere" in seen["first"]["message"]
    assert seen["left"] == []
    assert (seen["second"], seen["works"]) == ({"started": True}, 42)


def test_a_process_may_start_stop_and_start_again_whatever_its_environment_says_by_then(home: Path) -> None:
    seen = play(
        """
seen["first"], seen["works"] = start(), works()
os.environ.pop("RAY_AUTH_TOKEN", None)      # as a test's clean-up does
Ray("local").stop()
seen["tokens"] = tokens()
seen["second"], seen["works again"] = start(), works()
Ray("local").stop()
os.environ["RAY_AUTH_TOKEN"] = "a" * 64
seen["third"], seen["works with another"] = start(), works()
Ray("local").stop()
seen["kept"] = os.environ["RAY_AUTH_TOKEN"] == "a" * 64
""",
        home,
    )

    assert seen["first"] == seen["second"] == seen["third"] == {"started": True}
    assert seen["works"] == seen["works again"] == seen["works with another"] == 42
    assert seen["tokens"] == []
    assert seen["kept"]


def test_a_proxy_of_the_environment_is_not_for_ray(home: Path) -> None:
    """Nobody listens there."""
    proxy = {"https_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    seen = play(
        """
def proxies():
    return {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
seen["first"], seen["works"] = start(), works()
seen["there"] = ray.get(ray.remote(proxies).remote(), timeout=60)
Ray("local").stop()
seen["afterwards"] = proxies()
""",
        home,
        **proxy,
    )

    assert seen["first"] == {"started": True}
    assert (seen["works"], seen["there"]) == (42, {})
    assert seen["afterwards"] == proxy
