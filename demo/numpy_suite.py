#!/usr/bin/env python3
"""NumPy's own test suite, without and with a pool of 64 MiB as its allocator: `numpy_suite.py [PYTEST-ARGUMENT...]`.

Needs the package, numpy, pytest and hypothesis. Without the tests of f2py, which need a Fortran compiler and meson.
Takes some minutes. Exit status 1 if a test ends in another way.
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

SUITE = """
import contextlib, os, sys
import numpy, pytest
pool = contextlib.nullcontext()
if sys.argv[1] == "pool":
    import folioswap
    pool = folioswap.Pool("64M")
with pool:
    pytest.main(["--pyargs", "numpy", "-q", "-m", "not slow", "--ignore", os.path.join(os.path.dirname(numpy.__file__), "f2py"),
                 "-p", "no:cacheprovider", "--junitxml", sys.argv[2], *sys.argv[3:]])
if sys.argv[1] == "pool":
    print(pool.stats())
"""


def outcomes(allocator, report):
    """Runs the suite. Returns how each test ended."""
    print(f"with {allocator}", flush=True)
    subprocess.run([sys.executable, "-c", SUITE, allocator, report, *sys.argv[1:]], cwd=os.path.dirname(report), check=True)
    cases = xml.etree.ElementTree.parse(report).getroot().iter("testcase")
    return {(case.get("classname"), case.get("name")): sorted(child.tag for child in case if child.tag in ("failure", "error", "skipped")) for case in cases}


def main():
    """Compares both runs."""
    with tempfile.TemporaryDirectory(prefix="folioswap-numpy-") as directory:
        plain, pooled = (outcomes(allocator, os.path.join(directory, f"{allocator}.xml")) for allocator in ("malloc", "pool"))
    differ = [name for name in sorted(plain | pooled) if plain.get(name) != pooled.get(name)]
    for name in differ:
        print(f"{'.'.join(name)}: {plain.get(name)} without, {pooled.get(name)} with the pool")
    print(f"{len(plain)} tests, {len(differ)} end in another way")
    return 1 if differ or len(plain) < 1000 and len(sys.argv) == 1 else 0


if __name__ == "__main__":
    sys.exit(main())
