"""The cluster as tests see it: kubectl with JSON, waiting with deadlines, and a report of what went wrong."""

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.cluster.stand.layout import StandError
from tests.cluster.stand.waiting import attempt, command, until

Object = dict[str, Any]
WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl in one namespace (empty: the default one)."""

    namespace: str = ""

    def __call__(self, *arguments: str, stdin: str | None = None, seconds: float = WAIT_SECONDS) -> str:
        """Run kubectl and return its output.

        Raises:
            StandError: it failed.
        """
        return command("kubectl", *self._scope, *arguments, stdin=stdin, seconds=seconds)

    def attempt(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl, whatever its exit code."""
        return attempt("kubectl", *self._scope, *arguments, stdin=stdin)

    def apply(self, *objects: Object) -> None:
        """Create or change objects."""
        self("apply", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def refusal(self, content: Object) -> str:
        """Create an object that must be refused, and return the words of the refusal.

        Raises:
            StandError: it was accepted.
        """
        done = self.attempt("create", "--filename=-", stdin=json.dumps(content))
        if done.returncode == 0:
            raise StandError(f"{content['kind']} {content['metadata']['name']}: want a refusal, got it created")
        return done.stderr

    def get(self, kind: str, name: str) -> Object:
        """One object.

        Raises:
            StandError: there is none.
        """
        found: Object = json.loads(self("get", kind, name, "--output=json"))
        return found

    def items(self, kind: str, selector: str = "") -> list[Object]:
        """All objects of a kind that a label selector finds."""
        chosen = [f"--selector={selector}"] if selector else []
        found: list[Object] = json.loads(self("get", kind, *chosen, "--output=json"))["items"]
        return found

    def until(
        self, kind: str, name: str, condition: Callable[[Object], Any], *, seconds: float = WAIT_SECONDS
    ) -> Object:
        """Wait until an object meets a condition, and return it then.

        Raises:
            StandError: the deadline passed.
        """

        def look() -> Object | None:
            done = self.attempt("get", kind, name, "--output=json")
            found: Object | None = json.loads(done.stdout) if done.returncode == 0 else None
            return found if found is not None and condition(found) else None

        return until(look, what=f"{kind} {name} as wanted", seconds=seconds, pause=0.2)

    def ready(self, *pods: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until Pods are Ready."""
        names = [f"pod/{pod}" for pod in pods]
        self("wait", "--for=condition=Ready", f"--timeout={seconds:g}s", *names, seconds=seconds + 10)

    def rolled_out(self, workload: str, *, seconds: float = WAIT_SECONDS) -> None:
        """Wait until a workload, such as `deployment/web`, is complete."""
        self("rollout", "status", workload, f"--timeout={seconds:g}s", seconds=seconds + 10)

    def exec(self, pod: str, *arguments: str, stdin: str | None = None, seconds: float = WAIT_SECONDS) -> str:
        """Run a program in a Pod and return its output."""
        interactive = ["--stdin"] if stdin is not None else []
        return self("exec", *interactive, pod, "--", *arguments, stdin=stdin, seconds=seconds)

    @property
    def _scope(self) -> Iterable[str]:
        return (f"--namespace={self.namespace}",) if self.namespace else ()


def pod(name: str, image: str = "localhost/busybox:1", *, command: Iterable[str] = (), **spec: Any) -> Object:
    """A one-container Pod that stops at once when told; `spec` adds to or replaces fields of its spec."""
    container: Object = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent"}
    container |= spec.pop("container", {})
    if command:
        container["command"] = list(command)
    content = {"terminationGracePeriodSeconds": 0, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": content}


def condition(content: Mapping[str, Any], kind: str) -> str:
    """Status of a condition of an object, empty if it has none such."""
    found = [entry["status"] for entry in content.get("status", {}).get("conditions", []) if entry["type"] == kind]
    return str(found[0]) if found else ""


def report(namespace: str) -> str:
    """What a person would look at after a failure: nodes, Pods, events, last log lines of each Pod.

    Never raises: a report that fails must not hide the failure it reports.
    """
    kubectl = Kubectl(namespace)
    try:
        parts = [
            _section("nodes", kubectl.attempt("get", "nodes", "--output=wide")),
            _section("pods", kubectl.attempt("get", "pods", "--output=wide")),
            _section("events", kubectl.attempt("get", "events", "--sort-by=.lastTimestamp")),
        ]
        names = kubectl.attempt("get", "pods", "--output=name").stdout.split()
        for name in names[:20]:
            done = kubectl.attempt("logs", name, "--all-containers", "--tail=20")
            parts += [_section(f"log of {name}", done)]
    except StandError as error:
        return f"no report: {error}"
    return "\n".join(parts)


def _section(title: str, done: subprocess.CompletedProcess[str]) -> str:
    return f"--- {title}\n{(done.stdout or done.stderr).strip()}"
