#!/usr/bin/env python3
"""Real programs under `folioswap run`, compared with a run without it. Usage: suite.py FOLIOSWAP [NAME...]

numpy has four times its budget of data. Most others access memory at random, for which whole huge pages work badly, and
have 1.2 times their budget. sqlite3 and xz touch a third more memory in huge pages than is resident in small pages.
Their budgets exceed what is resident, and they still swap.
"""

import glob
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(HERE)), "demo"))
import inputs  # noqa: E402
from compare import MIB, Skip, compare, run  # noqa: E402
from numpy_venv import Missing, faster_sort, numpy_python  # noqa: E402

LIMIT_S = 200
# What is resident without a limit. In whole blocks it is more.
FOLIOS_BUDGET = 20 * MIB


def need(program, package):
    """The path of a program. A missing program is installed as root, and skipped otherwise."""
    if shutil.which(program):
        return shutil.which(program)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Skip(f"{program} is missing. Get it: apt-get install {package}")
    install = ["-o", "DPkg::Lock::Timeout=20", "-o", "Acquire::http::Timeout=15", "-o", "Acquire::Retries=1", "install", "-y"]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (install, ["update"], install):
        full = ["timeout", "-k", "5", "60", "apt-get", "-q", *command]
        full += ["--no-install-recommends", package] if command is install else []
        result = subprocess.run(full, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=quiet)
        if shutil.which(program):
            return shutil.which(program)
    raise Skip(f"{program} is missing and apt-get cannot get it: {(result.stderr.strip().splitlines() or ['?'])[-1]}")


def numpy(folioswap, folder):
    """Sort, fancy indexing, matmul and files at four times the budget; single elements at 1.2 times."""
    try:
        python = numpy_python()
    except Missing as missing:
        raise Skip(f"no numpy: {missing}") from missing
    work = [python, os.path.join(HERE, "numpy_work.py")]
    env = {"OPENBLAS_NUM_THREADS": "2", "PYTHONDONTWRITEBYTECODE": "1", **faster_sort(python)}
    good = True
    for faults in ("auto", "direct"):
        command = [*work, "sequential", str(96 * MIB)]
        name = f"numpy at four times the budget, faults {faults}"
        good &= compare(name, folioswap, command, folder, LIMIT_S, budget=24 * MIB, env=env, faults=faults)
    command = [*work, "random", str(96 * MIB)]
    return compare("numpy at random", folioswap, command, folder, LIMIT_S, code=32 * MIB, env=env) and good


def sort(folioswap, folder):
    """GNU sort, all in memory."""
    program = need("sort", "coreutils")
    inputs.lines(os.path.join(folder, "lines"), 2_000_000)
    command = [program, "-S", "1G", "--parallel=2", "lines"]
    good = True
    for faults in ("auto", "direct"):
        good &= compare(f"sort, faults {faults}", folioswap, command, folder, LIMIT_S, env={"LC_ALL": "C"}, faults=faults)
    return good


def sqlite(folioswap, folder):
    """sqlite3 in memory: load, index, join, group."""
    program = need("sqlite3", "sqlite3")
    inputs.sql(os.path.join(folder, "load.sql"), 800_000)
    return compare("sqlite3 :memory:", folioswap, [program, ":memory:", ".read load.sql"], folder, LIMIT_S, times=0.8)


def folios(folioswap, folder):
    """A smaller sqlite3 with folios of fixed sizes, and with swap-in page by page."""
    program = need("sqlite3", "sqlite3")
    inputs.sql(os.path.join(folder, "load.sql"), 260_000)
    command = [program, ":memory:", ".read load.sql"]
    plain, good = run(command, folder, LIMIT_S), True
    for options in (["--folio", "4K"], ["--folio", "64K"], ["--swap-in", "never"]):
        name = f"sqlite3 {' '.join(options)}"
        good &= compare(name, folioswap, command, folder, LIMIT_S, budget=FOLIOS_BUDGET, options=options, plain=plain)
    return good


def gcc(folioswap, folder):
    """gcc -O2 on one large file."""
    program = need("gcc", "gcc")
    inputs.c_source(os.path.join(folder, "large.c"), 200)
    command = [program, "-O2", "-c", "large.c", "-o", "large.o"]
    return compare("gcc -O2", folioswap, command, folder, LIMIT_S, code=36 * MIB, outputs=["large.o"])


def xz(folioswap, folder):
    """xz -9 in two threads."""
    program = need("xz", "xz-utils")
    inputs.text(os.path.join(folder, "text"), 12 * MIB)
    command = [program, "-9", "-T2", "--block-size=6MiB", "--keep", "--force", "text"]
    return compare("xz -9 -T2", folioswap, command, folder, LIMIT_S, times=0.75, outputs=["text.xz"])


def redis(folioswap, folder):
    """redis-server, saved by forked children while keys change, and read at random; then what was saved."""
    need("redis-server", "redis-server")
    need("redis-cli", "redis-tools")
    command = [sys.executable, os.path.join(HERE, "redis_talk.py"), "80000"]
    return compare("redis-server", folioswap, command, folder, LIMIT_S, code=8 * MIB)


def java(folioswap, folder):
    """A table of objects of twice the budget, under three garbage collectors, which reserve addresses first."""
    runtime, compiler = need("java", "default-jdk-headless"), need("javac", "default-jdk-headless")
    subprocess.run([compiler, "-d", folder, os.path.join(HERE, "Objects.java")], check=True, timeout=LIMIT_S)
    good = True
    for collector, faults in (("Serial", "auto"), ("Parallel", "direct"), ("G1", "auto")):
        command = [runtime, f"-XX:+Use{collector}GC", "-Xmx128m", "-cp", folder, "Objects", "72"]
        name = f"java, {collector}, faults {faults}"
        good &= compare(name, folioswap, command, folder, LIMIT_S, budget=48 * MIB, faults=faults)
    return good


def postgres(folioswap, folder):
    """A PostgreSQL server and two sessions, whose processes are forked and sort and join beyond the budget."""
    found = lambda: sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))  # noqa: E731
    if not found():
        need("postgres", "postgresql")
    if not found():
        raise Skip("there is no /usr/lib/postgresql/*/bin/postgres")
    command = [sys.executable, os.path.join(HERE, "postgres_talk.py"), os.path.dirname(found()[-1])]
    return compare("postgres", folioswap, command, folder, LIMIT_S, budget=32 * MIB, counts=os.geteuid() != 0)


def descriptors(folioswap, folder):
    """A daemon and a shell script that close and replace descriptors that they did not open."""
    python, script = os.path.join(HERE, "daemon_work.py"), os.path.join(HERE, "shell_work.sh")
    shell, good = need("bash", "bash"), True
    for faults in ("monitor", "direct"):
        daemon = [sys.executable, python, str(64 * MIB)]
        good &= compare(f"daemon, faults {faults}", folioswap, daemon, folder, LIMIT_S, budget=24 * MIB, faults=faults)
        name = f"shell, faults {faults}"
        good &= compare(name, folioswap, [shell, script], folder, LIMIT_S, budget=16 * MIB, outputs=["log"], faults=faults)
    return good


PROGRAMS = {
    "numpy": numpy, "sort": sort, "sqlite": sqlite, "folios": folios, "gcc": gcc, "xz": xz, "redis": redis,
    "descriptors": descriptors, "java": java, "postgres": postgres,
}


def main():
    """Runs the named programs, or all. Exit status 1 if one differed."""
    folioswap = os.path.abspath(sys.argv[1])
    good = True
    for name in sys.argv[2:] or PROGRAMS:
        with tempfile.TemporaryDirectory(prefix="folioswap-program-", dir="/var/tmp") as folder:
            try:
                good &= PROGRAMS[name](folioswap, folder)
            except Skip as reason:
                print(f"SKIP {name}: {reason}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
