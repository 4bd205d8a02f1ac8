"""The product's chart on a stand: install or upgrade it, and wait until its parts work together."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from tests.cluster.stand import product
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.cluster.stand.layout import CHECKOUT, StandError
from tests.cluster.stand.waiting import command, until

HOME = "d8-ai-models"
"""The module's own namespace."""
SYSTEM = "d8-system"
"""Where the administrator's Secrets are."""
CHART = CHECKOUT / "charts" / "ai-models"
PARTS = ("operator", "webhook", "dmcr", "ray-head", "ray-worker")
"""What a whole install runs: Deployments, without the prefix of their names."""
KUBERAY = "ray.provider=kuberay"
"""Setting with which KubeRay keeps the Pods of two of them."""
HELM_SECONDS = 120.0
GONE_SECONDS = 60.0
START_SECONDS = 300.0
"""For all parts together: Ray's head alone takes a minute on two busy cores."""


def namespaces() -> None:
    """Make the module's namespace, as strict about Pods as Kubernetes can be, and the administrator's."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    Kubectl().apply(_namespace(HOME, labels), _namespace(SYSTEM, {}))


def install(*settings: str, wait: bool = True, config: Path | None = None) -> None:
    """Install the chart, or upgrade it, with settings such as `logLevel=Debug` over a file.s; others are forgotten.

    Raises:
        StandError: Helm or the API server refused.
    """
    words = ["--install", "--reset-values", "ai-models", str(CHART), f"--namespace={HOME}", "--create-namespace"]
    words += ["--wait"] if wait else []
    words += [f"--values={config}"] if config else []
    command("helm", "upgrade", *words, *(f"--set={setting}" for setting in settings), seconds=HELM_SECONDS)
    Kubectl()("wait", "--for=condition=Established", "crd", "--selector=module=ai-models", "--timeout=30s")


def images() -> tuple[str, ...]:
    """Settings with the stand's images."""
    return tuple(f"images.{name}={product.image_name(name)}" for name in ("operator", "jobs", "nodecache", "dmcr"))


def install_whole(*settings: str, config: Path | None = None) -> None:
    """Install everything with the stand's images, or upgrade it, and wait until it works.

    Raises:
        StandError: it does not; the message has the last words of the Pods that are not Ready.
    """
    namespaces()
    install(*images(), *settings, wait=False, config=config)
    wait_until_it_works(kuberay=KUBERAY in settings)


def uninstall(*options: str) -> None:
    """Uninstall the chart, with options of Helm, and wait until no Pod of it is left.

    Raises:
        StandError: Helm or the API server refused, or Pods stay.
    """
    command("helm", f"--namespace={HOME}", "uninstall", "ai-models", "--wait", *options, seconds=HELM_SECONDS)
    until(lambda: not Kubectl(HOME).items("pods"), what="all Pods gone", seconds=GONE_SECONDS, pause=0.5)


def wait_until_it_works(*, seconds: float = START_SECONDS, kuberay: bool = False) -> None:
    """Wait until all Deployments are complete, and the leading operator hears from the coordinator.

    Raises:
        StandError: the deadline passed; the message has the last words of the Pods that are not Ready.
    """
    try:
        for part in PARTS[:3] if kuberay else PARTS:
            Kubectl(HOME).rolled_out(f"deployment/ai-models-{part}", seconds=seconds)
        until(coordinator_answers, what="an operator that the coordinator answers", seconds=seconds, pause=0.5)
    except StandError as error:
        raise StandError(f"{error}\n{_words_of_pods()}") from error


def coordinator_answers() -> bool:
    """Whether the leading operator hears from the coordinator, as its metrics say."""
    return any("\naimodels_coordinator_answers 1\n" in text for text in metrics("operator"))


def pods(part: str) -> list[Object]:
    """Pods of a Deployment that are not being deleted."""
    found = Kubectl(HOME).items("pods", f"app=ai-models-{part}")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def metrics(part: str, port: int = 8080) -> Iterable[str]:
    """What each Pod of a Deployment counts, as far as it answers."""
    for pod in pods(part):
        address = pod["status"].get("podIP", "")
        try:
            with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=5) as answer:
                yield answer.read(1 << 20).decode()
        except (OSError, urllib.error.URLError, ValueError):
            continue


def _namespace(name: str, labels: dict[str, str]) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _words_of_pods() -> str:
    """Phases of all Pods at home, events and last log lines of those that are not Ready."""
    home = Kubectl(HOME)
    words = [home.attempt("get", "pods", "--output=wide").stdout]
    for pod in home.items("pods"):
        states = pod["status"].get("containerStatuses", [])
        if not states or not all(state["ready"] for state in states):
            name = pod["metadata"]["name"]
            about = f"--field-selector=involvedObject.name={name}"
            words += [f"--- {name}", home.attempt("get", "events", about).stdout]
            words += [home.attempt("logs", name, "--tail=15").stdout, json.dumps(states)[:500]]
    words += ["--- operators", home.attempt("logs", "--selector=app=ai-models-operator", "--tail=10").stdout]
    return "\n".join(words)
