"""A node for the CSI driver: its real process in a mount namespace of its own, kubelet's folders, an API server's Pods.

What the driver mounts is seen through /proc of the process that keeps the namespace; nothing is mounted outside it.
Needs root. The API server speaks what the driver asks: GET of a Pod, LIST of a node's Pods by their metadata.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # has no types

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_nodecache import grants, wire
from tests.support.certificates import certificates
from tests.support.processes import free_port, wait_for
from tests.support.scripted import Call, Reply, serve

NODE = "node-a"
TOKEN = "a-token-of-the-driver"
CALL_SECONDS = 30.0
START_SECONDS = 30.0


@dataclasses.dataclass(slots=True)
class PodServer:
    """Pods by namespace and name.

    Args:
        pods: what there is.
        devices: BlockDevice objects.
        refuse: status of every answer; 0 answers properly.
    """

    pods: dict[tuple[str, str], dict[str, Any]] = dataclasses.field(default_factory=dict)
    devices: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    refuse: int = 0

    def __call__(self, call: Call) -> Reply:
        """Answer a request."""
        if self.refuse:
            return Reply(self.refuse, b"{}")
        if call.headers.get("authorization") != f"Bearer {TOKEN}":
            return Reply(401, b"{}")
        path, _, query = call.path.partition("?")
        parts = path.strip("/").split("/")
        if parts[-1] == "blockdevices":
            return Reply(200, json.dumps({"items": self.devices}).encode())
        if len(parts) == 6:
            found = self.pods.get((parts[3], parts[5]))
            return Reply(200, json.dumps(found).encode()) if found else Reply(404, b"{}")
        assert f"spec.nodeName%3D{NODE}" in query or f"spec.nodeName={NODE}" in query
        assert "PartialObjectMetadataList" in call.headers["accept"]
        here = [pod for pod in self.pods.values() if pod["spec"].get("nodeName") == NODE]
        items = [{"metadata": {"uid": pod["metadata"]["uid"]}} for pod in here]
        return Reply(200, json.dumps({"metadata": {}, "items": items}).encode())


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """A Pod of the API server.

    Args:
        name: its name.
        uid: its uid.
        namespace: where it is.
    """

    name: str
    uid: str
    namespace: str = "team"

    def context(self, model: str) -> dict[str, str]:
        """What kubelet says of its volume."""
        return {
            grants.POD_NAME: self.name,
            grants.POD_NAMESPACE: self.namespace,
            grants.POD_UID: self.uid,
            grants.EPHEMERAL: "true",
            names.ATTRIBUTE_MODEL: model,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """Of the driver: `OK` or the name of a gRPC code, its words, and the message."""

    code: str
    words: str = ""
    message: Any = None


class CsiNode:
    """A node whose driver can be started, stopped and killed.

    Args:
        root: a folder with a short path, since sockets lie below.
        api: the API server's Pods.
        api_url: where it answers.
        account: folder with token and ca.crt.
    """

    def __init__(self, root: Path, api: PodServer, api_url: str, account: Path) -> None:
        self.root, self.api, self.account = root, api, account
        self.api_url = api_url
        self.kubelet, self.cache = root / "k", root / "cache"
        for folder in (self.kubelet / "pods", self.kubelet / "plugins_registry", self.cache / "devices" / "host"):
            folder.mkdir(parents=True)
        (self.cache / "devices" / "host" / ".ai-models").touch()
        self.log = root / "driver.log"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        keep = ["unshare", "--mount", "--propagation", "private", "sleep", "infinity"]
        self._holder = subprocess.Popen(keep, stdin=subprocess.DEVNULL)
        wait_for(lambda: _comm(self._holder.pid) == "sleep", "a mount namespace")

    @property
    def endpoint(self) -> str:
        """Address of the driver's socket."""
        return f"unix:{self.kubelet}/plugins/{names.CSI_DRIVER}/csi.sock"

    @property
    def entry(self) -> Path:
        """The socket by which kubelet finds the driver."""
        return self.kubelet / "plugins_registry" / f"{names.CSI_DRIVER}-reg.sock"

    def within(self, *words: str | Path) -> list[str]:
        """Words that run a program in the node's mount namespace."""
        return ["nsenter", f"--target={self._holder.pid}", "--mount", "--", *(str(word) for word in words)]

    def run(self, *words: str | Path) -> str:
        """Run a program there; returns what it printed."""
        done = subprocess.run(self.within(*words), capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def seen(self, path: Path) -> Path:
        """A path as it is seen there."""
        return Path(f"/proc/{self._holder.pid}/root{path}")

    def mounts(self) -> list[str]:
        """Targets of all mounts below kubelet's folder, once each."""
        text = Path(f"/proc/{self._holder.pid}/mountinfo").read_text()
        targets = [line.split()[4] for line in text.splitlines()]
        return sorted(target for target in targets if target.startswith(str(self.kubelet)))

    def start(self, **more: str) -> None:
        """Start the driver, with more settings such as `WAIT_SECONDS="2"`, and wait until it answers."""
        self.port = free_port()
        settings = {
            "NODE": NODE,
            "CACHE_DIR": str(self.cache),
            "KUBELET_DIR": str(self.kubelet),
            "API_URL": self.api_url,
            "ACCOUNT_DIR": str(self.account),
            "LISTEN_HOST": "127.0.0.1",
            "HEALTH_PORT": str(self.port),
            **more,
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AI_MODELS_")}
        environment |= {f"AI_MODELS_{name}": value for name, value in settings.items()}
        words = self.within(sys.executable, "-m", "aimodels_nodecache", "csi")
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        wait_for(self.healthy, f"a driver:\n{self.log.read_text()}", seconds=START_SECONDS)

    def healthy(self, path: str = "/healthz") -> bool:
        """Whether the driver says so."""
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def metric(self, name: str) -> float:
        """A value that the driver counts, by its name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            lines = answer.read(1 << 20).decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the driver; returns its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(20)

    def close(self) -> None:
        """End everything; the namespace takes its mounts with it."""
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGKILL)
        self._holder.kill()
        self._holder.wait(10)

    def tree(self, content: str) -> Digest:
        """Have an artifact with one file of that content, whole."""
        digest = Digest.of(content.encode())
        trees = self.cache / "devices" / "host" / "trees"
        scratch = self.cache / f"tmp-{uuid.uuid4().hex}"
        (scratch / "onnx").mkdir(parents=True)
        (scratch / "config.json").write_text(content)
        (scratch / "onnx" / "model.onnx").write_text("weights")
        trees.mkdir(exist_ok=True)
        scratch.rename(trees / digest.hex)
        return digest

    def pod(self, name: str, models: Mapping[str, Digest] | None, *, node: str = NODE, namespace: str = "team") -> Pod:
        """Have a Pod that was told what it gets, or not yet with None."""
        made = Pod(name, str(uuid.uuid4()), namespace)
        meta: dict[str, Any] = {"name": name, "namespace": namespace, "uid": made.uid}
        self.api.pods[namespace, name] = {"metadata": meta, "spec": {"nodeName": node}}
        if models is not None:
            self.tell(made, models)
        return made

    def tell(self, pod: Pod, models: Mapping[str, Digest]) -> None:
        """Tell a Pod what it gets, as the operator would."""
        told = [{"name": name, "path": f"/data/{name}", "digest": str(digest)} for name, digest in models.items()]
        notes = {names.ANNOTATION_RESOLVED_MODELS: json.dumps(told)}
        self.api.pods[pod.namespace, pod.name]["metadata"]["annotations"] = notes

    def target(self, pod: Pod, volume: str) -> Path:
        """Where a volume of a Pod is mounted; its folder is made and described as kubelet does."""
        folder = self.kubelet / "pods" / pod.uid / "volumes" / "kubernetes.io~csi" / volume
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "vol_data.json").write_text(json.dumps({"driverName": names.CSI_DRIVER, "volumeHandle": volume}))
        return folder / "mount"

    def call(self, method: str, *, seconds: float = CALL_SECONDS, **fields: Any) -> Answer:
        """Call a method of the node service, as kubelet would."""
        with grpc.insecure_channel(self.endpoint) as channel:
            return call(channel, f"csi.v1.Node/{method}", seconds=seconds, **fields)

    def publish(
        self, pod: Pod, model: str, volume: str = "", *, seconds: float = CALL_SECONDS, **fields: Any
    ) -> Answer:
        """Publish a volume of a Pod."""
        volume = volume or f"volume-{pod.name}-{model}"
        wanted = {
            "volume_id": f"csi-{volume}-{pod.uid}",
            "target_path": str(self.target(pod, volume)),
            "volume_capability": {"mount": {}, "access_mode": {"mode": 1}},
            "readonly": True,
            "volume_context": pod.context(model),
            **fields,
        }
        return self.call("NodePublishVolume", seconds=seconds, **wanted)

    def unpublish(self, pod: Pod, model: str, volume: str = "") -> Answer:
        """Unpublish a volume of a Pod."""
        volume = volume or f"volume-{pod.name}-{model}"
        target = str(self.target(pod, volume))
        return self.call("NodeUnpublishVolume", volume_id=f"csi-{volume}-{pod.uid}", target_path=target)

    def file(self, pod: Pod, model: str, name: str = "config.json") -> Path:
        """A file of a Pod's volume, as it is seen there."""
        return self.seen(self.target(pod, f"volume-{pod.name}-{model}") / name)

    def records(self) -> set[str]:
        """Uids of Pods that are remembered."""
        return {path.stem for path in (self.cache / "records").glob("*.json")}


def call(channel: Any, method: str, *, seconds: float = CALL_SECONDS, **fields: Any) -> Answer:
    """Call a method such as `csi.v1.Node/NodeGetInfo`."""
    service, _, name = method.partition("/")
    package = service.rpartition(".")[0]
    request, response = {"GetInfo": ("InfoRequest", "PluginInfo")}.get(name, (f"{name}Request", f"{name}Response"))
    if name == "NotifyRegistrationStatus":
        request, response = "RegistrationStatus", "RegistrationStatusResponse"
    stub = channel.unary_unary(
        f"/{method}",
        request_serializer=wire.message(f"{package}.{request}").SerializeToString,
        response_deserializer=wire.message(f"{package}.{response}").FromString,
    )
    try:
        return Answer("OK", message=stub(wire.message(f"{package}.{request}")(**fields), timeout=seconds))
    except grpc.RpcError as error:
        return Answer(error.code().name, error.details() or "")


@contextlib.contextmanager
def csi_node() -> Iterator[CsiNode]:
    """A node without a running driver; nothing of it is left afterwards."""
    root = Path(tempfile.mkdtemp(prefix="csi-"))
    api, account = PodServer(), root / "account"
    account.mkdir()
    (account / "token").write_text(TOKEN)
    made = certificates(account)
    with serve(api, context=made.server_context()) as server:
        node = CsiNode(root, api, server.url, account)
        try:
            yield node
        finally:
            node.close()
            shutil.rmtree(root)


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
