"""Builds `LIBRARY` with $CXX, for `test_build`: makes the file it is given, builds, and prints the result's path."""

import sys
from pathlib import Path

from onepass.kernels.cpu import build
from onepass.kernels.cpu.libraries import Library

LIBRARY = Library("cpu", ("attention/cpu_attention.cc", "attention/cpu_panels.cc"), ("attend", "write"), ("-O3",))

if __name__ == "__main__":
    Path(sys.argv[1]).touch()
    print(build.build(LIBRARY, "headers"))
