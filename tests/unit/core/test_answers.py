import pytest

from aimodels_core import registry_auth
from aimodels_core.answers import retry_after
from aimodels_core.errors import SourceUnavailable
from aimodels_core.registry_auth import Challenge, parse_challenge, parse_token

DATE = "Mon, 30 Nov 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        pytest.param({"retry-after": "7"}, 7.0, id="seconds"),
        pytest.param({"retry-after": "0.5"}, 0.5, id="fraction"),
        pytest.param({"retry-after": "999999999"}, 3600.0, id="at most an hour"),
        pytest.param({"retry-after": "Mon, 30 Nov 2026 12:00:09 GMT", "date": DATE}, 9.0, id="date"),
        pytest.param({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT", "date": DATE}, 0.0, id="date gone by"),
        pytest.param({"retry-after": "soon", "date": DATE}, None, id="words"),
        pytest.param({"retry-after": "-5"}, None, id="negative"),
        pytest.param({"ratelimit": '"resolvers";r=0;t=12'}, 12.0, id="hub"),
        pytest.param({"ratelimit": '"resolvers";r=100;t=12'}, None, id="hub with room"),
        pytest.param({}, None, id="nothing"),
    ],
)
def test_o06_what_the_other_side_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        (
            'Bearer realm="https://auth.example/token",service="r",scope="repository:a/b:pull,push"',
            Challenge("bearer", "https://auth.example/token", "r", "repository:a/b:pull,push"),
        ),
        ('bearer  Realm = "/token" , service=x', Challenge("bearer", "/token", "x", "")),
        ('Basic realm="Registry Realm"', Challenge("basic", "Registry Realm")),
        ("Bearer service=x", None),
        ("Negotiate", None),
        ("", None),
        ("Bearer realm=" + "x" * 5000, None),
    ],
)
def test_challenges_are_parsed(header: str, challenge: Challenge | None) -> None:
    assert parse_challenge(header) == challenge


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"token": 5}', b'{"token": "a b"}', b'{"token": "a\\nb"}', b"[" * 9999]
)
def test_a_token_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(SourceUnavailable):
        parse_token(body, "issuer")


def test_a_token_lives_at_least_a_minute() -> None:
    assert registry_auth.parse_token(b'{"token": "x", "expires_in": 1}', "issuer") == ("Bearer x", 60.0)
