"""Byte units, their rendering, and Kubernetes' way to write them. We count in KiB, MiB, GiB and TiB (1024) only."""

import re
from fractions import Fraction

from aimodels_core.errors import UsageError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

_QUANTITY = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)(?:([KMGTPE]i|[kMGTPE]?)|[eE]\+?(\d{1,2}))", re.ASCII)
_STEPS = "KMGTPE"

_UNITS = (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))


def human_bytes(size_bytes: int) -> str:
    """Render a number of bytes for people.

    >>> human_bytes(512), human_bytes(1536), human_bytes(3 * 2**30)
    ('512 B', '1.5 KiB', '3.0 GiB')
    """
    for name, unit in _UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"


def round_up(value: int, step: int) -> int:
    """Round `value` up to the next multiple of `step`.

    >>> round_up(17, 8), round_up(16, 8)
    (24, 16)
    """
    return -(-value // step) * step


def quantity_bytes(text: str) -> int:
    """Read a number of bytes as Kubernetes writes it; part of a byte counts as one.

    >>> quantity_bytes("1Ti"), quantity_bytes("1.5Gi"), quantity_bytes("500M"), quantity_bytes("1e3")
    (1099511627776, 1610612736, 500000000, 1000)

    Raises:
        UsageError: not such a number.
    """
    found = _QUANTITY.fullmatch(text)
    if not found:
        raise UsageError(f"quantity: want a number of bytes such as 500Gi or 1Ti, got {text[:40]!r}")
    number, unit, exponent = found.groups()
    if exponent:
        factor: int = 10 ** int(exponent)
    else:
        power = _STEPS.find(unit[:1].upper()) + 1 if unit else 0
        factor = (1024 if unit.endswith("i") else 1000) ** power
    value = Fraction(number) * factor
    return -(-value.numerator // value.denominator)
