"""Bind mounts by system calls, and what the kernel says of mounts. Every call here blocks: threads make them.

Sources: mount(2), umount2(2), proc_pid_mountinfo(5), proc_pid_fdinfo(5).
"""

import ctypes
import dataclasses
import errno
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
MAX_MOUNTINFO_BYTES = 64 * 1024 * 1024

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 32, 4096
_SEALED = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
_UMOUNT_NOFOLLOW = 8
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LAYERS = 16
"""More mounts upon each other than repeated crashes leave."""
_OCTAL = re.compile(rb"\\([0-7]{3})")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)


@dataclasses.dataclass(frozen=True, slots=True)
class Mount:
    """A line of mountinfo.

    Args:
        target: where it is.
        root: which folder of its file system is there.
        device: `major:minor` of the file system.
        options: of this mount, not of the file system.
        kind: of the file system, such as ext4.
        source: what the file system is on, such as /dev/loop0.
    """

    target: str
    root: str
    device: str
    options: frozenset[str]
    kind: str
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What is at a path.

    Args:
        mounted: whether something is mounted at the path itself.
        file: device and inode of what is seen there.
        sealed: whether its mount is read-only, without set-user-id programs and device files.
    """

    mounted: bool
    file: tuple[int, int]
    sealed: bool


def look(path: Path) -> Seen | None:
    """Say what is at a path; None when nothing is. A symbolic link is seen itself.

    Raises:
        OSError: the kernel does not say.
    """
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        status, flags = os.fstat(descriptor), os.statvfs(descriptor).f_flag
        mounted = _mount_id(descriptor) != _mount_id_of_folder(path.parent)
    finally:
        os.close(descriptor)
    sealed = flags & _SEALED == _SEALED  # the numbers of statvfs(3) are those of mount(2)
    return Seen(mounted, (status.st_dev, status.st_ino), sealed)


def bind(source: Path, target: Path) -> None:
    """Mount a folder at another, read-only. Killed in between, it leaves a mount that is not sealed: see `look`.

    Raises:
        OSError: the kernel refused, or the last two parts of the source's path are not folders themselves, such as
            symbolic links of whoever owns its parent; nothing of it is left then.
    """
    parent = os.open(source.parent, _FOLDER)
    try:
        folder = os.open(source.name, _FOLDER, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        _mount(f"/proc/self/fd/{folder}".encode(), target, _MS_BIND)
    finally:
        os.close(folder)
    try:
        _mount(None, target, _MS_REMOUNT | _MS_BIND | _SEALED)
    except OSError:
        unmount(target)
        raise


def unmount(target: Path) -> int:
    """Unmount all that is mounted at a path; returns how many mounts that were. What is gone already is fine.

    Raises:
        OSError: EBUSY: somebody works in it.
    """
    for layers in range(_LAYERS):
        if _libc.umount2(os.fsencode(target), _UMOUNT_NOFOLLOW) == 0:
            continue
        number = ctypes.get_errno()
        if number in {errno.EINVAL, errno.ENOENT, errno.ENOTDIR}:
            return layers
        raise OSError(number, os.strerror(number), str(target))
    raise OSError(errno.EBUSY, f"more than {_LAYERS} mounts upon each other", str(target))


def mounts(source: Path = MOUNTINFO) -> tuple[Mount, ...]:
    """Return all mounts that this process sees.

    Raises:
        OSError: they cannot be read, or are more than 64 MiB of text.
    """
    with source.open("rb") as file:
        text = file.read(MAX_MOUNTINFO_BYTES + 1)
    if len(text) > MAX_MOUNTINFO_BYTES:
        raise OSError(errno.EFBIG, f"want at most {MAX_MOUNTINFO_BYTES} bytes", str(source))
    return tuple(parse(text.splitlines()))


def parse(lines: Iterable[bytes]) -> Iterator[Mount]:
    r"""Parse lines of mountinfo; those that are cut off are left out.

    >>> line = b"36 35 98:0 /mnt1 /mnt\\0402 ro,nosuid master:1 - ext3 /dev/root rw"
    >>> next(parse([line])).target
    '/mnt 2'
    """
    for line in lines:
        before, dash, after = line.partition(b" - ")
        head, tail = before.split(b" "), after.split(b" ")
        if dash and len(head) >= 6 and len(tail) >= 2:
            root, target, kind, source = (_text(word) for word in (head[3], head[4], tail[0], tail[1]))
            options = frozenset(_text(head[5]).split(","))
            yield Mount(target, root, _text(head[2]), options, kind, source)


def _mount(source: bytes | None, target: Path, flags: int) -> None:
    if _libc.mount(source, os.fsencode(target), None, flags, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def _mount_id_of_folder(path: Path) -> int:
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _mount_id(descriptor)
    finally:
        os.close(descriptor)


def _mount_id(descriptor: int) -> int:
    text = Path(f"/proc/self/fdinfo/{descriptor}").read_bytes()
    return int(text.partition(b"mnt_id:")[2].split(None, 1)[0])


def _text(word: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8) & 0xFF]), word))
