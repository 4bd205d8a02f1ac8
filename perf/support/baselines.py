"""What people do without us: the hub's own client and then a tool that pushes; each step a process of its own."""

import dataclasses
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from perf.support.report import ROOT
from perf.support.source import ORG, Source
from perf.support.spent import Spent, run


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """Publishes `bench/<name>` into a registry.

    Args:
        source: where from.
        name: of the model.
        registry: base URL.
        env: for the processes.
        work: on the disk where people download to.
    """

    source: Source
    name: str
    registry: str
    env: Mapping[str, str]
    work: Path

    def skopeo(self) -> Spent:
        """`hf download`, an OCI layout of the files, `skopeo copy`."""
        folder, layout = self.work / "download", self.work / "layout"
        target = f"docker://{self._host}/skopeo/{self.name}:latest"
        copy = ["skopeo", "copy", "--quiet", "--insecure-policy", "--preserve-digests", "--dest-tls-verify=false"]
        return self._steps(
            self._download(folder),
            [sys.executable, "-m", "perf.support.layout", str(folder), str(layout)],
            [*copy, f"oci:{layout}:latest", target],
        )

    def oras(self) -> Spent:
        """`hf download`, then a push by python-oras."""
        folder = self.work / "download"
        target = f"{self._host}/oras/{self.name}:latest"
        return self._steps(
            self._download(folder), [sys.executable, "-m", "perf.support.oras_push", str(folder), target]
        )

    def sequential(self) -> Spent:
        """A lean script: to disk, read again for the digest, sent to the registry, file after file."""
        return self._steps(self._lean("sequential"))

    def relay(self) -> Spent:
        """A lean script: through SHA-256 to the registry, four files at once, no disk."""
        return self._steps(self._lean("relay"))

    @property
    def _host(self) -> str:
        return urlsplit(self.registry).netloc

    def _download(self, folder: Path) -> list[str]:
        program = str(Path(sys.executable).with_name("hf"))
        return [program, "download", f"{ORG}/{self.name}", "--local-dir", str(folder)]

    def _lean(self, way: str) -> list[str]:
        module = [sys.executable, "-m", "perf.support.lean_client", way]
        return [
            *module,
            self.source.endpoint,
            f"{ORG}/{self.name}",
            self.registry,
            f"{way}/{self.name}",
            str(self.work / "download"),
        ]

    def _steps(self, *commands: list[str]) -> Spent:
        """Run the steps one after another; their times, CPU and writes add up."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        env = {**self.env, **self.source.environment()}
        each = [run(command, env=env, cwd=ROOT) for command in commands]
        shutil.rmtree(self.work, ignore_errors=True)
        return Spent(
            sum(step.seconds for step in each),
            sum(step.cpu_seconds for step in each),
            max(step.rss_bytes for step in each),
            sum(step.written_bytes for step in each),
            "",
            0,
        )
