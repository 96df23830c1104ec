#!/usr/bin/env python3
"""The C library: `c_library.py ARCHIVE`. Installs it into a scratch folder, and compiles and runs its tests and examples
against it: by every compiler that there is, as shared and as static library, in both fault modes, and under
AddressSanitizer. Prints PASS, FAIL and SKIP lines."""

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CAPI = os.path.join(ROOT, "crates", "capi")
LIMIT_S = 100
# The name by which programs look for the shared library.
SONAME = "libfolioswap.so.0"
failures = 0


def verdict(what, wrong):
    """Prints whether a check has passed, and before it what is wrong, if anything is."""
    global failures
    if wrong:
        failures += 1
        print(*wrong, sep="\n")
    print(f"{'FAIL' if wrong else 'PASS'} {what}", flush=True)


def text_of(path):
    """The text of a file, by its path in the C library's folder."""
    with open(os.path.join(CAPI, path), encoding="utf-8") as file:
        return file.read()


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


def prototypes(header):
    """The functions of a header as they stand there, each on one line, by their names."""
    header = re.sub(r"/\*.*?\*/|//[^\n]*", " ", header, flags=re.S)
    found = re.findall(r"^([a-z][\w ]*[ *]+)(folioswap_\w+)(\([^;{]*\);)", header, re.M)
    return {name: re.sub(r"\s+", " ", result + name + arguments) for result, name, arguments in found}


def names_agree(library):
    """The header, the symbol map, the man page, the sources and the library have the same functions."""
    exported = set(re.findall(r"(folioswap_\w+);", text_of("folioswap.map")))
    sources = set()
    for name in os.listdir(os.path.join(CAPI, "src")):
        sources |= set(re.findall(r'extern "C" fn (folioswap_\w+)', text_of(os.path.join("src", name))))
    table = subprocess.run(["nm", "-D", "--defined-only", library], stdout=subprocess.PIPE, text=True, check=True).stdout
    foreign = [line for line in table.splitlines() if " T " in line and "folioswap_" not in line]
    archive = subprocess.run(["nm", "-g", "--defined-only", library[: -len("so")] + "a"], stdout=subprocess.PIPE, text=True, check=True)
    sides = {
        "sources": sources,
        "header": set(prototypes(text_of("include/folioswap.h"))),
        "manual": set(manual_prototypes()),
        "library": set(re.findall(r"T (folioswap_\w+)@@FOLIOSWAP_0\.1", table)),
        "archive": set(re.findall(r"^[0-9a-f]+ \w (\w+)$", archive.stdout, re.M)),
    }
    wrong = [f"{side}: {sorted(names ^ exported)}" for side, names in sides.items() if names != exported] + foreign
    verdict(f"names: {len(exported)} functions, each versioned", wrong)


def manual_prototypes():
    """The functions of the man page's synopsis, as `prototypes` gives them."""
    synopsis = text_of("man/folioswap.3").split(".SH SYNOPSIS")[1].split(".SH")[0]
    macros = [shlex.split(line) for line in synopsis.splitlines() if line.startswith((".B ", ".BI "))]
    return prototypes("\n".join((" " if macro == ".B" else "").join(words) for macro, *words in macros))


def manual_is_complete():
    """The man page has the header's prototypes, and says something about each function, value and member."""
    header, manual = text_of("include/folioswap.h"), text_of("man/folioswap.3")
    ours, theirs = prototypes(header), manual_prototypes()
    wrong = [f"{ours.get(name)} in the header, {theirs.get(name)} in the man page" for name in sorted(ours | theirs) if ours.get(name) != theirs.get(name)]
    described = manual.split(".SH DESCRIPTION")[1]
    wrong += [f"the man page does not explain {name}" for name in ours if f".TP\n.BR {name} ()\n" not in described]
    for kind, body in declarations(header).items():
        if kind.startswith("enum "):
            names = [value.split("=")[0] for value in body if value != "FOLIOSWAP_OK=0"]
            wrong += [f"the man page does not explain {name}" for name in names if f".TP\n.B {name}\n" not in described]
        elif kind.startswith("struct "):
            section = described.split(f".SS Members of {kind.split()[1]}\n")[-1].split(".SS")[0]
            explained = {word for line in re.findall(r"\.TP\n\.IR? (.*)", section) for word in re.findall(r"\w+", line)}
            members = {re.search(r"(\w+)(\[\d+\])?$", member)[1] for member in struct_members(header, kind.split()[1])}
            wrong += [f"{kind}: {sorted(explained ^ members)}"] if explained != members else []
    verdict("the man page explains every function, value and member", wrong)


def struct_members(header, name):
    """The members of a structure as the header declares them."""
    header = re.sub(r"/\*.*?\*/", " ", header, flags=re.S)
    body = re.search(r"struct " + name + r" \{(.*?)\}", header, re.S)[1]
    return [member.strip() for member in body.split(";") if member.strip()]


def manual_has_no_warnings():
    """The formatter has nothing to say about the man page. It ends with 0 also where it warns."""
    if not shutil.which("man"):
        print("SKIP man page: man is missing (apt-get install man-db)")
        return
    command = ["man", "--warnings=w", "-l", os.path.join(CAPI, "man", "folioswap.3")]
    shown = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False)
    wrong = shown.stderr.splitlines() + ([] if "FOLIOSWAP_LOST" in shown.stdout else ["it is cut short"])
    verdict("man page: no warnings", wrong if wrong or shown.returncode == 0 else [f"status {shown.returncode}"])


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


def cbindgen(target):
    """A cbindgen that knows this edition of Rust: the system's, or one that is built for these tests (20 s on 2 cores).
    None where neither can be had."""
    ours = os.path.join(target, "tools", "bin", "cbindgen")
    for program in ("cbindgen", ours):
        if shutil.which(program):
            version = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout
            if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= (0, 27):
                return program
    # What the build leaves behind goes to a temporary folder.
    environment = {key: value for key, value in os.environ.items() if key != "CARGO_TARGET_DIR"}
    command = ["cargo", "install", "-q", "cbindgen", "--debug", "--locked", "--version", "~0.29", "--root", os.path.join(target, "tools")]
    try:
        built = subprocess.run(
            ["timeout", str(LIMIT_S), *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environment, check=False,
        )
        reason = built.stdout.strip() or f"status {built.returncode}"
    except FileNotFoundError:
        reason = "there is no cargo"
    if os.path.exists(ours):
        return ours
    errors = [line for line in reason.splitlines() if re.match(r" *(error|Caused by|[0-9]+:)", line)]
    print(f"SKIP cbindgen: it cannot be built here: {' '.join(errors)[:300] or reason.splitlines()[-1]}")
    return None


def header_agrees_with_cbindgen(target):
    """folioswap.h declares what cbindgen would generate from the sources: types, members and values."""
    program = cbindgen(target)
    if program is None:
        return
    generated = run("cbindgen", [program, "-q", "--config", os.path.join(CAPI, "cbindgen.toml"), CAPI])
    if generated is None:
        return
    ours, theirs = declarations(text_of("include/folioswap.h")), declarations(generated)
    differ = [f"{name}: {ours.get(name)} and {theirs.get(name)}" for name in sorted(ours | theirs) if ours.get(name) != theirs.get(name)]
    functions = sum(" " not in name for name in ours)
    verdict(f"the header is cbindgen's: {functions} functions", differ if functions else ["no functions"])


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
    gnu = [compiler, "-std=c11", "-D_GNU_SOURCE", *flags]
    builds = [
        ("faces", [*gnu, f"{tests}/faces.c"], shared, [["monitor"], ["direct"]]),
        ("faces-static", [*gnu, f"{tests}/faces.c"], static, [["direct"]]),
        ("faces-asan", [*gnu, "-fsanitize=address", f"{tests}/faces.c"], shared, [["monitor"], ["direct"]]),
        ("allocator", [*gnu, f"{tests}/allocator.c"], shared, [["monitor"], ["direct"]]),
        ("fork_handlers", [*gnu, f"{tests}/fork_handlers.c"], shared, [["monitor"], ["direct"]]),
        ("fork_handlers-static", [*gnu, f"{tests}/fork_handlers.c"], static, [["direct"]]),
        ("handlers", [*gnu, f"{tests}/handlers.c"], shared, [["monitor"], ["direct"]]),
        ("sort", [compiler, "-std=c11", "-Wpedantic", *flags, f"{examples}/sort.c"], shared, [["32"]]),
        ("sort-asan", [compiler, "-std=c11", "-fsanitize=address", *flags, f"{examples}/sort.c"], shared, [["32"]]),
        ("resource", [plus, "-std=c++17", *flags, f"{examples}/resource.cpp"], shared, [[]]),
        ("resource-no-rtti", [plus, "-std=c++17", "-fno-rtti", *flags, f"{examples}/resource.cpp"], shared, [[]]),
        ("resource-no-exceptions", [plus, "-std=c++17", "-fno-exceptions", *flags, f"{examples}/resource.cpp"], shared, [[]]),
        ("resource-asan", [plus, "-std=c++17", "-fsanitize=address", *flags, f"{examples}/resource.cpp"], shared, [[]]),
    ]
    if os.path.exists("/usr/include/jemalloc/jemalloc.h"):
        jemalloc = [compiler, "-std=c11", *flags, f"{examples}/jemalloc.c"]
        builds.append(("jemalloc", jemalloc, ["-ljemalloc", *shared], [[]]))
        builds.append(("jemalloc-asan", [*jemalloc, "-fsanitize=address"], ["-ljemalloc", *shared], [[]]))
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


def by_pkg_config(prefix, scratch, environment):
    """Programs are built with what pkg-config says and nothing else: against the shared library, and against the static
    one where there is no shared one."""
    if not shutil.which("pkg-config"):
        print("SKIP pkg-config: not installed (apt-get install pkg-config)")
        return
    alone = os.path.join(scratch, "static")
    os.mkdir(alone)
    shutil.copy(os.path.join(prefix, "lib", "libfolioswap.a"), alone)
    about = {**environment, "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}
    for kind, options in (("shared", []), ("static", ["--static", f"--define-variable=libdir={alone}"])):
        said = run(f"pkg-config, {kind}", ["pkg-config", *options, "--cflags", "--libs", "folioswap"], "-lfolioswap", env=about)
        if said is None:
            continue
        program = os.path.join(scratch, f"by-pkg-config-{kind}")
        command = ["cc", os.path.join(CAPI, "examples", "sort.c"), "-o", program, *said.split()]
        if run(f"as pkg-config says, {kind}: links", command) is None:
            continue
        run(f"as pkg-config says, {kind}", [program, "32"], "right", env={**environment, "LD_LIBRARY_PATH": f"{prefix}/lib"})
        needed = subprocess.run(["readelf", "-d", program], stdout=subprocess.PIPE, text=True, check=True).stdout
        verdict(f"as pkg-config says, {kind}: needs", [] if (SONAME in needed) == (kind == "shared") else [needed])


def documented_examples():
    """The C examples of README and the man page: where each is, and its lines."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        yield from ((f"README, example {nr}", text) for nr, text in enumerate(re.findall(r"^```c\n(.*?)^```", file.read(), re.M | re.S), 1))
    examples = text_of("man/folioswap.3").split(".SH EXAMPLES\n")[1].split(".SH")[0]
    shown = re.findall(r"^\.nf\n(.*?)^\.fi", examples, re.M | re.S)
    yield from ((f"man page, example {nr}", text.replace("\\-", "-").replace("\\e", "\\")) for nr, text in enumerate(shown, 1))


def with_documented_examples(prefix, scratch):
    """Compiles each as the beginning of a program, which then uses what it has made."""
    found = list(documented_examples())
    verdict("README and the man page have C examples", [] if {what.split(",")[0] for what, _ in found} == {"README", "man page"} else [found])
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{prefix}/include", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib"]
    for what, text in found:
        program = os.path.join(scratch, re.sub(r"\W+", "-", what))
        with open(f"{program}.c", "w", encoding="utf-8") as file:
            file.write("#include <err.h>\n#include <folioswap.h>\n#include <stdio.h>\n#include <string.h>\n\nint main(void) {\n")
            file.write(f'{text}\nmemset(memory, 1, 4096);\nfolioswap_close(pool);\nputs("right");\nreturn 0;\n}}\n')
        if run(f"{what}: compiles", ["cc", *flags, f"{program}.c", "-o", program, "-lfolioswap"]) is not None:
            run(what, [program], "right")


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
        manual_is_complete()
        manual_has_no_warnings()
        header_agrees_with_cbindgen(os.path.dirname(os.path.dirname(os.path.abspath(archive))))
        run("soname", ["readelf", "-d", library], f"Library soname: [{SONAME}]")
        by_pkg_config(prefix, scratch, environment)
        with_documented_examples(prefix, scratch)
        beside_another(prefix, scratch)
        for compiler in ("gcc", "clang"):
            if shutil.which(compiler):
                with_compiler(compiler, prefix, scratch)
            else:
                print(f"SKIP {compiler}: not installed (apt-get install {compiler})")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
