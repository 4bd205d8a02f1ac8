"""Credentials of the store that end in the middle of a publication (O-62): a proxy refuses them."""

import os
import urllib.parse
from collections.abc import Iterator

import pytest

from aimodels_core import names
from aimodels_jobs.s3 import S3
from aimodels_jobs.s3_client import S3Settings
from tests.support import servers
from tests.support.auditing import checkpoints, content, uploads
from tests.support.hub.limits import Limits
from tests.support.hub.server import Hub
from tests.support.publishing import PART, Desk, good_model, wanted
from tests.support.scripted import Call, Reply
from tests.support.spoiledstores import Forward, refusal, spoiled


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[servers.S3Server]:
    with servers.moto() as running:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", running.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", running.secret_key)
        monkeypatch.setenv("AWS_SESSION_TOKEN", "old")
        yield running


def token(call: Call) -> str:
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(call.path).query)
    return call.headers.get("x-amz-security-token", "") or query.get("X-Amz-Security-Token", [""])[0]


def test_o62_credentials_that_end_with_the_fourth_part_are_read_again(server: servers.S3Server) -> None:
    sent: list[str] = []
    refused: list[str] = []

    def spoil(call: Call, forward: Forward) -> Reply:
        part = call.method == "PUT" and "/blobs/" in call.path and "partNumber=" in call.path
        if part and len(sent) >= 3:
            os.environ["AWS_SESSION_TOKEN"] = "new"
        if os.environ["AWS_SESSION_TOKEN"] == "new" and token(call) == "old":
            refused.append(call.path)
            return refusal("ExpiredToken", 400)
        if part:
            sent.append(call.path)
        return forward()

    with Hub(limits=Limits.unlimited()) as hub, spoiled(server, spoil) as proxy:
        repository = hub.add(good_model("org/name", weights_bytes=5 * PART + 1))
        settings = S3Settings(server.bucket, prefix="store", endpoint=proxy.server.endpoint)
        with Desk(S3(settings), connections=2) as desk:
            desk.put(wanted(hub, "m"))
            state = desk.ready("m")
            found = content(desk.store, names.LOCAL, "m")
            left = uploads(desk.store), checkpoints(desk.store)

    assert refused
    assert found == {file.path: file.sha256_hex for file in repository.head.files.values()}
    assert left == ([], [])
    assert len(sent) == 6
    assert state.attempt == 1
