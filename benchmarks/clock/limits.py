"""The memory limits of memory_limits.cc: compiled on first use, called through ctypes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks import command

# In the order of `enum Kind` in memory_limits.cc.
KINDS = ("in-place scale", "copy", "fill", "sum", "in-place add")
# How often the buffer's bytes cross between memory and processor, reads and writes.
PASSES = {"in-place scale": 2, "copy": 2, "fill": 1, "sum": 1, "in-place add": 3}

_SOURCE = Path(__file__).with_name("memory_limits.cc")
_CACHE = Path(__file__).parents[1] / ".cache"


def compiler() -> str:
    """The C++ compiler: $CXX, else the first of c++, g++ and clang++ that is installed."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    raise command.Refused(
        "no C++ compiler found (CXX, c++, g++, clang++); the memory limits need one"
    )


def cpu_info() -> dict[str, str]:
    """The first processor's entry in /proc/cpuinfo; empty where there is none."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def compiled(source: Path, *flags: str) -> Path:
    """Compile a C++ file to a shared library, unless that has been done before.

    A source that does not compile is refused with what the compiler says.
    """
    command = [compiler(), "-std=c++17", "-O3", *flags, "-shared", "-fPIC"]
    cpu = cpu_info()
    # A folder that moves to another processor must not bring its instructions along.
    identity = [*command, cpu.get("model name", platform.processor()), cpu.get("flags", "")]
    key = hashlib.sha256(source.read_bytes() + "\n".join(identity).encode()).hexdigest()[:16]
    library = _CACHE / f"{source.stem}-{key}.so"
    if not library.exists():
        _CACHE.mkdir(exist_ok=True)
        # Under another name first: a second process must never load half a library.
        handle, unfinished = tempfile.mkstemp(dir=_CACHE, suffix=".tmp")
        os.close(handle)
        done = subprocess.run(
            [*command, str(source), "-o", unfinished], capture_output=True, text=True, check=False
        )
        if done.returncode:
            os.unlink(unfinished)
            raise command.Refused(f"{source.name} does not compile:\n{done.stderr}")
        os.replace(unfinished, library)
    return library


@functools.cache
def _library() -> ctypes.CDLL:
    native = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"
    library = ctypes.CDLL(str(compiled(_SOURCE, native, "-pthread")))
    library.limit_count.argtypes = [ctypes.c_int]
    library.limit_name.argtypes = [ctypes.c_int, ctypes.c_int]
    library.limit_name.restype = ctypes.c_char_p
    address, number = ctypes.c_void_p, ctypes.c_int
    library.limit_run.argtypes = [
        *(number, number, address, address, ctypes.c_size_t, ctypes.c_float, number, number)
    ]
    library.limit_run.restype = None
    return library


def variants(kind: str) -> list[str]:
    """The names of the variants of one of KINDS, in the order that `run` counts them."""
    number = KINDS.index(kind)
    return [
        _library().limit_name(number, index).decode()
        for index in range(_library().limit_count(number))
    ]


def run(
    kind: str,
    variant: int,
    dst: int,
    src: int | None,
    nbytes: int,
    *,
    value: float = -1.0,
    threads: int = 1,
    repeats: int = 1,
) -> None:
    """Run one of KINDS as float32, `repeats` times.

    Scale dst by value, copy src to dst, fill dst with value, sum src up (into dst, one number for
    each thread), or add src to dst.

    dst and src are addresses, multiples of 4; nbytes is a multiple of 4. Scaling by the default of
    -1 keeps any float16, bfloat16 or float32 data finite and non-zero: only signs change. Adding
    is for float32 data.
    """
    number = KINDS.index(kind)
    _library().limit_run(number, variant, dst, src, nbytes // 4, value, threads, repeats)
