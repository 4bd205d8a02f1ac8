"""Shared claims in the installed product: a Model is published, a gated Pod waits for it, is let go, and reads it.

The webhook is not part of it: the Pod carries gate, label, annotation and volume as it would write them. Minutes long.
"""

import contextlib
from collections.abc import Iterator

import pytest

from aimodels_core import names
from tests.cluster import installed, operating
from tests.cluster.installed import model
from tests.cluster.operating import phase
from tests.cluster.stand.addons import STORAGE_CLASS
from tests.cluster.stand.chart import HOME
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object, pod
from tests.cluster.stand.layout import StandError
from tests.cluster.stand.waiting import until
from tests.support.publishing import good_model

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

CLAIM = names.shared_claim("model", "good")
SECONDS = 180.0
SETTINGS = (
    "delivery.type=SharedPVC",
    f"delivery.sharedPVCStorageClassName={STORAGE_CLASS}",
    "delivery.sharedPVCGraceSeconds=5",
)


@pytest.fixture(scope="module", autouse=True)
def _whole(stand: Cluster) -> Iterator[None]:
    with operating.hub_under_its_names({}) as hub:
        hub.add(good_model("org/good"))
        with installed.whole(hub, *SETTINGS):
            yield


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Add what the operators said to a failure."""
    try:
        yield
    except StandError as error:
        logs = Kubectl(HOME).attempt("logs", "--selector=app=ai-models-operator", "--tail=60").stdout
        raise StandError(f"{error}\n{logs}") from error


def waiting(name: str) -> Object:
    """A Pod as the webhook leaves it."""
    field = f"metadata.annotations['{names.ANNOTATION_RESOLVED_DIGEST}0']"
    variable = f"{names.VARIABLE_DIGEST}0"
    mount = {"name": "ai-models-0-good", "mountPath": f"{names.MODELS_DIR}/good", "readOnly": True}
    made = pod(
        name,
        command=["sleep", "infinity"],
        schedulingGates=[{"name": names.SCHEDULING_GATE}],
        volumes=[{"name": "ai-models-0-good", "persistentVolumeClaim": {"claimName": CLAIM, "readOnly": True}}],
        container={
            "env": [{"name": variable, "valueFrom": {"fieldRef": {"fieldPath": field}}}],
            "volumeMounts": [{**mount, "subPathExpr": f"{names.BY_DIGEST}/$({variable})"}],
        },
    )
    made["metadata"]["labels"][names.LABEL_DELIVERY] = "true"
    made["metadata"]["annotations"] = {names.ANNOTATION_MODEL: "good"}
    return made


@explained()
def test_a_gated_pod_is_let_go_when_its_claim_is_filled_and_the_claim_goes_with_it(space: Kubectl) -> None:
    space.apply(waiting("early"))
    reason = names.ANNOTATION_BLOCKED_REASON
    space.until("pod", "early", lambda seen: seen["metadata"]["annotations"].get(reason) == "ModelNotFound")
    space.apply(model("good", "org/good"))
    space.until("model", "good", phase("Ready"), seconds=SECONDS)
    told = space.until("pod", "early", lambda seen: not seen["spec"].get("schedulingGates"), seconds=SECONDS)
    space.ready("early", seconds=SECONDS)
    space.apply(waiting("late"))
    space.ready("late", seconds=60)

    digest = space.get("model", "good")["status"]["artifact"]["digest"].removeprefix("sha256:")
    assert told["metadata"]["annotations"][f"{names.ANNOTATION_RESOLVED_DIGEST}0"] == digest
    assert reason not in told["metadata"]["annotations"]
    listings = {space.exec(name, "ls", f"{names.MODELS_DIR}/good") for name in ("early", "late")}
    assert len(listings) == 1
    assert "config.json" in listings.pop().split()
    space("delete", "pod", "early", "late")
    until(lambda: not space.items("pvc"), what="an end of the claim", seconds=300, pause=2.0)
