//! Every function that the C library exports is either overridden by this library, or listed in `names.txt` with the
//! reason why not. A newer C library has new names: for other versions the test prints them, and passes. The library
//! itself names none of what it exports: a program's own definition would come first.

mod library;

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::path::Path;
use std::process::Command;

/// What `readelf` prints; `None` if there is none.
fn readelf(what: &str, object: &Path) -> Option<String> {
    let output = match Command::new("readelf").args([what, "-W"]).arg(object).env("LC_ALL", "C").output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("SKIP names: readelf is missing. Get it: apt-get install binutils");
            return None;
        }
        Err(error) => panic!("readelf: {error}"),
    };
    assert!(output.status.success(), "readelf {}", object.display());
    Some(String::from_utf8(output.stdout).unwrap())
}

/// The functions that a shared object exports for programs; `None` if there is no `readelf`.
fn exported(object: &Path) -> Option<BTreeSet<String>> {
    let text = readelf("--dyn-syms", object)?;
    let function = |line: &str| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let &[_, _, _, kind, _, _, section, name, ..] = columns.as_slice() else { return None };
        let (name, version) = name.split_once('@').unwrap_or((name, ""));
        let is = matches!(kind, "FUNC" | "IFUNC") && section != "UND" && !version.ends_with("GLIBC_PRIVATE");
        is.then(|| name.to_owned())
    };
    Some(text.lines().filter_map(function).collect())
}

/// The C library of this process.
fn c_library() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("/libc.so"));
    path.expect("a C library").to_owned()
}

fn version() -> String {
    unsafe extern "C" {
        fn gnu_get_libc_version() -> *const std::ffi::c_char;
    }
    // SAFETY: returns a static C string.
    unsafe { CStr::from_ptr(gnu_get_libc_version()) }.to_str().unwrap().to_owned()
}

#[test]
fn each_name_of_the_c_library_is_taken_over_or_listed_with_its_reason() {
    let (Some(ours), Some(theirs)) = (exported(library::library()), exported(Path::new(&c_library()))) else { return };
    let text = include_str!("names.txt");
    let (mut listed, mut reason, mut of) = (BTreeSet::new(), false, "");
    for line in text.lines() {
        if line.is_empty() {
            reason = false;
        } else if line.starts_with('#') {
            reason = true;
        } else if let Some(version) = line.strip_prefix("glibc ") {
            of = version;
        } else {
            assert!(reason, "names without a reason: {line}");
            for name in line.split_whitespace() {
                assert!(listed.insert(name.to_owned()), "{name} is listed twice");
            }
        }
    }
    let both: Vec<_> = listed.intersection(&ours).collect();
    assert!(both.is_empty(), "taken over, and listed as if they were not: {both:?}");
    let neither: Vec<_> = theirs.iter().filter(|name| !ours.contains(*name) && !listed.contains(*name)).collect();
    if version() == of {
        assert!(neither.is_empty(), "neither taken over nor listed: {neither:?}");
    } else if !neither.is_empty() {
        println!("SKIP names of glibc {} that are neither taken over nor listed: {neither:?}", version());
    }
}

#[test]
fn no_call_within_the_library_is_by_a_name_that_it_exports() {
    let (Some(ours), Some(text)) = (exported(library::library()), readelf("--relocs", library::library())) else {
        return;
    };
    let name = |line: &str| line.split_whitespace().nth(4)?.split('@').next().map(str::to_owned);
    let named: BTreeSet<_> = text.lines().filter(|line| line.contains(" R_X86_64_")).filter_map(name).collect();
    assert!(named.contains("__cxa_finalize"), "relocations are not listed as expected");
    let both: Vec<_> = named.intersection(&ours).collect();
    assert!(both.is_empty(), "a program's own definition of these would be called: {both:?}");
}
