"""The programs of demo/programs.py: how each is prepared in a folder, and its command. Each prints what it computed,
the same on every run. Most have 300 to 500 MiB of anonymous memory and take some seconds."""

import glob
import os
import random
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TALKS = os.path.join(os.path.dirname(HERE), "tests", "programs")
sys.path[:0] = [HERE, TALKS]
import inputs  # noqa: E402
from compare import Skip  # noqa: E402
from numpy_venv import Missing, faster_sort, python_with  # noqa: E402

NODE_OBJECTS = """
const table = new Map(); let sum = 0;
for (let i = 0; i < COUNT; i++) {
    table.set(i, {key: i, name: "entry " + i * 7919 % 1000003, values: [i, i * 2, i * 3.5]});
}
for (let i = 0; i < COUNT; i += 3) table.set(i, {key: i, name: "changed " + i, values: [i + 0.5]});
for (const entry of table.values()) sum += entry.name.length + entry.values[0];
"""
NODE = {
    "objects": NODE_OBJECTS.replace("COUNT", "1400000") + "console.log(table.size, sum);",
    "Buffers": """
const buffers = [], hash = require("crypto").createHash("sha256");
for (let i = 0; i < 320; i++) {
    buffers.push(Buffer.alloc(1 << 20));
    for (let at = 0; at < 1 << 20; at += 4) buffers[i].writeUInt32LE(i * at >>> 0, at);
}
for (let round = 0; round < 2; round++) for (const b of buffers) hash.update(b);
console.log(hash.digest("hex"));
""",
    "two workers": """
const {Worker, isMainThread, parentPort} = require("worker_threads");
if (isMainThread) {
    for (let n = 0; n < 2; n++) new Worker(__filename).on("message", text => console.log(text));
} else {""" + NODE_OBJECTS.replace("COUNT", "700000") + "parentPort.postMessage(`${table.size} ${sum}`); }",
}
PYTHON = {
    "dict of strings": """
table = {i: f"value {i * 7919 % 1000003} of {i}" for i in range(2_600_000)}
for i in range(0, len(table), 3):
    table[i] = f"changed {i}"
print(len(table), sum(map(len, table.values())))
""",
    "lists": """
lists = [[i * j for j in range(300, 340)] for i in range(220_000)]
lists.sort(key=lambda numbers: numbers[7] % 10007)
print(len(lists), sum(sum(numbers) for numbers in lists))
""",
    "fork": """
import multiprocessing
lists = [[i * j for j in range(300, 340)] for i in range(180_000)]
def work(part):
    for numbers in lists[part::2]:
        numbers[0] += part
    return sum(sum(numbers) for numbers in lists)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(work, range(2)))
""",
    "spawn": """
import multiprocessing
def work(part):
    table = {i: f"value {i * 7919 % 1000003} of {i}" for i in range(part, 1_500_000 + part)}
    return sum(map(len, table.values()))
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(work, range(2)))
""",
    "numpy sort": """
import hashlib, numpy
numbers = numpy.random.default_rng(1).random(24 << 20)
print(hashlib.blake2b(numpy.sort(numbers)).hexdigest(), hashlib.blake2b(numbers).hexdigest())
""",
    "pandas group-by": """
import numpy, pandas
rng = numpy.random.default_rng(2)
keys, a, b = rng.integers(0, 1000, 6_000_000), rng.random(6_000_000), rng.integers(0, 99, 6_000_000)
frame = pandas.DataFrame({"key": keys, "a": a, "b": b})
print(frame.groupby("key").agg({"a": ["max", "min"], "b": "sum"}).sum().to_list())
print(frame.sort_values(["b", "a"]).iloc[::1_000_000].to_csv())
""",
    "DuckDB": """
import duckdb
base = duckdb.connect(":memory:", config={"threads": 2, "memory_limit": "4GB"})
base.sql("CREATE TABLE t AS SELECT range AS id, hash(range) % 1000003 AS kind, 'name ' || hash(range) AS name "
         "FROM range(4000000)")
print(base.sql("SELECT count(*), sum(n), max(last) FROM "
               "(SELECT kind, count(*) n, max(name) last FROM t GROUP BY kind)").fetchall())
print(base.sql("SELECT id, name FROM t ORDER BY name, id OFFSET 3999990").fetchall())
""",
}
# In a memory cgroup the runtime would choose another collector and a smaller heap than under a budget of folioswap's.
JAVA = ["-Xmx400m", "-XX:-UseContainerSupport"]
MALLOC = {"jemalloc": "libjemalloc.so.2", "tcmalloc": "libtcmalloc_minimal.so.4", "mimalloc": "libmimalloc.so.2"}


class Program:
    """A command in its folder, its environment, and what prints its version. `per_process`: it has several processes,
    of which each has a budget of its own."""

    def __init__(self, command, version, env=None, per_process=False):
        self.command, self.version, self.env, self.per_process = command, version, env or {}, per_process


def need(program, package):
    """The path of a program. Raises Skip if it is missing."""
    path = shutil.which(program)
    if not path:
        raise Skip(f"{program} is missing. Get it: apt-get install {package}")
    return path


def write(folder, name, text):
    """Writes a file of the program."""
    os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
    with open(os.path.join(folder, name), "w", encoding="ascii") as file:
        file.write(text)


def java(collector):
    """Builds and changes a table of objects under a garbage collector."""
    def prepare(folder):
        runtime, compiler = need("java", "default-jdk-headless"), need("javac", "default-jdk-headless")
        subprocess.run([compiler, "-d", folder, os.path.join(TALKS, "Objects.java")], check=True)
        return Program([runtime, *JAVA, f"-XX:+Use{collector}GC", "Objects", "250"], [runtime, "-version"])
    return prepare


def javac(folder):
    """Compiles 250 generated classes that use each other."""
    compiler = need("javac", "default-jdk-headless")
    for n in range(250):
        methods = "".join(
            f"  public long m{m}(long a, String s) {{ var list = new ArrayList<Long>(); long sum = 0;"
            f" for (long i = 0; i < a; i++) {{ list.add(i * {m} + s.length()); }}"
            f" for (long x : list) {{ sum += x + {n}; }}"
            f" return sum + new C{(n * 7 + m) % 250}().m{m}(a - 1, s + {m}); }}\n" for m in range(20)
        )
        write(folder, f"source/C{n}.java", f"import java.util.*;\npublic class C{n} {{\n{methods}}}\n")
    sums = "cat $(find classes -name '*.class' | sort) | sha256sum"
    options = " ".join(f"-J{option}" for option in JAVA)
    script = f"rm -rf classes; javac {options} -J-XX:+UseG1GC -d classes source/*.java && {sums}"
    return Program(["sh", "-c", script], [compiler, "-version"])


def node(name):
    """A script of node."""
    def prepare(folder):
        runtime = need("node", "nodejs")
        write(folder, "work.js", NODE[name])
        return Program([runtime, "--max-old-space-size=1000", "work.js"], [runtime, "--version"])
    return prepare


def python(name, module="sys", preload=None):
    """A script of Python, with a module that pip may have to bring, or with another malloc before it."""
    def prepare(folder):
        env = {"OPENBLAS_NUM_THREADS": "2"}
        try:
            interpreter = python_with(module)
        except Missing as missing:
            raise Skip(f"{module} is missing: {missing}") from missing
        version = [interpreter, "-c", f"import sys, {module} as m; print(getattr(m, '__version__', sys.version))"]
        if name == "numpy sort":
            env |= faster_sort(interpreter)
        if preload:
            found = glob.glob(f"/usr/lib/*/{MALLOC[preload]}") + glob.glob(f"/usr/lib*/{MALLOC[preload]}")
            if not found:
                packages = "libjemalloc2 libtcmalloc-minimal4 libmimalloc2.0"
                raise Skip(f"{MALLOC[preload]} is missing. Get it: apt-get install {packages}")
            env |= {"LD_PRELOAD": found[0], "PYTHONMALLOC": "malloc"}
            version = ["readlink", "-f", found[0]]
        write(folder, "work.py", PYTHON[name])
        interpreter = os.path.realpath(interpreter) if module == "sys" else interpreter
        return Program([interpreter, "work.py"], version, env, per_process=name in ("fork", "spawn"))
    return prepare


def sqlite(folder):
    """sqlite3 in memory: load, index, join, group."""
    inputs.sql(os.path.join(folder, "load.sql"), 1_000_000)
    program = need("sqlite3", "sqlite3")
    return Program([program, ":memory:", ".read load.sql"], [program, "--version"])


def sort(folder):
    """GNU sort, all in memory."""
    inputs.lines(os.path.join(folder, "lines"), 4_000_000)
    sort = "sort -S 1G --parallel=2 -o sorted lines && sha256sum sorted"
    return Program(["sh", "-c", sort], ["sort", "--version"], {"LC_ALL": "C"})


def redis(folder):
    """redis-server, which forked children save while keys change; then a server that reads what was saved."""
    server, _ = need("redis-server", "redis-server"), need("redis-cli", "redis-tools")
    talk = [sys.executable, os.path.join(TALKS, "redis_talk.py"), "150000"]
    return Program(talk, [server, "--version"], per_process=True)


def postgres(folder):
    """A server with two sessions that sort, join and group."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    if not found:
        raise Skip("there is no /usr/lib/postgresql/*/bin. Get it: apt-get install postgresql")
    talk = [sys.executable, os.path.join(TALKS, "postgres_talk.py"), found[-1], "4"]
    return Program(talk, [os.path.join(found[-1], "postgres"), "--version"], per_process=True)


def make(folder):
    """Two jobs of gcc, and its link-time optimizer."""
    compiler, _ = need("gcc", "gcc"), need("make", "make")
    for n in range(3):
        path = os.path.join(folder, f"part{n}.c")
        inputs.c_source(path, 160)
        with open(path, encoding="ascii") as file:
            text = re.sub(r"\bf(\d+)\(", rf"f{n}_\1(", file.read())
        write(folder, f"part{n}.c", text)
    last = [f"f{n}_159" for n in range(3)]
    write(folder, "main.c", "typedef unsigned long word;\nword sink(word x) { return x * 3; }\n"
          + "".join(f"extern word {name}(word, word, word *);\n" for name in last)
          + f"int main(int n, char **v) {{ return n > 1 ? {' + '.join(f'{name}(n, n, 0)' for name in last)} : 0; }}\n")
    write(folder, "Makefile", "out: main.o part0.o part1.o part2.o\n\tgcc -O2 -flto=2 -o $@ $^\n"
          "%.o: %.c\n\tgcc -O2 -flto -c -o $@ $<\n")
    script = "rm -f *.o out; make -s -j2 && objdump -d out | sed 1,3d | sha256sum"
    return Program(["sh", "-c", script], [compiler, "--version"], per_process=True)


def git(folder):
    """Packs a generated repository anew."""
    program, rng = need("git", "git"), random.Random(7)
    lines = [f"line {rng.getrandbits(64):x} {rng.getrandbits(64):x}\n" for _ in range(3000)]
    subprocess.run([program, "init", "-q", "--bare", "made"], cwd=folder, check=True)
    command = [program, "-C", "made", "fast-import", "--quiet"]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, text=True) as importer:
        for n in range(900):
            lines[rng.randrange(3000)] = f"new {n} {rng.getrandbits(64):x}\n"
            text = "".join(lines[n % 500 :])
            head = f"commit refs/heads/main\ncommitter a <a@b> {n + 1} +0000\ndata 1\nc\n"
            importer.stdin.write(f"{head}M 100644 inline file{n % 3}\ndata {len(text)}\n{text}\n")
    script = ("rm -rf used; cp -r made used; cd used; git -c pack.threads=2 repack -adfq --window=250 --depth=50 && "
              "git cat-file --batch-all-objects --batch-check | sha256sum; git fsck --no-progress 2>&1")
    return Program(["sh", "-c", script], [program, "--version"])


RUST_TYPE = """#[derive(Debug, Clone, PartialEq, PartialOrd, Default)]
pub struct SN { pub a: Vec<u64>, pub b: String, pub c: Option<(u32, i64)> }
pub fn fN(map: &mut std::collections::BTreeMap<String, SN>) -> usize {
    map.entry(format!("{}", N)).or_default().a.extend((0..N).map(|x| x * 3));
    let mut all: Vec<_> = map.values().cloned().collect();
    all.sort_by(|x, y| x.partial_cmp(y).unwrap());
    all.iter().map(|s| format!("{s:?}").len()).sum()
}
"""


def rust(folder):
    """Compiles a generated crate."""
    compiler = need("rustc", "rustc")
    write(folder, "lib.rs", "".join(re.sub(r"N\b", str(n), RUST_TYPE) for n in range(9)))
    script = "rustc -O --edition 2021 --crate-type lib --emit obj -o lib.o lib.rs && sha256sum lib.o"
    return Program(["sh", "-c", script], [compiler, "--version"])


PROGRAMS = {
    "OpenJDK G1": java("G1"), "OpenJDK Parallel": java("Parallel"), "OpenJDK Serial": java("Serial"), "javac": javac,
    **{f"node, {name}": node(name) for name in NODE},
    **{f"CPython, {name}": python(name) for name in ("dict of strings", "lists", "fork", "spawn")},
    "numpy sort": python("numpy sort", "numpy"), "pandas group-by": python("pandas group-by", "pandas"),
    "DuckDB": python("DuckDB", "duckdb"), "sqlite3": sqlite, "GNU sort": sort, "redis": redis, "PostgreSQL": postgres,
    "make, gcc -flto": make, "git repack": git, "rustc -O": rust,
    **{f"CPython, {name}": python("dict of strings", preload=name) for name in MALLOC},
}
