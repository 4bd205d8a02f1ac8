"""Publications that are killed at any moment: the next run ends them, and moves again only what was under way.

The moments are drawn from a seed, which is printed; `soak` draws more of them.
"""

import concurrent.futures
import random
import signal
import time
from pathlib import Path

import pytest

from aimodels_core import names
from aimodels_jobs import headers
from aimodels_jobs.plan import RUN_BYTES
from tests.integration.publish.conftest import PLACES, maker
from tests.support.auditing import assert_no_leftovers, audit, content
from tests.support.commandline import Cli, ended, running
from tests.support.hub.limits import Limits
from tests.support.hub.server import Hub
from tests.support.processes import wait_for
from tests.support.publishing import MIB, PART, Place, good_model

WEIGHTS = "model.safetensors"
SIZE = 5 * RUN_BYTES // 2 + 12_345
"""Three runs, the last one a part and a bit."""
CONNECTIONS = 4
UNDER_WAY_BYTES = RUN_BYTES + CONNECTIONS * PART
"""What a kill may cost: a run that is stored but whose hash is not recorded yet, and parts in flight."""


def killed_once(cli: Cli, hub: Hub, drawn: random.Random) -> None:
    """Kill a publication somewhere on its way."""
    hub.throttle(drawn.choice((12, 24, 48)) * MIB)
    begun, aim = hub.log.payload_bytes(WEIGHTS), drawn.randrange(SIZE)
    with running(cli.begin("publish", "org/name", "--name", "m", "--connections", str(CONNECTIONS))) as process:
        wait_for(
            lambda: process.poll() is not None or hub.log.payload_bytes(WEIGHTS) - begun >= aim,
            f"{aim} bytes on their way",
            seconds=40,
            pause_seconds=0.005,
        )
        process.send_signal(signal.SIGKILL)
        ended(process)


def killed_and_finished(place: Place, hub: Hub, seed: int, kills: int) -> None:
    drawn = random.Random(seed)
    print(f"seed {seed}")
    repository = hub.add(good_model("org/name", weights_bytes=SIZE, seed=seed))
    cli = Cli(place, hub.url)
    for _ in range(kills):
        killed_once(cli, hub, drawn)
        assert set(audit(place.store)) <= {f"local:{names.model_tag('m')}"}
    hub.throttle(None)
    done = cli("publish", "org/name", "--name", "m", "--json", "-v", seconds=90)

    assert done.code == 0, (seed, done.err)
    assert content(place.store, names.LOCAL, "m")[WEIGHTS] == repository.head.files[WEIGHTS].sha256_hex
    sent = hub.log.times_sent(WEIGHTS)
    often = sum(size for times, size in sent.items() if times > 1 + kills)
    again = sum(size * (times - 1) for times, size in sent.items())
    assert often <= headers.FIRST_WINDOW_BYTES, (seed, sent)  # each process looks at the header before it moves parts
    assert again <= kills * UNDER_WAY_BYTES + (1 + 2 * kills) * headers.FIRST_WINDOW_BYTES, (seed, sent)
    assert_no_leftovers(place.store)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", PLACES)
def test_a_killed_publication_is_finished_by_the_next(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    make, first = maker(kind, request, tmp_path), int(time.time()) * 2

    def point(seed: int) -> None:
        with Hub(limits=Limits.unlimited()) as hub:
            killed_and_finished(make(), hub, seed, kills=1)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(point, (first, first + 1)))


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", range(20))
@pytest.mark.parametrize("kind", PLACES)
def test_a_publication_killed_three_times_is_finished_by_the_next(
    kind: str, point: int, hub: Hub, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = maker(kind, request, tmp_path)()
    killed_and_finished(place, hub, seed=int(time.time()) * 20 + point, kills=3)
