"""Gated, private, missing, disabled, bad tokens: told apart before anything is scheduled."""

import pytest

from aimodels_core.errors import (
    AiModelsError,
    SourceDenied,
    SourceNotFound,
)
from tests.support.hub.repository import Access, Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.hub_source import FILES, GRANTED, WEIGHTS, read_all, refused, source


def test_o13_a_gated_model_is_refused_before_anything_is_scheduled(hub: Hub) -> None:
    hub.add(Repository("org/gated", FILES, access=Access.GATED, granted=GRANTED))
    anonymous, other = refused(source(hub, "org/gated")), refused(source(hub, "org/gated", token="hf_other"))

    assert type(anonymous) is type(other) is SourceDenied
    assert anonymous.code == other.code == "Gated"
    assert f"{hub.url}/org/gated" in other.message
    assert "give a token" in anonymous.message
    assert "hf_other" not in other.message
    assert not hub.log.payload_bytes()


def test_o13_a_granted_token_opens_a_gated_model_and_stays_with_the_hub(hub: Hub) -> None:
    hub.add(Repository("org/gated", FILES, access=Access.GATED, granted=GRANTED))
    made = source(hub, "org/gated", token="hf_good")

    assert read_all(made, "model.safetensors") == WEIGHTS
    assert {each.token for each in hub.log if each.on is On.CDN} == {False}
    assert {each.token for each in hub.log if each.on is not On.CDN} == {True}


def test_o13_after_a_refusal_the_same_source_may_be_asked_again(hub: Hub) -> None:
    repository = hub.add(Repository("org/gated", FILES, access=Access.GATED))
    made = source(hub, "org/gated", token="hf_good")
    refused(made)
    hub.add(Repository("org/gated", FILES, access=Access.GATED, granted=GRANTED))

    assert made.resolve().canonical == repository.id


@pytest.mark.parametrize(
    ("path", "token", "kind", "code"),
    [
        ("org/private", "", SourceDenied, "PrivateOrMissing"),
        ("org/private", "hf_other", SourceNotFound, "RepoNotFound"),
        ("org/missing", "", SourceDenied, "PrivateOrMissing"),
        ("org/missing", "hf_good", SourceNotFound, "RepoNotFound"),
        ("org/name", "hf_bad", SourceDenied, "TokenRefused"),
        ("org/disabled", "hf_good", SourceDenied, "Disabled"),
        ("org/name/tree/nope", "", SourceNotFound, "RevisionNotFound"),
    ],
)
def test_o13_refusals_are_told_apart(hub: Hub, path: str, token: str, kind: type[AiModelsError], code: str) -> None:
    hub.add(Repository("org/private", FILES, access=Access.PRIVATE, granted=GRANTED))
    hub.add(Repository("org/disabled", FILES, access=Access.DISABLED))
    error = refused(source(hub, path, token=token))

    assert (type(error), error.code) == (kind, code)
    assert not token or token not in error.message


def test_o13_a_private_model_is_read_with_its_token(hub: Hub) -> None:
    hub.add(Repository("org/private", FILES, access=Access.PRIVATE, granted=GRANTED))

    assert read_all(source(hub, "org/private", token="hf_good"), "config.json") == b"{}\n"
