"""Byte units and their rendering. Bytes are counted in KiB, MiB, GiB and TiB (1024) only."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

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
