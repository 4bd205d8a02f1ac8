"""SHA-256 by hashlib alone, on one core: `python -m perf.support.hashing BYTES`; the unit of other figures."""

import hashlib
import json
import mmap
import sys
import time

_BUFFER_BYTES = 16 * 1024 * 1024
_UPDATE_BYTES = 1024 * 1024


def main(words: list[str]) -> int:
    """Hash that many bytes of memory that was touched before; print what it took."""
    left = int(words[0])
    buffer = memoryview(mmap.mmap(-1, _BUFFER_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    for at in range(0, _BUFFER_BYTES, mmap.PAGESIZE):
        buffer[at] = at & 0xFF
    sha256 = hashlib.sha256()
    began, cpu = time.perf_counter(), time.process_time()
    while left > 0:
        for at in range(0, min(left, _BUFFER_BYTES), _UPDATE_BYTES):
            sha256.update(buffer[at : at + _UPDATE_BYTES])
        left -= _BUFFER_BYTES
    result = {"seconds": time.perf_counter() - began, "cpuSeconds": time.process_time() - cpu}
    print(json.dumps({**result, "digest": sha256.hexdigest()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
