"""Parsing of Model and ClusterModel objects."""

from typing import Any

import pytest

from aimodels_core import api
from aimodels_core.api import CLUSTER_MODEL, MODEL, CatalogSource, Kind, ModelObject, UploadSource, UrlSource
from aimodels_core.errors import UsageError

URL = "https://huggingface.co/BAAI/bge-m3"


def _raw(**source: Any) -> dict[str, Any]:
    meta = {"uid": "u", "name": "n", "namespace": "ns", "generation": 3, "resourceVersion": "7"}
    return {"metadata": meta, "spec": {"source": source}}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        pytest.param({"url": URL}, UrlSource(URL), id="url"),
        pytest.param({"url": URL, "authSecretRef": {"name": "s"}}, UrlSource(URL, "s"), id="url-with-secret"),
        pytest.param({"upload": {}}, UploadSource(), id="upload"),
        pytest.param({"catalog": {"name": "m"}}, CatalogSource("m"), id="catalog"),
        pytest.param({"catalog": {"name": "m", "sourceName": "s"}}, CatalogSource("m", "s"), id="catalog-of"),
        pytest.param({"url": "ftp://x"}, UrlSource("ftp://x"), id="bad-url-is-not-judged-here"),
    ],
)
def test_sources_are_parsed(source: dict[str, Any], wanted: api.ModelSource) -> None:
    assert api.parse_source({"source": source}, MODEL) == wanted


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        pytest.param({}, MODEL, "got none", id="none"),
        pytest.param(None, MODEL, "got none", id="null"),
        pytest.param({"url": URL, "upload": {}}, MODEL, "got url and upload", id="two"),
        pytest.param({"url": ""}, MODEL, "want an address", id="empty-url"),
        pytest.param({"url": "x" * 2049}, MODEL, "at most 2048", id="long-url"),
        pytest.param({"url": 7}, MODEL, "want a string", id="number"),
        pytest.param({"upload": {}, "authSecretRef": {"name": "s"}}, MODEL, "only beside url", id="secret-and-upload"),
        pytest.param({"url": URL, "authSecretRef": {"name": "s"}}, CLUSTER_MODEL, "only in a Model", id="cluster"),
        pytest.param({"catalog": {}}, MODEL, "want the name", id="catalog-without-name"),
    ],
)
def test_wrong_sources_are_refused_with_what_to_write(source: Any, kind: Kind, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        api.parse_source({"source": source}, kind)


def test_an_object_older_than_the_rules_is_parsed_with_its_problem() -> None:
    found = ModelObject.from_raw(MODEL, _raw(url=URL, upload={}))

    assert isinstance(found.source, UsageError)
    assert (found.path, found.scope, found.deleting) == ("ns/n", "ns/ns", False)


def test_a_cluster_model_belongs_to_the_cluster() -> None:
    raw = _raw(url=URL)
    del raw["metadata"]["namespace"]
    found = ModelObject.from_raw(CLUSTER_MODEL, raw)

    assert (found.path, found.scope) == ("n", "cluster")


def test_conditions_of_a_strange_status_are_read_leniently() -> None:
    raw = _raw(url=URL) | {"status": {"conditions": [{"type": "Ready", "status": 5}, "x", {"status": "True"}]}}

    found = ModelObject.from_raw(MODEL, raw)
    assert found.conditions() == {"Ready": api.Condition("Ready", "", "")}
    assert found.condition(api.ConditionType.READY) == api.Condition("Ready", "", "")
    assert found.condition(api.ConditionType.METADATA_RESOLVED) is None


def test_retry_annotation_is_cut() -> None:
    raw = _raw(url=URL)
    raw["metadata"]["annotations"] = {"ai.deckhouse.io/retry": "x" * 1000}

    assert ModelObject.from_raw(MODEL, raw).retry == "x" * 128
