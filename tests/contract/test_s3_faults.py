"""Answers of S3 that lie, come late or not at all: a real server behind a proxy that spoils what a test says."""

import dataclasses
import email.utils
import os
import secrets
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimodels_core.errors import NotPublished, StoreFull, StoreUnavailable, StoreUnsafe
from aimodels_jobs.s3 import S3
from aimodels_jobs.s3_client import ATTEMPTS, Client, S3Settings
from tests.support import servers
from tests.support.certificates import certificates
from tests.support.scripted import Call, Reply
from tests.support.spoiledstores import Forward, refusal, spoiled
from tests.support.stores import PART_BYTES, blob_key, send

DATA = os.urandom(PART_BYTES) + b"tail"
KEY = blob_key(DATA)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.S3Server]:
    with servers.versitygw(tmp_path_factory.mktemp("versity")) as running:
        yield running


def _settings(server: servers.S3Server, endpoint: str, **more: object) -> S3Settings:
    base = S3Settings(
        server.bucket,
        prefix=f"stores/{secrets.token_hex(4)}",
        endpoint=endpoint,
        access_key=server.access_key,
        secret_key=server.secret_key,
        read_seconds=5.0,
    )
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]  # tests pass fields of S3Settings


def _store(settings: S3Settings, waits: list[float] | None = None) -> S3:
    """A store that does not really wait between attempts."""
    seen = [] if waits is None else waits
    return S3(settings, client=Client(settings, sleep=seen.append))


def _is_complete(call: Call) -> bool:
    return call.method == "POST" and "uploadId=" in call.path and KEY in call.path


@pytest.mark.parametrize("kind", ["error in a 200", "500 after the commit", "reset after the commit", "503 before"])
def test_o60_what_is_at_the_key_decides_what_a_complete_did(server: servers.S3Server, kind: str) -> None:
    met: list[str] = []

    def spoil(call: Call, forward: Forward) -> Reply:
        if not _is_complete(call) or met:
            return forward()
        met.append(call.path)
        if kind == "error in a 200":
            return refusal("InternalError", 200)
        if kind == "503 before":
            return refusal("SlowDown", 503)
        forward()
        return refusal("InternalError", 500) if kind == "500 after the commit" else Reply(reset=True, length=100)

    with spoiled(server, spoil) as proxy:
        objects = _store(_settings(server, proxy.server.endpoint))
        upload = objects.create_upload(KEY, len(DATA))
        objects.complete(upload, send(objects, upload, DATA), recheck=False)

    assert len(met) == 1
    assert objects.settings.endpoint == proxy.server.endpoint
    direct = _store(dataclasses.replace(objects.settings, endpoint=server.endpoint))
    assert direct.get(KEY, max_bytes=len(DATA)) == DATA


def test_o60_an_error_in_a_200_that_stays_is_a_failure_and_nothing_is_visible(server: servers.S3Server) -> None:
    with spoiled(server, lambda c, forward: refusal("InternalError", 200) if _is_complete(c) else forward()) as proxy:
        objects = _store(_settings(server, proxy.server.endpoint))
        upload = objects.create_upload(KEY, len(DATA))
        with pytest.raises(StoreUnavailable):
            objects.complete(upload, send(objects, upload, DATA), recheck=False)

        assert objects.head(KEY) is None
        assert 1 < sum(_is_complete(call) for call in proxy.calls) <= ATTEMPTS


def test_o60_an_upload_that_went_without_a_result_is_begun_anew(server: servers.S3Server) -> None:
    with spoiled(server, lambda c, forward: refusal("NoSuchUpload", 404) if _is_complete(c) else forward()) as proxy:
        objects = _store(_settings(server, proxy.server.endpoint))
        upload = objects.create_upload(KEY, len(DATA))
        with pytest.raises(NotPublished) as caught:
            objects.complete(upload, send(objects, upload, DATA), recheck=False)

    assert caught.value.code == "UploadGone"


def test_o61_a_body_that_ends_early_is_read_again(server: servers.S3Server) -> None:
    cut: list[str] = []

    def spoil(call: Call, forward: Forward) -> Reply:
        reply = forward()
        if call.method == "GET" and "/victim" in call.path and len(cut) < 2:
            cut.append(call.path)
            return dataclasses.replace(reply, body=reply.body[:500], length=len(reply.body), close=True)
        return reply

    with spoiled(server, spoil) as proxy:
        objects = _store(_settings(server, proxy.server.endpoint))
        objects.put("victim", DATA[:1000])

        assert objects.get("victim", max_bytes=1000) == DATA[:1000]
    assert len(cut) == 2


def test_o62_a_skewed_clock_is_named_with_its_size(server: servers.S3Server) -> None:
    def spoil(call: Call, forward: Forward) -> Reply:
        del call, forward
        date = email.utils.formatdate(time.time() - 300, usegmt=True)
        reply = refusal("RequestTimeTooSkewed", 403)
        # The server's own Date comes first in the answer of http.server; a raw answer has only this one.
        head = f"HTTP/1.1 403 Forbidden\r\nDate: {date}\r\nContent-Length: {len(reply.body)}\r\n\r\n"
        return Reply(raw=head.encode() + reply.body)

    with spoiled(server, spoil) as proxy, pytest.raises(StoreUnavailable, match=r"\+(299|300|301) s") as caught:
        _store(_settings(server, proxy.server.endpoint)).put("k", b"x")
    assert caught.value.code == "ClockSkew"


def test_o62_an_expired_token_makes_the_credentials_be_read_again(server: servers.S3Server) -> None:
    refused: list[str] = []

    def spoil(call: Call, forward: Forward) -> Reply:
        if call.method == "PUT" and not refused:
            refused.append(call.path)
            return refusal("ExpiredToken", 400)
        return forward()

    with spoiled(server, spoil) as proxy:
        objects = _store(_settings(server, proxy.server.endpoint))
        objects.put("k", b"x")

        assert objects.get("k", max_bytes=1) == b"x"
    assert len(refused) == 1


@pytest.mark.parametrize(("code", "status"), [("QuotaExceeded", 403), ("XMinioStorageFull", 507), ("Other", 507)])
def test_a_full_store_is_told_apart_and_not_asked_again(server: servers.S3Server, code: str, status: int) -> None:
    with spoiled(server, lambda *_: refusal(code, status)) as proxy:
        with pytest.raises(StoreFull):
            _store(_settings(server, proxy.server.endpoint)).put("k", b"x")

        assert len(proxy.calls) == 1


def test_a_busy_store_is_asked_again_with_growing_pauses_and_then_given_up(server: servers.S3Server) -> None:
    waits: list[float] = []
    with spoiled(server, lambda *_: refusal("SlowDown", 503)) as proxy:
        with pytest.raises(StoreUnavailable):
            _store(_settings(server, proxy.server.endpoint), waits).put("k", b"x")

        assert len(proxy.calls) == ATTEMPTS
    assert len(waits) == ATTEMPTS - 1
    assert waits[-1] > waits[0]


def test_a_lost_answer_to_put_if_absent_does_not_look_like_somebody_elses(server: servers.S3Server) -> None:
    lost: list[str] = []

    def spoil(call: Call, forward: Forward) -> Reply:
        reply = forward()
        if call.method == "PUT" and not lost:
            lost.append(call.path)
            return refusal("InternalError", 500)
        return reply

    with spoiled(server, spoil) as proxy:
        objects = _store(_settings(server, proxy.server.endpoint))

        assert objects.put_if_absent("lease", b"mine") is True
        assert objects.put_if_absent("lease", b"other") is False


def test_nobody_there_is_unavailable(server: servers.S3Server) -> None:
    settings = _settings(server, f"http://127.0.0.1:{servers.free_port()}")

    with pytest.raises(StoreUnavailable) as caught:
        _store(settings).head("k")
    assert caught.value.code == "Unreachable"


def test_wrong_keys_and_a_missing_bucket_are_said_without_secrets(server: servers.S3Server) -> None:
    wrong = _settings(server, server.endpoint, secret_key="very-secret-key")
    missing = _settings(server, server.endpoint, bucket="nobody-has-this")

    with pytest.raises(StoreUnsafe) as denied:
        _store(wrong).put("k", b"x")
    with pytest.raises(StoreUnsafe) as none:
        _store(missing).put("k", b"x")

    assert (denied.value.code, none.value.code) == ("AccessDenied", "NoBucket")
    assert "very-secret-key" not in str(denied.value)
    assert "very-secret-key" not in repr(wrong)


def test_no_credentials_are_asked_for_by_their_names(server: servers.S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)

    with pytest.raises(StoreUnsafe, match="AWS_ACCESS_KEY_ID"):
        _store(_settings(server, server.endpoint, access_key="")).head("k")


def test_o52_no_ticket_beyond_the_last_part_number(server: servers.S3Server) -> None:
    objects = _store(_settings(server, server.endpoint))
    upload = objects.create_upload(KEY, 20_000)

    with pytest.raises(ValueError, match="part 10001"):
        objects.part_ticket(upload, 10_001, 10_000, 10_001)


def test_o59_o63_over_tls_with_a_private_authority_bodies_are_sent_plainly(
    server: servers.S3Server, tmp_path: Path
) -> None:
    authority = certificates(tmp_path)

    def spoil(call: Call, forward: Forward) -> Reply:
        if call.method == "PUT" and "content-length" not in call.headers:
            return Reply(411)
        return forward()

    with spoiled(server, spoil, context=authority.server_context()) as proxy:
        objects = _store(_settings(server, proxy.server.endpoint, ca_file=str(authority.ca)))
        objects.put("k", b"payload")
        assert objects.get("k", max_bytes=10) == b"payload"
        assert [finding for finding in objects.probe() if not finding.passed] == []
        objects.delete("k")
        sent = [call for call in proxy.calls if call.method == "PUT"]

        with pytest.raises(StoreUnavailable) as caught:
            _store(_settings(server, proxy.server.endpoint)).head("k")

    assert caught.value.code == "TlsFailed"
    assert not any("aws-chunked" in call.headers.get("content-encoding", "") for call in sent)
    assert not any("x-amz-trailer" in call.headers for call in sent)


def test_a_part_ticket_holds_no_key_and_expires(server: servers.S3Server) -> None:
    objects = _store(_settings(server, server.endpoint, part_ticket_seconds=60))
    upload = objects.create_upload(KEY, len(DATA))
    ticket = objects.part_ticket(upload, 1, 0, 10)
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(ticket.url).query)

    assert server.secret_key not in ticket.url
    assert query["X-Amz-Expires"] == ["60"]
    assert 0 < ticket.expires_at - time.time() <= 60
    assert ticket.url not in repr(ticket)


@pytest.fixture(scope="module")
def moto() -> Iterator[servers.S3Server]:
    with servers.moto() as running:
        yield running


def _failed(server: servers.S3Server, bucket: str) -> dict[str, bool]:
    findings = _store(_settings(server, server.endpoint, bucket=bucket)).probe()
    return {finding.name: finding.fatal for finding in findings if not finding.passed}


def test_the_probe_finds_what_a_bucket_is_set_to(moto: servers.S3Server) -> None:
    client = moto.client()
    client.create_bucket(Bucket="set-up")
    plain = _failed(moto, "set-up")
    client.put_bucket_versioning(Bucket="set-up", VersioningConfiguration={"Status": "Enabled"})
    client.put_bucket_lifecycle_configuration(
        Bucket="set-up",
        LifecycleConfiguration={
            "Rules": [{"ID": "all", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 3}}]
        },
    )
    client.put_bucket_encryption(
        Bucket="set-up",
        ServerSideEncryptionConfiguration={
            "Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}]
        },
    )

    assert set(_failed(moto, "set-up")) - set(plain) >= {"no-versioning", "no-expiry", "no-kms"}
    assert not any(_failed(moto, "set-up").values())


def test_the_probe_refuses_default_retention(moto: servers.S3Server) -> None:
    client = moto.client()
    client.create_bucket(Bucket="retained", ObjectLockEnabledForBucket=True)
    client.put_object_lock_configuration(
        Bucket="retained",
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}},
        },
    )

    assert _failed(moto, "retained").get("no-default-retention") is True


RETAINED = b"""<?xml version="1.0"?><ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>
<Rule><DefaultRetention><Mode>GOVERNANCE</Mode><Days>1</Days></DefaultRetention></Rule></ObjectLockConfiguration>"""


def test_a_bucket_that_passed_is_not_tried_again_unless_asked_and_one_that_refused_always_is(
    server: servers.S3Server,
) -> None:
    with spoiled(server) as proxy:
        settings = _settings(server, proxy.server.endpoint)
        first = _store(settings).probe()
        tried = len(proxy.calls)
        again = _store(settings).probe()
        looked = len(proxy.calls) - tried
        proxy.when(lambda call: "object-lock" in call.path, lambda *_: Reply(200, RETAINED))
        remembered = _store(settings).probe()
        anew, after = _store(settings).probe(anew=True), _store(settings).probe()
        kept = list(_store(settings).list(""))

    assert (again, remembered, looked) == (first, first, 1)
    assert [finding.name for finding in first if finding.fatal and not finding.passed] == []
    assert [finding.name for finding in anew if finding.fatal and not finding.passed] == ["no-default-retention"]
    assert (after, kept) == (anew, [])


def test_the_probe_says_when_expired_deletions_are_taken(moto: servers.S3Server) -> None:
    """No real server does that; this stand-in does not check signatures."""
    assert "expired-delete-refused" in _failed(moto, moto.bucket)


class _Forgetful(S3):
    """A bucket whose server takes whatever attempt of a part it likes."""

    def _can(self, name: str) -> bool:
        del name
        return False


def test_a_server_that_cannot_tell_two_attempts_apart_shows_neither(server: servers.S3Server) -> None:
    objects = _Forgetful(_settings(server, server.endpoint))
    upload = objects.create_upload(KEY, len(DATA))
    records = send(objects, upload, DATA)

    with pytest.raises(StoreUnavailable) as caught:
        objects.complete(upload, records, recheck=True)

    assert caught.value.code == "PartsDiffer"
    assert objects.head(KEY) is None
    objects.complete(upload, records, recheck=False)
    assert objects.get(KEY, max_bytes=len(DATA)) == DATA
