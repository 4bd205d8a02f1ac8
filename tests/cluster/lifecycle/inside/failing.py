"""A test that fails, run inside a stand by the tests of the stand: what its report shows is under test."""

from tests.cluster.stand.kubectl import Kubectl, pod


def test_fails_beside_a_pod(space: Kubectl) -> None:
    space.apply(pod("talker", command=["sh", "-c", "echo last words; exec sleep infinity"]))
    space.ready("talker")

    assert space.items("pods") == []
