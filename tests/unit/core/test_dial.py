from pathlib import Path

import pytest

from aimodels_core import dial
from aimodels_core.errors import SourceUnavailable, UsageError


@pytest.mark.parametrize("host", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::ffff:10.0.0.1", "localhost"])
def test_a_private_address_is_refused_before_anything_is_sent(host: str) -> None:
    with pytest.raises(SourceUnavailable, match="want a public address") as caught:
        dial.connect(host, 9, tls=False, ca_file="", trusted=False, timeout_seconds=1)

    assert caught.value.code == "AddressRefused"


def test_what_is_no_host_name_is_not_resolved() -> None:
    with pytest.raises(SourceUnavailable) as caught:
        dial.connect("a" * 80 + ".example", 443, tls=True, ca_file="", trusted=False, timeout_seconds=1)

    assert caught.value.code == "DnsFailed"


def test_o63_a_ca_file_that_is_no_file_or_no_pem_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("no certificate")

    with pytest.raises(UsageError, match="want PEM certificates"):
        dial.tls_context(str(tmp_path / "ca.crt"))
    with pytest.raises(UsageError, match="got its text"):
        dial.tls_context("-----BEGIN CERTIFICATE-----\nMIIB\n")
    with pytest.raises(UsageError, match="cannot be read"):
        dial.tls_context(str(tmp_path / "missing"))
