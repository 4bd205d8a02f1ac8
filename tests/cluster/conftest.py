"""Fixtures of the cluster suites: the stand beside which pytest runs, and a namespace per test.

`smoke/` and everything about the product runs inside a stand (`make test-cluster`); `lifecycle/` starts
stands of its own and runs outside.
"""

import secrets
from collections.abc import Iterator

import pytest

from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, report

TEST_SECONDS = 180


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test here the time that a cluster may need."""
    for item in items:
        if "tests/cluster/" in item.nodeid and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add nodes, Pods, events and logs of the test's namespace to the report of its failure."""
    outcome: pytest.TestReport = yield  # type: ignore[assignment]  # a wrapper is sent the hook's result
    arguments = getattr(item, "funcargs", {})
    if outcome.when == "call" and outcome.failed and "space" in arguments:
        outcome.sections.append(("cluster", report(arguments["space"].namespace)))
    return outcome  # type: ignore[return-value]  # a wrapper returns the hook's result


@pytest.fixture(scope="session")
def stand() -> Cluster:
    """The stand beside which these tests run."""
    return Cluster.attach()


@pytest.fixture
def space(stand: Cluster) -> Iterator[Kubectl]:
    """A fresh namespace, as kubectl bound to it; it is deleted afterwards."""
    kubectl = Kubectl(f"test-{secrets.token_hex(3)}")
    Kubectl()("create", "namespace", kubectl.namespace)
    kubectl.until("serviceaccount", "default", bool)
    yield kubectl
    Kubectl()("delete", "namespace", kubectl.namespace, "--wait=false")
