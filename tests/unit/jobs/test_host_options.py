"""What the coordinator's server is told on its command line, and what it makes of it."""

import asyncio
from pathlib import Path

import pytest

from aimodels_core.errors import UsageError
from aimodels_core.proxies import Proxies
from aimodels_jobs import host_options, host_parts
from aimodels_jobs.sources.hub_settings import HubSettings

TOKEN = ("--token-file", "/run/token")


def test_a_capacity_limit_is_kept_by_the_coordinator(tmp_path: Path) -> None:
    options = host_options.parse(["--store", str(tmp_path / "s"), *TOKEN, "--capacity-limit", "1048576"])

    async def metrics() -> str:
        coordinator, threads = host_parts.open_coordinator(options.settings, HubSettings)
        try:
            return coordinator.metrics()
        finally:
            await coordinator.close()
            threads.close()

    assert "\naimodels_capacity_limit_bytes 1048576\n" in asyncio.run(metrics())


def test_without_the_option_there_is_no_limit() -> None:
    assert host_options.parse(["--store", "/s", *TOKEN]).settings.capacity_limit == 0


def test_a_limit_below_zero_is_refused_and_says_what_is_wanted() -> None:
    with pytest.raises(UsageError, match="capacity limit: want a number of bytes"):
        host_options.parse(["--store", "/s", *TOKEN, "--capacity-limit", "-1"])


def test_proxies_are_told_without_credentials() -> None:
    words = ["--store", "/s", *TOKEN, "--https-proxy", "http://proxy:3128", "--no-proxy", "a.org,10.0.0.0/8"]
    hub = host_parts.open_hub(host_options.parse(words).settings)

    assert hub.proxies == Proxies.parse("", "http://proxy:3128", "a.org,10.0.0.0/8")
    with pytest.raises(UsageError, match="want a URL without credentials") as caught:
        host_options.parse([*words, "--http-proxy", "http://me:s3cr3t@proxy:3128"])
    assert "s3cr3t" not in str(caught.value)


def test_a_proxy_that_cannot_be_one_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="https_proxy: want an http:// proxy"):
        host_options.parse(["--store", "/s", *TOKEN, "--https-proxy", "socks5://proxy:1080"])
