"""The Secrets at home: what is made, kept, renewed, mirrored and told."""

import asyncio
import base64
import copy
import datetime
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aimodels_core.errors import ClusterUnavailable, CoordinatorUnavailable, LeadershipLost
from aimodels_core.names import HomeSecret
from aimodels_operator import certificates, home
from aimodels_operator.certificates import Pair
from aimodels_operator.household import LOOK_EVERY_SECONDS, Household
from aimodels_operator.kube import texts_of

HOME, SYSTEM = "d8-ai-models", "d8-system"
NOW = datetime.datetime(2026, 12, 1, 3, 0, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
ROOT = certificates.make_authority("root", NOW)
SOURCES = {name: (SYSTEM, f"administrators-{number}") for number, name in enumerate(home.MIRRORS)}
GIVEN: dict[HomeSecret, dict[str, str]] = {
    HomeSecret.S3: {"accessKey": "key", "secretKey": "s3cret"},
    HomeSecret.S3_CA: {"ca.crt": ROOT.certificate},
    HomeSecret.HUB: {"token": "hf_administrator"},
    HomeSecret.HUB_CA: {"ca.crt": ROOT.certificate},
}
OWN = set(home.recipes(HOME))
Key = tuple[str, str]


class Shelf:
    """Secrets of an API server, with optimistic locking; some calls may be refused."""

    def __init__(self) -> None:
        self.secrets: dict[Key, dict[str, Any]] = {}
        self.refused: dict[tuple[str, str], str] = {}
        self.written: list[str] = []
        self.version = 0

    async def get_secret(self, namespace: str, name: str) -> dict[str, Any] | None:
        self._refuse("get", namespace, name)
        return copy.deepcopy(self.secrets.get((namespace, name)))

    async def put_secret(self, secret: dict[str, Any]) -> dict[str, Any]:
        meta = secret["metadata"]
        version = meta.get("resourceVersion", "")
        self._refuse("update" if version else "create", meta["namespace"], meta["name"])
        held = self.secrets.get((meta["namespace"], meta["name"]))
        if (held["metadata"]["resourceVersion"] if held else "") != version:
            raise ClusterUnavailable("changed", code="Conflict")
        self.written.append(meta["name"])
        return self._keep(secret)

    def put(self, namespace: str, name: str, values: Mapping[str, str], **fields: Any) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        self._keep({"metadata": {"namespace": namespace, "name": name}, "data": data, **fields})

    def values(self, name: str) -> dict[str, str]:
        return texts_of(self.secrets[HOME, name])

    def _keep(self, secret: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        kept = copy.deepcopy(secret)
        kept["metadata"]["resourceVersion"] = str(self.version)
        self.secrets[kept["metadata"]["namespace"], kept["metadata"]["name"]] = kept
        return kept

    def _refuse(self, verb: str, namespace: str, name: str) -> None:
        code = self.refused.get((verb, name)) or self.refused.get((verb, "*"))
        if code:
            words = f"{verb} secrets {namespace}/{name}: status 403: secrets is forbidden: cannot {verb} resource"
            raise ClusterUnavailable(words, code=code)


def free() -> None:
    """A fence that lets everything pass."""


class Calendar:
    """The present day."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime.datetime:
        return self.now


def household(shelf: Shelf, now: Any = None, sources: Mapping[HomeSecret, Key] | None = None) -> Household:
    return Household(shelf, free, HOME, sources or {}, now=now or Calendar())


def administrated(values: Mapping[HomeSecret, Mapping[str, str]] = GIVEN) -> Shelf:
    """A shelf with the administrator's Secrets."""
    shelf = Shelf()
    for name, held in values.items():
        shelf.put(*SOURCES[name], held)
    return shelf


def leaf_fault(shelf: Shelf, name: HomeSecret, now: datetime.datetime = NOW) -> str:
    recipe = home.recipes(HOME)[name]
    assert isinstance(recipe, home.Leaf)
    held, root = shelf.values(name), shelf.values(recipe.root)
    assert held["ca.crt"] == root["tls.crt"]
    return certificates.leaf_fault(Pair(held["tls.crt"], held["tls.key"]), root["tls.crt"], recipe.hosts, now)


@pytest.mark.asyncio
async def test_everything_is_made_where_nothing_is() -> None:
    shelf = Shelf()
    await household(shelf).look()
    leaves = [name for name, recipe in home.recipes(HOME).items() if isinstance(recipe, home.Leaf)]

    assert {name for _, name in shelf.secrets} == OWN
    assert [leaf_fault(shelf, name) for name in leaves] == ["", "", "", ""]
    assert set(shelf.values(HomeSecret.COORDINATOR)) == {"token"}
    assert set(shelf.values(HomeSecret.RAY)) == {"auth_token"}
    assert shelf.secrets[HOME, "ai-models-ray"]["type"] == "Opaque"
    assert shelf.values(HomeSecret.COORDINATOR)["token"] != shelf.values(HomeSecret.RAY)["auth_token"]


def test_servers_have_all_the_names_that_pods_use() -> None:
    recipe = home.recipes("d8-ai-models")[HomeSecret.DMCR_TLS]

    assert isinstance(recipe, home.Leaf)
    assert recipe.hosts == (
        "ai-models-dmcr",
        "ai-models-dmcr.d8-ai-models",
        "ai-models-dmcr.d8-ai-models.svc",
        "ai-models-dmcr.d8-ai-models.svc.cluster.local",
    )


@pytest.mark.asyncio
async def test_what_is_usable_is_kept_by_another_leader() -> None:
    shelf = administrated()
    await household(shelf, sources=SOURCES).look()
    before = copy.deepcopy(shelf.secrets)
    await household(shelf, sources=SOURCES).look()

    assert shelf.secrets == before


@pytest.mark.asyncio
async def test_what_is_deleted_comes_back_new() -> None:
    shelf = Shelf()
    kept = household(shelf)
    await kept.look()
    before = shelf.values(HomeSecret.COORDINATOR)["token"]
    del shelf.secrets[HOME, "ai-models-coordinator"]
    await kept.look()

    assert shelf.values(HomeSecret.COORDINATOR)["token"] not in ("", before)
    assert kept.text(HomeSecret.COORDINATOR, "token") == shelf.values(HomeSecret.COORDINATOR)["token"]


@pytest.mark.asyncio
async def test_leaves_are_renewed_in_time_and_authorities_are_not() -> None:
    shelf, calendar = Shelf(), Calendar()
    kept = household(shelf, calendar)
    await kept.look()
    shelf.written.clear()
    calendar.now = NOW + 59 * DAY
    await kept.look()
    assert shelf.written == []
    calendar.now = NOW + 61 * DAY
    await kept.look()

    assert sorted(shelf.written) == [
        "ai-models-coordinator-tls",
        "ai-models-dmcr-tls",
        "ai-models-token-signer",
        "ai-models-webhook-tls",
    ]
    assert leaf_fault(shelf, HomeSecret.DMCR_TLS, NOW + 150 * DAY) == ""


@pytest.mark.asyncio
async def test_no_certificate_is_ever_out_of_date_in_twelve_years() -> None:
    shelf, calendar = Shelf(), Calendar()
    kept = household(shelf, calendar)
    roots: set[str] = set()
    for day in range(0, 12 * 365, 10):
        calendar.now = NOW + day * DAY
        await kept.look()
        roots.add(shelf.values(HomeSecret.SERVING_ROOT)["tls.crt"])
        assert leaf_fault(shelf, HomeSecret.COORDINATOR_TLS, calendar.now + 25 * DAY) == ""
        assert leaf_fault(shelf, HomeSecret.ISSUER, calendar.now + 25 * DAY) == ""

    assert len(roots) == 2


@pytest.mark.asyncio
async def test_a_new_authority_issues_everything_anew() -> None:
    shelf = Shelf()
    await household(shelf).look()
    mine = certificates.make_authority("mine", NOW)
    shelf.put(HOME, "ai-models-serving-root", {"tls.crt": mine.certificate, "tls.key": mine.key})
    shelf.written.clear()
    kept = household(shelf)
    await kept.look()

    assert shelf.values(HomeSecret.SERVING_ROOT)["tls.crt"] == mine.certificate
    assert sorted(shelf.written) == ["ai-models-coordinator-tls", "ai-models-dmcr-tls", "ai-models-webhook-tls"]
    assert leaf_fault(shelf, HomeSecret.WEBHOOK_TLS) == ""
    assert kept.access().authority == mine.certificate.strip()


@pytest.mark.asyncio
async def test_callers_of_the_webhook_learn_of_a_new_authority_before_it_shows_it() -> None:
    shelf = Shelf()
    await household(shelf).look()
    before = shelf.values(HomeSecret.WEBHOOK_TLS)
    del shelf.secrets[HOME, HomeSecret.SERVING_ROOT]
    kept = household(shelf)
    await kept.look()
    assert shelf.values(HomeSecret.WEBHOOK_TLS) == before
    assert leaf_fault(shelf, HomeSecret.DMCR_TLS) == ""
    await kept.look()

    assert leaf_fault(shelf, HomeSecret.WEBHOOK_TLS) == ""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        pytest.param("ai-models-serving-root", {"tls.crt": ROOT.certificate}, "no tls.key in it", id="no-key"),
        pytest.param("ai-models-coordinator", {"token": "short"}, "at least 16 visible", id="short-token"),
        pytest.param("ai-models-ray", {"auth_token": "a" * 20 + "\r\nX: y"}, "at least 16 visible", id="header"),
        pytest.param("ai-models-dmcr-tls", {"tls.crt": "x", "tls.key": "y", "ca.crt": "z"}, "its ca.crt", id="text"),
    ],
)
async def test_what_is_broken_is_made_anew_and_told(
    name: str, values: dict[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf()
    await household(shelf).look()
    shelf.put(HOME, name, {**values, "notes": "of somebody"}, type="kubernetes.io/some")
    await household(shelf).look()
    told = next(record for record in caplog.records if record.levelno == logging.WARNING)

    assert told.__dict__["secret"] == name
    assert words in told.__dict__["why"]
    assert shelf.values(name)["notes"] == "of somebody"
    assert shelf.secrets[HOME, name]["type"] == "kubernetes.io/some"
    assert all(value not in caplog.text for value in shelf.values(name).values() if value != "of somebody")


@pytest.mark.asyncio
async def test_mirrors_follow_the_administrators_secrets() -> None:
    shelf = administrated()
    kept = household(shelf, sources=SOURCES)
    await kept.look()
    assert {name: shelf.values(name) for name in GIVEN} == GIVEN
    shelf.put(*SOURCES[HomeSecret.S3], {"accessKey": "next", "secretKey": "key\n", "more": "x"})
    shelf.written.clear()
    await kept.look()

    assert shelf.values(HomeSecret.S3) == {"accessKey": "next", "secretKey": "key"}
    assert shelf.written == ["ai-models-s3"]


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["token", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
async def test_the_hubs_token_is_found_under_each_key(key: str) -> None:
    shelf = administrated({HomeSecret.HUB: {key: "hf_x"}})
    await household(shelf, sources={HomeSecret.HUB: SOURCES[HomeSecret.HUB]}).look()

    assert shelf.values(HomeSecret.HUB) == {"token": "hf_x"}


@pytest.mark.asyncio
async def test_mirrors_that_are_not_named_are_neither_made_nor_touched() -> None:
    shelf = administrated()
    shelf.put(HOME, "ai-models-s3", {"accessKey": "by hand"})
    await household(shelf).look()

    assert shelf.values(HomeSecret.S3) == {"accessKey": "by hand"}
    assert {name for namespace, name in shelf.secrets if namespace == HOME} == {*OWN, "ai-models-s3"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param(None, "not found: make it, with keys accessKey, secretKey", id="missing"),
        pytest.param({"accessKey": "next"}, "want a value in key secretKey, got none", id="no-key"),
        pytest.param({"accessKey": "next", "secretKey": " \n"}, "want a value in key secretKey", id="blank"),
        pytest.param({"accessKey": "ä", "secretKey": "x"}, "key accessKey: want visible ASCII", id="letters"),
    ],
)
async def test_an_administrators_secret_that_is_no_good_leaves_the_mirror_as_it_is(
    values: dict[str, str] | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = administrated()
    kept = household(shelf, sources=SOURCES)
    await kept.look()
    source = SOURCES[HomeSecret.S3]
    del shelf.secrets[source]
    if values is not None:
        shelf.put(*source, values)
    await kept.look()
    await kept.look()

    assert shelf.values(HomeSecret.S3) == GIVEN[HomeSecret.S3]
    assert f"Secret {'/'.join(source)}: " in kept.troubles[HomeSecret.S3]
    assert words in kept.troubles[HomeSecret.S3]
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "secrets at home in trouble"
    ]
    shelf.put(*source, {"accessKey": "next", "secretKey": "key"})
    await kept.look()
    assert (kept.troubles, shelf.values(HomeSecret.S3)["accessKey"]) == ({}, "next")


@pytest.mark.asyncio
async def test_an_administrators_authority_that_is_none_is_told() -> None:
    shelf = administrated({HomeSecret.HUB_CA: {"ca.crt": "x"}})
    kept = household(shelf, sources={HomeSecret.HUB_CA: SOURCES[HomeSecret.HUB_CA]})
    await kept.look()

    assert "key ca.crt: want certificates in PEM" in kept.troubles[HomeSecret.HUB_CA]


@pytest.mark.asyncio
@pytest.mark.parametrize("verb", ["get", "create"])
async def test_a_verb_that_is_refused_is_told_and_the_rest_is_done(verb: str) -> None:
    shelf = Shelf()
    shelf.refused[verb, "ai-models-coordinator"] = "Forbidden"
    kept = household(shelf)
    await kept.look()

    words = kept.troubles[HomeSecret.COORDINATOR]
    assert words.startswith("Secret d8-ai-models/ai-models-coordinator: not ")
    assert f"cannot {verb} resource" in words
    assert {name for _, name in shelf.secrets} == OWN - {HomeSecret.COORDINATOR}
    with pytest.raises(CoordinatorUnavailable, match=f"cannot {verb} resource"):
        kept.access()


@pytest.mark.asyncio
async def test_what_an_authority_issues_waits_for_it() -> None:
    shelf = Shelf()
    shelf.refused["create", "ai-models-serving-root"] = "Forbidden"
    kept = household(shelf)
    await kept.look()

    assert kept.troubles[HomeSecret.DMCR_TLS].endswith("ai-models-dmcr-tls: waits for ai-models-serving-root")
    assert (HOME, "ai-models-dmcr-tls") not in shelf.secrets
    assert (HOME, "ai-models-token-signer") in shelf.secrets


@pytest.mark.asyncio
async def test_what_is_known_stays_in_force_while_it_may_not_be_read() -> None:
    shelf = Shelf()
    kept = household(shelf)
    await kept.look()
    access = kept.access()
    shelf.refused["get", "*"] = "Forbidden"
    await kept.look()

    assert kept.access() == access
    assert access.token not in repr(access)


@pytest.mark.asyncio
async def test_a_broken_secret_that_cannot_be_replaced_is_not_in_force() -> None:
    shelf = Shelf()
    kept = household(shelf)
    await kept.look()
    shelf.put(HOME, "ai-models-coordinator", {"token": "short"})
    shelf.refused["update", "*"] = "Refused"
    await kept.look()

    with pytest.raises(CoordinatorUnavailable, match="ai-models-coordinator: not written"):
        kept.access()


@pytest.mark.asyncio
async def test_a_silent_api_server_is_no_missing_secret() -> None:
    shelf = Shelf()
    shelf.refused["get", "ai-models-ray"] = "Unanswered"
    kept = household(shelf)
    with pytest.raises(ClusterUnavailable):
        await kept.look()

    assert shelf.written == []
    with pytest.raises(CoordinatorUnavailable, match="not there yet"):
        kept.access()


@pytest.mark.asyncio
async def test_who_lost_the_lease_writes_nothing() -> None:
    def lost() -> None:
        raise LeadershipLost("lost")

    shelf = Shelf()
    with pytest.raises(LeadershipLost):
        await Household(shelf, lost, HOME, {}, now=Calendar()).keep()

    assert shelf.secrets == {}


@pytest.mark.asyncio
async def test_what_keeps_it_from_looking_is_told_once_and_to_those_who_wait(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf()
    shelf.refused["create", "*"] = "Unanswered"
    looks: list[str] = []

    async def sleep(_: float) -> None:
        looks.append(kept.troubles.get("all", ""))
        if len(looks) == 3:
            shelf.refused.clear()
        if len(looks) == 4:
            raise LeadershipLost("enough")

    kept = Household(shelf, free, HOME, {}, now=Calendar(), sleep=sleep)
    with pytest.raises(LeadershipLost):
        await kept.keep()

    assert [bool(words) for words in looks] == [True, True, True, False]
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "secrets at home in trouble"
    ]
    assert kept.access().token


@pytest.mark.asyncio
async def test_who_waits_for_secrets_that_cannot_be_made_is_told_why() -> None:
    shelf = Shelf()
    shelf.refused["create", "*"] = "Unanswered"
    kept = household(shelf)
    keeping = asyncio.create_task(kept.keep())
    await asyncio.wait_for(kept.settled.wait(), 10)
    keeping.cancel()

    with pytest.raises(CoordinatorUnavailable, match="create secrets d8-ai-models/ai-models-serving-root"):
        kept.access()


class Race(Shelf):
    """Somebody else makes the authority while it is being made."""

    async def put_secret(self, secret: dict[str, Any]) -> dict[str, Any]:
        if not self.written:
            self.written.append("another")
            self.put(HOME, "ai-models-serving-root", {"tls.crt": ROOT.certificate, "tls.key": ROOT.key})
        return await super().put_secret(secret)


@pytest.mark.asyncio
async def test_after_a_conflict_it_looks_again_soon_and_then_every_half_minute() -> None:
    shelf = Race()
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise LeadershipLost("enough")

    kept = Household(shelf, free, HOME, {}, now=Calendar(), sleep=sleep)
    with pytest.raises(LeadershipLost):
        await kept.keep()

    assert kept.settled.is_set()
    assert kept.troubles == {}
    assert shelf.values(HomeSecret.SERVING_ROOT)["tls.crt"] == ROOT.certificate
    assert leaf_fault(shelf, HomeSecret.DMCR_TLS) == ""
    assert pauses[0] < 1
    assert pauses[1:] == [LOOK_EVERY_SECONDS, LOOK_EVERY_SECONDS]


EXPIRED = certificates.make_authority("root", NOW - 4000 * DAY)
ENDING = certificates.make_authority("root", NOW - 3600 * DAY)
OTHER = certificates.make_authority("root", NOW)
HOSTS = {name: recipe.hosts for name, recipe in home.recipes(HOME).items() if isinstance(recipe, home.Leaf)}


def pair_values(pair: Pair, authority: str = "") -> dict[str, str]:
    return {"tls.crt": pair.certificate, "tls.key": pair.key} | ({"ca.crt": authority} if authority else {})


def leaf_values(root: Pair, name: HomeSecret, age: datetime.timedelta) -> dict[str, str]:
    return pair_values(certificates.make_leaf(root, "x", HOSTS[name], NOW - age), root.certificate)


def drawn(name: HomeSecret) -> st.SearchStrategy[dict[str, str] | None]:
    """What a Secret may hold when an operator comes: nothing, something good, or anything else."""
    keys = st.sampled_from(["tls.crt", "tls.key", "ca.crt", "token", "auth_token", "accessKey"])
    good: list[dict[str, str]] = [{"token": "x" * 16, "auth_token": "y" * 16}]
    good += [pair_values(root) for root in (ROOT, EXPIRED, ENDING, OTHER)]
    good += [pair_values(Pair(ROOT.certificate, OTHER.key))]
    if name in HOSTS:
        good += [leaf_values(root, name, age) for root in (ROOT, OTHER) for age in (0 * DAY, 70 * DAY, 100 * DAY)]
    return st.none() | st.sampled_from(good) | st.dictionaries(keys, st.text(max_size=20))


@given(st.fixed_dictionaries({name: drawn(name) for name in HomeSecret}), st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_law_whatever_secrets_exist_a_third_look_writes_nothing(
    found: dict[HomeSecret, dict[str, str] | None], mirrors: bool
) -> None:
    shelf = administrated()
    for name, values in found.items():
        if values is not None:
            shelf.put(HOME, name, values)

    async def look() -> None:
        shelf.written.clear()
        await household(shelf, sources=SOURCES if mirrors else {}).look()

    asyncio.run(look())
    asyncio.run(look())
    assert set(shelf.written) <= {HomeSecret.WEBHOOK_TLS}, "which lets its callers learn of its authority first"
    asyncio.run(look())
    assert shelf.written == []
    assert [leaf_fault(shelf, name) for name in HOSTS] == ["", "", "", ""]
