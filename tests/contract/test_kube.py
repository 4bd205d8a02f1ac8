"""The operator's calls at an API server that answers late."""

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator

import pytest
from kubernetes import client

from aimodels_operator.kube import Kube

MANY = 64
WAIT_SECONDS = 20.0


class Slow(http.server.ThreadingHTTPServer):
    """Answers a lease at once, and everything else when it is told to."""

    daemon_threads = True
    request_queue_size = MANY

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.go_on = threading.Event()


class Answers(http.server.BaseHTTPRequestHandler):
    server: Slow

    def do_GET(self) -> None:
        if "/leases/" not in self.path:
            self.server.go_on.wait(WAIT_SECONDS)
        body = json.dumps({"kind": "Lease" if "/leases/" in self.path else "Secret", "metadata": {}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def slow() -> Iterator[Slow]:
    server = Slow()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.go_on.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.asyncio
async def test_a_lease_is_renewed_while_all_other_calls_wait(slow: Slow) -> None:
    kube = Kube(client.Configuration(host=f"http://127.0.0.1:{slow.server_port}"))
    others = [asyncio.create_task(kube.read_secret("ns", f"s-{number}")) for number in range(MANY)]
    lease = await asyncio.wait_for(kube.get_lease("ns", "l"), WAIT_SECONDS / 2)
    done = [task.done() for task in others]
    slow.go_on.set()
    await asyncio.gather(*others)
    kube.close()

    assert lease == {"kind": "Lease", "metadata": {}}
    assert not any(done)
