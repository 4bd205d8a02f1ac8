"""The chart as a module of Deckhouse: its settings are those of the chart, below another root, and install the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from aimodels_jobs import moduleconfig
from tests.contract.test_chart import CHART, IMAGES, VARIANTS, Object, environment, helm, pods, render
from tests.support import definitions

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
FORMS = yaml.safe_load((CHART / "files/forms.yaml").read_text())["forms"]
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
OPENAPI = {path.name: yaml.safe_load(path.read_text()) for path in (CHART / "openapi").iterdir()}
USER, INTERNAL = OPENAPI["config-values.yaml"], OPENAPI["values.yaml"]
RUSSIAN = OPENAPI["doc-ru-config-values.yaml"]
OF_DECKHOUSE = {"internal", "registry"}
"""What Deckhouse has below the same root."""
UNCOMPARED = ("description", "default", "x-kubernetes-preserve-unknown-fields")


def resolved(node: Object) -> Object:
    """A node of the schema without references."""
    if "$ref" in node:
        kind, name = node["$ref"].removeprefix("#/").split("/")
        return resolved(SCHEMA[kind][name])
    found = {key: value for key, value in node.items() if key not in ("allOf", "description", "additionalProperties")}
    if "properties" not in node and "additionalProperties" in node:
        found["additionalProperties"] = node["additionalProperties"]
    for part in map(resolved, node.get("allOf", ())):
        properties = {**found.get("properties", {}), **part.get("properties", {})}
        found |= part | ({"properties": properties} if properties else {})
    return found


def rules(node: Object, path: str = "") -> dict[str, Object]:
    """Rules of each setting by its path, as the schema has them."""
    node = resolved(node)
    if "properties" not in node:
        return {path: formed(node, path)}
    prefix = f"{path}." if path else ""
    return {
        key: rule for name, child in node["properties"].items() for key, rule in rules(child, prefix + name).items()
    }


def formed(node: Object, path: str) -> Object:
    """A rule, with the form of its texts."""
    patterns = [{"pattern": form["pattern"]} for form in FORMS if path in form["settings"]]
    if not patterns:
        return node
    (pattern,) = patterns
    return {**node, "items": {**node["items"], **pattern}} if "items" in node else {**node, **pattern}


def told(node: Object, path: str = "") -> dict[str, Object]:
    """Rules of each setting by its path, as OpenAPI has them, in the words of the schema."""
    if "properties" not in node:
        rule = {key: value for key, value in node.items() if key not in UNCOMPARED}
        if "oneOf" in rule:
            text, number = rule["oneOf"]
            rule = {**text, **number, "type": [text["type"], number["type"]]}
        if "enum" in rule:
            rule.pop("type")
        return {path: rule}
    prefix = f"{path}." if path else ""
    children = [told(child, prefix + name) for name, child in node["properties"].items()]
    return {key: rule for found in children for key, rule in found.items()}


def defaults(node: Object, path: str = "") -> dict[str, Any]:
    if "properties" not in node:
        return {path: node.get("default")}
    prefix = f"{path}." if path else ""
    return {k: v for name, child in node["properties"].items() for k, v in defaults(child, prefix + name).items()}


def at(values: Object, path: str) -> Any:
    found: Any = values
    for name in path.split("."):
        found = found[name]
    return found


def ours() -> Object:
    """Both files as one, without what Deckhouse adds."""
    assert INTERNAL["x-extend"] == {"schema": "config-values.yaml"}
    both = {**USER["properties"], **INTERNAL["properties"]}
    return {"properties": {name: node for name, node in both.items() if name not in OF_DECKHOUSE}}


def test_openapi_says_what_the_schema_says() -> None:
    properties = {name: node for name, node in SCHEMA["properties"].items() if name not in ("global", "aiModels")}

    assert told(ours()) == rules({"properties": properties})


def test_settings_with_a_form_exist_and_are_called_the_same_everywhere() -> None:
    wanted = {path: form["want"] for form in FORMS for path in form["settings"]}

    assert wanted.keys() <= told(ours()).keys()
    named = {path: setting.wanted for path, setting in moduleconfig.SERVED.items() if path in wanted}
    assert named == {path: want for path, want in wanted.items() if path in moduleconfig.SERVED}


def test_defaults_are_those_of_the_chart() -> None:
    found = defaults(ours())

    assert found == {path: at(DEFAULTS, path) for path in found}
    assert all(node.get("default") == {} for node in ours()["properties"].values() if "properties" in node)


def test_a_module_config_has_the_settings_of_openapi() -> None:
    assert USER["x-config-version"] == moduleconfig.VERSION
    assert set(told(USER)) == set(moduleconfig.SERVED)
    assert USER["additionalProperties"] is False


def test_every_setting_is_described_in_both_languages() -> None:
    def texts(node: Object, path: str = "") -> dict[str, str]:
        found = {path: node.get("description", "")} if path else {}
        for name, child in node.get("properties", {}).items():
            found |= texts(child, f"{path}.{name}")
        return found

    english, russian = texts(USER), texts(RUSSIAN)

    assert english.keys() == russian.keys()
    assert [path for path in english if not english[path].endswith(".") or not russian[path].endswith(".")] == []


def test_the_root_of_deckhouse_has_the_rules_of_the_other_one() -> None:
    found = SCHEMA["properties"]["aiModels"]["properties"]

    assert found == {name: {"$ref": f"#/properties/{name}"} for name in DEFAULTS}


def below_ai_models(values: Object, folder: Path, **more: Any) -> list[Object]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump({"global": {}, "aiModels": values, **more}))
    done = helm("template", "ai-models", str(CHART), "--namespace=home", "--kube-version=1.36.3", f"--values={file}")
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def nested(values: Object) -> Object:
    found: Object = {}
    for path, value in values.items():
        target = found
        *parents, last = path.split(".")
        for name in parents:
            target = target.setdefault(name, {})
        target[last] = value
    return found


@pytest.mark.parametrize("values", VARIANTS)
def test_the_same_is_rendered_from_either_root(values: Object, tmp_path: Path) -> None:
    more = {"logLevel": "Debug", "sources.pickle": "Refuse"}

    assert below_ai_models(nested({**values, **more}), tmp_path) == render({**values, **more})


def test_false_and_empty_settings_are_heard_below_the_root_of_deckhouse(tmp_path: Path) -> None:
    values = nested({**IMAGES, "dataplane.enabled": False, "coordinator.url": "https://c:1"})
    values["delivery"] = {"type": "NodeCache", "nodeCacheSize": ""}
    objects = below_ai_models(values, tmp_path)

    assert dict(pods(objects)).keys() == {"ai-models-operator", "ai-models-webhook"}
    assert "AI_MODELS_NODE_CACHE_SIZE" not in environment(objects, "ai-models-operator")


def test_images_of_deckhouse_are_taken_by_digest(tmp_path: Path) -> None:
    digests = {"operator": "sha256:1", "jobs": "sha256:2", "dmcr": "sha256:3", "other": "sha256:4"}
    images = {"modulesImages": {"digests": {"aiModels": digests}}}
    values = {"registry": {"base": "registry.example.com/modules/"}, "internal": {"x": 1}}
    found = below_ai_models(values, tmp_path, **{"global": images})

    assert {spec["containers"][0]["image"] for _, spec in pods(found)} == {
        f"registry.example.com/modules/ai-models@sha256:{number}" for number in (1, 2, 3)
    }
    assert environment(found, "ai-models-operator")["AI_MODELS_LOG_LEVEL"] == "Info"


def test_a_wrong_setting_below_the_root_of_deckhouse_is_refused() -> None:
    done = helm(
        "template", "x", str(CHART), "--namespace=home", "--kube-version=1.36.3", "--set=aiModels.logLevel=Trace"
    )

    assert done.returncode != 0
    assert "at '/aiModels/logLevel'" in done.stderr


def test_every_template_begins_by_finding_its_settings() -> None:
    files = [*(CHART / "templates").glob("*.yaml"), CHART / "templates/NOTES.txt"]
    first = '{{- include "ai-models.settings" . }}\n'

    assert [path.name for path in files if not path.read_text(encoding="utf-8").startswith(first)] == []


def test_the_module_is_described() -> None:
    module = yaml.safe_load((CHART / "module.yaml").read_text())
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    ignored = (CHART / ".helmignore").read_text().split("\n")

    assert (module["name"], module["namespace"]) == (chart["name"], "d8-ai-models")
    assert module["requirements"]["kubernetes"].removeprefix(">= ") in chart["kubeVersion"]
    assert {"module.yaml", "openapi/"} <= set(ignored)
    assert (definitions.ROOT / "charts/ai-models/openapi").is_dir()
