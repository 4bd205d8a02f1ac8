"""What the product's images promise: our code runs as an ordinary user, compiled, with nothing to build with."""

import pytest

from tests.cluster.stand import product
from tests.cluster.stand.kubectl import Kubectl, pod

PROBE = """
import importlib.util, os, pathlib, shutil, sys
import aimodels_core, aimodels_{package}
print("uid", os.getuid())
print("safe path", sys.flags.safe_path)
print("home writable", os.access(os.environ["HOME"], os.W_OK))
print("compiled", pathlib.Path(importlib.util.cache_from_source(aimodels_core.errors.__file__)).exists())
print("probes", *(name for name in ("bash", "wget") if shutil.which(name)))
print("tools", *(name for name in ("pip", "pip3", "uv", "gcc", "make") if shutil.which(name)))
""".replace("import aimodels_core,", "import aimodels_core.errors,")
PROMISED = """\
uid 64535
safe path True
home writable True
compiled True
probes bash wget
tools
"""


@pytest.mark.parametrize("component", product.COMPONENTS)
def test_image_runs_our_code_as_an_ordinary_user_with_nothing_to_build_with(space: Kubectl, component: str) -> None:
    space.apply(pod("probe", product.image_name(component), command=["sleep", "1000"]))
    space.ready("probe")
    found = space.exec("probe", "python3", "-c", PROBE.replace("{package}", component))

    assert found == PROMISED


def test_jobs_image_has_the_command_line(space: Kubectl) -> None:
    space.apply(pod("probe", product.image_name("jobs"), command=["sleep", "1000"]))
    space.ready("probe")

    assert "usage: ai-models" in space.exec("probe", "ai-models", "--help")
