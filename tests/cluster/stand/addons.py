"""Programs beside the cluster: DNS, default storage class, image registry, S3, KubeRay's operator.

They run as processes of the sandbox with the administrator's kubeconfig.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.cluster.stand import addonfiles
from tests.cluster.stand.certificates import Authority
from tests.cluster.stand.images import BUSYBOX_IMAGE, busybox_image
from tests.cluster.stand.layout import (
    ADDRESS,
    HUB_ADDRESS,
    HUB_DOMAINS,
    REGISTRY_ADDRESS,
    REGISTRY_HOST,
    S3_ADDRESS,
    S3_HOST,
    Layout,
)
from tests.cluster.stand.process import Part
from tests.cluster.stand.waiting import command
from tests.support import binaries

S3_ACCESS_KEY = "stand"
S3_SECRET_KEY = "stand-secret"
SEED_IMAGES = ("embedder:latest", "generator:latest", "rag-service:latest")
"""Images of the users' own manifests, served as busybox by registry.example.com."""
STORAGE_NAMESPACE = "stand-storage"
STORAGE_CLASS = "shared"
"""The default: each volume is on all nodes."""
EXAMPLE_CLASS = "rwx-storage-class"
"""The same, as the users' own manifests name it."""
LOCAL_CLASS = "local"
"""Each volume is on one node, as on a laptop's cluster."""


@dataclass(frozen=True, slots=True)
class Addons:
    """The stand's servers; each may be stopped, frozen, killed and restarted by itself."""

    layout: Layout

    def start_servers(self, authority: Authority) -> None:
        """Start what needs no API server: the registry with the seeds' images, and S3."""
        registry, s3 = self.layout.root / "registry", self.layout.root / "s3"
        authority.server("registry", REGISTRY_HOST, REGISTRY_ADDRESS)
        authority.server("s3", S3_HOST, f"*.{S3_HOST}", S3_ADDRESS)
        for name in SEED_IMAGES:
            addonfiles.write_to_registry(registry, busybox_image(name))
        (self.layout.root / "registry.json").write_text(addonfiles.registry(registry, self.layout.pki))
        hosts = self.layout.hosts / REGISTRY_HOST
        hosts.mkdir()
        (hosts / "hosts.toml").write_text(addonfiles.registry_hosts(self.layout.ca))
        s3.mkdir()
        self.registry.start()
        self.s3.start()

    def start_dns(self) -> None:
        """Start CoreDNS; it waits for the API server by itself."""
        names = {REGISTRY_HOST: REGISTRY_ADDRESS, S3_HOST: S3_ADDRESS, "stand.example.com": ADDRESS}
        wild = dict.fromkeys(HUB_DOMAINS, HUB_ADDRESS) | {S3_HOST: S3_ADDRESS}
        corefile = addonfiles.corefile(kubeconfig=self.layout.kubeconfig, names=names, wild=wild)
        (self.layout.root / "Corefile").write_text(corefile)
        self.dns.start()

    def start_storage(self) -> None:
        """Make the default storage class and start its provisioner; the API server must be ready."""
        everywhere = dict.fromkeys((STORAGE_CLASS, EXAMPLE_CLASS), self.layout.shared)
        settings = addonfiles.storage_settings(everywhere, LOCAL_CLASS)
        (self.layout.root / "storage.json").write_text(settings)
        objects = addonfiles.storage_objects(
            STORAGE_NAMESPACE, STORAGE_CLASS, EXAMPLE_CLASS, LOCAL_CLASS, image=BUSYBOX_IMAGE
        )
        command("kubectl", "apply", "--filename=-", stdin=objects)
        self.storage.start()

    def start_kuberay(self) -> None:
        """Install KubeRay's custom resources and start its operator, which is built now if the cache lacks it."""
        self.define_kuberay()
        self.kuberay.start()

    def define_kuberay(self) -> None:
        """Install KubeRay's custom resources, or make them what they should be."""
        crds = binaries.data("kuberay-operator")
        command("kubectl", "apply", "--server-side", "--force-conflicts", f"--filename={crds}")
        command("kubectl", "wait", "--for=condition=Established", "crd/rayclusters.ray.io", "--timeout=30s")

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those that every stand has."""
        return (self.registry, self.s3, self.dns, self.storage)

    @property
    def registry(self) -> Part:
        """Image registry (distribution 3), HTTPS on port 443 of its own address."""
        return self._part("registry", "serve", str(self.layout.root / "registry.json"))

    @property
    def s3(self) -> Part:
        """S3 (Versity Gateway over a folder), HTTPS on port 443 of its own address."""
        pki = self.layout.pki
        return self._part(
            "versitygw", "--port", f"{S3_ADDRESS}:443", "--quiet", "--cert", f"{pki}/s3.crt", "--key", f"{pki}/s3.key",
            "posix", str(self.layout.root / "s3"),
            ROOT_ACCESS_KEY=S3_ACCESS_KEY, ROOT_SECRET_KEY=S3_SECRET_KEY,
        )  # fmt: skip

    @property
    def dns(self) -> Part:
        """CoreDNS on the stand's own address."""
        return self._part("coredns", "-conf", str(self.layout.root / "Corefile"))

    @property
    def storage(self) -> Part:
        """The provisioner behind the default storage class; it serves RWX claims."""
        return self._part(
            "local-path-provisioner", "start", "--config", str(self.layout.root / "storage.json"),
            "--namespace", STORAGE_NAMESPACE, "--helper-image", BUSYBOX_IMAGE,
            "--kubeconfig", str(self.layout.kubeconfig),
        )  # fmt: skip

    @property
    def kuberay(self) -> Part:
        """KubeRay's operator."""
        program = binaries.path("kuberay-operator")
        arguments: list[str | Path] = [
            program,
            "--enable-leader-election=false",
            "--metrics-addr=127.0.0.1:8180",
            "--health-probe-bind-address=127.0.0.1:8181",
        ]
        return Part(
            self.layout,
            "kuberay-operator",
            [*arguments, f"--kubeconfig={self.layout.kubeconfig}"],
            f"{self.layout.cgroup}/control-plane",
        )

    def _part(self, program: str, *arguments: str, **environment: str) -> Part:
        words: list[str | Path] = [self.layout.bin / program, *arguments]
        cgroup = f"{self.layout.cgroup}/control-plane"
        return Part(self.layout, program, words, cgroup, environment=environment)
