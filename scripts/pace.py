"""How long this machine takes to compile a small file on every core at once, in milliseconds.

A build's time is estimated from it (cmake/Announce.cmake), so the estimate knows how fast the cores
are and how busy.

    python scripts/pace.py COMPILER CORES
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAMPLE = """\
#include <map>
#include <string>
int counted(std::map<std::string, int>& found, const std::string& x) { return ++found[x + "."]; }
"""


def main() -> None:
    compiler, cores = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "sample.cc")
        source.write_text(SAMPLE, encoding="utf-8")
        start = time.monotonic()
        running = [
            subprocess.Popen(
                [compiler, "-std=c++17", "-O2", "-c", source, "-o", Path(folder, f"{core}.o")],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for core in range(cores)
        ]
        failed = any(process.wait() for process in running)
        print(0 if failed else round(1000 * (time.monotonic() - start)))


if __name__ == "__main__":
    main()
