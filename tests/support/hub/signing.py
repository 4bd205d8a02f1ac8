"""Signed, expiring URLs of the CDN host, in the two shapes that the hub hands out."""

import datetime
import enum
import hashlib
import hmac
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


class Style(enum.StrEnum):
    """How a signed URL says when it ends."""

    EXPIRES = "expires"
    """`Expires=<unix seconds>&Policy=…&Signature=…&Key-Pair-Id=…`."""
    AMZ = "amz"
    """`X-Amz-Date=…&X-Amz-Expires=<seconds>&X-Amz-Signature=…`."""


@dataclass(slots=True)
class Signer:
    """Signs paths, checks signatures, and can revoke one URL."""

    key: bytes
    clock: Callable[[], float]
    lifetime_seconds: float = 3600
    style: Style = Style.EXPIRES
    _serial: int = 0
    _revoked: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def query(self, path: str) -> str:
        """Query string that opens `path` until the lifetime is over; each call gives another signature."""
        with self._lock:
            self._serial += 1
            serial = self._serial
        now = self.clock()
        if self.style is Style.AMZ:
            moment = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
            fields = {
                "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
                "X-Amz-Credential": f"hub/{serial}",
                "X-Amz-Date": moment,
                "X-Amz-Expires": str(round(self.lifetime_seconds)),
            }
            name = "X-Amz-Signature"
        else:
            fields = {
                "Policy": f"policy-{serial}",
                "Key-Pair-Id": "K0",
                "Expires": str(round(now + self.lifetime_seconds)),
            }
            name = "Signature"
        return urllib.parse.urlencode({**fields, name: self._signature(path, fields)})

    def problem(self, path: str, query: Mapping[str, str]) -> str | None:
        """Why a request for `path` is refused, or None."""
        fields = {name: value for name, value in query.items() if not name.endswith("Signature")}
        given = query.get("Signature") or query.get("X-Amz-Signature") or ""
        if not hmac.compare_digest(given, self._signature(path, fields)):
            return "SignatureDoesNotMatch"
        if given in self._revoked or self.clock() >= _end(fields):
            return "Request has expired"
        return None

    def revoke(self, query: Mapping[str, str]) -> None:
        """Treat one signed URL as expired from now on."""
        with self._lock:
            self._revoked.add(query.get("Signature") or query.get("X-Amz-Signature") or "")

    def _signature(self, path: str, fields: Mapping[str, str]) -> str:
        text = "\n".join([path, *(f"{name}={fields[name]}" for name in sorted(fields))])
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


def _end(fields: Mapping[str, str]) -> float:
    if "Expires" in fields:
        return float(fields["Expires"])
    begin = datetime.datetime.strptime(fields["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
    return begin.timestamp() + float(fields["X-Amz-Expires"])
