"""How our webhooks are registered: what is sent to them, what never is, and whom the API server trusts."""

import base64
from typing import Any

import pytest

from aimodels_core import names
from aimodels_operator import registration

OLD, NEW, OTHER = (
    f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----" for text in ("b2xk", "bmV3", "eHh4")
)
FOUND = registration.webhooks("d8-ai-models", f"{NEW}\n")


def test_nothing_is_ever_asked_about_a_deletion_nor_about_what_we_and_the_cluster_consist_of() -> None:
    for webhook in FOUND:
        assert {operation for rule in webhook["rules"] for operation in rule["operations"]} <= {"CREATE", "UPDATE"}
        (spaces,) = webhook["namespaceSelector"]["matchExpressions"]
        assert spaces["operator"] == "NotIn"
        assert spaces["values"] == ["d8-ai-models", "d8-ai-models-node", "kube-system"]
        assert webhook["failurePolicy"] == "Fail"
        assert webhook["sideEffects"] == "None"
        assert webhook["reinvocationPolicy"] == "IfNeeded"
        assert not any("/" in resource for rule in webhook["rules"] for resource in rule["resources"]), (
            "scaling is free"
        )


def test_workloads_are_sent_when_they_name_models_or_did() -> None:
    workloads, *_ = FOUND
    conditions = {one["name"]: one["expression"] for one in workloads["matchConditions"]}

    assert conditions["stays"] == "!has(object.metadata.deletionTimestamp)"
    assert "r.controller" in conditions["is-nobodys"]
    for name in (names.ANNOTATION_MODEL, names.ANNOTATION_CLUSTER_MODEL, names.LABEL_DELIVERY, "jobTemplate"):
        assert name in conditions["names-models-or-did"]


def test_each_pod_is_sent_once_by_label_or_by_annotation() -> None:
    _, labelled, others = FOUND

    assert labelled["objectSelector"] == {"matchLabels": {names.LABEL_DELIVERY: "true"}}
    assert others["objectSelector"]["matchExpressions"] == [
        {"key": names.LABEL_DELIVERY, "operator": "NotIn", "values": ["true"]}
    ]
    assert "matchConditions" not in labelled
    assert names.ANNOTATION_MODEL in others["matchConditions"][0]["expression"]
    assert [one["clientConfig"]["service"]["path"] for one in FOUND] == [
        "/mutate/workloads",
        "/mutate/pods",
        "/mutate/pods",
    ]


@pytest.mark.parametrize(
    ("held", "alone", "wanted"),
    [
        pytest.param("", False, [NEW], id="first"),
        pytest.param(f"{OLD}\n", False, [NEW, OLD], id="beside-the-former-one"),
        pytest.param(f"{NEW}\n{OLD}\n", False, [NEW, OLD], id="again"),
        pytest.param(f"{NEW}\n{OLD}\n", True, [NEW], id="alone-at-last"),
        pytest.param("garbage", False, [NEW], id="garbage"),
        pytest.param("\n".join(OLD.replace("b2xk", f"b2x{n}") for n in range(9)), False, 4, id="bounded"),
    ],
)
def test_former_authorities_are_trusted_for_a_while(held: str, alone: bool, wanted: Any) -> None:
    found = registration.bundle(f"{NEW}\n", held, alone=alone)

    assert found.startswith(NEW)
    if isinstance(wanted, int):
        assert found.count("BEGIN") == wanted
    else:
        assert found == "".join(f"{one}\n" for one in wanted)


def test_what_is_trusted_is_read_back() -> None:
    assert registration.trusted({"webhooks": FOUND}) == f"{NEW}\n"
    assert registration.trusted({}) == ""
    assert registration.trusted({"webhooks": [{"clientConfig": {"caBundle": "%"}}]}) == ""


def test_what_the_api_server_fills_in_is_no_difference() -> None:
    filled = [{**one, "more": "x", "rules": [{**rule, "more": "y"} for rule in one["rules"]]} for one in FOUND]

    assert registration.covers(filled, FOUND)
    assert not registration.covers(filled[:2], FOUND)
    assert not registration.covers([], FOUND)
    other = base64.b64encode(OTHER.encode()).decode()
    changed = [{**one, "clientConfig": {**one["clientConfig"], "caBundle": other}} for one in filled]
    assert not registration.covers(changed, FOUND)


READY = {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "observedGeneration": 3}


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        pytest.param(READY, True, id="complete"),
        pytest.param({**READY, "observedGeneration": 2}, False, id="not-seen-yet"),
        pytest.param({**READY, "replicas": 3}, False, id="an-old-one-is-left"),
        pytest.param({**READY, "readyReplicas": 1}, False, id="one-is-not-ready"),
        pytest.param({}, False, id="nothing"),
    ],
)
def test_webhooks_are_waited_for(status: dict[str, int], wanted: bool) -> None:
    deployment = {"metadata": {"generation": 3}, "spec": {"replicas": 2}, "status": status}

    assert registration.rolled_out(deployment) is wanted
