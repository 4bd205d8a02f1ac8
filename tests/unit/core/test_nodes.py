"""What is told about nodes comes back as it was; what is not of that shape is refused with words."""

import json

import pytest

from aimodels_core.nodes import Device, Held, NodeReport, NodeWant, Warm, Warming

DIGEST = "sha256:" + "a" * 64


def test_a_want_comes_back_as_it_was() -> None:
    want = NodeWant("n1", (Warm(DIGEST, "cluster", 7, pods=True), Warm(DIGEST, "ns/demo", 0)), 1 << 40)

    assert NodeWant.from_json("n1", want.to_json()) == want


def test_a_report_comes_back_as_it_was() -> None:
    report = NodeReport(
        "n1",
        12.5,
        (Device("d", 10, 5), Device("e", trouble="x")),
        (Held(DIGEST, 3, used=True),),
        (Warming(DIGEST, 1, 2),),
    )

    assert NodeReport.from_raw(json.loads(json.dumps(report.to_raw()))) == report


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], "want a JSON object"),
        ({"more": 1}, "unknown fields"),
        ({"models": {}}, "models: want a list"),
        ({"models": [1]}, "want objects"),
        ({"models": [{"digest": "x", "repository": "cluster"}]}, "want sha256"),
        ({"models": [{"digest": DIGEST, "repository": "public"}]}, "repository: want"),
        ({"models": [{"digest": DIGEST, "repository": "cluster", "pods": 1}]}, "pods: want"),
        ({"models": [{"digest": DIGEST, "repository": "cluster", "size_bytes": -1}]}, "size_bytes: want"),
        ({"cache_bytes": True}, "cache_bytes: want"),
    ],
)
def test_a_want_of_another_shape_is_refused(raw: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        NodeWant.from_json("n1", json.dumps(raw).encode())
