"""Credentials of the store that end in the middle of a publication (O-62): a proxy refuses them."""

import http.client
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
from tests.support.scripted import Call, Reply, serve

EXPIRED = b'<?xml version="1.0"?><Error><Code>ExpiredToken</Code><Message>The token has expired</Message></Error>'


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[servers.S3Server]:
    with servers.moto() as running:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", running.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", running.secret_key)
        monkeypatch.setenv("AWS_SESSION_TOKEN", "old")
        yield running


def forward(server: servers.S3Server, call: Call) -> Reply:
    where = urllib.parse.urlsplit(server.endpoint)
    connection = http.client.HTTPConnection(where.hostname or "", where.port or 0, timeout=30)
    try:
        connection.putrequest(call.method, call.path, skip_host=True, skip_accept_encoding=True)
        for name, value in call.headers.items():
            if name not in {"connection", "expect"}:
                connection.putheader(name, value)
        connection.endheaders(call.body)
        answer = connection.getresponse()
        body = answer.read()
        skipped = {"content-length", "connection", "transfer-encoding", "date", "server"}
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in skipped]
        length = int(answer.headers.get("Content-Length", len(body))) if call.method == "HEAD" else None
        return Reply(answer.status, body, headers, length=length)
    finally:
        connection.close()


def token(call: Call) -> str:
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(call.path).query)
    return call.headers.get("x-amz-security-token", "") or query.get("X-Amz-Security-Token", [""])[0]


def test_o62_credentials_that_end_with_the_fourth_part_are_read_again(server: servers.S3Server) -> None:
    sent: list[str] = []
    refused: list[str] = []

    def answer(call: Call) -> Reply:
        part = call.method == "PUT" and "/blobs/" in call.path and "partNumber=" in call.path
        if part and len(sent) >= 3:
            os.environ["AWS_SESSION_TOKEN"] = "new"
        if os.environ["AWS_SESSION_TOKEN"] == "new" and token(call) == "old":
            refused.append(call.path)
            return Reply(400, EXPIRED, [("Content-Type", "application/xml")])
        if part:
            sent.append(call.path)
        return forward(server, call)

    with Hub(limits=Limits.unlimited()) as hub, serve(answer) as proxy:
        repository = hub.add(good_model("org/name", weights_bytes=5 * PART + 1))
        settings = S3Settings(server.bucket, prefix="store", endpoint=proxy.url)
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
