"""Which artifacts each node should hold, and what NodeModelCache shows."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimodels_core import names
from aimodels_core.nodes import Device, Held, NodeReport, Warming
from aimodels_operator import warming
from aimodels_operator.placement import Node
from aimodels_operator.pods import Delivered, Pod

NO_REPORTS: Mapping[str, NodeReport] = {}
A, B, C = ("sha256:" + letter * 64 for letter in "abc")


def node(name: str, **labels: str) -> Node:
    return Node(name, {names.LABEL_CACHE: "true", **labels}, driver=True)


NODES = tuple(node(f"n{number}", zone="a" if number < 2 else "b") for number in range(4))


def model(digest: str, *, prewarm: str = "", scope: str = "cluster", ready_at: float = 0.0) -> Delivered:
    return Delivered(digest[-4:], digest, 10, "", scope, ready_at, "", "1", prewarm)


def pod(name: str = "web", **selector: str) -> Pod:
    meta = {"uid": name, "name": name, "namespace": "team", "resourceVersion": "1", "creationTimestamp": None}
    gates = [{"name": names.SCHEDULING_GATE}]
    return Pod.from_raw({"metadata": meta, "spec": {"schedulingGates": gates, "nodeSelector": selector}})


def report(name: str, **fields: Any) -> NodeReport:
    return dataclasses.replace(NodeReport(name, 1.0, (Device("d", 100, 50),)), **fields)


def wants(
    waiting: list[tuple[Pod, list[Delivered]]],
    ahead: Sequence[Delivered] = (),
    reports: Mapping[str, NodeReport] = NO_REPORTS,
) -> dict[str, list[tuple[str, bool]]]:
    found = warming.wants(waiting, ahead, NODES, reports, cache_bytes=7)
    assert {one.cache_bytes for one in found.values()} == {7}
    return {name: [(one.digest, one.pods) for one in want.models] for name, want in found.items()}


def holders(found: dict[str, list[tuple[str, bool]]], digest: str) -> set[str]:
    return {name for name, models in found.items() if digest in dict(models)}


def test_as_many_nodes_as_pods_wait_and_always_the_same_ones() -> None:
    two = [(pod("a"), [model(A)]), (pod("b"), [model(A)])]

    assert len(holders(wants(two), A)) == 2
    assert wants(two) == wants(two)
    assert holders(wants(two[:1]), A) <= holders(wants(two), A)
    assert len(holders(wants([(pod(str(n)), [model(A)]) for n in range(9)]), A)) == 4


def test_nodes_that_have_it_or_fetch_it_come_first_and_those_in_trouble_last() -> None:
    one = [(pod(), [model(A)])]

    assert holders(wants(one, reports={"n3": report("n3", held=(Held(A, 10),))}), A) == {"n3"}
    assert holders(wants(one, reports={"n2": report("n2", warming=(Warming(A),))}), A) == {"n2"}
    silent = {f"n{n}": report(f"n{n}", trouble="no device") for n in range(3)} | {"n3": report("n3")}
    assert holders(wants(one, reports=silent), A) == {"n3"}


def test_only_where_the_pod_may_go() -> None:
    assert holders(wants([(pod(zone="b"), [model(A)]), (pod("2", zone="b"), [model(A)])]), A) == {"n2", "n3"}
    assert holders(wants([(pod(zone="c"), [model(A)])]), A) == set()


def test_pods_come_before_what_is_wanted_ahead_and_older_models_before_newer_ones() -> None:
    found = wants([(pod(zone="a"), [model(B)])], [model(A, prewarm="true", ready_at=2), model(B, prewarm="zone=a")])

    (first,) = (models for models in found.values() if (B, True) in models)
    assert first == [(B, True), (A, False)]
    assert holders(found, A) == {"n0", "n1", "n2", "n3"}
    assert holders(found, B) == {"n0", "n1"}


@pytest.mark.parametrize(
    ("selector", "labels", "held"),
    [
        ("true", {}, True),
        ("false", {}, False),
        ("", {}, False),
        ("gpu", {"gpu": ""}, True),
        ("gpu", {}, False),
        ("gpu=a100, zone!=b", {"gpu": "a100"}, True),
        ("gpu==a100,zone!=b", {"gpu": "a100", "zone": "b"}, False),
    ],
)
def test_selectors(selector: str, labels: dict[str, str], held: bool) -> None:
    assert warming.selects(selector, labels) is held


@pytest.mark.parametrize("selector", ["a=b=c", "=x", "a,,b", "a in (b)", "x" * 2000])
def test_other_selectors_say_what_to_write_and_warm_nothing(selector: str) -> None:
    with pytest.raises(ValueError, match='want "true", or labels of nodes'):
        warming.selects(selector, {})
    assert holders(wants([], [model(A, prewarm=selector)]), A) == set()


@given(st.text(max_size=50))
def test_any_selector_is_understood_or_refused(selector: str) -> None:
    try:
        warming.selects(selector, {"a": "b"})
    except ValueError:
        return


def test_status_shows_what_is_held_and_on_its_way() -> None:
    one = report(
        "n",
        held=(Held(A, 10),),
        warming=(Warming(B, 1, 4), Warming(C, 0, 4, trouble="no room", no_room=True)),
        cache_bytes=60,
        devices=(Device("d", 100), Device("e", trouble="x")),
    )
    status = warming.status_of(one)

    assert status == {
        "reportedAt": "1970-01-01T00:00:01Z",
        "capacityBytes": 60,
        "usedBytes": 10,
        "devices": [{"name": "d", "capacityBytes": 100}, {"name": "e", "capacityBytes": 0, "message": "x"}],
        "models": [
            {"digest": A, "state": "Held", "sizeBytes": 10},
            {"digest": B, "state": "Warming", "sizeBytes": 4, "bytesDone": 1},
            {"digest": C, "state": "Warming", "sizeBytes": 4, "bytesDone": 0, "message": "no room"},
        ],
        "message": "",
    }
    assert warming.status_of(report("n", trouble="no device"))["message"] == "no device"
    assert warming.same(status, {**status, "reportedAt": "later"})
    assert not warming.same(status, {**status, "usedBytes": 11})
