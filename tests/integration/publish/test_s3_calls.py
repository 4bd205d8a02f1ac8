"""How many requests a publication costs a bucket: each takes a round trip, and in a cloud each has its price.

The bounds are what is asked today and a little more: raise them knowingly.
"""

import collections
import secrets
import urllib.parse
from collections.abc import Iterable

from tests.support.hub.repository import Repository
from tests.support.hub.server import Hub
from tests.support.publishing import Desk, bucket_place, wanted
from tests.support.scripted import Call
from tests.support.servers import S3Server
from tests.support.spoiledstores import Spoiled, spoiled
from tests.support.weights import Tensor, llama_config, sharded

BLOBS = 4
SHARDS = [[Tensor(f"layer.{number}", (512, 1024), "F32")] for number in range(BLOBS)]


def asked(calls: Iterable[Call]) -> collections.Counter[str]:
    """Requests by method and by what they are about; parts of blobs and the lease, which beats in time, left out."""
    counts: collections.Counter[str] = collections.Counter()
    for call in calls:
        url = urllib.parse.urlsplit(call.path)
        query = urllib.parse.parse_qs(url.query, keep_blank_values=True)
        about = f"{url.path}?{query.get('prefix', [''])[0]}"
        kind = next((word for word in ("probe", "writer", "checkpoints", "known", "_layers") if word in about), "")
        if kind != "writer" and not ("partNumber" in query and kind != "probe"):
            counts[f"{call.method} {kind or 'blobs and tags'}"] += 1
    return counts


def publish(server: Spoiled, prefix: str, hub: Hub) -> collections.Counter[str]:
    """Publish as a new process would; gives what the bucket was asked."""
    before = len(server.calls)
    with Desk(bucket_place(server.server, prefix)) as desk:
        desk.publish(wanted(hub, "m"))
        desk.ready("m")
    return asked(server.calls[before:])


def test_requests_of_a_publication_are_few_and_fewer_when_it_is_repeated(versity: S3Server, hub: Hub) -> None:
    repository = hub.add(Repository("org/name", {"config.json": llama_config(), **sharded(SHARDS)}))
    with spoiled(versity) as server:
        prefix = f"stores/{secrets.token_hex(4)}"
        first, again = publish(server, prefix, hub), publish(server, prefix, hub)
        repository.update(sharded(SHARDS, seed=10))
        known = publish(server, prefix, hub)

    assert 0 < first.total() - known.total() <= 55, "the bucket is tried out once"
    assert (known["PUT probe"], again["PUT probe"]) == (0, 0)
    assert known.total() <= 17 * BLOBS + 20, known
    assert again.total() <= 5 * BLOBS + 28, again
    assert set(again) & {"POST blobs and tags", "DELETE checkpoints"} == set()
    assert again["GET checkpoints"] == 1, "what a dead process left is looked for in one listing"
