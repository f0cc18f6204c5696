"""What the C library does with memory that is freed."""

import platform
import subprocess
import sys

import pytest

_PROGRAM = """
import ctypes, resource
from engine_svc.memory import keep_freed_memory

library, size = ctypes.CDLL(None), 4 << 20
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
library.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)

def use():
    pieces = [library.malloc(size) for _ in range(4)]
    for piece in pieces:
        library.memset(piece, 1, size)
    for piece in pieces:
        library.free(piece)

keep_freed_memory()
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow  # torch is imported
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's malloc that is told")
def test_freed_memory_is_there_for_what_comes_next() -> None:
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True, timeout=120)
    assert int(ran.stdout) < 100  # faults; of 4,096 pages
