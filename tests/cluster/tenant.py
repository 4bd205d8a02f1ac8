"""A tenant's Pod that reads a model through the registry, as delivery does: by its ServiceAccount's token alone.

Runs in the product's image with the name of a repository and a digest; prints the files and their sizes. `CODE` says
which error ended it otherwise.
"""

import base64
import json
import sys
import tempfile
from pathlib import Path

from aimodels_core import pull
from aimodels_core.digest import Digest
from aimodels_core.errors import AiModelsError
from aimodels_core.registry import Registry
from aimodels_core.transport import HostRules, Transport

URL = "https://ai-models-dmcr.d8-ai-models.svc:5000"
TOKEN = Path("/run/registry/token")
AUTHORITIES = "/run/registry/ca.crt"


def credential() -> str:
    """What the issuer is shown."""
    return "Basic " + base64.b64encode(f"tenant:{TOKEN.read_text()}".encode()).decode("ascii")


def main() -> int:
    """Read it; 0 when every byte was right."""
    repository, digest, store = sys.argv[1:]
    hosts = ("d8-ai-models.svc", *filter(None, [store]))
    rules = HostRules(
        trusted=frozenset({"ai-models-dmcr.d8-ai-models.svc"}),
        suffixes=hosts,
        suffixes_private=True,
        allowed=frozenset(),
    )
    transport = Transport(rules, ca_file=AUTHORITIES)
    registry = Registry(URL, repository, transport=transport, credential=credential)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "model"
        try:
            pull.pull(registry, Digest.parse(digest), target)
        except AiModelsError as error:
            sys.stderr.write(f"{type(error).__name__} {error.message}\n")
            return 1
        found = {str(path.relative_to(target)): path.stat().st_size for path in target.rglob("*") if path.is_file()}
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
