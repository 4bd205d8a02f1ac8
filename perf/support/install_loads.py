"""An install and its first model, in a stand with the product's images: `python -m perf.support.install_loads FILE`."""

import dataclasses
import json
import os
import sys
import time
from pathlib import Path

from perf.support import spent
from perf.support.report import Sample
from tests.cluster import operating
from tests.cluster.installed import HUB, model
from tests.cluster.operating import phase, secret
from tests.cluster.stand import chart
from tests.cluster.stand.chart import SYSTEM
from tests.cluster.stand.kubectl import Kubectl
from tests.support import models

SPACE = "load"
_SECONDS = 600.0


def main(words: list[str]) -> int:
    """Install, apply a Model as soon as its definition is there, and wait for it."""
    with operating.hub_under_its_names({}) as hub:
        hub.add(models.minilm())
        chart.namespaces()
        Kubectl(SYSTEM).apply(secret("installed-hub-ca", {"ca.crt": hub.ca_pem.decode()}))
        Kubectl()("create", "namespace", SPACE)
        busy, own = spent.machine_busy_seconds(), spent.tree_cpu_seconds(1)
        began = time.monotonic()
        chart.install(*chart.images(), *HUB, wait=False)
        space = Kubectl(SPACE)
        space.apply(model("minilm", models.MINILM))
        space.until("model", "minilm", phase("Ready"), seconds=_SECONDS)
        wall = time.monotonic() - began
    others = spent.machine_busy_seconds() - busy - (spent.tree_cpu_seconds(1) - own)
    sample = Sample(wall, foreign=round(max(0.0, others / (wall * (os.cpu_count() or 1))), 3))
    Path(words[0]).write_text(json.dumps(dataclasses.asdict(sample)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
