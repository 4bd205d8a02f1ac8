"""The definitions of the chart say the same as the types of the core, and take every manifest that users were shown."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from aimodels_core import api, names
from aimodels_core.api import CATALOG_SOURCE, KINDS, MODEL_KINDS, NODE_CACHE, Kind
from aimodels_core.messages import Stage
from tests.support import definitions

EXAMPLES = sorted((definitions.ROOT / "examples").glob("*.yaml"))


def _values(kind: type[Any]) -> set[str]:
    return {member.value for member in kind}


def _nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from _nodes(child, f"{path}.{name}")
    if "items" in node:
        yield from _nodes(node["items"], f"{path}.[]")


def test_each_kind_has_a_definition_and_no_other() -> None:
    assert {path.stem for path in definitions.FOLDER.iterdir()} == {kind.plural for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_names_of_a_definition_are_those_of_its_kind(kind: Kind) -> None:
    found = definitions.load(kind.plural)
    spec = found["spec"]

    assert found["metadata"]["name"] == kind.crd
    assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert spec["group"] == names.GROUP
    assert spec["scope"] == ("Namespaced" if kind.namespaced else "Cluster")
    assert spec["names"] == {
        "kind": kind.name,
        "listKind": f"{kind.name}List",
        "plural": kind.plural,
        "singular": kind.singular,
        "shortNames": list(kind.short_names),
        "categories": [api.CATEGORY],
    }
    assert [version["name"] for version in spec["versions"]] == [api.VERSION]
    assert spec["versions"][0]["subresources"] == {"status": {}}


@pytest.mark.parametrize("kind", MODEL_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        pytest.param("status.phase", _values(api.Phase), id="phase"),
        pytest.param("status.resolved.format", set(api.FORMATS), id="format"),
        pytest.param("status.resolved.supportedEndpointTypes.[]", set(api.ENDPOINT_TYPES), id="endpoint"),
        pytest.param("status.resolved.supportedFeatures.[]", set(api.FEATURES), id="feature"),
        pytest.param("status.source.resolvedType", set(api.SOURCE_TYPES), id="source"),
        pytest.param("status.artifact.kind", set(api.ARTIFACT_KINDS), id="artifact"),
        pytest.param("status.publication.stage", set(api.PUBLICATION_STAGES), id="stage"),
    ],
)
def test_enumerations_are_those_of_the_core(kind: Kind, path: str, wanted: set[str]) -> None:
    assert set(definitions.field(definitions.schema(kind.plural), path)["enum"]) == wanted


def test_enumerations_of_the_other_kinds_are_those_of_the_core() -> None:
    source = definitions.schema(CATALOG_SOURCE.plural)
    cache = definitions.schema(NODE_CACHE.plural)

    assert tuple(definitions.field(source, "spec.type")["enum"]) == api.CATALOG_SOURCE_TYPES
    assert tuple(definitions.field(source, "status.phase")["enum"]) == api.CATALOG_SOURCE_PHASES
    assert tuple(definitions.field(cache, "status.models.[].state")["enum"]) == api.CACHED_MODEL_STATES


def test_stages_are_those_of_the_coordinator() -> None:
    assert set(api.PUBLICATION_STAGES) == _values(Stage)


@pytest.mark.parametrize("kind", MODEL_KINDS, ids=lambda kind: kind.name)
def test_limits_are_those_of_the_core(kind: Kind) -> None:
    found = definitions.schema(kind.plural)

    assert definitions.field(found, "spec.source.url")["maxLength"] == api.MAX_URL_CHARS
    assert definitions.field(found, "spec.source.catalog.name")["maxLength"] == api.MAX_NAME_CHARS
    assert definitions.field(found, "spec.source.authSecretRef.name")["maxLength"] == api.MAX_SECRET_NAME_CHARS
    assert definitions.field(found, "status.publication.retry")["maxLength"] == api.MAX_RETRY_CHARS
    assert definitions.field(found, "status.conditions.[].message")["maxLength"] >= api.MAX_MESSAGE_CHARS


def test_status_of_both_kinds_of_model_is_one() -> None:
    first, second = (definitions.schema(kind.plural)["properties"]["status"] for kind in MODEL_KINDS)

    assert first == second


@pytest.mark.parametrize("kind", MODEL_KINDS, ids=lambda kind: kind.name)
def test_columns_are_those_of_the_contract(kind: Kind) -> None:
    columns = definitions.load(kind.plural)["spec"]["versions"][0]["additionalPrinterColumns"]

    assert [c["name"] for c in columns if not c.get("priority")] == ["Phase", "Progress", "Format", "Size", "Age"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rules_sit_below_the_root_and_say_what_to_write_instead(kind: Kind) -> None:
    ruled = {p: n["x-kubernetes-validations"] for p, n in _nodes(definitions.schema(kind.plural)) if _ruled(n)}

    assert all(path.count(".") >= 2 for path in ruled)
    assert all(len(rule["message"]) > 30 for rules in ruled.values() for rule in rules)


def _ruled(node: dict[str, Any]) -> bool:
    return "x-kubernetes-validations" in node


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_field_is_structural_and_every_string_and_list_bounded(kind: Kind) -> None:
    for path, node in _nodes(definitions.schema(kind.plural)):
        assert "type" in node, path
        if path in {".apiVersion", ".kind", ".metadata"}:
            continue
        if node["type"] == "string":
            assert "maxLength" in node or "enum" in node or node.get("format") == "date-time", path
        if node["type"] == "array":
            assert "maxItems" in node, path


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_valid_and_parsed(path: Any) -> None:
    kinds = {kind.name: kind for kind in KINDS}
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if not document["apiVersion"].startswith(names.GROUP):
            continue
        kind = kinds[document["kind"]]

        assert list(definitions.problems(document, definitions.schema(kind.plural))) == []
        if kind in MODEL_KINDS:
            api.parse_source(document["spec"], kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_field_is_called_uri(kind: Kind) -> None:
    """The path in the registry is internal."""
    assert [path for path, _ in _nodes(definitions.schema(kind.plural)) if path.lower().endswith("uri")] == []
