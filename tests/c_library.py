#!/usr/bin/env python3
"""The C library: `c_library.py ARCHIVE`. Installs it into a scratch folder, and compiles and runs its tests and examples
against it: by every compiler that there is, as shared and as static library, in both fault modes, and under
AddressSanitizer. Prints PASS, FAIL and SKIP lines."""

import glob
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
    archive = subprocess.run(["nm", "-g", "--defined-only", library[: -len("so")] + "a"], stdout=subprocess.PIPE, text=True, check=True)
    in_archive = set(re.findall(r"^[0-9a-f]+ \w (\w+)$", archive.stdout, re.M))
    sides = {"sources": sources, "header": header & exported | header - header, "manual": manual, "library": in_library, "archive": in_archive}
    wrong = [f"{side}: {sorted(names ^ exported)}" for side, names in sides.items() if names != exported] + foreign
    if wrong:
        failures += 1
    print(f"FAIL names: {wrong}" if wrong else f"PASS names: {len(exported)} functions, each versioned", flush=True)


def declarations(header):
    """The functions and structures of a header: each name with its types in order, however they are written."""
    def normal(text):
        text = re.sub(r"\b(struct|enum) ", "", re.sub(r"\s+", " ", text)).replace("uintptr_t", "size_t").replace("bool ", "int ")
        return re.sub(r"\b(\w[\w ]*?[\w*] ?\**) ?(?:\b\w+)?(\[\d+\])?$", r"\1\2", text.strip()).replace(" ", "")
    header = re.sub(r"/\*.*?\*/|//[^\n]*", " ", header, flags=re.S)
    found = {}
    for result, name, arguments in re.findall(r"^([\w ]+[ *]+)(folioswap_\w+)\(([^;{]*)\);", header, re.M):
        found[name] = [normal(result + "x"), *(normal(argument) for argument in arguments.split(","))]
    for kind, name, body in re.findall(r"\b(struct|enum) (folioswap_\w+) \{(.*?)\}", header, re.S):
        members = body.split(";")[:-1] if kind == "struct" else body.split(",")
        found[f"{kind} {name}"] = [re.sub(r"\s", "", re.sub(r"\bstruct ", "", member)) for member in members if member.strip()]
    return found


def header_agrees_with_cbindgen():
    """folioswap.h declares what cbindgen would generate from the sources: types, members and values."""
    global failures
    version = subprocess.run(["cbindgen", "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout if shutil.which("cbindgen") else "none"
    if version == "none" or tuple(int(part) for part in version.split()[1].split(".")[:2]) < (0, 27):
        print(f"SKIP cbindgen: 0.27 or later is needed, here is {version.strip()} (cargo install cbindgen)")
        return
    generated = run("cbindgen", ["cbindgen", "-q", "--config", os.path.join(CAPI, "cbindgen.toml"), CAPI])
    if generated is None:
        return
    with open(os.path.join(CAPI, "include", "folioswap.h"), encoding="utf-8") as file:
        ours = declarations(file.read())
    theirs = declarations(generated)
    differ = [f"{name}: {ours.get(name)} and {theirs.get(name)}" for name in sorted(ours | theirs) if ours.get(name) != theirs.get(name)]
    functions = sum(" " not in name for name in ours)
    if differ or functions < 20:
        failures += 1
        print("\n".join(differ))
    print(f"{'FAIL' if differ or functions < 20 else 'PASS'} the header is cbindgen's: {functions} functions", flush=True)


# The packages of Debian 12 with AddressSanitizer's runtime.
RUNTIMES = {"gcc": "libgcc-12-dev", "clang": "libclang-rt-14-dev"}


def has_sanitizer(compiler, scratch):
    """Whether the compiler links programs with AddressSanitizer. Its runtime is a package of its own."""
    command = [compiler, "-fsanitize=address", "-x", "c", "-", "-o", os.path.join(scratch, "sanitized")]
    return subprocess.run(command, input=b"int main(void) { return 0; }", stderr=subprocess.DEVNULL, check=False).returncode == 0


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
    builds.append(("resource-no-rtti", [plus, "-std=c++17", "-fno-rtti", *flags, f"{examples}/resource.cpp"], shared, [[]]))
    if os.path.exists("/usr/include/jemalloc/jemalloc.h"):
        builds.append(("jemalloc", [compiler, "-std=c11", *flags, f"{examples}/jemalloc.c"], ["-ljemalloc", *shared], [[]]))
    else:
        print("SKIP jemalloc: not installed (apt-get install libjemalloc-dev)")
    has_asan = has_sanitizer(compiler, scratch)
    if not has_asan:
        print(f"SKIP {compiler}: AddressSanitizer's runtime is missing (apt-get install {RUNTIMES[compiler]})")
    for name, command, libraries, runs in builds:
        if name.endswith("-asan") and not has_asan:
            continue
        program = os.path.join(scratch, f"{name}-{compiler}")
        if run(f"{compiler}: {name} compiles", [*command, "-o", program, *libraries]) is None:
            continue
        for arguments in runs:
            if arguments == ["monitor"] and not os.access("/dev/userfaultfd", os.R_OK) and os.geteuid() != 0:
                print("SKIP monitor mode: userfaultfd is not permitted")
                continue
            run(f"{compiler}: {name} {' '.join(arguments)}", [program, *arguments], "right")


def beside_another(prefix, scratch):
    """Links the static library and another Rust library into one program, with each linker."""
    beside, other = os.path.join(CAPI, "tests", "beside"), os.path.join(scratch, "libother.a")
    rust = ["rustc", "-O", "--edition", "2024", "--crate-type", "staticlib", "-o", other, os.path.join(beside, "other.rs")]
    if run("another Rust library", rust) is None:
        return
    found = subprocess.run(["rustc", "--print", "sysroot"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    linkers = {"ld": [], "lld": [f"-B{folder}" for folder in glob.glob(f"{found}/lib/rustlib/*/bin/gcc-ld")] + ["-fuse-ld=lld"]}
    libraries = [f"{prefix}/lib/libfolioswap.a", other, "-lgcc_s", "-pthread", "-ldl", "-lm"]
    for name, options in linkers.items():
        if name == "lld" and len(options) == 1 and not shutil.which("ld.lld"):
            print("SKIP lld: not installed (apt-get install lld)")
            continue
        program = os.path.join(scratch, f"beside-{name}")
        command = ["cc", f"-I{prefix}/include", "-o", program, os.path.join(beside, "program.c"), *libraries, *options]
        if run(f"beside another Rust library: {name} links", command) is not None:
            run(f"beside another Rust library: {name}", [program], "right")


def install_compilers():
    """In CI, as root: gets clang and jemalloc. What cannot be had is skipped below."""
    if os.environ.get("CI") and os.geteuid() == 0 and shutil.which("apt-get") and not shutil.which("clang"):
        for command in (["update"], ["install", "-y", "clang", "libjemalloc-dev"]):
            subprocess.run(["timeout", "120", "apt-get", "-qq", *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)


def main():
    """Runs everything. Exit status 1 if something failed."""
    archive = sys.argv[1]
    install_compilers()
    with tempfile.TemporaryDirectory(prefix="folioswap-c-") as scratch:
        prefix = os.path.join(scratch, "prefix")
        environment = {key: value for key, value in os.environ.items() if key != "DESTDIR"}
        if run("install.sh", [os.path.join(CAPI, "install.sh"), archive, prefix], env=environment) is None:
            return 1
        library = os.path.join(prefix, "lib", "libfolioswap.so")
        names_agree(library)
        header_agrees_with_cbindgen()
        run("soname", ["readelf", "-d", library], "SONAME")
        if shutil.which("pkg-config"):
            about = {**environment, "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}
            run("pkg-config", ["pkg-config", "--cflags", "--libs", "folioswap"], "-lfolioswap", env=about)
        if shutil.which("man"):
            run("man page", ["man", "--warnings", "-l", os.path.join(CAPI, "man", "folioswap.3")], "FOLIOSWAP")
        beside_another(prefix, scratch)
        for compiler in ("gcc", "clang"):
            if shutil.which(compiler):
                with_compiler(compiler, prefix, scratch)
            else:
                print(f"SKIP {compiler}: not installed (apt-get install {compiler})")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
