"""Configuration of the stand's servers as text, and the registry's folder."""

import json
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.stand.archives import Image
from tests.cluster.stand.layout import ADDRESS, REGISTRY_ADDRESS, REGISTRY_HOST

LOCAL_FOLDER = "/var/lib/local-path"
"""Of each node: there are its volumes of the class that one node has."""
_SETUP = '#!/bin/sh\nset -eu\nmkdir -m 0777 -p "$VOL_DIR"\n'
_TEARDOWN = '#!/bin/sh\nset -eu\nrm -rf "$VOL_DIR"\n'


def corefile(*, kubeconfig: Path, names: Mapping[str, str], wild: Mapping[str, str]) -> str:
    """CoreDNS: cluster names from the API server, `names` exactly, and every name in the `wild` domains."""
    hosts = "".join(f"    {address} {name}\n" for name, address in names.items())
    zones = "".join(_wild(domain, address) for domain, address in wild.items())
    return f"""
cluster.local in-addr.arpa ip6.arpa {{
  bind {ADDRESS}
  errors
  kubernetes cluster.local in-addr.arpa ip6.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 5
  }}
}}
{zones}
. {{
  bind {ADDRESS}
  errors
  hosts {{
{hosts}    ttl 5
  }}
}}
"""


def _wild(domain: str, address: str) -> str:
    return f"""
{domain} {{
  bind {ADDRESS}
  errors
  template IN A {domain} {{
    answer "{{{{ .Name }}}} 5 IN A {address}"
  }}
  template IN AAAA {domain} {{
    rcode NOERROR
  }}
}}
"""


def registry(folder: Path, pki: Path) -> str:
    """distribution 3 over a folder."""
    return json.dumps(
        {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(folder)}, "delete": {"enabled": True}},
            "http": {
                "addr": f"{REGISTRY_ADDRESS}:443",
                "host": f"https://{REGISTRY_HOST}",
                "secret": "stand",
                "tls": {"certificate": f"{pki}/registry.crt", "key": f"{pki}/registry.key"},
            },
        }
    )


def registry_hosts(ca: Path) -> str:
    """containerd's hosts.toml for the registry: reached by address, so that a node needs no DNS for it."""
    return f"""
server = "https://{REGISTRY_HOST}"
[host."https://{REGISTRY_ADDRESS}"]
  capabilities = ["pull", "resolve", "push"]
  ca = "{ca}"
"""


def write_to_registry(folder: Path, image: Image) -> None:
    """Write an image into a registry's folder, in distribution's own layout; its name is `repository:tag`."""
    repository, _, tag = image.name.rpartition(":")
    root = folder / "docker/registry/v2"
    for digest, content in image.blobs.items():
        _write(root / f"blobs/sha256/{digest[:2]}/{digest}/data", content)
    of = root / "repositories" / repository
    for digest in image.blobs:
        _write(of / f"_layers/sha256/{digest}/link", f"sha256:{digest}".encode())
    link = f"sha256:{image.manifest}".encode()
    for place in (
        f"revisions/sha256/{image.manifest}",
        f"tags/{tag}/index/sha256/{image.manifest}",
        f"tags/{tag}/current",
    ):
        _write(of / "_manifests" / place / "link", link)


def storage_settings(shared: Mapping[str, Path], local: str) -> str:
    """Where the provisioner puts volumes: by class, folders that all nodes have; and a folder of each node for one."""
    everywhere = [{"node": "DEFAULT_PATH_FOR_NON_LISTED_NODES", "paths": [LOCAL_FOLDER]}]
    classes = {name: {"sharedFileSystemPath": str(folder)} for name, folder in shared.items()}
    return json.dumps({"storageClassConfigs": {**classes, local: {"nodePathMap": everywhere}}})


def storage_objects(namespace: str, default: str, shared: str, local: str, *, image: str) -> str:
    """Namespace, scripts and storage classes of the provisioner as a JSON list for kubectl."""
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    helper = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "helper-pod"},
        "spec": {
            "priorityClassName": "system-node-critical",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "helper-pod", "image": image, "imagePullPolicy": "IfNotPresent"}],
        },
    }
    scripts = {"setup": _SETUP, "teardown": _TEARDOWN, "helperPod.yaml": json.dumps(helper)}
    items = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "local-path-provisioner-service-account", "namespace": namespace},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "local-path-config", "namespace": namespace},
            "data": scripts,
        },
        _storage_class(default, "Immediate", {"storageclass.kubernetes.io/is-default-class": "true"}),
        _storage_class(shared, "Immediate", {}),
        _storage_class(local, "WaitForFirstConsumer", {}),
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _storage_class(name: str, binding: str, annotations: Mapping[str, str]) -> dict[str, object]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "annotations": dict(annotations)},
        "provisioner": "rancher.io/local-path",
        "volumeBindingMode": binding,
        "reclaimPolicy": "Delete",
    }


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
