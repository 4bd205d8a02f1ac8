"""What Pods get at their creation, and which are refused: tables, and laws over Pods of any shape."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimodels_core import names
from aimodels_operator import inject, jsonpatch, pods
from aimodels_operator.inject import Refused
from tests.support.patching import patched

BGE = {names.ANNOTATION_MODEL: "bge-m3"}
GATE = {"name": names.SCHEDULING_GATE}
Object = dict[str, Any]


def pod(annotations: Object | None = None, *, container: Object | None = None, **spec: Any) -> Object:
    """A Pod as the API server shows it to webhooks."""
    main = {"name": "main", "image": "web", **(container or {})}
    meta = {"generateName": "web-", "annotations": BGE if annotations is None else annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [main], **spec}}


def made(content: Object, *, shared: bool = False) -> Object:
    found = inject.injected(content, "demo", shared=shared)
    assert not isinstance(found, Refused), found
    return dict(found)


def refusal(content: Object, *, shared: bool = False) -> str:
    found = inject.injected(content, "demo", shared=shared)
    return found.words if isinstance(found, Refused) else ""


def test_a_pod_gets_volumes_of_the_node_s_cache_and_waits() -> None:
    asked = {names.ANNOTATION_MODEL: "bge-m3, qwen2.5-7b", names.ANNOTATION_CLUSTER_MODEL: "shared"}
    before = pod(asked, initContainers=[{"name": "first"}])
    found = made(before)
    spec, models = found["spec"], ["bge-m3", "qwen2.5-7b", "shared"]
    labels = ["ai-models-0-bge-m3", "ai-models-1-qwen2-5-7b", "ai-models-2-shared"]

    assert spec["volumes"] == [
        {
            "name": label,
            "csi": {
                "driver": "node-cache.ai-models.deckhouse.io",
                "readOnly": True,
                "volumeAttributes": {"ai.deckhouse.io/model": model},
            },
        }
        for label, model in zip(labels, models, strict=True)
    ]
    for container in (*spec["containers"], *spec["initContainers"]):
        assert container["volumeMounts"] == [
            {"name": label, "mountPath": f"/data/modelcache/models/{model}", "readOnly": True}
            for label, model in zip(labels, models, strict=True)
        ]
        variables = {one["name"]: one for one in container["env"]}
        assert list(variables) == ["AI_MODELS_MODELS_DIR", "AI_MODELS_MODELS"]
        assert variables["AI_MODELS_MODELS_DIR"]["value"] == "/data/modelcache/models"
        path = variables["AI_MODELS_MODELS"]["valueFrom"]["fieldRef"]["fieldPath"]
        assert path == "metadata.annotations['ai.deckhouse.io/resolved-models']"
    assert found["metadata"]["labels"] == {names.LABEL_DELIVERY: "true"}
    assert spec["schedulingGates"] == [GATE]
    assert spec["nodeSelector"] == {names.LABEL_CACHE: "true"}
    assert "labels" not in before["metadata"], "what was given is not changed"


def test_a_pod_gets_shared_claims_by_digests_that_it_is_told_later() -> None:
    found = made(pod({**BGE, names.ANNOTATION_CLUSTER_MODEL: "m" * 80}), shared=True)["spec"]
    (container,) = found["containers"]

    assert [one["persistentVolumeClaim"] for one in found["volumes"]] == [
        {"claimName": names.shared_claim("model", "bge-m3"), "readOnly": True},
        {"claimName": names.shared_claim("clustermodel", "m" * 80), "readOnly": True},
    ]
    assert [one["subPathExpr"] for one in container["volumeMounts"]] == [
        "by-digest/$(AI_MODELS_DIGEST_0)",
        "by-digest/$(AI_MODELS_DIGEST_1)",
    ]
    path = container["env"][2]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['ai.deckhouse.io/resolved-digest-0']"
    assert "nodeSelector" not in found
    assert found["schedulingGates"] == [GATE]


def test_what_users_have_stays_behind_what_they_get() -> None:
    mine = {"env": [{"name": "DIR", "value": "$(AI_MODELS_MODELS_DIR)/bge-m3"}]}
    mine["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    before = pod(
        container=mine,
        volumes=[{"name": "data", "emptyDir": {}}],
        schedulingGates=[{"name": "theirs"}],
        nodeSelector={"disk": "fast"},
    )
    before["metadata"]["labels"] = {"app": "web"}
    found = made(before)["spec"]
    (container,) = found["containers"]

    assert container["env"][-1] == mine["env"][0]
    assert container["volumeMounts"][0] == mine["volumeMounts"][0]
    assert found["volumes"][0] == {"name": "data", "emptyDir": {}}
    assert found["schedulingGates"] == [{"name": "theirs"}, GATE]
    assert found["nodeSelector"] == {"disk": "fast", names.LABEL_CACHE: "true"}


def test_a_pod_on_a_node_is_neither_gated_nor_selected() -> None:
    found = made(pod(nodeName="n1"))["spec"]

    assert "schedulingGates" not in found
    assert "nodeSelector" not in found
    assert len(found["volumes"]) == 1


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(pod({}), id="no-annotation"),
        pytest.param(pod({**BGE, "kubernetes.io/config.mirror": "x"}), id="mirror-of-a-static-pod"),
    ],
)
def test_others_are_left_alone(content: Object) -> None:
    assert made(content) == content


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({names.ANNOTATION_MODEL: ""}, "ai.deckhouse.io/model: want names of Models, divided by commas, got ''"),
        ({names.ANNOTATION_MODEL: "a,,b"}, "ai.deckhouse.io/model: want names of Models, divided by commas, got ''"),
        ({names.ANNOTATION_CLUSTER_MODEL: "team/a"}, "ai.deckhouse.io/clustermodel: want names of ClusterModels"),
        ({names.ANNOTATION_MODEL: "Bge"}, "got 'Bge'"),
        ({names.ANNOTATION_MODEL: "../x"}, "got '../x'"),
        ({names.ANNOTATION_MODEL: "a,a"}, "ai.deckhouse.io/model: want every name once over both annotations, got a"),
        (
            {names.ANNOTATION_MODEL: "a", names.ANNOTATION_CLUSTER_MODEL: "b, a"},
            "ai.deckhouse.io/clustermodel: want every name once over both annotations, got a twice",
        ),
        ({names.ANNOTATION_MODEL: ",".join(f"m{n}" for n in range(33))}, "want at most 32 models"),
    ],
)
def test_wrong_lists_are_refused_with_annotation_and_fault(annotations: Object, words: str) -> None:
    found = refusal(pod(annotations))

    assert found.startswith("InvalidSpec: ai.deckhouse.io/")
    assert words in found


def mounted(path: str, volume: Object | None = None, **mount: Any) -> Object:
    """A Pod with a mount of its own."""
    source = volume or {"emptyDir": {}}
    container = {"volumeMounts": [{"name": "own", "mountPath": path, **mount}]}
    return pod(container=container, volumes=[{"name": "own", **source}])


READ_ONLY = "is read-only, so that no model can be mounted at /data/modelcache/models/bge-m3"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(mounted("/data/modelcache/models/bge-m3"), "is taken", id="ours"),
        pytest.param(mounted("/data//modelcache/./models/bge-m3/"), "is taken", id="ours-in-other-words"),
        pytest.param(mounted("/data/modelcache/models/bge-m3/sub"), "is taken", id="below"),
        pytest.param(mounted("/data", readOnly=True), f"/data {READ_ONLY}", id="read-only"),
        pytest.param(mounted("/data/modelcache", {"configMap": {"name": "x"}}), READ_ONLY, id="config-map"),
        pytest.param(
            mounted("/data", {"persistentVolumeClaim": {"claimName": "x", "readOnly": True}}), READ_ONLY, id="claim"
        ),
        pytest.param(mounted("data/modelcache/models", readOnly=True), READ_ONLY, id="relative"),
        pytest.param(
            pod(container={"env": [{"name": "AI_MODELS_MODELS", "value": "[]"}]}),
            "spec.containers[main].env: AI_MODELS_MODELS is set by ai-models",
            id="variable",
        ),
        pytest.param(
            pod(initContainers=[{"name": "i", "env": [{"name": "AI_MODELS_MODELS_DIR", "value": "/x"}]}]),
            "spec.initContainers[i].env",
            id="variable-of-an-init-container",
        ),
        pytest.param(
            pod(volumes=[{"name": "ai-models-0-bge-m3", "emptyDir": {}}]), "is the name of a volume", id="volume"
        ),
        pytest.param(
            pod(container={"volumeDevices": [{"name": "d", "devicePath": "/data/modelcache/models/bge-m3"}]}),
            "volumeDevices",
            id="device",
        ),
        pytest.param(pod(nodeSelector={names.LABEL_CACHE: "false"}), "spec.nodeSelector: want", id="selector"),
        pytest.param(pod(nodeSelector={"kubernetes.io/os": "windows"}), "on Linux alone", id="windows-selector"),
        pytest.param(pod(os={"name": "windows"}), "on Linux alone", id="windows"),
    ],
)
def test_conflicts_are_refused(content: Object, words: str) -> None:
    found = refusal(content)

    assert found.startswith("InvalidSpec: ")
    assert words in found


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(mounted("/data"), id="parent"),
        pytest.param(mounted("/data/modelcache/models"), id="nearest-parent"),
        pytest.param(mounted("/data/modelcache/models/bge-m3-mine", readOnly=True), id="beside"),
        pytest.param(mounted("/data/modelcache/models/bge", readOnly=True), id="beginning-of-ours"),
        pytest.param(mounted("/database", readOnly=True), id="other"),
        pytest.param(pod(container={"env": [{"name": "AI_MODELS_DIGEST_0", "value": "x"}]}), id="free-name"),
    ],
)
def test_what_does_no_harm_is_let_through(content: Object) -> None:
    assert refusal(content) == ""


def test_a_pod_past_the_scheduler_cannot_wait_for_shared_claims() -> None:
    assert "spec.nodeName: want it empty" in refusal(pod(nodeName="n1"), shared=True)
    digest = {"env": [{"name": "AI_MODELS_DIGEST_0", "value": "x"}]}
    assert "AI_MODELS_DIGEST_0 is set by ai-models" in refusal(pod(container=digest), shared=True)


def test_o77_a_container_that_another_webhook_adds_gets_the_same() -> None:
    once = made(pod())
    more = copy.deepcopy(once)
    more["spec"]["containers"].append({"name": "sidecar", "env": [{"name": "A", "value": "b"}]})
    twice = made(more)

    first, second = twice["spec"]["containers"]
    assert first == once["spec"]["containers"][0]
    assert second["volumeMounts"] == first["volumeMounts"]
    assert second["env"] == [*first["env"], {"name": "A", "value": "b"}]
    assert {key: twice["spec"][key] for key in twice["spec"] if key != "containers"} == {
        key: once["spec"][key] for key in once["spec"] if key != "containers"
    }


NAMES = st.from_regex(r"\A[a-z0-9]([-a-z0-9.]{0,60}[a-z0-9])?\Z")
PATHS = st.lists(st.sampled_from(["data", "modelcache", "models", "a", "..", ".", ""]), max_size=5).map("/".join)
MOUNTS = st.builds(
    lambda path, ro: {"name": "own", "mountPath": f"/{path}", **({"readOnly": True} if ro else {})},
    PATHS,
    st.booleans(),
)
CONTAINERS = st.builds(
    lambda name, mounts, env: {"name": name, "volumeMounts": mounts, "env": env},
    NAMES,
    st.lists(MOUNTS, max_size=2),
    st.lists(st.just({"name": "A", "value": "b"}), max_size=1),
)
PODS = st.builds(
    lambda mine, theirs, containers, init, spec: pod(
        {names.ANNOTATION_MODEL: ",".join(mine), **({names.ANNOTATION_CLUSTER_MODEL: theirs} if theirs else {})},
        initContainers=init,
        **{**spec, "containers": containers},
    ),
    st.lists(NAMES, min_size=1, max_size=4),
    st.one_of(st.just(""), NAMES),
    st.lists(CONTAINERS, min_size=1, max_size=3),
    st.lists(CONTAINERS, max_size=2),
    st.fixed_dictionaries(
        {},
        optional={
            "volumes": st.just([{"name": "own", "emptyDir": {}}]),
            "nodeName": st.just("n1"),
            "schedulingGates": st.just([{"name": "theirs"}]),
            "nodeSelector": st.just({"disk": "fast"}),
        },
    ),
)


@given(PODS, st.booleans())
def test_o77_laws(content: Object, shared: bool) -> None:
    before = json.dumps(content)
    found = inject.injected(content, "demo", shared=shared)
    assert json.dumps(content) == before, "what is given is not changed"
    if isinstance(found, Refused):
        assert found.words.startswith("InvalidSpec: ")
        return
    assert patched(content, jsonpatch.difference(content, found)) == found
    assert inject.injected(found, "demo", shared=shared) == found, "again adds nothing"
    labels = [volume["name"] for volume in found["spec"]["volumes"]]
    assert len(labels) == len(set(labels))
    assert all(len(label) <= 63 and "." not in label and not label.endswith("-") for label in labels)
    models = pods.named_in(content["metadata"]["annotations"], "demo")
    targets = {f"{names.MODELS_DIR}/{one.name}" for one in models if not isinstance(one, str)}
    for kind in ("containers", "initContainers"):
        for old, new in zip(content["spec"].get(kind) or (), found["spec"].get(kind) or (), strict=True):
            assert [one for one in new["volumeMounts"] if one["mountPath"] not in targets] == old["volumeMounts"]
            assert targets <= {one["mountPath"] for one in new["volumeMounts"]}
            assert all(one.get("readOnly") for one in new["volumeMounts"] if one["mountPath"] in targets)
            assert new["env"][-len(old["env"]) :] == old["env"] or not old["env"]
    left = {key: value for key, value in found["spec"].items() if key in content["spec"] and key == "nodeName"}
    assert bool(left) != any(gate == GATE for gate in found["spec"].get("schedulingGates", []))
