"""Numbers of bytes as Kubernetes writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimodels_core.errors import UsageError
from aimodels_core.units import quantity_bytes


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        *(("0", 0), ("7", 7), ("1k", 1000), ("2M", 2 * 10**6), ("3Ei", 3 * 2**60), ("0.5Ki", 512), ("1E", 10**18)),
        *(("1e+12", 10**12), ("1E3", 1000), ("0.1", 1), ("1.0000001Ki", 1025)),
    ],
)
def test_quantities(text: str, wanted: int) -> None:
    assert quantity_bytes(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "Gi", "-1", "+1", "1 Gi", "1gi", "1KI", "1ki", "1e", "1e-3", "1m", ".5Gi", "1.Gi", "٣Gi"]
)
def test_what_is_no_number_of_bytes_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="want a number of bytes such as 500Gi"):
        quantity_bytes(text)


@given(st.integers(0, 10**20 - 1), st.sampled_from(["", "Ki", "Mi", "Gi", "Ti"]))
def test_whole_quantities_are_exact(number: int, unit: str) -> None:
    power = ["", "Ki", "Mi", "Gi", "Ti"].index(unit)

    assert quantity_bytes(f"{number}{unit}") == number * 1024**power
