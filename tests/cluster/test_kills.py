"""Any process of an installed product may be killed at any point: the model becomes Ready, right, and is moved once.

The whole chart in Pods on three nodes, a hub under its real name. What happens is in `tests.cluster.killing`. Points
are drawn from a seed that failing tests show; AIMODELS_SEED sets another one.
"""

import os
import random
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from aimodels_core.units import MIB
from aimodels_jobs.plan import PART_BYTES
from tests.cluster import installed, operating
from tests.cluster.killing import NAME, Play
from tests.cluster.stand import chart
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl
from tests.support import victim
from tests.support.hub.faults import Fault
from tests.support.hub.repository import Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub

pytestmark = pytest.mark.timeout(900)

SEED = int(os.environ.get("AIMODELS_SEED", "2026"))
KINDS = ("operator", "coordinator", "head", "worker", "api_server")
HARMLESS = ("operator", "api_server")
"""They move no bytes."""
FIRST, SECOND = victim.FILES
SPEEDS = ((FIRST, 0, 3 * MIB), (FIRST, 64 * MIB, 2 * MIB), (SECOND, 0, 6 * MIB))
"""From which place on a file comes how fast over each connection (the last one counts): a dozen seconds for all of it,
and some of it is recorded while other runs are under way.
"""
HEADERS_BYTES = 2 * MIB
"""The first window of each weight file is read again by each attempt."""
SOCKETS_BYTES = 16 * MIB
"""What sockets had taken in when their reader was killed."""


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with operating.hub_under_its_names({}) as made:
        yield made


@pytest.fixture(scope="module")
def made(hub: Hub) -> Repository:
    for path, start, speed in SPEEDS:
        for offset in range(start, victim.FILES[path], PART_BYTES):
            hub.fault(Fault.SLOW, on=On.CDN, path=path, offset=offset, bytes_per_second=speed)
    return hub.add(victim.repository())


@pytest.fixture(scope="module", autouse=True)
def _installed(hub: Hub) -> Iterator[None]:
    with installed.whole(hub):
        yield


def judge(kind: str, seen: dict[str, Any]) -> None:
    """What must hold whatever was killed."""
    assert seen["found"] == seen["published"] == victim.DIGEST, "the same files give the same digest"
    assert seen["lies"] == [], "Ready with its artifact, and only when it is published"
    assert [name for name in seen["phases"] if name not in ("", "Pending")] == ["Publishing", "Ready"]
    assert seen["tags_at_kill"] == [], "nothing was visible before it was whole"
    assert seen["recorded_sent_times"] <= 1, "what was recorded as stored and hashed is never read again"
    lost = 0 if kind in HARMLESS else seen["sent_at_kill"] - seen["recorded_bytes"] + SOCKETS_BYTES
    assert seen["sent"] - seen["size"] <= lost + 2 * HEADERS_BYTES, seen
    assert seen["attempts"] <= (1 if kind in HARMLESS else 2)
    assert (seen["uploads"], seen["checkpoints"]) == ([], [])


def play(stand: Cluster, hub: Hub, made: Repository, space: Kubectl, kind: str, number: int) -> None:
    chart.wait_until_it_works()
    seed = zlib.crc32(f"{SEED} {kind} {number}".encode())
    print(f"{kind} {number}: seed {seed}")
    seen = Play(stand, hub, made, space, random.Random(seed)).play(kind, number)
    print(seen)
    judge(kind, seen)
    forget(space)


def forget(space: Kubectl) -> None:
    """Take it all away, so that the next one finds nothing of it."""
    space("delete", "model", NAME, "--timeout=60s", seconds=70)
    answer = installed.coordinator().call("POST", "/v1/collect", b'{"now": true}')

    assert answer.status == 200, answer
    assert list(installed.store().blobs()) == []


@pytest.mark.parametrize(("kind", "number"), [(kind, number) for kind in KINDS for number in (1, 2)])
def test_whatever_is_killed_the_model_becomes_ready_and_is_moved_once(
    stand: Cluster, hub: Hub, made: Repository, space: Kubectl, kind: str, number: int
) -> None:
    play(stand, hub, made, space, kind, number)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(3, 23))
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_points_of_each_kind(
    stand: Cluster, hub: Hub, made: Repository, space: Kubectl, kind: str, number: int
) -> None:
    play(stand, hub, made, space, kind, number)
