#!/usr/bin/env python3
"""The Python package: `python_package.py [--free-threaded] TARGET [FILE...]`. Builds it by `pip install .` in a fresh
virtual environment under TARGET, then runs its tests and the examples in its documentation. Prints PASS, FAIL and SKIP
lines.

--free-threaded: with a CPython that has no GIL. FOLIOSWAP_FREE_THREADED names it; else it is python3.14t on PATH."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGE = os.path.join(ROOT, "crates", "python")
# What the tests of other libraries use. If they cannot be had together, each is installed alone: one that cannot be had
# skips its tests only. torch is not among them: its wheel brings gigabytes of CUDA.
LIBRARIES = ("pandas", "pyarrow", "scikit-learn", "faiss-cpu", "zarr", "dask", "mypy")


def quiet(command, limit_s, **options):
    """Runs a command. Returns its status and output; a status of None: its time was up."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s, text=True,
            check=False, **options,
        )
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        return None, (error.output or b"").decode("utf-8", "replace") if isinstance(error.output, bytes) else str(error.output)


def tests(python, what, arguments):
    """Runs pytest, and says how it went. Returns whether all passed."""
    status, output = quiet([python, "-m", "pytest", "-q", "-rsfE", "-p", "no:cacheprovider", *arguments], 900, cwd=PACKAGE)
    for reason in re.findall(r"^SKIPPED .*", output, re.M):
        print(f"SKIP {what}: {reason[8:]}")
    passed = re.search(r"(\d+) passed", output)
    if status == 0 and passed:
        for _ in range(int(passed[1])):
            print(f"PASS {what}")
        return True
    print(output)
    for failure in re.findall(r"^(?:FAILED|ERROR) .*", output, re.M) or [f"exit status {status}"]:
        print(f"FAIL {what}: {failure}", flush=True)
    return False


def source_archive(python):
    """The source archive holds all crates that `pip install` builds. Returns whether it does."""
    if not os.path.exists(os.path.join(ROOT, ".git")):
        print("SKIP source archive: it is made from a git checkout")
        return True
    environment = {**os.environ, "PATH": os.path.dirname(python) + os.pathsep + os.environ["PATH"]}
    make = "import sys; sys.path.insert(0, 'crates/python/backend'); import folioswap_build; folioswap_build.build_sdist(sys.argv[1])"
    with tempfile.TemporaryDirectory(prefix="folioswap-sdist-") as scratch:
        status, output = quiet([python, "-c", make, scratch], 120, cwd=ROOT, env=environment)
        for name in os.listdir(scratch):
            with tarfile.open(os.path.join(scratch, name)) as archive:
                archive.extractall(scratch)
            where = os.path.join(scratch, name.removesuffix(".tar.gz"))
            status, output = quiet(["cargo", "metadata", "--no-deps", "--locked", "--offline", "--format-version", "1"], 60, cwd=where)
    missing = [name for name in ("cli", "preload", "python") if f'"name":"folioswap-{name}"' not in output]
    if status != 0 or missing:
        print(f"{output[-2000:]}\nFAIL source archive: {status}, without {missing}", flush=True)
        return False
    print("PASS source archive", flush=True)
    return True


def install_libraries(pip):
    """Installs what the tests of other libraries use, and says what cannot be had."""
    if quiet([*pip, *LIBRARIES], 300)[0] == 0:
        return
    for library in LIBRARIES:
        status, output = quiet([*pip, library], 120)
        if status != 0:
            print(f"SKIP {library}: pip cannot install it ({output.strip()[-200:]})", flush=True)


def free_threaded():
    """The free-threaded interpreter, or `None` and why there is none."""
    named = os.environ.get("FOLIOSWAP_FREE_THREADED", "python3.14t")
    found = shutil.which(named)
    if found is None:
        return None, f"there is no {named}; FOLIOSWAP_FREE_THREADED can name one (CONTRIBUTING.md says how to build it)"
    status, output = quiet([found, "-c", "import sys; print(getattr(sys, '_is_gil_enabled', lambda: True)())"], 60)
    if (status, output) == (0, "False\n"):
        return found, ""
    return None, f"{found} has the GIL: {output.strip()[-200:]}"


def is_small(library):
    """Whether a library was installed without its debug information, which is most of it. Says which."""
    with open(library, "rb") as file:
        is_stripped = b"\0.debug_info\0" not in file.read()
    print(f"{'PASS' if is_stripped else 'FAIL'} {os.path.basename(library)}: {os.path.getsize(library)} bytes", flush=True)
    return is_stripped


def main():
    """Exit status 1 if something failed."""
    arguments, interpreter, venv = sys.argv[1:], sys.executable, "python-venv"
    if arguments[0] == "--free-threaded":
        interpreter, reason = free_threaded()
        if interpreter is None:
            print(f"SKIP the Python package, free-threaded: {reason}")
            return 0
        arguments, venv = arguments[1:], "python-venv-free-threaded"
    target, files = arguments[0], arguments[1:]
    venv = os.path.join(target, venv)
    shutil.rmtree(venv, ignore_errors=True)
    status, output = quiet([interpreter, "-m", "venv", venv], 120)
    if status != 0:
        print(f"SKIP the Python package: no virtual environment ({output.strip().splitlines()[-1:]})")
        return 0
    python = os.path.join(venv, "bin", "python")
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    status, output = quiet([*pip, "maturin>=1.7,<2", "numpy", "pytest"], 300)
    if status != 0:
        print(f"SKIP the Python package: pip cannot install maturin, numpy and pytest ({output.strip()[-200:]})")
        return 0
    status, output = quiet([*pip, "."], 1500, cwd=ROOT, env={**os.environ, "CARGO_TARGET_DIR": target})
    if status != 0:
        print(output)
        print(f"FAIL pip install .: {status}")
        return 1
    print("PASS pip install .", flush=True)
    archive_passed = source_archive(python)
    if not files:
        install_libraries([*pip, "--only-binary", ":all:"])
    where = os.path.join(PACKAGE, "tests")
    passed = [tests(python, name, [os.path.join("tests", name)]) for name in files or sorted(os.listdir(where)) if name.startswith("test_")]
    if not files:
        installed = subprocess.run(
            [python, "-c", "import folioswap, os; print(os.path.dirname(folioswap.__file__))"], stdout=subprocess.PIPE,
            text=True, check=True, cwd=PACKAGE,
        ).stdout.strip()
        [library] = glob.glob(os.path.join(installed, "_native*.so"))
        passed.append(is_small(library))
        passed.append(tests(python, "examples in the documentation", ["--doctest-modules", installed, "--ignore-glob=*__main__*"]))
    return 0 if all(passed) and archive_passed else 1


if __name__ == "__main__":
    sys.exit(main())
