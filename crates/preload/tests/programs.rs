//! Small C programs under the library, with several times their budget in data, in both fault modes and with both ways
//! of mapping. Each checks its results and exits with status 0. One that runs longer than [`LIMIT`] is killed with all
//! its children, and has failed.

mod library;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use library::library;

const LIMIT: Duration = Duration::from_secs(240);

/// Fault mode, mapping, swap. Each fault mode is combined with each kind of device.
const COMBINATIONS: [(&str, &str, &str); 4] = [
    ("direct", "move", ";eager=yes"),
    ("direct", "copy", ";swap=ram:512M"),
    ("monitor", "move", ";swap=ram:512M"),
    ("monitor", "copy", ";eager=yes"),
];

/// The same with a locked budget, which needs folios that move.
const LOCKED: [(&str, &str, &str); 2] =
    [("direct", "move", ";swap=ram:512M;lock=yes"), ("monitor", "move", ";swap=ram:512M;lock=yes")];

/// The library's exit status if it does not let the program begin.
const NOT_BEGUN: i32 = 125;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Compiles a program; `None` if there is no compiler.
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

/// Whether code of the library has panicked, maybe in a child whose status nobody looks at.
fn has_panicked(output: &str) -> bool {
    output.contains("panicked")
}

/// The output of a command that has ended: what it printed, then its errors.
fn text_of(output: &Output) -> String {
    let text = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
    assert!(!has_panicked(&text), "{text}");
    text
}

/// Runs a program in one combination. The error contains its output.
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
            // SAFETY: takes no pointers. The process group is the child's own.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    println!("{name} {faults} {mapper}: {:.1} s", begun.elapsed().as_secs_f64());
    let said = fs::read_to_string(&log).unwrap_or_default();
    match status {
        Some(_) if has_panicked(&said) => Err(format!("{name} {faults} {mapper}: {said}")),
        Some(status) if status.success() => {
            said.lines().filter(|line| line.starts_with("SKIP")).for_each(|line| println!("{line}"));
            Ok(())
        }
        Some(status) if status.code() == Some(NOT_BEGUN) && said.contains("a locked budget") => {
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

/// The output and exit status of a program, alone (`None`) or under the library, with a soft limit of 1024 descriptors,
/// as on most systems.
fn outcome(program: &Path, argument: &str, settings: Option<&str>) -> (Option<i32>, String) {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "60", "prlimit", "--nofile=1024:", "--", "env"]);
    command.env("TEST_FOLDER", folder()).env("FOLIOSWAP_DIR", folder()).stdin(Stdio::null());
    if let Some(settings) = settings {
        command.arg(format!("FOLIOSWAP_RUN={settings}")).arg(format!("LD_PRELOAD={}", library().display()));
    }
    command.arg(program).arg(argument);
    let output = command.output().unwrap();
    (output.status.code(), text_of(&output))
}

#[test]
fn descriptors_that_a_program_did_not_open_are_not_there_for_it() {
    let Some(program) = compiled("descriptors") else { return };
    let mut scenarios =
        vec!["numbers", "close-loop", "closefrom", "listed", "replace", "inline-close", "inline-replace"];
    scenarios.extend(["own-table", "vfork", "fork", "emfile"]);
    // SAFETY: takes no pointers.
    if unsafe { libc::geteuid() } == 0 {
        scenarios.extend(["setuid", "chroot"]);
    } else {
        println!("SKIP setuid and chroot: not root");
    }
    for scenario in scenarios {
        let alone = outcome(&program, scenario, None);
        assert_eq!(alone.0, Some(0), "{scenario} alone: {}", alone.1);
        for (faults, mapper, swap) in COMBINATIONS {
            let settings = format!("memory=16M;faults={faults};mapper={mapper}{swap}");
            let (status, mut text) = outcome(&program, scenario, Some(&settings));
            if scenario == "chroot" {
                // Forks in another root, where the engine has no /proc, cost slots. That is said once.
                text = text.replacen(
                    "folioswap: slots that a child may read are kept for good: No such file or directory (os error 2)\n",
                    "",
                    1,
                );
            }
            assert_eq!((status, text), alone, "{scenario} {faults} {mapper}");
        }
    }
}

/// Runs a program without the library, to check it against a kernel without a budget, and then with it in all
/// combinations.
fn as_without(name: &str, budget: &str) {
    let Some(program) = compiled(name) else { return };
    let status = Command::new(&program).env("TEST_FOLDER", folder()).status().unwrap();
    assert!(status.success(), "{name} without the library: {status}");
    in_all_combinations(&program, budget);
}

#[test]
fn heap() {
    all("heap", "40M");
}

#[test]
fn mapping() {
    all("mapping", "20M");
}

/// Processes that fork and write at random. `FOLIOSWAP_SEEDS` sets how many seeds.
#[test]
fn each_of_a_family_finds_what_was_its_own() {
    let Some(program) = compiled("family") else { return };
    let nr_seeds = std::env::var("FOLIOSWAP_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(8);
    let ways = [
        "faults=direct;mapper=move",
        "faults=monitor;mapper=move;swap=zram:256M",
        "faults=direct;mapper=copy;swap=ram:512M",
        "faults=monitor;mapper=move",
    ];
    let mut failures = Vec::new();
    for seed in 1..=nr_seeds {
        let settings = format!("memory=16M;{}", ways[seed % ways.len()]);
        let mut command = Command::new("timeout");
        command.args(["-k", "1", "100"]).arg(&program).args([&seed.to_string(), "1", "40"]).stdin(Stdio::null());
        command.env("FOLIOSWAP_DIR", folder()).env("FOLIOSWAP_RUN", &settings).env("LD_PRELOAD", library());
        let output = command.output().unwrap();
        if !output.status.success() || !output.stderr.is_empty() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            failures.push(format!("seed {seed}, {settings}: {}: {said}", output.status));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn addresses() {
    let Some(program) = compiled("addresses") else { return };
    for (faults, mapper) in [("direct", "move"), ("monitor", "copy")] {
        run(&program, "20M", (faults, mapper, ";swap=ram:512M")).unwrap();
        let said = fs::read_to_string(folder().join(format!("addresses-{faults}-{mapper}.log"))).unwrap();
        assert!(said.is_empty() || said.contains("SKIP"), "{said}");
    }
}

#[test]
fn protections_and_locks_of_parts_that_are_out() {
    as_without("protect", "20M");
}

#[test]
fn advice_does_what_the_kernel_does() {
    as_without("advice", "20M");
}

#[test]
fn mappings_move_to_named_addresses_and_leave_nothing() {
    as_without("remap", "20M");
}

#[test]
fn pages_are_what_a_plain_model_says() {
    as_without("pages", "20M");
}

#[test]
fn what_one_thread_unmaps_may_be_anothers_at_once() {
    all("unmap", "32M");
}

#[test]
fn threads() {
    all("threads", "24M");
}

#[test]
fn cancel() {
    all("cancel", "20M");
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
    let Some(program) = compiled_with("stdio", "stdio", &["-fexceptions".as_ref()]) else { return };
    in_all_combinations(&program, "16M");
}

#[test]
fn a_call_that_succeeds_leaves_errno_alone() {
    all("errno", "20M");
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
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "exec ls -d /"]).env("LD_PRELOAD", library()).env_remove("FOLIOSWAP_RUN");
    let output = command.output().unwrap();
    assert_eq!(output.stdout, b"/\n");
    assert!(output.stderr.is_empty() && output.status.success());
}

#[test]
fn what_cannot_begin_says_why() {
    let large = vec![1u8; 256 << 20]; // the kernel counts it as what the program has had in RAM
    for (settings, reason) in [
        ("memory=1M", "too small"),
        ("memory=64M;faults=sideways", "sideways"),
        ("memory=64M;swap=/nonexistent/file", "/nonexistent/file"),
    ] {
        let mut command = Command::new("/bin/true");
        let output = command.env("LD_PRELOAD", library()).env("FOLIOSWAP_RUN", settings).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(NOT_BEGUN), "{settings}: {text}");
        assert!(text.starts_with("folioswap: ") && text.contains(reason) && text.lines().count() == 1, "{text}");
    }
    drop(large);
}

#[test]
fn async_io() {
    all("async_io", "16M");
}
