"""Who may do what, as the API server says it: people by parts of the cluster's roles, our processes by theirs."""

from collections.abc import Iterator

import pytest

from tests.cluster import operating
from tests.cluster.stand.chart import CHART, HOME
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.cluster.stand.waiting import attempt, until

GROUP = "ai.deckhouse.io"
LEVELS = ("view", "edit", "admin")
READER = "d8:ai-models:distribution:reader"
WRITE = ("create", "update", "patch", "delete", "deletecollection")
READ = ("get", "list", "watch")
PROCESSES = {name: f"system:serviceaccount:{HOME}:ai-models-{name}" for name in ("operator", "webhook", "ray", "dmcr")}


def role_binding(level: str) -> Object:
    """A role of the cluster for a user in one namespace."""
    return _binding("RoleBinding", level, level, f"{level}-here")


def cluster_binding(name: str, role: str, user: str) -> Object:
    """A role of the cluster for a user in all of it."""
    return _binding("ClusterRoleBinding", name, role, user)


def _binding(kind: str, name: str, role: str, user: str) -> Object:
    api = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{api}/v1",
        "kind": kind,
        "metadata": {"name": name},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": api, "kind": "User", "name": user}],
    }


@pytest.fixture
def people(space: Kubectl) -> Iterator[Kubectl]:
    """Users `<level>-here` with a role in the namespace, `<level>-everywhere` in the cluster, and `perimeter`."""
    operating.install()
    wide = [cluster_binding(f"test-roles-{level}", level, f"{level}-everywhere") for level in LEVELS]
    wide.append(cluster_binding("test-roles-perimeter", READER, "perimeter"))
    Kubectl().apply(*wide)
    space.apply(*(role_binding(level) for level in LEVELS))
    until(lambda: can(space, "view-here", "get", "models"), what="aggregated roles", seconds=60, pause=0.5)
    until(lambda: can(space, "admin-everywhere", "create", "clustermodels"), what="bindings", seconds=60, pause=0.5)
    yield space
    Kubectl()("delete", "clusterrolebinding", *(one["metadata"]["name"] for one in wide))


def can(space: Kubectl, user: str, verb: str, resource: str, part: str = "", group: str = GROUP) -> bool:
    """Whether a user may do it in the namespace, or to what belongs to none."""
    subresource = [f"--subresource={part}"] if part else []
    kind = f"{resource}.{group}" if group else resource
    return space.attempt("auth", "can-i", verb, kind, *subresource, f"--as={user}").stdout.strip() == "yes"


def allowed(space: Kubectl, user: str, resource: str, verbs: tuple[str, ...] = (*READ, *WRITE)) -> set[str]:
    return {verb for verb in verbs if can(space, user, verb, resource)}


def test_people_may_do_what_their_level_says(people: Kubectl) -> None:
    elsewhere = Kubectl("default")
    for level in LEVELS:
        here, everywhere = f"{level}-here", f"{level}-everywhere"
        models = set(READ) if level == "view" else {*READ, *WRITE}
        assert allowed(people, here, "models") == models, here
        assert allowed(people, everywhere, "models") == models, everywhere
        assert allowed(elsewhere, here, "models") == set(), here
        # What belongs to the cluster is for those who have the role in the whole cluster.
        assert allowed(elsewhere, here, "clustermodels") == set(), here
        wanted = {*READ, *WRITE} if level == "admin" else set(READ)
        assert allowed(people, everywhere, "clustermodels") == wanted, everywhere
        for kind in ("modelcatalogsources", "nodemodelcaches"):
            assert allowed(people, everywhere, kind) == set(READ), (everywhere, kind)
        for kind in ("models", "clustermodels"):
            for part in ("status", "finalizers"):
                assert not can(people, everywhere, "update", kind, part), (everywhere, kind, part)


def test_the_virtual_resources_are_for_whom_they_are_meant(people: Kubectl) -> None:
    for level in LEVELS:
        assert can(people, f"{level}-everywhere", "get", "modelcatalogsources", "catalog-import")
        assert not can(people, f"{level}-everywhere", "get", "clustermodels", "distribution")
    assert can(people, "perimeter", "get", "clustermodels", "distribution")
    assert not can(people, "perimeter", "get", "modelcatalogsources", "catalog-import")
    assert allowed(people, "perimeter", "clustermodels") == set()
    assert not can(people, "somebody", "get", "clustermodels", "distribution")
    assert not can(people, "somebody", "get", "modelcatalogsources", "catalog-import")


def test_processes_may_do_what_they_need_and_no_more(people: Kubectl) -> None:
    operator = PROCESSES["operator"]

    assert allowed(people, operator, "models") == {*READ, "patch"}
    assert can(people, operator, "get", "secrets", group="")
    assert [verb for verb in (*READ[1:], *WRITE) if can(people, operator, verb, "secrets", group="")] == []
    assert can(people, PROCESSES["webhook"], "create", "tokenreviews", group="authentication.k8s.io")
    for name in ("ray", "dmcr"):
        for resource, group in (("models", GROUP), ("secrets", ""), ("pods", ""), ("configmaps", "")):
            verbs = [verb for verb in (*READ, *WRITE) if can(people, PROCESSES[name], verb, resource, group=group)]
            assert verbs == [], (name, resource)


def test_a_class_that_the_cluster_does_not_have_is_refused_at_render_time() -> None:
    images = [f"--set=images.{name}=x" for name in ("operator", "jobs", "dmcr")]
    words = ("upgrade", "--install", "--dry-run=server", "ai-models", str(CHART), f"--namespace={HOME}", *images)
    refused = attempt("helm", *words, "--set=embedded.storageClassName=nowhere")

    assert refused.returncode != 0
    assert "embedded.storageClassName: want a StorageClass of the cluster" in refused.stderr
    assert "got nowhere: write one of " in refused.stderr
    assert attempt("helm", *words).returncode == 0
