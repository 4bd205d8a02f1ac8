"""What was found of a bucket: kept for a week, for one endpoint and prefix, and never when it refuses."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimodels_jobs import s3_findings
from aimodels_jobs.objects import Finding, ObjectInfo
from aimodels_jobs.s3_client import S3Settings

NOW = 1_800_000_000.0
FOUND = (
    Finding("clock", passed=True, fatal=False, detail="works"),
    Finding("kms", passed=False, fatal=False, detail=""),
)
HERE = S3Settings("models", prefix="store", endpoint="https://s3.example")


@given(st.lists(st.builds(Finding, st.text(), passed=st.booleans(), fatal=st.booleans(), detail=st.text())))
def test_what_is_rendered_is_read_again(findings: list[Finding]) -> None:
    assert s3_findings.parse(s3_findings.render(findings, NOW), NOW) == tuple(findings)


@pytest.mark.parametrize("later", [s3_findings.KEPT_SECONDS + 1, -3600.0], ids=["a week later", "from the future"])
def test_what_is_too_old_or_not_yet_is_nothing(later: float) -> None:
    assert s3_findings.parse(s3_findings.render(FOUND, NOW), NOW + later) == ()


def test_what_other_checks_found_is_nothing() -> None:
    document = json.loads(s3_findings.render(FOUND, NOW))

    assert s3_findings.parse(json.dumps(document | {"version": s3_findings.VERSION + 1}).encode(), NOW) == ()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"null", b'{"version":1,"at":"x"}', b"\xff"])
def test_what_is_damaged_is_told_apart(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        s3_findings.parse(data, NOW)


def test_another_place_has_other_findings() -> None:
    places = (
        HERE,
        dataclasses.replace(HERE, endpoint="https://other.example"),
        dataclasses.replace(HERE, bucket="others"),
        dataclasses.replace(HERE, prefix=""),
    )

    assert len({s3_findings.key(place) for place in places}) == len(places)
    assert s3_findings.key(HERE) == s3_findings.key(dataclasses.replace(HERE, prefix="/store/", secret_key="s"))


def test_only_findings_that_may_be_used_are_kept_from_cleaning() -> None:
    kept = ObjectInfo(s3_findings.key(HERE), 10, NOW - 3 * 24 * 3600)

    assert s3_findings.may_be_used(kept, NOW)
    assert not s3_findings.may_be_used(dataclasses.replace(kept, modified=NOW - 8 * 24 * 3600), NOW)
    assert not s3_findings.may_be_used(dataclasses.replace(kept, key="ai-models/v1/probe/0123"), NOW)
