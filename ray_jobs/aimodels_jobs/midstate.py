"""SHA-256 whose state can leave the process: 40 bytes at a 64-byte boundary, the same on every machine.

`hashlib` cannot export a state. The libcrypto that Python's own `_hashlib` is linked to can, at the same speed and
without the GIL, so its `SHA256_CTX` is used through ctypes after a self-test with known answers. Builds without it
(static, FIPS) fall back to `hashlib`: states then are tokens that only the process which made them understands.

Where the bytes come from, and who carries a state from one mover to the next, does not belong here.
"""

import _hashlib
import collections
import ctypes
import functools
import hashlib
import secrets
import struct
import threading
from typing import Final, Protocol

BLOCK_BYTES: Final = 64
"""A state exists only at a multiple of this many bytes."""

STATE_BYTES: Final = 40
"""h[8] as big-endian 32-bit words, then the number of bytes hashed as a big-endian 64-bit word."""

_MAX_BYTES: Final = 1 << 61  # FIPS 180-4 section 5.1.1: the length in bits has 64 bits
_INITIAL: Final = struct.pack(
    ">8I", 0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19
)
_MAX_TOKENS: Final = 4096


class Sha256(Protocol):
    """A SHA-256 on its way. Not safe from several threads at once."""

    @property
    def count(self) -> int:
        """Bytes hashed so far."""
        ...

    def update(self, buffer: memoryview) -> None:
        """Hash the bytes of a contiguous buffer, without the GIL."""
        ...

    def state(self) -> bytes:
        """Return the state, for `resume`.

        Raises:
            ValueError: not at a 64-byte boundary.
        """
        ...

    def copy(self) -> "Sha256":
        """Return another hash that goes on from here by itself."""
        ...

    def hexdigest(self) -> str:
        """Return the digest of what was hashed so far; hashing may go on."""
        ...


class _Context(ctypes.Structure):
    """`SHA256_CTX` of <openssl/sha.h>: 112 bytes."""

    _fields_ = (
        ("h", ctypes.c_uint32 * 8),
        ("bits_low", ctypes.c_uint32),
        ("bits_high", ctypes.c_uint32),
        ("data", ctypes.c_uint32 * 16),
        ("num", ctypes.c_uint),
        ("md_len", ctypes.c_uint),
    )


class _Libcrypto:
    """The three functions of libcrypto; ctypes releases the GIL around each call."""

    __slots__ = ("final", "init", "update")

    def __init__(self) -> None:
        library = ctypes.CDLL(_hashlib.__file__)  # looked up in what _hashlib is linked to: never a second libcrypto
        pointer = ctypes.POINTER(_Context)
        self.init = library.SHA256_Init
        self.init.argtypes = (pointer,)
        self.update = library.SHA256_Update
        self.update.argtypes = (pointer, ctypes.c_void_p, ctypes.c_size_t)
        self.final = library.SHA256_Final
        self.final.argtypes = (ctypes.c_char_p, pointer)


class _Portable:
    """SHA-256 by libcrypto."""

    __slots__ = ("_context", "_library")

    def __init__(self, library: _Libcrypto) -> None:
        self._library = library
        self._context = _Context()
        if library.init(self._context) != 1:
            raise ValueError("SHA256_Init: want 1")

    @classmethod
    def resumed(cls, library: _Libcrypto, state: bytes) -> "_Portable":
        """Continue from a state that `position` accepted."""
        found = cls(library)
        *words, count = struct.unpack(">8IQ", state)
        found._context.h[:] = words
        found._context.bits_low = (count << 3) & 0xFFFFFFFF
        found._context.bits_high = count >> 29
        return found

    @property
    def count(self) -> int:
        bits = (self._context.bits_high << 32) | self._context.bits_low
        return int(bits >> 3)

    def update(self, buffer: memoryview) -> None:
        size = buffer.nbytes
        if not size:
            return
        if buffer.readonly:
            self._library.update(self._context, bytes(buffer), size)
            return
        first = ctypes.c_char.from_buffer(buffer)  # keeps the buffer alive and in place during the call
        self._library.update(self._context, ctypes.addressof(first), size)

    def state(self) -> bytes:
        _at_boundary(self.count)
        return struct.pack(">8IQ", *self._context.h, self.count)

    def copy(self) -> "_Portable":
        found = object.__new__(_Portable)
        found._library = self._library
        found._context = _Context.from_buffer_copy(self._context)
        return found

    def hexdigest(self) -> str:
        copy = _Context.from_buffer_copy(self._context)
        out = ctypes.create_string_buffer(32)
        self._library.final(out, copy)
        return out.raw.hex()


class _Local:
    """SHA-256 by hashlib; a state is a token for a copy that stays in this process."""

    __slots__ = ("_hash", "_tokens", "count")

    def __init__(self, tokens: "_Tokens", found: "hashlib._Hash | None" = None, count: int = 0) -> None:
        self._tokens = tokens
        self._hash = found or hashlib.sha256()
        self.count = count

    def update(self, buffer: memoryview) -> None:
        self._hash.update(buffer)
        self.count += buffer.nbytes

    def state(self) -> bytes:
        _at_boundary(self.count)
        return self._tokens.keep(self._hash.copy(), self.count)

    def copy(self) -> "_Local":
        return _Local(self._tokens, self._hash.copy(), self.count)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class _Tokens:
    """States of `_Local` by token, the latest few thousand of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: collections.OrderedDict[bytes, hashlib._Hash] = collections.OrderedDict()

    def keep(self, found: "hashlib._Hash", count: int) -> bytes:
        if not count:
            return _INITIAL + bytes(8)
        token = secrets.token_bytes(32) + count.to_bytes(8, "big")
        with self._lock:
            self._kept[token] = found
            while len(self._kept) > _MAX_TOKENS:
                self._kept.popitem(last=False)
        return token

    def find(self, token: bytes) -> "hashlib._Hash":
        with self._lock:
            found = self._kept.get(token)
        if found is None:
            raise ValueError("hash state: want one of this process, got a state that it does not know")
        return found.copy()


_tokens = _Tokens()


def new() -> Sha256:
    """Begin a hash."""
    library = _library()
    return _Portable(library) if library else _Local(_tokens)


def resume(state: bytes) -> Sha256:
    """Continue from a state.

    Raises:
        ValueError: malformed, or (without libcrypto) not of this process.
    """
    count = position(state)
    library = _library()
    if not count:
        return new()
    return _Portable.resumed(library, state) if library else _Local(_tokens, _tokens.find(state), count)


def position(state: bytes) -> int:
    """Return how many bytes a state has hashed.

    Raises:
        ValueError: not a state: its length, its count, or a start that is not SHA-256's.
    """
    if len(state) != STATE_BYTES:
        raise ValueError(f"hash state: want {STATE_BYTES} bytes, got {len(state)}")
    count = int.from_bytes(state[32:], "big")
    if count % BLOCK_BYTES or count >= _MAX_BYTES:
        raise ValueError(f"hash state: want a count that is a multiple of {BLOCK_BYTES} below 2^61, got {count}")
    if not count and state[:32] != _INITIAL:
        raise ValueError("hash state: want the initial value of SHA-256 at count 0, got another")
    return count


def backend() -> str:
    """Name what hashes: `libcrypto` (states are portable) or `hashlib`."""
    return "libcrypto" if _library() else "hashlib"


def _at_boundary(count: int) -> None:
    if count % BLOCK_BYTES:
        raise ValueError(f"hash state: want a multiple of {BLOCK_BYTES} bytes hashed, got {count}")


@functools.cache
def _library() -> _Libcrypto | None:
    """Load libcrypto once, if it passes the self-test."""
    try:
        library = _Libcrypto()
    except (OSError, AttributeError):
        return None
    return library if _passes(library) else None


def _passes(library: _Libcrypto) -> bool:
    """Compare with hashlib: split at odd places, through an exported state, and with a count above 2^32 bits."""
    data = bytes(range(256)) * 3
    first = _Portable(library)
    first.update(memoryview(data[:31]))
    first.update(memoryview(bytearray(data[31:320])))
    second = _Portable.resumed(library, first.state())
    second.update(memoryview(data[320:]))
    far = _Portable.resumed(library, _INITIAL + (1 << 40).to_bytes(8, "big"))
    far.update(memoryview(bytearray(BLOCK_BYTES)))
    return (
        ctypes.sizeof(_Context) == 112
        and _Portable(library).state() == _INITIAL + bytes(8)
        and second.hexdigest() == hashlib.sha256(data).hexdigest()
        and far.count == (1 << 40) + BLOCK_BYTES
    )
