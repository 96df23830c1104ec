#!/usr/bin/env python3
"""The C library: `c_library.py ARCHIVE`. Installs it into a scratch folder, and compiles and runs its tests and examples
against it: by every compiler that there is, as shared and as static library, in both fault modes, and under
AddressSanitizer. Prints PASS, FAIL and SKIP lines."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CAPI = os.path.join(ROOT, "crates", "capi")
LIMIT_S = 100
failures = 0


def run(what, command, wanted="", **options):
    """Runs a command. It passes if it ends with 0 and its output contains `wanted`."""
    global failures
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, text=True,
            check=False, **options,
        )
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        status, output = f"no end within {LIMIT_S} s", str(error.output)
    if status == 0 and wanted in output:
        print(f"PASS {what}", flush=True)
        return output
    failures += 1
    print(output)
    print(f"FAIL {what}: {status}", flush=True)
    return None


def names_agree(library):
    """The header, the symbol map, the man page and the library know the same functions."""
    global failures
    def words(path, pattern):
        with open(os.path.join(CAPI, path), encoding="utf-8") as file:
            return set(re.findall(pattern, file.read()))
    exported = words("folioswap.map", r"(folioswap_\w+);")
    header = words("include/folioswap.h", r"(folioswap_\w+)\((?!const folioswap \*pool\) noexcept)")
    header = {name for name in header if not name.endswith("_stats") or name == "folioswap_get_stats"}
    sources = set()
    for name in os.listdir(os.path.join(CAPI, "src")):
        sources |= words(os.path.join("src", name), r'extern "C" fn (folioswap_\w+)')
    manual = words("man/folioswap.3", r"(folioswap_\w+)\(")
    table = subprocess.run(["nm", "-D", "--defined-only", library], stdout=subprocess.PIPE, text=True, check=True).stdout
    in_library = set(re.findall(r"T (folioswap_\w+)@@FOLIOSWAP_0\.1", table))
    foreign = [line for line in table.splitlines() if " T " in line and "folioswap_" not in line]
    sides = {"sources": sources, "header": header & exported | header - header, "manual": manual, "library": in_library}
    wrong = [f"{side}: {sorted(names ^ exported)}" for side, names in sides.items() if names != exported] + foreign
    if wrong:
        failures += 1
    print(f"FAIL names: {wrong}" if wrong else f"PASS names: {len(exported)} functions, each versioned", flush=True)


def with_compiler(compiler, prefix, scratch):
    """Compiles and runs everything by one C compiler and its C++ compiler."""
    plus = {"gcc": "g++", "clang": "clang++"}[compiler]
    flags = ["-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{prefix}/include"]
    shared = [f"-L{prefix}/lib", "-lfolioswap", f"-Wl,-rpath,{prefix}/lib", "-pthread"]
    static = [f"{prefix}/lib/libfolioswap.a", "-lgcc_s", "-pthread", "-ldl", "-lm"]
    tests, examples = os.path.join(CAPI, "tests"), os.path.join(CAPI, "examples")
    builds = [
        ("faces", [compiler, "-std=c11", "-D_GNU_SOURCE", *flags, f"{tests}/faces.c"], shared, [["monitor"], ["direct"]]),
        ("faces-static", [compiler, "-std=c11", "-D_GNU_SOURCE", *flags, f"{tests}/faces.c"], static, [["direct"]]),
        ("faces-asan", [compiler, "-std=c11", "-D_GNU_SOURCE", "-fsanitize=address", *flags, f"{tests}/faces.c"], shared,
         [["monitor"], ["direct"]]),
        ("sort", [compiler, "-std=c11", "-Wpedantic", *flags, f"{examples}/sort.c"], shared, [["32"]]),
        ("sort-asan", [compiler, "-std=c11", "-fsanitize=address", *flags, f"{examples}/sort.c"], shared, [["32"]]),
        ("resource", [plus, "-std=c++17", *flags, f"{examples}/resource.cpp"], shared, [[]]),
    ]
    if os.path.exists("/usr/include/jemalloc/jemalloc.h"):
        builds.append(("jemalloc", [compiler, "-std=c11", *flags, f"{examples}/jemalloc.c"], ["-ljemalloc", *shared], [[]]))
    else:
        print("SKIP jemalloc: not installed (apt-get install libjemalloc-dev)")
    for name, command, libraries, runs in builds:
        program = os.path.join(scratch, f"{name}-{compiler}")
        if run(f"{compiler}: {name} compiles", [*command, "-o", program, *libraries]) is None:
            continue
        for arguments in runs:
            if arguments == ["monitor"] and not os.access("/dev/userfaultfd", os.R_OK) and os.geteuid() != 0:
                print("SKIP monitor mode: userfaultfd is not permitted")
                continue
            run(f"{compiler}: {name} {' '.join(arguments)}", [program, *arguments], "right")


def main():
    """Runs everything. Exit status 1 if something failed."""
    archive = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="folioswap-c-") as scratch:
        prefix = os.path.join(scratch, "prefix")
        environment = {key: value for key, value in os.environ.items() if key != "DESTDIR"}
        if run("install.sh", [os.path.join(CAPI, "install.sh"), archive, prefix], env=environment) is None:
            return 1
        library = os.path.join(prefix, "lib", "libfolioswap.so")
        names_agree(library)
        run("soname", ["readelf", "-d", library], "SONAME")
        if shutil.which("pkg-config"):
            about = {**environment, "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}
            run("pkg-config", ["pkg-config", "--cflags", "--libs", "folioswap"], "-lfolioswap", env=about)
        if shutil.which("man"):
            run("man page", ["man", "--warnings", "-l", os.path.join(CAPI, "man", "folioswap.3")], "FOLIOSWAP")
        for compiler in ("gcc", "clang"):
            if shutil.which(compiler):
                with_compiler(compiler, prefix, scratch)
            else:
                print(f"SKIP {compiler}: not installed (apt-get install {compiler})")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
