"""Objects of shared claims: who uses one, why its Jobs do not go on, how ours are read and written."""

from typing import Any

import pytest

from aimodels_core import names
from aimodels_core.api import CLUSTER_MODEL, MODEL, Kind
from aimodels_core.units import GIB
from aimodels_operator import sharedpvc_bodies as bodies
from aimodels_operator import sharedpvc_use
from aimodels_operator.sharedpvc_objects import Claim, Content, Job, JobState, Work
from aimodels_operator.sharedpvc_values import Trouble, Use

NAME = "ai-models-model-bge-m3"
OLD, NEW = "a" * 64, "b" * 64
BOUND = Claim(
    "team", NAME, "u", "7", ours=True, deleting=False, phase="Bound", class_name="nfs", requested_bytes=2 * GIB
)
BOTH = {OLD: Content(GIB, held=True), NEW: Content(GIB, held=True)}
PULLER = bodies.Puller("image:1", "d8-ai-models", "https://dmcr:5000", "https://s3.example:9000", 9000, "PEM")
ANNOTATED = {"metadata": {"annotations": {"ai.deckhouse.io/model": "x, bge-m3"}}}
ENDED = {"conditions": [{"type": "Complete", "status": "True"}]}


def name_of(kind: Kind, name: str) -> str:
    return f"ai-models-{kind.singular}-{name}"


def pod(*, phase: str = "Running", claim: str = NAME, **annotations: str) -> dict[str, Any]:
    notes = {f"ai.deckhouse.io/resolved-digest-{n}": value for n, value in annotations.items()}
    volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
    return {"metadata": {"annotations": notes}, "spec": {"volumes": volumes}, "status": {"phase": phase}}


def test_names_of_claims_are_labels_and_no_two_models_share_one() -> None:
    names_of = [names.shared_claim(kind, "m" * size + tail) for kind in ("model", "clustermodel") for size in (1, 200)
                for tail in ("a", "b")]  # fmt: skip

    assert len(set(names_of)) == len(names_of)
    assert max(map(len, names_of)) == 63


def test_pods_refer_to_what_they_mount_until_they_end() -> None:
    gated, running, ended = pod(phase="Pending"), pod(n0=OLD), pod(phase="Succeeded", n0=NEW)

    assert sharedpvc_use.use_of_pods(NAME, [gated]) == Use(referred=True)
    assert sharedpvc_use.use_of_pods(NAME, [running, ended]) == Use(referred=True, digests=frozenset({OLD}))
    assert sharedpvc_use.use_of_pods(NAME, [ended, pod(claim="other", n0=OLD)]) == Use(referred=False)


@pytest.mark.parametrize(
    ("workload", "wanted"),
    [
        pytest.param(ANNOTATED, True, id="its-own"),
        pytest.param({"metadata": {"annotations": {"ai.deckhouse.io/clustermodel": "bge-m3"}}}, False, id="kind"),
        pytest.param({"metadata": {}, "spec": {"template": ANNOTATED}}, True, id="template"),
        pytest.param({"metadata": {}, "spec": {"jobTemplate": {"spec": {"template": ANNOTATED}}}}, True, id="cron-job"),
        pytest.param({**ANNOTATED, "status": ENDED}, False, id="job-that-ended"),
        pytest.param({"metadata": {"annotations": None}, "spec": None}, False, id="none"),
    ],
)
def test_workloads_refer_to_the_models_that_they_name(workload: dict[str, Any], wanted: bool) -> None:
    assert sharedpvc_use.refers(workload, NAME, name_of) is wanted
    assert name_of(MODEL, "bge-m3") == NAME
    assert name_of(CLUSTER_MODEL, "bge-m3") != NAME


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"state": state}]}


UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"conditions": [UNSCHEDULED]}, "Unschedulable: 0/3"),
        (container(waiting={"reason": "ImagePullBackOff", "message": "m"}), "ImagePullBackOff: m"),
        (container(terminated={"exitCode": 1, "message": "a\nai-models: no\n"}), "exit code 1: ai-models: no"),
    ],
)
def test_a_pods_status_tells_why(status: dict[str, Any], words: str) -> None:
    assert sharedpvc_use.trouble_of_pod({"status": status}) == Trouble(words)


@pytest.mark.parametrize("status", [{}, container(waiting={"reason": "ContainerCreating"}), container(running={})])
def test_a_pod_that_starts_is_no_trouble(status: dict[str, Any]) -> None:
    assert sharedpvc_use.trouble_of_pod({"status": status}) is None


def test_the_newest_warning_is_told() -> None:
    def event(when: str, **more: str) -> dict[str, Any]:
        return {"type": "Warning", "reason": "FailedCreate", "lastTimestamp": when, "metadata": {}, **more}

    events = [event("2026-01-02T00:00:00Z", message="new"), event("2026-01-01T00:00:00Z", message="old")]
    normal = event("2026-01-03T00:00:00Z", message="fine", type="Normal")

    assert sharedpvc_use.last_warning([*events, normal]) == "FailedCreate: new"
    assert sharedpvc_use.last_warning([normal]) == ""


def claim_with(text: str) -> Claim:
    raw = bodies.claim_body("team", NAME, "nfs", 2 * GIB)
    raw["metadata"] |= {"uid": "u", "annotations": {"ai.deckhouse.io/shared-contents": text}}
    return Claim.from_raw(raw)


def test_a_claim_is_read_as_it_was_written_and_nobody_owns_it() -> None:
    found, raw = claim_with(bodies.rendered(BOTH)), bodies.claim_body("team", NAME, "nfs", 2 * GIB)

    assert (found.contents, found.ours, found.requested_bytes, found.phase) == (BOTH, True, 2 * GIB, "Pending")
    assert "ownerReferences" not in raw["metadata"]
    assert raw["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize(
    "text", ["", "x", "[]", '{"a":1}', f'{{"{OLD}":{{"bytes":-1}}}}', f'{{"{OLD}":[]}}', "[" * 9999]
)
def test_an_annotation_that_somebody_spoiled_says_nothing(text: str) -> None:
    assert claim_with(text).contents == {}


FAILED = {
    "type": "Failed",
    "status": "True",
    "reason": "R",
    "message": "m",
    "lastTransitionTime": "2027-01-15T08:00:00Z",
}


@pytest.mark.parametrize(
    ("conditions", "state", "ended_at", "words"),
    [
        ([], JobState.RUNNING, 0.0, ""),
        ([{"type": "FailureTarget", "status": "True"}], JobState.RUNNING, 0.0, ""),
        (ENDED["conditions"], JobState.DONE, 0.0, ""),
        ([FAILED], JobState.FAILED, 1_800_000_000.0, "R: m"),
    ],
)
def test_a_job_is_read_as_it_was_written(
    conditions: list[dict[str, str]], state: JobState, ended_at: float, words: str
) -> None:
    raw = bodies.job_body(PULLER, BOUND, Work.PULL, NEW, scope="ns/team", size_bytes=GIB)
    raw["metadata"]["uid"] = "j"
    wanted = Job("team", raw["metadata"]["name"], "j", NAME, Work.PULL, NEW, state, ended_at, words)

    assert Job.from_raw({**raw, "status": {"conditions": conditions}}) == wanted


def test_jobs_of_others_are_none_of_ours() -> None:
    raw = bodies.job_body(PULLER, BOUND, Work.DROP, NEW)
    for words in ("", "sweep " + NEW, "pull x", "pull"):
        raw["metadata"]["annotations"] = {"ai.deckhouse.io/shared-work": words}
        assert Job.from_raw(raw) is None


def test_a_jobs_pod_is_confined_and_has_no_secret() -> None:
    made = bodies.job_body(PULLER, BOUND, Work.PULL, NEW, scope="ns/team", size_bytes=400 * GIB)
    template = made["spec"]["template"]
    spec, main = template["spec"], template["spec"]["containers"][0]
    token, authorities = spec["volumes"][1]["projected"]["sources"]

    assert main["command"][:4] == ["ai-models", "pull", "--from", f"https://dmcr:5000/ns/team@sha256:{NEW}"]
    assert f"/models/by-digest/{NEW}" in main["command"]
    assert main["resources"]["requests"] == main["resources"]["limits"]
    assert main["securityContext"]["readOnlyRootFilesystem"] is spec["securityContext"]["runAsNonRoot"] is True
    assert main["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False
    assert token["serviceAccountToken"]["audience"] == "ai-models-dmcr"
    assert template["metadata"]["annotations"]["ai.deckhouse.io/registry-ca"] == "PEM"
    assert authorities["downwardAPI"]["items"][0]["path"] == "ca.crt"
    assert not any("secret" in volume for volume in spec["volumes"])
    assert template["metadata"]["annotations"]["linkerd.io/inject"] == "disabled"
    assert template["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
    assert made["spec"]["activeDeadlineSeconds"] > 24 * 3600
    assert "PEM" not in repr(PULLER)


def test_nothing_delivers_models_to_our_own_jobs() -> None:
    made = bodies.job_body(PULLER, BOUND, Work.PULL, NEW, scope="ns/team")
    for meta in (made["metadata"], made["spec"]["template"]["metadata"]):
        touched = {"ai.deckhouse.io/model", "ai.deckhouse.io/clustermodel", "ai.deckhouse.io/model-delivery"}
        assert not touched & (meta["annotations"].keys() | meta["labels"].keys())


def test_a_removal_reads_no_registry() -> None:
    command = bodies.job_body(PULLER, BOUND, Work.DROP, OLD)["spec"]["template"]["spec"]["containers"][0]["command"]

    assert command == ["ai-models", "rm", "--dir", f"/models/by-digest/{OLD}"]


def test_jobs_talk_to_registry_issuer_names_and_store_alone() -> None:
    policy = bodies.policy_body(PULLER, BOUND)
    ports = [[port["port"] for port in rule["ports"]] for rule in policy["spec"]["egress"]]

    assert policy["spec"]["podSelector"]["matchLabels"] == {"ai.deckhouse.io/shared-claim": NAME}
    assert (policy["spec"]["policyTypes"], ports) == (["Ingress", "Egress"], [[53, 53], [5000], [8443], [9000]])
    assert policy["metadata"]["ownerReferences"][0]["uid"] == BOUND.uid
    assert len(bodies.policy_body(bodies.Puller("i", "h", "https://d"), BOUND)["spec"]["egress"]) == 3
