#!/usr/bin/env python3
"""Style as a test: sizes, openers, unfinished work and the place of unsafe code, in every source file."""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAX_LINES = 800
MAX_FUNCTION_LINES = 70
SOURCES = (".rs", ".py", ".c", ".h", ".sh")
UNFINISHED = re.compile(r"\b((?:" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b|(?:unimplemented|to" + "do)!)")
# Roots of crates that must forbid unsafe code.
FORBID_UNSAFE = (
    "crates/core/src/lib.rs", "crates/command/src/lib.rs", "crates/bench/src/lib.rs", "crates/cli/src/main.rs",
)

# The folders of two crates, and files beside them, from the ground up. A file names its own folder and those before it
# only.
FOLDERS = {
    "crates/engine/src/": (
        "config", "process", "device", "swap", "memory", "policy", "block", "engine",
        "fault", "reclaim", "relocate", "compact", "manage", "arena",
    ),
    "crates/preload/src/": ("ground", "memory", "faults", "map", "alloc", "calls", "ending", "sanitizer", "start"),
}
MAX_COLUMNS = 120
# Crates whose lib.rs lists their files and folders from the ground up. A file names its own place and those before it.
LISTED = ("crates/core/src/", "crates/sys/src/")


def files():
    """Tracked and new files, without those that git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True,
    ).stdout.decode()
    return sorted(path for path in listed.split("\0") if path and os.path.isfile(os.path.join(ROOT, path)))


def is_test(path):
    """Whether a path is test code: in a tests/ or benches/ folder, or named tests.rs or *_tests.rs."""
    return "/tests/" in path or path.startswith("tests/") or "/benches/" in path or re.search(r"(^|[/_])tests?\.rs$", path) is not None


def code_before_tests(lines):
    """The lines of a file before its `#[cfg(test)] mod ... {`, numbered from 1, without comments."""
    for number, line in enumerate(lines, 1):
        if re.match(r"#\[cfg\((all\()?test\b", line.strip()) and number < len(lines) and re.match(
            r"\s*(pub(\(\w+\))? )?mod \w+ \{|#\[", lines[number]
        ):
            return
        if not line.strip().startswith("//"):
            yield number, line


def long_functions(lines):
    """(line, name, length) of functions that are too long. A function ends at the closing brace in its own column."""
    for index, line in enumerate(lines):
        opener = re.match(r"( *)(?:pub(?:\([a-z]+\))? )?(?:const |unsafe |async |extern \"C\" |extern \"C-unwind\" )*fn (\w+)", line)
        if not opener or line.rstrip().endswith((";", "}")):
            continue
        for end in range(index + 1, len(lines)):
            if lines[end].startswith(opener[1] + ")") and lines[end].rstrip().endswith(";"):
                break  # a declaration of several lines
            if lines[end].rstrip() == opener[1] + "}":
                if end - index + 1 > MAX_FUNCTION_LINES:
                    yield index + 1, opener[2], end - index + 1
                break


def check_rust(path, lines):
    """Complaints about one Rust file."""
    if not lines or not lines[0].startswith("//!"):
        yield f"{path}:1: does not open with //! (what it is for, its invariants, its locking)"
    for number, name, length in long_functions(lines):
        yield f"{path}:{number}: fn {name} is {length} lines long, {MAX_FUNCTION_LINES} at most"
    if is_test(path):
        return
    for number, line in code_before_tests(lines):
        if ".unwrap()" in line:
            yield f"{path}:{number}: unwrap() outside tests"
    if path in FORBID_UNSAFE and not any("#![forbid(unsafe_code)]" in line for line in lines):
        yield f"{path}: must forbid unsafe code"


def upward_imports(path, lines):
    """(line, complaint) for what a file must not name where folders have an order, by a path from the crate's root."""
    source = next((source for source in FOLDERS if path.startswith(source)), None)
    if source is None:
        return
    folder = path.removeprefix(source).split("/")[0].removesuffix(".rs")
    if folder in ("lib", "tests"):
        return
    order = FOLDERS[source]
    if folder not in order:
        yield 1, f"{folder}/ has no place in the order of folders"
        return
    above = set(order[order.index(folder) + 1:])
    for number, line in code_before_tests(lines):
        if re.search(r"\bcrate::\{|\bsuper::super\b", line):
            yield number, "names several folders in one path, or climbs: name each from the root"
        for other in re.findall(r"\bcrate::(\w+)", line):
            if other in above:
                yield number, f"names {other}, which lies above"


def listed_places(crate):
    """The files and folders of a crate, as its lib.rs lists them."""
    with open(os.path.join(ROOT, crate, "lib.rs"), encoding="utf-8") as file:
        return re.findall(r"^//! \| `(\w+)` \|", file.read(), re.MULTILINE)


def names_above(path, lines):
    """(line, complaint) for what a file names, by a path from the root of its crate, that the crate lists after it."""
    crate = next((crate for crate in LISTED if path.startswith(crate)), None)
    place = path.removeprefix(crate or "").split("/")[0].removesuffix(".rs")
    if crate is None or place == "lib":
        return
    places = listed_places(crate)
    if place not in places:
        yield 1, f"{place} is not listed in {crate}lib.rs"
        return
    above = set(places[places.index(place) + 1:])
    for number, line in code_before_tests(lines):
        named = re.findall(r"\bcrate::(\w+)", line)
        for several in re.findall(r"\bcrate::\{(.*)\}", line):
            named += re.findall(r"(?:^|, )(\w+)", several)
        for other in named:
            if other in above:
                yield number, f"names {other}, which lies above"


def check(path):
    """Complaints about one file."""
    with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    if len(lines) > MAX_LINES:
        yield f"{path}: {len(lines)} lines, {MAX_LINES} at most"
    for number, line in enumerate(lines, 1):
        word = UNFINISHED.search(line)
        if word:
            yield f"{path}:{number}: unfinished: {word[1]}"
        if len(line) > MAX_COLUMNS and re.match(r"\s*(//|# |\* )", line):
            yield f"{path}:{number}: a comment of {len(line)} columns, {MAX_COLUMNS} at most"
    if path.endswith(".rs"):
        yield from check_rust(path, lines)
        for number, complaint in [*upward_imports(path, lines), *names_above(path, lines)]:
            yield f"{path}:{number}: {complaint}"


def main():
    """Prints every complaint. Exit status 1 if there is one."""
    complaints = []
    checked = [path for path in files() if path.endswith(SOURCES) or path in ("tests/run", ".ci/run", "Makefile")]
    for path in checked:
        complaints += check(path)
    for complaint in complaints:
        print(complaint)
    if complaints:
        print(f"FAIL style: {len(complaints)} complaints in {len(checked)} files")
        return 1
    print(f"PASS style: {len(checked)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
