"""The webhook process: settings, what it remembers of tokens, how much it asks at once."""

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import pytest

from aimodels_core.errors import ClusterUnavailable, UsageError
from aimodels_operator.tokens import Identity
from aimodels_operator.webhook import Identities, shown_token
from aimodels_operator.webhook_settings import from_env


class ApiServer:
    """Knows every token that begins with `team`; may take its time."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = asyncio.Event()
        self.go.set()

    async def review_token(self, token: str, audience: str) -> Mapping[str, Any]:
        self.asked.append(token)
        await self.go.wait()
        user = {"username": f"system:serviceaccount:{token.partition('-')[0]}:default"}
        return {"authenticated": token.startswith("team"), "user": user, "audiences": [audience]}


@pytest.mark.asyncio
async def test_who_is_known_is_remembered_for_a_minute() -> None:
    now, server = [0.0], ApiServer()
    identities = Identities(server, clock=lambda: now[0])
    found = []
    for at in (0.0, 30.0, 59.9, 60.0, 61.0):
        now[0] = at
        found.append(await identities.of("team-1"))

    assert set(found) == {Identity("team", "default")}
    assert server.asked == ["team-1", "team-1"]


@pytest.mark.asyncio
async def test_strangers_are_asked_for_each_time_and_no_token_is_kept() -> None:
    server = ApiServer()
    identities = Identities(server)
    found = [await identities.of(token) for token in ("stranger", "stranger", "team-2")]

    assert found[:2] == [None, None]
    assert len(server.asked) == 3
    assert "team-2" not in repr(vars(identities))


@pytest.mark.asyncio
async def test_what_is_remembered_has_a_bound() -> None:
    server = ApiServer()
    identities = Identities(server)
    for number in range(10_001):
        await identities.of(f"team-{number}")
    await identities.of("team-10000")
    assert len(server.asked) == 10_001
    await identities.of("team-0")

    assert len(server.asked) == 10_002


@pytest.mark.asyncio
async def test_a_slow_api_server_is_not_asked_without_end() -> None:
    server = ApiServer()
    server.go.clear()
    identities = Identities(server)
    asking = [asyncio.create_task(identities.of(f"team-{n}")) for n in range(64)]
    await asyncio.sleep(0)
    with pytest.raises(ClusterUnavailable, match="64 wait"):
        await identities.of("team-64")
    server.go.set()
    found = await asyncio.gather(*asking)

    assert set(found) == {Identity("team", "default")}
    assert await identities.of("team-64") == Identity("team", "default")


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        pytest.param("Bearer a.b.c", "a.b.c", id="bearer"),
        pytest.param("bearer  a.b.c ", "a.b.c", id="any-case"),
        pytest.param(basic("user:a.b.c"), "a.b.c", id="basic"),
        pytest.param(basic(":a:b"), "a:b", id="no-user"),
        pytest.param(basic("a.b.c"), "", id="no-password"),
        pytest.param(basic("u:ä"), "", id="not-ascii"),
        pytest.param(basic("u:a\nb"), "", id="two-lines"),
        pytest.param("Basic a.b", "", id="not-base64"),
        pytest.param("Basic ä", "", id="no-ascii"),
        pytest.param("Basic", "", id="scheme-alone"),
        pytest.param("Digest x", "", id="other-scheme"),
        pytest.param("", "", id="nothing"),
        pytest.param("Bearer " + "x" * 7000, "", id="long"),
    ],
)
def test_the_token_that_is_shown(header: str, wanted: str) -> None:
    assert shown_token(header) == wanted


def test_settings_have_defaults() -> None:
    found = from_env({"HOME": "/root", "KUBECONFIG": "/k", "AI_MODELS_HEALTH_PORT": "0"})

    assert (found.namespace, found.node_namespace) == ("d8-ai-models", "d8-ai-models-node")
    assert (found.listen_port, found.health_port, found.kubeconfig) == (8443, 0, "/k")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"AI_MODELS_COLOUR": "x"}, "unknown settings AI_MODELS_COLOUR", id="unknown"),
        pytest.param({"AI_MODELS_LISTEN_PORT": "x"}, "LISTEN_PORT: want a port", id="port"),
        pytest.param({"AI_MODELS_HEALTH_PORT": "70000"}, "HEALTH_PORT: want a port", id="large-port"),
        pytest.param({"AI_MODELS_NODE_NAMESPACE": ""}, "NODE_NAMESPACE: want a namespace", id="no-namespace"),
        pytest.param({"AI_MODELS_NAMESPACE": "a.b"}, "NAMESPACE: want a namespace", id="namespace"),
        pytest.param({"AI_MODELS_LOG_LEVEL": "info"}, "want one of", id="level"),
        pytest.param({"AI_MODELS_DELIVERY_TYPE": "x"}, "want SharedPVC or NodeCache", id="delivery"),
    ],
)
def test_wrong_settings_are_told(change: Mapping[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        from_env(change)
