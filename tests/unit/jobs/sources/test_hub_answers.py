"""What answers of a hub mean: refusals told apart, identity compared, lifetimes read."""

import pytest

from aimodels_core.digest import Digest, GitDigest
from aimodels_core.errors import AiModelsError, SourceDenied, SourceNotFound, SourceUnavailable
from aimodels_core.source import SourceFile
from aimodels_jobs.sources import hub_answers
from aimodels_jobs.sources.hub_answers import Asked

COMMIT = "a" * 40
LFS = SourceFile("model.safetensors", 1000, digest=Digest("b" * 64))
SMALL = SourceFile("config.json", 3, git_digest=GitDigest("c" * 40))
NOW = 1_750_000_000.0


def asked(*, with_token: bool) -> Asked:
    return Asked("https://huggingface.co", "org/name", "v1", with_token)


@pytest.mark.parametrize(
    ("status", "headers", "with_token", "kind", "code", "says"),
    [
        (401, {"x-error-code": "GatedRepo"}, False, SourceDenied, "Gated", "give a token"),
        (
            403,
            {"x-error-code": "GatedRepo"},
            True,
            SourceDenied,
            "Gated",
            "accept its terms at https://huggingface.co/o",
        ),
        (401, {"x-error-code": "RepoNotFound"}, False, SourceDenied, "PrivateOrMissing", "not found or private"),
        (404, {"x-error-code": "RepoNotFound"}, False, SourceDenied, "PrivateOrMissing", "not found or private"),
        (404, {"x-error-code": "RepoNotFound"}, True, SourceNotFound, "RepoNotFound", "no such model"),
        (401, {"x-error-message": "Invalid credentials"}, True, SourceDenied, "TokenRefused", "Invalid credentials"),
        (403, {"x-error-message": "no scope"}, True, SourceDenied, "TokenRefused", "no scope"),
        (404, {"x-error-code": "RevisionNotFound"}, False, SourceNotFound, "RevisionNotFound", "no revision 'v1'"),
        (404, {"x-error-code": "EntryNotFound"}, True, SourceUnavailable, "EntryNotFound", "listed file"),
        (403, {"x-error-message": "Access to this resource is disabled."}, True, SourceDenied, "Disabled", "disabled"),
        (451, {}, False, SourceDenied, "Disabled", "disabled"),
        (400, {}, False, SourceUnavailable, "UnexpectedStatus", "status 400"),
    ],
)
def test_o13_refusals_are_told_apart(
    status: int, headers: dict[str, str], with_token: bool, kind: type[AiModelsError], code: str, says: str
) -> None:
    error = hub_answers.refusal(asked(with_token=with_token), status, headers)

    assert type(error) is kind
    assert error.code == code
    assert says in error.message


def test_words_of_the_hub_are_cut_and_cleaned() -> None:
    text = hub_answers.said({"x-error-message": "a\x1b[31m\nb" + "x" * 1000})

    assert text.isprintable()
    assert len(text) <= 200


@pytest.mark.parametrize(
    "headers",
    [
        {"x-repo-commit": COMMIT, "x-linked-etag": '"' + "b" * 64 + '"', "x-linked-size": "1000"},
        {"x-repo-commit": COMMIT, "x-linked-etag": 'W/"' + "b" * 64 + '"'},
        {"x-repo-commit": COMMIT, "etag": '"of-the-cdn"'},
        {"x-repo-commit": COMMIT},
    ],
)
def test_the_identity_of_a_large_file(headers: dict[str, str]) -> None:
    hub_answers.check_identity(LFS, COMMIT, headers)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "WrongCommit"),
        ({"x-repo-commit": "d" * 40}, "WrongCommit"),
        ({"x-repo-commit": COMMIT, "x-linked-etag": '"' + "e" * 64 + '"'}, "WrongDigest"),
        ({"x-repo-commit": COMMIT, "x-linked-size": "1001"}, "WrongSize"),
    ],
)
def test_another_identity_is_refused(headers: dict[str, str], code: str) -> None:
    with pytest.raises(SourceUnavailable) as caught:
        hub_answers.check_identity(LFS, COMMIT, headers)

    assert caught.value.code == code


def test_o12_a_small_file_is_compared_by_its_git_digest() -> None:
    hub_answers.check_identity(SMALL, COMMIT, {"x-repo-commit": COMMIT, "etag": 'W/"' + "c" * 40 + '"'})
    with pytest.raises(SourceUnavailable):
        hub_answers.check_identity(SMALL, COMMIT, {"x-repo-commit": COMMIT, "etag": '"' + "d" * 40 + '"'})


@pytest.mark.parametrize(
    ("query", "lifetime"),
    [
        (f"Expires={NOW + 3600:.0f}&Signature=x", 3600.0),
        ("X-Amz-Date=20250615T150640Z&X-Amz-Expires=900&X-Amz-Signature=x", 900.0),
        (f"exp={NOW + 60:.0f}", 60.0),
        ("nothing=1", None),
        ("Expires=soon", None),
        ("X-Amz-Expires=900", None),
        ("exp=1", hub_answers.DEFAULT_LIFETIME_SECONDS),
        ("Expires=99999999999", 7 * 24 * 3600.0),
    ],
)
def test_lifetimes_of_signed_urls(query: str, lifetime: float | None) -> None:
    assert hub_answers.lifetime_seconds(f"https://cdn.hf.co/a?{query}", {}, NOW) == lifetime


def test_a_lifetime_is_counted_on_the_signers_clock() -> None:
    url = f"https://cdn.hf.co/a?Expires={NOW + 3600:.0f}"

    assert hub_answers.lifetime_seconds(url, {"date": "Sun, 15 Jun 2025 15:06:40 GMT"}, NOW - 86_400) == 3600.0


@pytest.mark.parametrize("value", ["", "bytes */5", "bytes 0-9", "bytes 0-9/*", "items 0-9/10", "bytes 0-9/10, x"])
def test_content_ranges_that_are_none(value: str) -> None:
    assert hub_answers.content_range({"content-range": value}) is None
