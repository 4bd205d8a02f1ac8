"""The whole product from its chart, as tests hold it: its store, its coordinator, its Pods and their processes."""

import base64
import contextlib
import os
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path

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
_HUB = ("sources.huggingFace.endpoint=https://huggingface.co", "sources.huggingFace.caSecretName=installed-hub-ca")


@contextlib.contextmanager
def whole(hub: Hub, *settings: str) -> Iterator[None]:
    """Everything, with a claim for its store, and the hub as the administrator's; nothing is left afterwards."""
    chart.namespaces()
    Kubectl(SYSTEM).apply(secret("installed-hub-ca", {"ca.crt": hub.ca_pem.decode()}))
    try:
        again(*settings)
        yield
    finally:
        operating.install()
        home = Kubectl(HOME)
        home("delete", "secret", "--ignore-not-found", *HomeSecret)
        home("delete", "pvc", "--ignore-not-found", CLAIM, f"--timeout={GONE_SECONDS:g}s", seconds=GONE_SECONDS + 10)


def again(*settings: str) -> None:
    """Install what `whole` has installed, after it was uninstalled."""
    chart.install_whole(*_HUB, *settings)


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
