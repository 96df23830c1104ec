//! Small C programs under the library, with several times their budget in data: in both fault modes, with both ways of
//! mapping. Each checks what it does and ends with status 0; one that takes more than a minute is killed with all its
//! children, and has failed.

mod library;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use library::library;

const LIMIT: Duration = Duration::from_secs(60);

/// Fault mode, mapping, swap: each kind of device with each fault mode.
const COMBINATIONS: [(&str, &str, &str); 4] = [
    ("direct", "move", ""),
    ("direct", "copy", ";swap=ram:512M"),
    ("monitor", "move", ";swap=ram:512M"),
    ("monitor", "copy", ""),
];

/// The same in a locked budget, which needs folios that move.
const LOCKED: [(&str, &str, &str); 2] =
    [("direct", "move", ";swap=ram:512M;lock=yes"), ("monitor", "move", ";swap=ram:512M;lock=yes")];

/// The library's exit status where a budget may not be locked.
const LOCK_NOT_PERMITTED: i32 = 74;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Compiles a program; `None` when there is no compiler.
fn compiled(name: &str) -> Option<PathBuf> {
    compiled_with(name, name, &[])
}

/// Compiles a source file under another name, with more arguments.
fn compiled_with(name: &str, output: &str, more: &[&OsStr]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
    let program = folder().join(output);
    let mut compile = Command::new("gcc");
    compile.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program).arg(source).args(more);
    match compile.status() {
        Ok(status) => assert!(status.success(), "{name}.c could not be compiled"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("SKIP {name}.c: gcc is missing. Get it: apt-get install gcc");
            return None;
        }
        Err(error) => panic!("gcc: {error}"),
    }
    Some(program)
}

/// Runs a program in one combination; what it printed, if it failed.
fn run(program: &Path, budget: &str, (faults, mapper, swap): (&str, &str, &str)) -> Result<(), String> {
    let name = program.file_name().unwrap().to_str().unwrap();
    let log = folder().join(format!("{name}-{faults}-{mapper}.log"));
    let output = File::create(&log).unwrap();
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library()).env("TEST_FOLDER", folder()).env("FOLIOSWAP_DIR", folder());
    command.env("FOLIOSWAP_RUN", format!("memory={budget};faults={faults};mapper={mapper}{swap}"));
    command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output).process_group(0);
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if begun.elapsed() > LIMIT {
            // SAFETY: takes no pointers; the group is the child's own.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    println!("{name} {faults} {mapper}: {:.1} s", begun.elapsed().as_secs_f64());
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) if status.code() == Some(LOCK_NOT_PERMITTED) => {
            println!("SKIP {name} in a locked budget: {}", fs::read_to_string(&log).unwrap().trim_end());
            Ok(())
        }
        Some(status) => Err(format!("{name} {faults} {mapper}: {status}\n{}", fs::read_to_string(&log).unwrap())),
        None => Err(format!("{name} {faults} {mapper}: killed after {LIMIT:?}\n{}", fs::read_to_string(&log).unwrap())),
    }
}

fn all(name: &str, budget: &str) {
    let Some(program) = compiled(name) else { return };
    in_all_combinations(&program, budget);
}

fn in_all_combinations(program: &Path, budget: &str) {
    let failures: Vec<_> = COMBINATIONS.iter().filter_map(|&how| run(program, budget, how).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn heap() {
    all("heap", "40M");
}

#[test]
fn mapping() {
    all("mapping", "20M");
}

#[test]
fn threads() {
    all("threads", "24M");
}

#[test]
fn io() {
    all("io", "16M");
}

#[test]
fn calls() {
    all("calls", "16M");
}

#[test]
fn numbers() {
    all("numbers", "16M");
}

#[test]
fn stdio() {
    all("stdio", "16M");
}

#[test]
fn process() {
    all("process", "24M");
}

#[test]
fn mappings_protections_and_forks_in_a_locked_budget() {
    for (name, budget) in [("mapping", "20M"), ("process", "24M"), ("threads", "24M")] {
        let Some(program) = compiled_with(name, &format!("{name}-locked"), &[]) else { return };
        let failures: Vec<_> = LOCKED.iter().filter_map(|&how| run(&program, budget, how).err()).collect();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}

#[test]
fn fork_handlers_of_libraries_may_allocate() {
    let shared = ["-shared", "-fPIC", "-DLIBRARY"].map(OsStr::new);
    let Some(library) = compiled_with("forks", "libforks.so", &shared) else { return };
    let linked = [library.as_os_str(), OsStr::new("-Wl,-rpath,$ORIGIN")];
    let Some(program) = compiled_with("forks", "forks", &linked) else { return };
    in_all_combinations(&program, "24M");
}

#[test]
fn signals() {
    all("signals", "16M");
}

#[test]
fn without_settings_everything_passes() {
    let Some(program) = compiled("stdio") else { return };
    // Advice on memory that is not managed is the kernel's, and takes nothing out of RAM without swap: no `send_out`.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "exec ls -d /"]).env("LD_PRELOAD", library()).env_remove("FOLIOSWAP_RUN");
    let output = command.output().unwrap();
    assert_eq!(output.stdout, b"/\n");
    assert!(output.stderr.is_empty() && output.status.success() && program.exists());
}

#[test]
fn what_cannot_begin_says_why() {
    for (settings, status, reason) in [
        ("memory=1M", 65, "too small"),
        ("memory=64M;faults=sideways", 64, "sideways"),
        ("memory=64M;swap=/nonexistent/file", 68, "/nonexistent/file"),
    ] {
        let mut command = Command::new("/bin/true");
        let output = command.env("LD_PRELOAD", library()).env("FOLIOSWAP_RUN", settings).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{settings}: {text}");
        assert!(text.starts_with("folioswap: ") && text.contains(reason) && text.lines().count() == 1, "{text}");
    }
}
