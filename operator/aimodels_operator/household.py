"""Keeps the Secrets of the module's own namespace: reads them, has `home` decide, and writes what it asks for.

Only the leader does this, each write behind its fence. What is in force is handed to those who need it; values are
never logged.
"""

import asyncio
import base64
import datetime
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from aimodels_core.errors import ClusterUnavailable, CoordinatorUnavailable
from aimodels_core.names import HomeSecret
from aimodels_operator import certificates, home
from aimodels_operator.certificates import Pair
from aimodels_operator.coordinator import Access
from aimodels_operator.home import Decision, Make, Seen, Values
from aimodels_operator.kube import texts_of
from aimodels_operator.pacing import back_off

log = logging.getLogger(__name__)

LOOK_EVERY_SECONDS = 30.0
_TOKEN_BYTES = 32
_ALL = "all"
_LABELS = {"heritage": "deckhouse", "module": "ai-models", "app.kubernetes.io/name": "ai-models"}

Raw = dict[str, Any]


class SecretStore(Protocol):
    """Where Secrets are kept."""

    async def get_secret(self, namespace: str, name: str) -> Raw | None:
        """Read a Secret; None when there is none.

        Raises:
            ClusterUnavailable: code Forbidden among others.
        """
        ...

    async def put_secret(self, secret: Raw) -> Raw:
        """Create a Secret, or replace the version that it names.

        Raises:
            ClusterUnavailable: code Conflict when somebody was faster, Forbidden among others.
        """
        ...


class Household:
    """The Secrets of one namespace.

    Args:
        store: the API server.
        check: the fence; raises LeadershipLost.
        namespace: of the Secrets.
        sources: namespace and name of the administrator's Secret of each mirror that is wanted.
        now: aware.
        sleep: waits.
    """

    def __init__(
        self,
        store: SecretStore,
        check: Callable[[], None],
        namespace: str,
        sources: Mapping[HomeSecret, tuple[str, str]],
        *,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._check = check
        self._namespace = namespace
        self._sources = dict(sources)
        self._now = now
        self._sleep = sleep
        self._held: dict[HomeSecret, Values] = {}
        self.troubles: dict[str, str] = {}
        self.settled = asyncio.Event()

    async def keep(self) -> None:
        """Look after the Secrets until cancelled; `settled` is set after the first try, whatever came of it.

        Raises:
            LeadershipLost.
        """
        failures = 0
        while True:
            try:
                await self.look()
                failures = 0
            except ClusterUnavailable as error:
                failures += 1
                if error.code != "Conflict":
                    self._tell({**self.troubles, _ALL: error.message})
            self.settled.set()
            await self._sleep(back_off(failures, most_seconds=LOOK_EVERY_SECONDS) if failures else LOOK_EVERY_SECONDS)

    async def look(self) -> None:
        """Look once, and make what has to be made.

        Raises:
            ClusterUnavailable: look again; code Conflict when somebody else wrote meanwhile.
            LeadershipLost.
        """
        troubles: dict[str, str] = {}
        names = [*home.recipes(self._namespace), *self._sources]
        found = {name: await self._get(self._namespace, name, name, troubles) for name in names}
        raws = {name: raw for name, raw in found.items() if name not in troubles}
        seen = Seen(
            self._namespace,
            self._now(),
            {name: texts_of(raw or {}) for name, raw in raws.items()},
            await self._read_sources(troubles),
        )
        decision = home.decide(seen)
        for name, words in decision.troubles.items():
            troubles.setdefault(name, f"Secret {'/'.join(self._sources[name])}: {words}")
        self._held |= {name: values for name, values in seen.home.items() if values}
        await self._make(decision, raws, seen.now, troubles)
        self._tell(troubles)

    def text(self, name: HomeSecret, key: str) -> str:
        """What a Secret holds under a key, as far as it is known and usable; empty otherwise."""
        return self._held.get(name, {}).get(key, "").strip()

    def access(self) -> Access:
        """How the coordinator is talked to.

        Raises:
            CoordinatorUnavailable: the Secrets for it are not there yet; the message says why.
        """
        token = self.text(HomeSecret.COORDINATOR, "token")
        authority = self.text(HomeSecret.SERVING_ROOT, home.CERTIFICATE)
        if token and authority:
            return Access(token, authority)
        found = (self.troubles.get(name, "") for name in (HomeSecret.COORDINATOR, HomeSecret.SERVING_ROOT, _ALL))
        words = "; ".join(filter(None, found)) or f"Secrets in {self._namespace} are not there yet"
        raise CoordinatorUnavailable(words, code="Home")

    async def _get(self, namespace: str, name: str, about: HomeSecret, troubles: dict[str, str]) -> Raw | None:
        """Read a Secret; one that may not be read is a trouble."""
        try:
            return await self._store.get_secret(namespace, name)
        except ClusterUnavailable as error:
            if error.code != "Forbidden":
                raise
            troubles[about] = f"Secret {namespace}/{name}: not read: {error.message}"
            return None

    async def _read_sources(self, troubles: dict[str, str]) -> dict[HomeSecret, Values]:
        found: dict[HomeSecret, Values] = {}
        for about, (namespace, name) in self._sources.items():
            raw = await self._get(namespace, name, about, troubles)
            if raw is not None:
                found[about] = texts_of(raw)
            elif about not in troubles:
                keys = ", ".join(" or ".join(accepted) for accepted in home.MIRRORS[about].values())
                troubles[about] = f"Secret {namespace}/{name}: not found: make it, with keys {keys}"
        return found

    async def _make(
        self,
        decision: Decision,
        raws: Mapping[HomeSecret, Raw | None],
        now: datetime.datetime,
        troubles: dict[str, str],
    ) -> None:
        """Carry a decision out; a Secret that may not be written is a trouble, also of what depends on it."""
        for make in decision.makes:
            root = make.recipe.root if isinstance(make.recipe, home.Leaf) else None
            if root is not None and root in troubles:
                words = f"Secret {self._namespace}/{make.name}: waits for {root}"
            else:
                words = await self._write(make, raws[make.name], now)
            if words:
                troubles[make.name] = words
                if make.broken:
                    self._held.pop(make.name, None)

    async def _write(self, make: Make, raw: Raw | None, now: datetime.datetime) -> str:
        """Create or replace one Secret; returns why that was refused, if it was."""
        self._check()
        values = self._values_of(make, now)
        try:
            await self._store.put_secret(_filled(raw, self._namespace, make.name, values))
        except ClusterUnavailable as error:
            if error.code not in ("Forbidden", "Refused"):
                raise
            return f"Secret {self._namespace}/{make.name}: not written: {error.message}"
        self._held[make.name] = {**self._held.get(make.name, {}), **values}
        level = logging.WARNING if make.broken else logging.INFO
        log.log(level, "secret made", extra={"secret": str(make.name), "why": make.why})
        return ""

    def _values_of(self, make: Make, now: datetime.datetime) -> Values:
        match make.recipe:
            case home.Authority(common_name):
                return _texts(certificates.make_authority(common_name, now))
            case home.Leaf(root, common_name, hosts):
                authority = self._held[root]
                pair = Pair(authority[home.CERTIFICATE], authority[home.KEY])
                made = certificates.make_leaf(pair, common_name, hosts, now)
                return {**_texts(made), home.AUTHORITY: pair.certificate}
            case home.Token(key):
                return {key: secrets.token_urlsafe(_TOKEN_BYTES)}
            case home.Copy(values):
                return values

    def _tell(self, troubles: dict[str, str]) -> None:
        """Take troubles in, and log what is new about them."""
        for name, words in troubles.items():
            if self.troubles.get(name) != words:
                log.warning("secrets at home in trouble", extra={"secret": str(name), "error": words})
        for name in self.troubles.keys() - troubles.keys():
            log.info("secrets at home are well again", extra={"secret": str(name)})
        self.troubles = troubles


def _texts(pair: Pair) -> dict[str, str]:
    return {home.CERTIFICATE: pair.certificate, home.KEY: pair.key}


def _filled(raw: Raw | None, namespace: str, name: str, values: Values) -> Raw:
    """A Secret with these values; what else the present one has stays."""
    if raw is None:
        meta = {"name": name, "namespace": namespace, "labels": _LABELS}
        raw = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": meta}
    encoded = {key: base64.b64encode(value.encode()).decode("ascii") for key, value in values.items()}
    return {**raw, "data": {**(raw.get("data") or {}), **encoded}}
