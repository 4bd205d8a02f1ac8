"""Tokens for reading from a registry: the challenge it sends, and the token its issuer gives for it.

Source: distribution docs/spec/auth/token.md, "How to authenticate"; RFC 9110, 11.6.1.
"""

import dataclasses
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable

from aimodels_core.errors import SourceDenied, SourceUnavailable
from aimodels_core.transport import Answer, Transport, redact

_MAX_TOKEN_BYTES = 64 * 1024
_DEFAULT_SECONDS = 60.0  # token.md: "expires_in: … if omitted, this defaults to 60 seconds"
_PARAMETER = re.compile(r'\s*([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|$)')


@dataclasses.dataclass(frozen=True, slots=True)
class Challenge:
    """What a registry wants: `scheme` is `bearer` or `basic`."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


def parse_challenge(header: str) -> Challenge | None:
    """Parse WWW-Authenticate; None when it offers nothing that is understood.

    >>> parse_challenge('Bearer realm="https://a/t",service="r",scope="repository:x:pull,push"').scope
    'repository:x:pull,push'
    """
    if len(header) > 4096:
        return None
    scheme, _, rest = header.strip().partition(" ")
    fields = {
        match[1].lower(): re.sub(r"\\(.)", r"\1", match[2] or "") or match[3] or "" for match in _parameters(rest)
    }
    if scheme.lower() == "basic":
        return Challenge("basic", fields.get("realm", ""))
    if scheme.lower() != "bearer" or not fields.get("realm"):
        return None
    return Challenge("bearer", fields["realm"], fields.get("service", ""), fields.get("scope", ""))


def _parameters(text: str) -> list[re.Match[str]]:
    found, position = [], 0
    while match := _PARAMETER.match(text, position):
        found.append(match)
        position = match.end()
    return found


class Tokens:
    """Authorization headers for one repository of one registry. Safe from several threads.

    Args:
        transport: for the issuer.
        credential: returns the Authorization value to show to the issuer, such as `Basic …`, asked again each time so
            that rotated files are followed; an empty string for none.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        credential: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport, self._credential, self._clock = transport, credential, clock
        self._lock = threading.Lock()
        self._value, self._until = "", 0.0
        self._challenge: Challenge | None = None

    def header(self) -> dict[str, str]:
        """Return the header to send now: nothing before the first challenge."""
        with self._lock:
            if self._challenge is not None and self._clock() >= self._until:
                self._renew(self._challenge)
            return {"Authorization": self._value} if self._value else {}

    def answer(self, refused: Answer, *, used: str) -> None:
        """Take in a 401 and get what it asks for; callers that were refused with the same value share one request.

        Args:
            refused: the answer.
            used: the Authorization value that was refused; empty for none.

        Raises:
            SourceDenied: no credential, or it is not accepted.
            SourceUnavailable: the issuer does not answer as it should, or is on a foreign host.
        """
        with self._lock:
            if self._value and self._value != used:
                return
            challenge = parse_challenge(refused.headers.get("www-authenticate", ""))
            if challenge is None:
                raise SourceDenied(f"{redact(refused.url)}: not authorised, and no way to be is offered")
            if challenge.scheme == "bearer":
                challenge = dataclasses.replace(challenge, realm=self._issuer(refused.url, challenge.realm))
            self._renew(challenge)
            self._challenge = challenge

    def _issuer(self, registry_url: str, realm: str) -> str:
        realm = urllib.parse.urljoin(registry_url, realm)
        if not self._transport.rules.may_redirect(registry_url, realm):
            message = f"{redact(registry_url)}: want a token issuer on an allowed host, got {redact(realm)}"
            raise SourceUnavailable(message, code="ForeignRedirect")
        return realm

    def _renew(self, challenge: Challenge) -> None:
        credential = self._credential()
        if challenge.scheme == "basic":
            if not credential or credential == self._value:
                raise SourceDenied(f"registry {challenge.realm[:80]!r}: want a user name and password that it accepts")
            self._value, self._until = credential, float("inf")
            return
        self._value, seconds = self._fetch(challenge, credential)
        self._until = self._clock() + seconds * 0.8

    def _fetch(self, challenge: Challenge, credential: str) -> tuple[str, float]:
        wanted = [(k, v) for k, v in (("service", challenge.service), ("scope", challenge.scope)) if v]
        url = challenge.realm + ("&" if "?" in challenge.realm else "?") + urllib.parse.urlencode(wanted)
        headers = {"Authorization": credential} if credential else {}
        answer = self._transport.call("GET", url, headers=headers, max_bytes=_MAX_TOKEN_BYTES)
        if answer.status != 200:
            raise SourceDenied(f"{redact(url)}: want a token, got status {answer.status}")
        return parse_token(answer.body, redact(url))


def parse_token(body: bytes, shown: str) -> tuple[str, float]:
    """Return the Authorization value and its seconds of life from an issuer's answer; `shown` names the issuer.

    Raises:
        SourceUnavailable: not the answer of a token issuer.

    >>> parse_token(b'{"access_token": "abc", "expires_in": 300}', "issuer")
    ('Bearer abc', 300.0)
    """
    try:
        document = json.loads(body)
        token = document.get("token") or document.get("access_token")
        seconds = float(document.get("expires_in") or _DEFAULT_SECONDS)
    except (ValueError, TypeError, AttributeError, RecursionError):
        token, seconds = None, 0.0
    if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
        raise SourceUnavailable(f"{shown}: want a token as JSON, got something else", code="BadAnswer")
    return f"Bearer {token}", max(_DEFAULT_SECONDS, seconds)
