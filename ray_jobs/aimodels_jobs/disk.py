"""The few file operations that a folder store is made of, in one place.

Everything that must survive a loss of power goes through here, so that a test can record the sequence and replay
every prefix of it. Deciding what to write, and in which order, belongs to `folder`.
"""

import errno
import os
from pathlib import Path

from aimodels_core.errors import AiModelsError, StoreFull, StoreUnavailable, StoreUnsafe

FILE_MODE = 0o644
FOLDER_MODE = 0o755

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
# File systems on a network, or in user space, may not be able to flush a folder; there is nothing more to be done then.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})


def translated(error: OSError, doing: str) -> AiModelsError:
    """Make an error of our tree from what the kernel said; `doing` is the thing that failed, for people."""
    said = os.strerror(error.errno) if error.errno else type(error).__name__
    message = f"store folder: {doing}: {said}"
    if error.errno in _FULL:
        return StoreFull(message)
    if error.errno in _REFUSED:
        return StoreUnsafe(message, code="ReadOnly")
    if error.errno == errno.EFBIG:
        return StoreUnsafe(message, code="FileTooLarge")
    if error.errno == errno.EXDEV:
        return StoreUnsafe(f"{message}: want one file system below the root", code="SeveralFileSystems")
    return StoreUnavailable(message, code="Vanished" if error.errno in {errno.ENOENT, errno.ESTALE} else "")


class Disk:
    """Plain system calls; errors are `OSError`."""

    def create(self, path: Path) -> int:
        """Make a new file, for reading and writing; it must not exist."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def open(self, path: Path) -> int:
        """Open an existing file for reading and writing."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def allocate(self, handle: int, size_bytes: int) -> None:
        """Reserve all the space of a file, so that a full disk shows before the first byte moves."""
        os.posix_fallocate(handle, 0, size_bytes)

    def write(self, handle: int, data: bytes | memoryview, offset: int) -> None:
        """Write all of `data` at `offset`."""
        rest = memoryview(data)
        while rest:
            done = os.pwrite(handle, rest, offset)
            rest, offset = rest[done:], offset + done

    def sync(self, handle: int) -> None:
        """Flush a file's bytes to the device, and make it readable for the store's readers."""
        os.fchmod(handle, FILE_MODE)
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Close a file."""
        os.close(handle)

    def sync_folder(self, path: Path) -> None:
        """Flush a folder's entries to the device."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise
        finally:
            os.close(handle)

    def make_folder(self, path: Path) -> None:
        """Make a folder, whatever the umask; its parent exists, it does not."""
        path.mkdir()
        path.chmod(FOLDER_MODE)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what had it."""
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, which must be free."""
        os.link(source, target, follow_symlinks=False)

    def remove(self, path: Path) -> None:
        """Remove a file's name."""
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()
