"""Where the endpoint and the token come from."""

from pathlib import Path

import pytest

from aimodels_core.errors import UsageError
from aimodels_jobs.sources import hub_settings
from aimodels_jobs.sources.hub_settings import HubSettings

HOME = Path("/home/u")


@pytest.mark.parametrize(
    ("env", "token"),
    [
        ({}, ""),
        ({"HF_TOKEN": "hf_a"}, "hf_a"),
        ({"HUGGING_FACE_HUB_TOKEN": "hf_b"}, "hf_b"),
        ({"HF_TOKEN": " hf_a\n", "HUGGING_FACE_HUB_TOKEN": "hf_b"}, "hf_a"),
        ({"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": "hf_b"}, "hf_b"),
    ],
)
def test_the_token_comes_from_the_first_variable_that_has_one(env: dict[str, str], token: str) -> None:
    assert hub_settings.from_env(env).token == token


@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({}, HOME / ".cache/huggingface/token"),
        ({"XDG_CACHE_HOME": "/c"}, Path("/c/huggingface/token")),
        ({"HF_HOME": "/h", "XDG_CACHE_HOME": "/c"}, Path("/h/token")),
        ({"HF_HOME": "~/h"}, HOME / "h/token"),
        ({"HF_TOKEN_PATH": "/t", "HF_HOME": "/h"}, Path("/t")),
        ({"HF_TOKEN_PATH": "/t", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, None),
    ],
)
def test_the_token_file_is_where_the_hubs_own_client_keeps_it(env: dict[str, str], path: Path | None) -> None:
    assert hub_settings.token_path(env, HOME) == path


def test_a_saved_token_is_read_without_its_newline(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_saved\n")

    assert hub_settings.saved_token(tmp_path / "token") == "hf_saved"


def test_no_token_file_is_no_token(tmp_path: Path) -> None:
    assert hub_settings.saved_token(tmp_path / "none") == ""
    assert hub_settings.saved_token(None) == ""


@pytest.mark.parametrize("text", ["hf_secret\nhf_secret", "hf_secret\x00", "hf_sécret", "hf_secret" * 1000])
def test_a_token_that_cannot_be_sent_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(UsageError, match="HF_TOKEN") as caught:
        hub_settings.from_env({"HF_TOKEN": text})

    assert "secret" not in str(caught.value)


def test_a_token_file_that_is_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the token"):
        hub_settings.saved_token(tmp_path)


def test_the_endpoint_is_normalised_and_checked() -> None:
    assert hub_settings.from_env({"HF_ENDPOINT": "http://Hub.local/"}).endpoint == "http://hub.local"
    with pytest.raises(UsageError):
        hub_settings.from_env({"HF_ENDPOINT": "hub.local"})


def test_settings_do_not_show_their_token() -> None:
    assert "hf_a" not in repr(HubSettings(token="hf_a"))


def test_only_an_explicit_endpoint_is_trusted_with_http_and_private_addresses() -> None:
    public = hub_settings.host_rules("https://huggingface.co", HubSettings())
    explicit = hub_settings.host_rules("http://10.0.0.1:8080", HubSettings(endpoint="http://10.0.0.1:8080"))

    assert not public.may_be_private("huggingface.co")
    assert not public.may_be_private("cdn-lfs.hf.co")
    assert not public.may_use("http://huggingface.co/")
    assert explicit.may_be_private("10.0.0.1")
    assert explicit.may_be_private("cdn-lfs.hf.co")
    assert explicit.may_use("http://10.0.0.1:8080/")


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        ("https://cdn-lfs.hf.co/x", True),
        ("https://cas-bridge.xethub.hf.co/x", True),
        ("https://cdn-lfs.huggingface.co/x", True),
        ("https://evil-hf.co/x", False),
        ("https://hf.co.evil.example/x", False),
        ("http://cdn-lfs.hf.co/x", False),
        ("https://more.example/x", True),
    ],
)
def test_redirects_go_to_the_cdn_of_the_hub_and_to_allowed_hosts(target: str, allowed: bool) -> None:
    settings = HubSettings(allowed_hosts=frozenset({"more.example"}))
    rules = hub_settings.host_rules("https://huggingface.co", settings)

    assert rules.may_redirect("https://huggingface.co/o/n/resolve/main/a", target) is allowed
