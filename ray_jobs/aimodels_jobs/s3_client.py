"""One way to talk to an S3 server: settings, deadlines, retries with a budget, errors of our tree, presigned requests.

What is asked of the server is in `s3` and `s3_probe`. No payload of a blob passes through here.
"""

import dataclasses
import datetime
import email.utils
import random
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import botocore.session
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    SSLError,
)
from botocore.httpsession import URLLib3Session

from aimodels_core.errors import AiModelsError, StoreFull, StoreUnavailable, StoreUnsafe

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

ATTEMPTS = 5
BUDGET_SECONDS = 60.0
_FULL = frozenset(
    {
        "507",
        "InsufficientStorage",
        "QuotaExceeded",
        "StorageFull",
        "XMinioStorageFull",
        "XMinioAdminBucketQuotaExceeded",
    }
)
_DENIED = frozenset({"403", "AccessDenied", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch"})
_READ_ONLY = frozenset({"405", "MethodNotAllowed"})
_BUSY = frozenset(
    {
        *("408", "429", "SlowDown", "RequestTimeout", "Throttling", "InternalError", "ServiceUnavailable"),
        # Versity Gateway, when the deletion of a neighbour removes the folder that an object is just written into.
        "ExistingObjectIsDirectory",
    }
)
_EXPIRED = frozenset({"ExpiredToken", "TokenRefreshRequired", "400"})  # the bare status: answers to HEAD name no code
_MAX_BODY_BYTES = 64 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class S3Settings:
    """Where a bucket is, and how it is spoken to. Credentials come from the usual AWS variables unless given.

    Args:
        bucket: its name.
        prefix: what all keys begin with, without slashes at the ends; empty for the whole bucket.
        endpoint: URL of the server; empty for AWS.
        region: of the signature.
        path_style: the bucket in the path and not in the host name.
        ca_file: PEM file to verify TLS with; empty for the usual ones.
        access_key: with `secret_key`, instead of the usual chain.
        secret_key: never shown.
        part_ticket_seconds: how long leave to send a part lasts.
        connections: size of the connection pool.
        connect_seconds: deadline of a connection.
        read_seconds: longest silence of the server.
        page: how many entries of a listing are asked for at once.
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = "us-east-1"
    path_style: bool = True
    ca_file: str = ""
    access_key: str = ""
    secret_key: str = dataclasses.field(default="", repr=False)
    part_ticket_seconds: int = 900
    connections: int = 32
    connect_seconds: float = 5.0
    read_seconds: float = 60.0
    page: int = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that the caller said it could deal with."""

    code: str
    status: int


class Client:
    """Calls with retries.

    Args:
        settings: where and how.
        clock: Unix seconds.
        monotonic: for budgets.
        sleep: waits that many seconds.
        jitter: a number in [0, 1).
    """

    def __init__(
        self,
        settings: S3Settings,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self._monotonic = monotonic
        self._sleep = sleep
        self._jitter = jitter
        self._lock = threading.Lock()
        self._client = _connected(settings)
        timeout = (settings.connect_seconds, settings.read_seconds)
        self._http = URLLib3Session(
            verify=settings.ca_file or True,  # type: ignore[arg-type]  # it takes a path too
            timeout=timeout,  # type: ignore[arg-type]  # it takes a pair too
            max_pool_connections=settings.connections,
        )

    def call(
        self, what: str, action: Callable[["S3Client"], T], *, accept: Collection[str] = (), attempts: int = ATTEMPTS
    ) -> T | Refusal:
        """Run `action`, again while the server is busy or away; answers in `accept` are given back as a `Refusal`.

        Args:
            what: the thing, for messages.
            action: one request and the reading of its answer; must be safe to repeat.
            accept: error codes, or statuses as text.
            attempts: how often at most.

        Raises:
            StoreFull, StoreUnsafe: not repeated.
            StoreUnavailable: after all attempts or the budget.
        """
        deadline = self._monotonic() + BUDGET_SECONDS
        for attempt in range(1, attempts + 1):
            client = self._client
            try:
                return action(client)
            except ClientError as error:
                code, status = _code(error)
                if code in accept or str(status) in accept:
                    return Refusal(code, status)
                failure = self._translated(what, error)
                if code in _EXPIRED:
                    self._renew(client)
                elif not (status >= 500 or code in _BUSY) or isinstance(failure, StoreFull):
                    raise failure from error
                cause: Exception = error
            except BotoCoreError as error:
                failure = _lost(what, error)
                if failure.code != "Unreachable":
                    raise failure from error
                cause = error
            pause = self.pause(attempt)
            if attempt == attempts or self._monotonic() + pause > deadline:
                raise failure from cause
            self._sleep(pause)
        raise StoreUnavailable(f"{what}: want at least one attempt")

    def ask(
        self,
        what: str,
        operation: str,
        params: Mapping[str, object],
        *,
        accept: Collection[str] = (),
        attempts: int = ATTEMPTS,
    ) -> Any:
        """Make one call by its name; gives the server's dictionary, or a `Refusal`. Raises as `call` does."""
        return self.call(what, lambda c: getattr(c, operation)(**params), accept=accept, attempts=attempts)

    def wait(self, attempt: int) -> None:
        """Wait after the `attempt`-th failure."""
        self._sleep(self.pause(attempt))

    def pause(self, attempt: int) -> float:
        """Seconds to wait after the `attempt`-th failure."""
        return float(min(5.0, 0.1 * 2**attempt) * (0.5 + self._jitter() / 2))

    def presigned(self, operation: str, params: Mapping[str, object], seconds: int) -> str:
        """Sign a request for somebody else to send, or for ourselves within `seconds`."""
        try:
            return self._client.generate_presigned_url(operation, Params=dict(params), ExpiresIn=seconds)
        except BotoCoreError as error:
            raise _lost("sign a request", error) from error

    def signed_at(self, method: str, url: str, *, seconds: int, at: float) -> str:
        """Sign a request as if the time were `at` (Unix seconds)."""
        frozen = self._client._request_signer._credentials.get_frozen_credentials()  # type: ignore[attr-defined]  # noqa: SLF001  # botocore shows them nowhere else
        request = AWSRequest(method=method, url=url)
        _DatedAuth(frozen, "s3", self.settings.region, expires=seconds).sign(request, at)
        return str(request.url)

    def send(self, what: str, method: str, url: str, body: bytes = b"") -> tuple[int, Mapping[str, str], bytes]:
        """Send a presigned request; gives status, headers (lower-case names) and at most 64 KiB of the body.

        Raises:
            StoreUnavailable: no answer.
        """
        request = AWSRequest(method=method, url=url, data=body, headers={"Content-Length": str(len(body))})
        try:
            answer = self._http.send(request.prepare())
        except BotoCoreError as error:
            raise _lost(what, error) from error
        return (
            answer.status_code,
            {str(k).lower(): str(v) for k, v in answer.headers.items()},
            answer.content[:_MAX_BODY_BYTES],
        )

    def _renew(self, used: "S3Client") -> None:
        """Read the credentials again; one thread does it for all that failed with the same ones."""
        with self._lock:
            if self._client is used:
                self._client = _connected(self.settings)

    def _translated(self, what: str, error: ClientError) -> AiModelsError:
        code, status = _code(error)
        message = f"{what}: {code}: {error.response.get('Error', {}).get('Message', '')[:200]}"
        if code in _FULL or status == 507:
            return StoreFull(message)
        if code == "RequestTimeTooSkewed":
            return StoreUnavailable(f"{what}: {self._skew_text(error)}", code="ClockSkew")
        if code in _EXPIRED:
            return StoreUnavailable(message, code="ExpiredToken")
        if code == "NoSuchBucket":
            return StoreUnsafe(f"bucket {self.settings.bucket}: want it to exist, got {code}", code="NoBucket")
        if code in _DENIED:
            return StoreUnsafe(message, code="AccessDenied")
        if code in _READ_ONLY or status == 405:
            return StoreUnsafe(message, code="ReadOnly")
        return StoreUnavailable(message, code=code if code.isalpha() else "")

    def _skew_text(self, error: ClientError) -> str:
        date = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
        skew = skew_seconds(date, self.clock())
        by = "by an unknown time" if skew is None else f"by {skew:+.0f} s"
        return f"want this machine's clock to be that of the store, got it different {by}"


class _DatedAuth(S3SigV4QueryAuth):
    """A query signature of a given time."""

    def sign(self, request: AWSRequest, at: float) -> None:
        """Sign `request` in place."""
        when = datetime.datetime.fromtimestamp(at, datetime.UTC)
        request.context["timestamp"] = when.strftime("%Y%m%dT%H%M%SZ")
        self._modify_request_before_signing(request)  # type: ignore[attr-defined]  # missing in the stubs
        text = self.string_to_sign(request, self.canonical_request(request))
        self._inject_signature_to_request(  # type: ignore[attr-defined]  # missing in the stubs
            request, self.signature(text, request)
        )


def skew_seconds(date: str, now: float) -> float | None:
    """How far our clock is ahead of a server's Date header, in seconds; None when there is none to read."""
    try:
        return now - email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None


def _connected(settings: S3Settings) -> "S3Client":
    config = Config(
        signature_version="s3v4",
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if settings.path_style else "virtual"},
        max_pool_connections=settings.connections,
        connect_timeout=settings.connect_seconds,
        read_timeout=settings.read_seconds,
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
    )
    more: dict[str, Any] = {}
    if settings.access_key:
        more = {"aws_access_key_id": settings.access_key, "aws_secret_access_key": settings.secret_key}
    client = botocore.session.Session().create_client(  # boto3 adds transfers that nobody here uses, and their import
        "s3",
        region_name=settings.region,
        endpoint_url=settings.endpoint or None,
        verify=settings.ca_file or None,
        config=config,
        **more,
    )
    return cast("S3Client", client)


def _code(error: ClientError) -> tuple[str, int]:
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return str(error.response.get("Error", {}).get("Code", status)), status


def _lost(what: str, error: BotoCoreError) -> AiModelsError:
    if isinstance(error, ParamValidationError):
        raise error
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return StoreUnsafe(
            f"{what}: want AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, got no credentials", code="NoCredentials"
        )
    if isinstance(error, SSLError):
        return StoreUnavailable(
            f"{what}: want a certificate that the CA file proves, got {type(error).__name__}", code="TlsFailed"
        )
    return StoreUnavailable(f"{what}: no answer{_from(error)}: {type(error).__name__}", code="Unreachable")


def _from(error: BotoCoreError) -> str:
    """Name the server that an error speaks of; never the rest of its URL, which may be signed."""
    parts = urllib.parse.urlsplit(str(error.kwargs.get("endpoint_url", "")))
    return f" from {parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""
