"""etcd, API server, controller manager and scheduler of a stand."""

import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass

from tests.cluster.stand.certificates import Authority
from tests.cluster.stand.layout import ADDRESS, SERVICE_RANGE, Layout
from tests.cluster.stand.process import Part
from tests.cluster.stand.waiting import until

READY_SECONDS = 60.0
NODE_GRACE = "16s"
"""How long a node may be silent before it is NotReady: short, for tests of node loss; kubelets renew every 3 s."""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The four programs; each may be stopped, frozen, killed and restarted by itself."""

    layout: Layout

    def start(self, authority: Authority) -> None:
        """Write keys and kubeconfigs, start etcd and the API server, which answers a little later (`wait`)."""
        layout = self.layout
        authority.server(
            "apiserver", ADDRESS, "127.0.0.1", "10.96.0.1", "localhost", "kubernetes",
            "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
        )  # fmt: skip
        authority.client("kube-apiserver-kubelet-client", "system:masters")
        authority.service_account_key()
        self.etcd.start()
        self.apiserver.start()
        authority.kubeconfig("admin", "system:masters", into=layout.kubeconfig)
        for user in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
            authority.kubeconfig(f"system:{user}", into=layout.root / f"{user}.kubeconfig")

    def start_controllers(self) -> None:
        """Start controller manager and scheduler; before the API server is ready they would be refused and end."""
        self.controllers.start()
        self.scheduler.start()

    def wait(self, *, seconds: float = READY_SECONDS) -> None:
        """Wait until the API server says that it is ready.

        Raises:
            StandError: the deadline passed.
        """
        context = ssl.create_default_context(cafile=str(self.layout.ca))
        pki = self.layout.pki
        context.load_cert_chain(
            pki / "user-kube-apiserver-kubelet-client.crt", pki / "user-kube-apiserver-kubelet-client.key"
        )

        def ready() -> bool:
            try:
                with urllib.request.urlopen(f"https://{ADDRESS}:6443/readyz", timeout=5, context=context) as answer:
                    return bool(answer.status == 200)
            except (OSError, urllib.error.URLError):
                return False

        until(ready, what="API server ready", seconds=seconds)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All four, in the order of their start."""
        return (self.etcd, self.apiserver, self.controllers, self.scheduler)

    @property
    def etcd(self) -> Part:
        """The store; it does not wait for the disk."""
        clients, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        return self._part(
            "etcd", "--data-dir", str(self.layout.root / "etcd"), "--unsafe-no-fsync", "--log-level=warn",
            "--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", peers,
        )  # fmt: skip

    @property
    def apiserver(self) -> Part:
        """The API server; it dials webhooks by Service at their endpoints (aggregator routing), with no kube-proxy."""
        pki = self.layout.pki
        return self._part(
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            "--bind-address=0.0.0.0",
            f"--advertise-address={ADDRESS}",
            "--secure-port=6443",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={self.layout.ca}",
            f"--kubelet-certificate-authority={self.layout.ca}",
            f"--kubelet-client-certificate={pki}/user-kube-apiserver-kubelet-client.crt",
            f"--kubelet-client-key={pki}/user-kube-apiserver-kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--enable-aggregator-routing=true",
            "--allow-privileged=true",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--shutdown-delay-duration=0s",
        )

    @property
    def controllers(self) -> Part:
        """The controller manager."""
        return self._part(
            "kube-controller-manager",
            *self._kubeconfigs("kube-controller-manager"),
            f"--service-account-private-key-file={self.layout.pki}/sa.key",
            f"--root-ca-file={self.layout.ca}",
            "--use-service-account-credentials=true",
            "--controllers=*",
            f"--node-monitor-grace-period={NODE_GRACE}",
            "--node-monitor-period=1s",
        )

    @property
    def scheduler(self) -> Part:
        """The scheduler."""
        return self._part("kube-scheduler", *self._kubeconfigs("kube-scheduler"))

    def _kubeconfigs(self, user: str) -> list[str]:
        file = self.layout.root / f"{user}.kubeconfig"
        options = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        return [*(f"--{option}={file}" for option in options), "--bind-address=127.0.0.1", "--leader-elect=false"]

    def _part(self, program: str, *arguments: str) -> Part:
        return Part(
            self.layout, program, [self.layout.bin / program, *arguments], f"{self.layout.cgroup}/control-plane"
        )
