"""Files that change while the coordinator serves: the hub's token, authorities, the store's keys."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimodels_core import names
from aimodels_core.messages import Stage, Want
from aimodels_jobs.host_options import HostSettings
from aimodels_jobs.retry import Retry
from tests.support import servers, weights
from tests.support.certificates import certificates
from tests.support.coordinators import TOKEN, Api, Here
from tests.support.hub.limits import Limits
from tests.support.hub.repository import Access, Repository
from tests.support.hub.server import Hub
from tests.support.processes import free_port, wait_for
from tests.support.publishing import PART, good_model

pytestmark = pytest.mark.timeout(120)

SOON = Retry(first_seconds=0.2, most_seconds=0.5, denied_seconds=0.5)


@pytest.fixture
def settings(tmp_path: Path) -> HostSettings:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    return HostSettings(store=str(tmp_path / "store"), token_file=str(token), port=free_port(), inline=True)


@pytest.fixture
def served() -> Iterator[list[Here]]:
    """Coordinators to end."""
    made: list[Here] = []
    yield made
    for one in made:
        one.close()


def replace(path: Path, text: bytes) -> None:
    """As a mounted Secret changes: another file takes the name."""
    other = path.with_name(f"{path.name}.new")
    other.write_bytes(text)
    other.rename(path)


def want(hub: Hub, repository: Repository) -> Want:
    return Want("m", "m", 1, f"{hub.url}/{repository.id}", names.CLUSTER)


def followed(api: Api, settings: HostSettings) -> None:
    """Wait until it has looked at its files again."""
    replace(Path(settings.token_file), b"another-token")
    wait_for(lambda: api.call("GET", "/v1/state", token="another-token").status == 200, "the new token in force")
    api.token = "another-token"


def test_the_hubs_new_token_is_what_the_next_attempt_shows(
    settings: HostSettings, served: list[Here], tmp_path: Path
) -> None:
    with Hub(limits=Limits.unlimited(), tokens={"hf_old": "ann", "hf_new": "bob"}) as hub:
        repository = hub.add(
            Repository("org/closed", weights.tiny_safetensors(), access=Access.GATED, granted=frozenset({"hf_new"}))
        )
        token = tmp_path / "hub-token"
        token.write_text("hf_old")
        served.append(Here(dataclasses.replace(settings, hub_endpoint=hub.url, hub_token_file=str(token)), retry=SOON))
        api = served[0].api
        epoch = api.writing()
        api.put(want(hub, repository))
        refused = api.until("m", lambda s: s.trouble is not None, "a refusal")
        replace(token, b"hf_new\n")
        api.until("m", lambda s: s.stage is Stage.READY, "a model that the new token opens")

    assert refused.trouble is not None
    assert refused.trouble.code == "Gated"
    assert api.snapshot().epoch == epoch, "nothing began anew"


def test_a_longer_list_of_authorities_is_taken_over_in_the_middle_of_a_publication(
    settings: HostSettings, served: list[Here], tmp_path: Path
) -> None:
    size = 6 * PART
    with Hub(limits=Limits.unlimited(), tls=True) as hub:
        repository = hub.add(good_model("org/name", weights_bytes=size))
        hub.throttle(PART // 4)
        authorities = tmp_path / "hub-ca.crt"
        authorities.write_bytes(hub.ca_pem)
        served.append(
            Here(dataclasses.replace(settings, hub_endpoint=hub.url, hub_ca_file=str(authorities), connections=4))
        )
        api = served[0].api
        epoch = api.writing()
        api.put(want(hub, repository))
        wait_for(lambda: hub.log.payload_bytes() > 2 * PART, "some of the model moved", seconds=40)
        replace(authorities, b"no certificate")
        followed(api, settings)
        same = api.snapshot().epoch
        replace(authorities, hub.ca_pem + certificates(tmp_path).ca.read_bytes())
        renewed = api.writing(other_than=epoch)
        empty = api.snapshot().publications
        hub.throttle(None)
        api.put(want(hub, repository))
        api.ready("m")

    assert same == epoch, "what is no certificate is not taken over"
    assert renewed != epoch
    assert empty == ()
    assert hub.log.payload_bytes() <= 2 * size, "what was stored and hashed is not read again"


def test_keys_of_the_store_are_taken_over_when_they_are_good(
    settings: HostSettings, served: list[Here], tmp_path: Path
) -> None:
    made = certificates(tmp_path)
    keys, authority = tmp_path / "s3", tmp_path / "s3-ca.crt"
    keys.mkdir()
    (keys / "accessKey").write_text("of-yesterday")
    (keys / "secretKey").write_text("of-yesterday")
    (tmp_path / "another").mkdir()
    authority.write_bytes(certificates(tmp_path / "another").ca.read_bytes())
    (tmp_path / "data" / servers.BUCKET).mkdir(parents=True)  # a folder is a bucket
    with Hub(limits=Limits.unlimited()) as hub, servers.versitygw(tmp_path / "data", cert=made.pair) as s3:
        repository = hub.add(Repository("org/tiny", weights.tiny_safetensors()))
        served.append(
            Here(
                dataclasses.replace(
                    settings,
                    store=f"s3://{s3.bucket}/store",
                    s3_endpoint=s3.endpoint,
                    s3_credentials=str(keys),
                    s3_ca_file=str(authority),
                    hub_endpoint=hub.url,
                )
            )
        )
        api = served[0].api
        first = api.snapshot()
        replace(authority, made.ca.read_bytes())
        replace(keys / "accessKey", s3.access_key.encode())
        replace(keys / "secretKey", s3.secret_key.encode())
        epoch = api.writing(other_than=first.epoch)
        replace(keys / "secretKey", b"\n")
        followed(api, settings)
        api.put(want(hub, repository))
        api.ready("m")

        assert not first.writing
        assert api.snapshot().epoch == epoch, "an empty key is not taken over"
