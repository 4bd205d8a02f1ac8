"""The whole product from its chart, as tests hold it: its store, its coordinator, its Pods and their processes."""

import base64
import contextlib
import os
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path

from aimodels_core import names
from aimodels_core.names import HomeSecret
from aimodels_jobs.folder import Folder
from aimodels_jobs.layout import Store
from tests.cluster import operating
from tests.cluster.operating import secret
from tests.cluster.stand import cgroups, chart
from tests.cluster.stand.chart import HOME, SYSTEM
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.cluster.stand.waiting import until
from tests.support.coordinators import Api
from tests.support.hub.server import Hub

CLAIM = "ai-models-store"
PORT = 18270
GONE_SECONDS = 90.0
HUB = ("sources.huggingFace.endpoint=https://huggingface.co", "sources.huggingFace.caSecretName=installed-hub-ca")


@contextlib.contextmanager
def whole(hub: Hub, *settings: str, token: str = "", config: Path | None = None) -> Iterator[None]:
    """Everything, with the hub as the administrator's, a claim for its store unless the settings name a bucket; nothing
    is left afterwards.

    Args:
        settings: further ones.
        token: the administrator's, for the hub.
        config: a file with values for Helm, over which the settings go.
    """
    chart.namespaces()
    Kubectl(SYSTEM).apply(
        secret("installed-hub-ca", {"ca.crt": hub.ca_pem.decode()}), secret("installed-hub", {"token": token})
    )
    credentials = ("sources.huggingFace.credentialsSecretName=installed-hub",) if token else ()
    try:
        chart.install_whole(*HUB, *credentials, *settings, config=config)
        yield
    finally:
        operating.install()
        home = Kubectl(HOME)
        home("delete", "secret", "--ignore-not-found", *HomeSecret)
        home("delete", "pvc", "--ignore-not-found", CLAIM, f"--timeout={GONE_SECONDS:g}s", seconds=GONE_SECONDS + 10)


@contextlib.contextmanager
def namespace(name: str) -> Iterator[Kubectl]:
    """A namespace; afterwards its Pods are gone at once, so that what serves their volumes may go."""
    Kubectl()("create", "namespace", name)
    space = Kubectl(name)
    try:
        yield space
    finally:
        space("delete", "deployment", "--all", "--wait=false")
        space("delete", "pod", "--all", "--grace-period=0", "--force")
        Kubectl()("delete", "namespace", name, f"--timeout={GONE_SECONDS:g}s", seconds=GONE_SECONDS + 10)


def again(*settings: str) -> None:
    """Install what `whole` has installed, after it was uninstalled."""
    chart.install_whole(*HUB, *settings)


def model(name: str, repository: str, secret_name: str = "") -> Object:
    """A Model from the hub, with a Secret for it."""
    source: Object = {"url": f"https://huggingface.co/{repository}"}
    source |= {"authSecretRef": {"name": secret_name}} if secret_name else {}
    meta = {"name": name}
    return {"apiVersion": "ai.deckhouse.io/v1alpha1", "kind": "Model", "metadata": meta, "spec": {"source": source}}


def store_folder() -> Path:
    """Where the claim of the store lies on this machine."""
    volume = Kubectl(HOME).get("pvc", CLAIM)["spec"]["volumeName"]
    spec = Kubectl().get("pv", volume)["spec"]
    return Path((spec.get("hostPath") or spec.get("local"))["path"])


def store() -> Store:
    """The store behind the claim, for looking into it."""
    return Store(Folder(store_folder(), create=False))


def value(name: str, key: str) -> str:
    """What is in a Secret of the module's namespace."""
    return base64.b64decode(Kubectl(HOME).get("secret", name)["data"][key]).decode()


def coordinator() -> Api:
    """A client of the coordinator that runs now."""
    (head,) = chart.pods("ray-head")
    context = ssl.create_default_context(cadata=value("ai-models-serving-root", "tls.crt"))
    context.check_hostname = False  # reached by its Pod's address: that of its Service is known to nodes alone
    return Api(PORT, value("ai-models-coordinator", "token"), context, head["status"]["podIP"])


def digests(space: Kubectl, name: str, model: str) -> dict[str, str]:
    """sha256 of each file that a Pod finds."""
    folder = f"{names.MODELS_DIR}/{model}"
    script = f"cd {folder} && busybox find . -type f -exec busybox sha256sum {{}} +"
    lines = space.exec(name, "sh", "-c", script).splitlines()
    found = {path.removeprefix("./"): digest for digest, path in (line.split(maxsplit=1) for line in lines)}
    return {path: digest for path, digest in found.items() if not path.startswith(".ai-models")}


def processes(stand: Cluster, pod: Object, title: str = "") -> list[int]:
    """Processes of a Pod's containers, as the stand numbers them; those with some title, such as `ray::Host`."""
    (folder,) = (cgroups.ROOT / "freezer" / stand.layout.cgroup).glob(f"*/**/pod{pod['metadata']['uid']}")
    running = [status["containerID"].rpartition("/")[2] for status in pod["status"]["containerStatuses"]]
    root = cgroups.ROOT / "freezer"
    found = [pid for name in running for pid in cgroups.members(str((folder / name).relative_to(root)))]
    return sorted(pid for pid in found if title in _command_line(pid))


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def kill(*pids: int) -> None:
    """SIGKILL, as from the node."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def bury(pod: Object) -> None:
    """Wait until the end of a Pod's processes was noticed, after `kill`. A container is started anew in it; after the
    second time kubelet would wait before it does so: then the Pod goes too, and another one comes.
    """
    home, uid = Kubectl(HOME), pod["metadata"]["uid"]
    before = {status["containerID"] for status in pod["status"]["containerStatuses"]}
    if any(status["restartCount"] for status in pod["status"]["containerStatuses"]):
        home("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")

    def noticed() -> bool:
        found = [each["status"] for each in home.items("pods") if each["metadata"]["uid"] == uid]
        states = [state for status in found for state in status["containerStatuses"]]
        return not before & {state["containerID"] for state in states if "running" in state["state"]}

    until(noticed, what=f"the end of {pod['metadata']['name']} to be noticed", seconds=GONE_SECONDS, pause=0.2)
