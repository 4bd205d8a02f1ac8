"""What holds for every test: a clean environment, whoever started pytest.

Fixtures belong to the conftest of the folder that needs them, not here.
"""

import os

import hypothesis
import pytest

# Inherited by every process that a test starts; set before anything imports Ray or botocore.
_REMOVED = (
    "AWS_CA_BUNDLE",  # replaces the certificate authorities that a test gives to its registry or S3 client
    "AWS_PROFILE",
    "PYTHONDONTWRITEBYTECODE",  # every process of Ray would compile all that it imports again
    "HF_TOKEN",
    "HF_ENDPOINT",
    "HUGGING_FACE_HUB_TOKEN",
    "RAY_ADDRESS",  # a test never joins a cluster that it did not start
)
_SET = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # else workers run an uploaded copy of the checkout
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}

for _name in _REMOVED:
    os.environ.pop(_name, None)
os.environ.update(_SET)

# Time per example says nothing on a shared machine: the time-out of the test bounds it. A CI run repeats its examples.
hypothesis.settings.register_profile("ai-models", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("ai-models")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `--update-golden` rewrite the frozen outputs below tests/golden; needs a line in the changelog."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the frozen outputs below tests/golden")
