//! Tests of the command as a process: exit statuses, what it says, and small sweeps. Each child has a watchdog.
//!
//! Output goes to files, not pipes, so that a surviving grandchild cannot block a test. If the system does not permit
//! something, the test prints a line and skips it.

mod scratch;

use scratch::{FOLIOSWAP, Guarded, LIMIT, Scratch, with_library, within};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// In each message about kernel swap that could not be set up.
const NO_KERNEL_SWAP: &str = "the kernel's swap";

/// Whether this system permits monitor faults.
fn monitor_permitted() -> bool {
    let scratch = Scratch::new();
    scratch.run(&["doctor"]);
    scratch.text("out").lines().any(|line| line.starts_with("monitor") && line.contains("ok"))
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("id runs");
    output.stdout == b"0\n"
}

#[test]
fn what_cannot_be_printed_is_told() {
    let bench = ["bench", "sweep", "--size", "16M", "--memory", "16M", "--swap", "ram:64M"];
    for what in [&["doctor"][..], &["--help"], &bench] {
        let full = File::options().write(true).open("/dev/full").expect("a device that is always full");
        let output = Command::new(FOLIOSWAP).args(what).stdout(full).output().expect("the command runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(125) && said.contains("standard output: No space"), "{what:?}: {said}");
    }
}

#[test]
fn bad_input_has_one_line_and_a_status() {
    let scratch = Scratch::new();
    let disk = scratch.path("swap").display().to_string();
    let script = scratch.path("script");
    fs::write(&script, "not executable").expect("a new file");
    let script = script.display().to_string();
    let too_large = format!("{}:900T", scratch.path("new").display());
    let beyond = format!("{disk}/swap");
    fs::write(&disk, "").expect("a new file");
    let below_script = format!("{script}/below");
    let cases: &[(i32, &str, &[&str])] = &[
        (125, "12Q", &["run", "--memory", "12Q", "--", "true"]),
        (125, "1% to 100%", &["run", "--memory", "0%", "--", "true"]),
        (125, "1% to 100%", &["run", "--memory", "101%", "--", "true"]),
        (125, "not a size", &["run", "--memory", "64M", "--swap", "ram:50%", "--", "true"]),
        (125, "--memory", &["run", "--", "true"]),
        (125, "magic", &["run", "--memory", "64M", "--faults", "magic", "--", "true"]),
        (125, "lots", &["run", "--memory", "64M", "--swap", "ram:lots", "--", "true"]),
        (125, "priority", &["run", "--memory", "64M", "--swap", "ram:64M,prio=40000", "--", "true"]),
        (125, "NUMA node", &["run", "--memory", "64M", "--swap", "ram:64M,node=x", "--", "true"]),
        (125, "pri=1", &["run", "--memory", "64M", "--swap", "ram:64M,pri=1", "--", "true"]),
        (125, "topology", &["run", "--memory", "64M", "--topology", &beyond, "--", "true"]),
        (125, "topology", &["run", "--memory", "64M", "--topology", &script, "--", "true"]),
        (125, "more than 1M", &["run", "--memory", "64M", "--topology", "/dev/zero", "--", "true"]),
        (125, "4K to 2M", &["run", "--memory", "64M", "--folio", "3M", "--", "true"]),
        (125, "soon", &["run", "--memory", "64M", "--swap-in", "soon", "--", "true"]),
        (125, "fly", &["fly"]),
        (125, "at least 16M", &["run", "--memory", "1M", "--", "true"]),
        (125, "at least 16M", &["bench", "sweep", "--size", "64M", "--memory", "1M"]),
        (127, "was not found", &["run", "--memory", "64M", "--", "no-such-program"]),
        (127, "was not found", &["run", "--memory", "64M", "--", "/no/such/program"]),
        (126, "is not executable", &["run", "--memory", "64M", "--", &script]),
        (126, "is a directory", &["run", "--memory", "64M", "--", "/etc"]),
        (126, "cannot be reached", &["run", "--memory", "64M", "--", &below_script]),
        (125, "is a directory", &["run", "--memory", "64M", "--swap", "/usr", "--", "true"]),
        (125, "directory", &["run", "--memory", "64M", "--swap", &beyond, "--", "true"]),
        (125, "no block device", &["run", "--memory", "64M", "--swap", &disk, "--", "true"]),
        (125, "swap /proc/swap", &["run", "--memory", "64M", "--swap", "/proc/swap", "--", "true"]),
        (125, "NUMA node", &["run", "--memory", "64M", "--swap", "ram:64M,node=1000", "--", "true"]),
        (125, "free", &["run", "--memory", "64M", "--swap", &too_large, "--", "true"]),
        (125, "at least 2M", &["run", "--memory", "64M", "--swap", "ram:4K", "--", "true"]),
        (125, "needs folios that move", &["run", "--lock", "--memory", "64M", "--mapper", "copy", "--", "true"]),
        (125, "a locked budget", &["run", "--lock", "--memory", "11T", "--", "true"]),
        (125, "give at most 12T", &["run", "--memory", "13T", "--", "true"]),
        (125, "`RAM` needs a size, as in ram:2G", &["run", "--memory", "64M", "--swap", "RAM", "--", "true"]),
    ];
    for (expected, word, args) in cases {
        let (status, said) = scratch.run(args);
        assert_eq!(status, *expected, "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        assert!(said.starts_with("folioswap: ") && said.contains(word), "{args:?}: {said}");
    }
    let left: Vec<_> =
        fs::read_dir(&scratch.0).expect("ours").map(|entry| entry.expect("readable").file_name()).collect();
    assert_eq!(left.len(), 4, "only out, err, script and swap: {left:?}");
}

#[test]
fn a_budget_of_more_than_there_is_is_said() {
    with_library();
    let (status, said) = Scratch::new().run(&["run", "--memory", "11T", "--", "true"]);
    assert!(status == 0 && said.contains("of RAM, less than the budget") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_missing_library_is_named() {
    let scratch = Scratch::new();
    let nowhere = scratch.path("nowhere.so");
    let mut command = Command::new(FOLIOSWAP);
    command.args(["run", "--memory", "64M", "--", "true"]).env("FOLIOSWAP_PRELOAD", &nowhere);
    command.stderr(File::create(scratch.path("err")).expect("a new file"));
    let status = Guarded(command.spawn().expect("it starts")).wait(&["run without library"]);
    assert_eq!(status.code(), Some(125), "{}", scratch.text("err"));
    assert!(scratch.text("err").contains("nowhere.so"));
}

#[test]
fn help_lists_the_statuses() {
    let scratch = Scratch::new();
    for args in [&["--help"][..], &["run", "--help"]] {
        assert_eq!(scratch.run(args).0, 0);
        let help = scratch.text("out");
        let all = ["  1  ", "  70  ", "  76  ", "  125  ", "  126  ", "  127  ", "powers of 1000"];
        assert!(all.iter().all(|word| help.contains(word)), "{args:?}: {help}");
    }
}

#[test]
fn short_help_is_short_and_in_groups() {
    let scratch = Scratch::new();
    assert_eq!(scratch.run(&["run", "-h"]).0, 0);
    let help = scratch.text("out");
    let groups = ["\nBudget and swap:\n", "\nFolios and faults:\n", "\nReports:\n"];
    let at: Vec<_> = groups.iter().map(|group| help.find(group).unwrap_or_else(|| panic!("{group}: {help}"))).collect();
    assert!(at.is_sorted(), "{help}");
    let group_of = |option: &str| {
        let place = help.find(&format!("    {option}")).unwrap_or_else(|| panic!("{option}: {help}"));
        at.iter().rposition(|begin| *begin < place)
    };
    for (option, group) in
        [("--memory", 0), ("--swap <", 0), ("--lock", 0), ("--folio", 1), ("--faults", 1), ("--stats", 2)]
    {
        assert_eq!(group_of(option), Some(group), "{option}: {help}");
    }
    // Each option, and at most two lines about it.
    let mut lines_of_option = 0;
    for line in help[at[0]..].lines() {
        let is_new = line.trim().is_empty() || line.trim_start().starts_with('-');
        lines_of_option = if is_new { 0 } else { lines_of_option + 1 };
        assert!(lines_of_option <= 2, "{line}: {help}");
    }
    scratch.run(&["run", "--help"]);
    let long = scratch.text("out");
    assert!(long.contains("force=yes") && !help.contains("force=yes"), "{help}");
}

/// The budget that reaches the program, or standard error.
fn budget_of(scratch: &Scratch, before: &[&str], memory: &str) -> Result<u64, String> {
    let run = ["run", "--memory", memory, "--swap", "ram:64MB", "--", "sh", "-c", "echo $FOLIOSWAP_RUN"];
    let (status, said) = scratch.run(&[before, &run].concat());
    let out = scratch.text("out");
    let budget = out.strip_prefix("memory=").and_then(|text| text.split(';').next()?.parse().ok());
    assert!(status != 0 || out.contains(";swap=ram:64000000"), "{out}");
    budget.filter(|_| status == 0).ok_or(said)
}

#[test]
fn sizes_are_bytes_in_the_program() {
    with_library();
    let scratch = Scratch::new();
    let sizes = [("64M", 64 << 20), ("64mib", 64 << 20), ("65536KiB", 64 << 20), ("64MB", 64_000_000)];
    for (text, bytes) in sizes.into_iter().chain([("64000kB", 64_000_000), ("70000001", 70_000_001)]) {
        assert_eq!(budget_of(&scratch, &[], text), Ok(bytes), "{text}");
    }
    let [half, whole] = ["50%", "100%"].map(|text| budget_of(&scratch, &[], text).expect(text));
    let meminfo = fs::read_to_string("/proc/meminfo").expect("procfs");
    let total =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    let total: u64 = total.expect("a number");
    assert!(whole <= total << 10 && whole.abs_diff(2 * half) <= 8192, "{half} {whole} {total} KiB");
}

#[test]
fn a_share_is_one_of_the_enclosing_cgroup() {
    with_library();
    if !is_root() {
        println!("SKIPPED: a memory cgroup needs root");
        return;
    }
    let _alone = alone();
    let scratch = Scratch::new();
    let base =
        ["__kernel", "--memory", "64M", "--swap-size", "128M", "--swap-dir", scratch.0.to_str().expect("text"), "--"];
    match budget_of(&scratch, &[&base[..], &[FOLIOSWAP]].concat(), "50%") {
        Err(said) if said.contains(NO_KERNEL_SWAP) => println!("SKIPPED: {said}"),
        budget => assert_eq!(budget, Ok(32 << 20)),
    }
}

#[test]
fn the_programs_status_is_ours() {
    with_library();
    let scratch = Scratch::new();
    for (expected, program) in [(0, &["true"][..]), (3, &["sh", "-c", "exit 3"])] {
        let args = [&["run", "--memory", "64M", "--"], program].concat();
        let (status, said) = scratch.run(&args);
        assert_eq!((status, said.as_str()), (expected, ""), "{program:?}");
    }
}

#[test]
fn a_program_without_a_folder_for_swap_says_so_and_goes_on() {
    with_library();
    let scratch = Scratch::new();
    let own_mounts = ["unshare", "-mpfn", "--mount-proc"]; // and no way to the counters
    let works = Command::new(own_mounts[0]).args(&own_mounts[1..]).arg("true").status();
    if !works.is_ok_and(|status| status.success()) {
        println!("SKIPPED: a mount namespace needs root, and util-linux");
        return;
    }
    let go = scratch.path("go");
    let program = format!("$x = q(a) x (150 << 20); sleep 1 until -e q({}); print length $x", go.display());
    let mount = "mount --bind /var/tmp /var/tmp && mount -o remount,bind,ro /var/tmp && exec perl -e \"$0\"";
    let inner = [&own_mounts[..], &["sh", "-c", mount, &program]].concat();
    let args = [&["run", "--memory", "32M", "--"], &inner[..]].concat();
    let mut run = scratch.start(&args);
    let said = || scratch.text("err");
    run.until(&scratch, || said().contains("is not paged: swap /var/tmp: is not writable"));
    File::create(&go).expect("a new file");
    assert_eq!((run.wait(&args).code(), scratch.text("out").as_str()), (Some(0), "157286400"));
    let (status, said) = scratch.run(&[&["run", "--memory", "32M", "--swap", "zram:64M", "--"], &inner[..]].concat());
    assert!(status == 0 && !said.contains("not paged"), "{said}");
}

#[test]
fn standard_streams_and_environment_reach_the_program() {
    with_library();
    let scratch = Scratch::new();
    let (status, _) = scratch.run(&["run", "--memory", "64M", "--", "sh", "-c", "echo $0 $FOLIOSWAP_RUN; echo e >&2"]);
    assert_eq!(status, 0);
    assert!(scratch.text("out").starts_with("sh memory=67108864;faults=auto;mapper="), "{}", scratch.text("out"));
    assert_eq!(scratch.text("err"), "e\n");
}

#[test]
fn priorities_and_nodes_reach_the_program() {
    with_library();
    let scratch = Scratch::new();
    let topology = scratch.path("topology").display().to_string();
    fs::write(&topology, "# two nodes\nnode 0 cpus 0\nnode 9 cpus 1-7\n").expect("a new file");
    let run =
        ["run", "--memory", "64M", "--topology", &topology, "--swap", "ram:64M,node=9,prio=3", "--swap", "ram:32M"];
    let (status, said) = scratch.run(&[&run[..], &["--", "sh", "-c", "echo $FOLIOSWAP_RUN"]].concat());
    assert_eq!(status, 0, "{said}");
    let settings = format!(";topology={topology};swap=ram:67108864;prio=3;node=9;swap=ram:33554432");
    assert!(scratch.text("out").contains(&settings), "{}", scratch.text("out"));
    // The program does not start if the topology file is gone.
    let program = format!("rm {topology}; exec true");
    let (status, said) = scratch.run(&[&run[..], &["--", "sh", "-c", &program]].concat());
    assert!(status == 125 && said.contains("topology"), "{status}: {said}");
}

#[test]
fn stats_come_as_text_and_as_json() {
    with_library();
    let scratch = Scratch::new();
    let (status, said) = scratch.run(&["run", "--memory", "64M", "--stats", "--", "true"]);
    assert_eq!(status, 0);
    assert!(
        ["swapped in", "swapped out", "p99.9", "peak resident", "stalled"].iter().all(|word| said.contains(word)),
        "{said}"
    );
    let (status, said) = scratch.run(&["run", "--memory", "64M", "--stats=json", "--", "true"]);
    assert_eq!(status, 0);
    let stats: serde_json::Value = serde_json::from_str(&said).expect("one JSON object");
    assert_eq!(stats["memory_bytes"], 64 << 20);
    assert!(stats["faults"]["swap_in"]["p999_ns"].is_u64(), "{said}");
    let (chosen, reason) = (&stats["fault_mode"]["mode"], stats["fault_mode"]["reason"].as_str().expect("a reason"));
    match chosen.as_str() {
        Some("monitor") => assert!(reason.starts_with("userfaultfd is permitted"), "{said}"),
        _ => assert!(chosen == "direct" && reason.starts_with("no userfaultfd for monitor: "), "{said}"),
    }
    let (_, said) = scratch.run(&["run", "--memory", "64M", "--faults", "direct", "--stats", "--", "true"]);
    assert!(said.ends_with("\n  fault mode     direct: it was asked for\n"), "{said}");
    // Another user may have another mode than the command.
    let python = ["setpriv", "--reuid", "65534", "--clear-groups", "/usr/bin/python3", "-c", "bytearray(100 << 20)"];
    let permitted = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|text| text == "1\n");
    if chosen.as_str() == Some("monitor")
        && !permitted
        && Command::new(python[0]).args(&python[1..]).status().is_ok_and(|status| status.success())
    {
        let (_, said) = scratch.run(&[&["run", "--memory", "64M", "--stats", "--"], &python[..]].concat());
        assert!(said.ends_with("; direct in 1 of 1 programs\n"), "{said}");
    }
}

#[test]
fn stats_have_each_devices_own_figures() {
    with_library();
    if Command::new("python3").arg("--version").output().is_err() {
        println!("SKIPPED: python3 is missing. Get it: apt-get install python3");
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.path("swap").display().to_string();
    let program = "import mmap, os; m = mmap.mmap(-1, 96 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
                   for i in range(0, 96 << 20, 4096): m[i] = (i >> 12) % 251\n\
                   assert all(m[i] == (i >> 12) % 251 for i in range(0, 96 << 20, 4096))";
    // Two processes: one starts the other, which has an engine of its own.
    let program = format!(
        "import subprocess, sys\nif len(sys.argv) == 1: subprocess.run([sys.executable, __file__, 'x'], check=True)\n{program}"
    );
    let script = scratch.path("program.py").display().to_string();
    fs::write(&script, program).expect("a new file");
    let swap = [&file, ":32M,prio=2"].concat();
    // One size, whose clusters fill the device: a size that has a few folios only leaves its clusters half empty.
    let run = ["run", "--memory", "32M", "--folio", "64K", "--swap", &swap, "--swap", "ram:128M,prio=1"];
    let (status, said) = scratch.run(&[&run[..], &["--stats=json", "--", "python3", &script]].concat());
    assert_eq!(status, 0, "{said}");
    let stats: serde_json::Value = serde_json::from_str(&said).expect("one JSON object");
    let devices = stats["devices"].as_array().expect("devices");
    let names: Vec<_> = devices.iter().map(|device| device["name"].as_str().expect("a name")).collect();
    assert_eq!(names, [file.as_str(), "ram:128M"], "each once, for both processes: {said}");
    let number = |device: &serde_json::Value, way: &str, key: &str| device[way][key].as_u64().expect("a number");
    for (way, whole) in [("writes", "swapped_out_bytes"), ("reads", "swapped_in_bytes")] {
        let bytes: Vec<_> = devices.iter().map(|device| number(device, way, "bytes")).collect();
        assert!(bytes.iter().all(|bytes| *bytes > 16 << 20), "{way} {bytes:?}: {said}");
        // The devices also transfer folios that are touched while they are written, and reads for compaction.
        assert!(bytes.iter().sum::<u64>() >= stats[whole].as_u64().expect("a number"), "{way} {bytes:?}: {said}");
        let [file, ram] = devices.as_slice() else { panic!("two devices") };
        assert!(number(file, way, "p50_ns") > 0 && number(file, way, "count") == number(file, way, "calls"), "{said}");
        assert_eq!((number(ram, way, "count"), &ram["most_in_flight"]), (0, &serde_json::json!(0)));
    }
    // Of each process. The two CPUs may leave a cluster each.
    let peak = devices[0]["peak_used_bytes"].as_u64().expect("a number");
    assert!((28 << 20..=32 << 20).contains(&peak), "{peak}: {said}");
    let mean = devices[0]["mean_in_flight"].as_f64().expect("a number");
    assert!(mean >= 1.0 && mean <= devices[0]["most_in_flight"].as_f64().expect("a number"), "{said}");
}

#[test]
fn a_program_swaps_to_compressed_ram() {
    with_library();
    if Command::new("python3").arg("--version").output().is_err() {
        println!("SKIPPED: python3 is missing. Get it: apt-get install python3");
        return;
    }
    let program = "import mmap; m = mmap.mmap(-1, 96 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
                   row = lambda i: (b'%d,%d,name%d;' % (i, i * 7919 % 1000, i % 50)) * 100\n\
                   for i in range(24576): m[i << 12:(i << 12) + 700] = row(i)[:700]\n\
                   h = [list(range(j, j + 40)) for j in range(100000)]\n\
                   assert all(m[i << 12:(i << 12) + 700] == row(i)[:700] for i in range(24576))\n\
                   assert all(x[0] == j and x[-1] == j + 39 for j, x in enumerate(h))";
    let scratch = Scratch::new();
    let file = scratch.path("swap").display().to_string();
    for (algo, faults) in [("lz4", "direct"), ("zstd", "direct"), ("lz4", "auto")] {
        let zram = format!("zram:12M,algo={algo}");
        let run =
            ["run", "--memory", "32M", "--swap", &zram, "--swap", &file, "--faults", faults, "--stats=json", "--"];
        let (status, said) = scratch.run(&[&run[..], &["python3", "-c", program]].concat());
        assert_eq!(status, 0, "{said}");
        let stats: serde_json::Value = serde_json::from_str(said.lines().last().expect("statistics")).expect("JSON");
        let front = &stats["devices"][0];
        assert!(front["name"].as_str().is_some_and(|name| name.starts_with("zram:12M")), "{said}");
        let memory = front["peak_memory_bytes"].as_u64().expect("a number");
        assert!(memory > 64 << 10 && memory <= 12 << 20, "{said}");
        assert!(front["reads"]["bytes"].as_u64().expect("a number") > 16 << 20, "{said}");
        assert_eq!((&stats["verify_failures"], &stats["io_errors"]), (&serde_json::json!(0), &serde_json::json!(0)));
    }
}

/// A program whose memory is the stacks of its threads.
const STACKS: &str = "#include <pthread.h>\n#include <string.h>\nstatic pthread_barrier_t all;\n\
    static void *run(void *argument) { char stack[6 << 20]; memset(stack, 1, sizeof stack); \
    pthread_barrier_wait(&all); return stack[argument != 0] ? 0 : argument; }\n\
    int main(void) { pthread_t threads[16]; pthread_barrier_init(&all, 0, 16);\n\
    for (int i = 0; i < 16; i++) if (pthread_create(&threads[i], 0, run, 0)) return 1;\n\
    for (int i = 0; i < 16; i++) pthread_join(threads[i], 0); return 0; }";

#[test]
fn what_is_not_managed_is_said() {
    with_library();
    if Command::new("python3").arg("--version").output().is_err() {
        println!("SKIPPED: python3 is missing. Get it: apt-get install python3");
        return;
    }
    let scratch = Scratch::new();
    let (source, linked) = (scratch.path("fill.c"), scratch.path("fill"));
    fs::write(
        &source,
        "#include <stdlib.h>\n#include <string.h>\nint main(void) { return !memset(malloc(64 << 20), 1, 64 << 20); }",
    )
    .expect("a new file");
    let compiled = Command::new("gcc").args(["-static", "-fno-builtin", "-o"]).args([&linked, &source]).status();
    assert!(compiled.expect("gcc runs").success());
    let linked = linked.display().to_string();
    let threads = scratch.path("threads");
    std::fs::write(&source, STACKS).expect("a new file");
    let compiled = Command::new("gcc").args(["-pthread", "-o"]).args([&threads, &source]).status();
    assert!(compiled.expect("gcc runs").success());
    let threads = threads.display().to_string();
    let in_python = |flags: &str, before: &str| {
        format!(
            "import mmap, os, sys\n{before}\nm = mmap.mmap(-1, 64 << 20, mmap.MAP_ANONYMOUS | mmap.{flags})\n\
             for i in range(0, 64 << 20, 4096): m[i] = 1"
        )
    };
    let managed = in_python("MAP_PRIVATE", "");
    let shared = in_python("MAP_SHARED", "");
    let forked = in_python("MAP_PRIVATE", "if os.fork(): sys.exit(os.wait()[1])");
    let ended = in_python("MAP_SHARED", "") + "\nos._exit(0)";
    let killed = in_python("MAP_SHARED", "if os.fork(): sys.exit(os.wait()[1] - 9)") + "\nos.kill(os.getpid(), 9)";
    let cases: [(&[&str], &str); 8] = [
        (&["python3", "-c", &managed], ""),
        (&["python3", "-c", &shared], "shared memory"),
        (&["python3", "-c", &forked], ""),
        (&["python3", "-c", &ended], "shared memory"),
        (&["python3", "-c", &killed], "ended by a signal"),
        (&[&linked], "linked statically"),
        (&[&threads], "stacks"),
        (&["sh", "-c", "$0; exit $?", &linked], "linked statically"),
    ];
    for (program, why) in cases {
        let run = |stats: &[&str]| {
            let run = [&["run", "--memory", "32M"], stats, &["--"], program].concat();
            let (status, said) = scratch.run(&run);
            assert_eq!(status, 0, "{program:?}: {said}");
            said
        };
        let said = run(&[]);
        let line = said.lines().last().unwrap_or_default();
        assert!(why.is_empty() == said.is_empty() && line.contains(why), "{program:?}: {said}");
        let said = run(&["--stats=json"]);
        let stats: serde_json::Value = serde_json::from_str(said.lines().last().expect("statistics")).expect("JSON");
        let complaint = stats["outside"]["complaint"].as_str().unwrap_or_default();
        assert!(why.is_empty() == complaint.is_empty() && complaint.contains(why), "{program:?}: {said}");
        assert!(run(&["--stats"]).contains("not managed"));
    }
}

#[test]
fn processes_of_other_users_and_namespaces_are_counted() {
    with_library();
    let wrappers: [&[&str]; 2] =
        [&["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"], &["unshare", "-mpf", "--mount-proc"]];
    for wrapper in wrappers {
        let works = Command::new(wrapper[0]).args(&wrapper[1..]).args(["perl", "-e", "1"]).output();
        if !works.is_ok_and(|output| output.status.success()) {
            println!("SKIPPED: {wrapper:?} does not work here. Run the test as root, with util-linux and perl");
            continue;
        }
        let run = ["run", "--memory", "24M", "--stats=json", "--"];
        let (status, said) =
            Scratch::new().run(&[&run, wrapper, &["perl", "-e", "@a = map {\"x$_\"} 1..400000"]].concat());
        assert_eq!(status, 0, "{said}");
        let stats: serde_json::Value = serde_json::from_str(&said).expect("one JSON object");
        assert!(stats["pswpout"].as_u64() > Some(0) && stats["outside"]["complaint"].is_null(), "{wrapper:?}: {said}");
    }
}

#[test]
fn more_unmanaged_memory_than_the_budget_is_said_at_once() {
    with_library();
    if Command::new("python3").arg("--version").output().is_err() {
        println!("SKIPPED: python3 is missing. Get it: apt-get install python3");
        return;
    }
    let scratch = Scratch::new();
    // It fits in the budget and what `run` grants beside it, but nothing of it is managed.
    let program = |mib: u32| {
        format!(
            "import mmap, sys\nm = mmap.mmap(-1, {mib} << 20, mmap.MAP_ANONYMOUS | mmap.MAP_SHARED)\n\
             for i in range(0, {mib} << 20, 4096): m[i] = 1\nprint('filled', flush=True)\nsys.stdin.read()"
        )
    };
    let args = ["run", "--memory", "32M", "--", "python3", "-c", &program(48)];
    let file = |name| File::create(scratch.path(name)).expect("a new file");
    let mut command = Command::new(FOLIOSWAP);
    command.args(args).stdin(Stdio::piped()).stdout(file("out")).stderr(file("err"));
    let mut run = Guarded(command.spawn().expect("the command starts"));
    run.until(&scratch, || scratch.text("err").contains("beside a budget of 32M"));
    let said = scratch.text("err");
    assert!(said.contains("shared memory") && said.contains("leave room for it beside --memory"), "{said}");
    drop(run.0.stdin.take());
    assert_eq!(run.wait(&args).code(), Some(0));
    let said = scratch.text("err");
    assert_eq!(said.lines().filter(|line| line.contains(" has ") && line.contains("in RAM")).count(), 1, "{said}");
}

/// Statistics of a program that maps 48 MiB, gives this advice, writes everything and reads it back.
fn swept(options: &[&str], advice: &str) -> serde_json::Value {
    let scratch = Scratch::new();
    let program = format!(
        "import mmap; m = mmap.mmap(-1, 48 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m.madvise(mmap.{advice})\n\
         for i in range(0, 48 << 20, 4096): m[i] = (i >> 12) % 251\n\
         assert all(m[i] == (i >> 12) % 251 for i in range(0, 48 << 20, 4096))"
    );
    // What the interpreter had before would be adopted in pages, between which there may be no room for larger folios.
    let run = ["run", "--eager", "--memory", "24M", "--swap", "ram:96M", "--stats=json"];
    let (status, said) = scratch.run(&[&run[..], options, &["--", "python3", "-c", &program]].concat());
    assert_eq!(status, 0, "{options:?}, {advice}: {said}");
    serde_json::from_str(&said).expect("one JSON object")
}

#[test]
fn folios_have_the_size_and_come_back_in_the_way_that_was_asked_for() {
    with_library();
    if Command::new("python3").arg("--version").output().is_err() {
        println!("SKIPPED: python3 is missing. Get it: apt-get install python3");
        return;
    }
    let madvise = ["--folio", "2M", "--swap-in", "madvise"];
    let cases: [(&[&str], &str, usize); 6] = [
        (&["--folio", "64K"], "MADV_NORMAL", 4),
        (&["--folio", "2M"], "MADV_NORMAL", 9),
        (&["--folio", "2M"], "MADV_NOHUGEPAGE", 0),
        (&["--folio", "2M", "--swap-in", "never"], "MADV_HUGEPAGE", 0),
        (&madvise, "MADV_HUGEPAGE", 9),
        (&madvise, "MADV_NORMAL", 0),
    ];
    for (options, advice, order) in cases {
        let stats = swept(options, advice);
        let folios = |name: &str, order: usize| stats[name][order].as_u64().expect("a count");
        let pages = folios("swpin", order) << order;
        // After the writes at most half is in RAM, so that at least 24 MiB is swapped in. Not all of it comes in
        // folios of this order: the two blocks at the ends are shared with neighbours, and blocks next to smaller
        // folios of the interpreter's heap are split.
        let split = if order == 9 { folios("swpin_fallback", 9) } else { 0 };
        assert!(pages + 512 * (2 + split) >= 24 << 8, "{options:?}, {advice}: {stats}");
        if order == 4 {
            // The pages of mappings that do not begin or end with a folio.
            assert!(folios("swpin", 0) < 24 << 8 >> 2, "{stats}");
        }
    }
}

/// A program for `--lock`: it uses twice its budget, forks, and tries to unlock its memory.
const UNDER_LOCK: &str = "
import ctypes, mmap, os
def locked():
    return next(int(line.split()[1]) << 10 for line in open('/proc/self/status') if line.startswith('VmLck'))
begin = locked()
assert begin >= 60 << 20, begin
m = mmap.mmap(-1, 128 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for value in (1, 2):
    for i in range(0, 128 << 20, 4096): m[i] = ((i >> 12) + value) % 251
    if value == 1:
        child = os.fork()
        if child == 0: os._exit(locked() >> 20)
        assert os.waitpid(child, 0)[1] == 0, 'a child has nothing locked'
    assert all(m[i] == ((i >> 12) + value) % 251 for i in range(0, 128 << 20, 4096))
    assert ctypes.CDLL(None).munlockall() == 0
    assert locked() >= begin, (locked(), begin)
print('swept')
";

#[test]
fn a_program_runs_in_a_locked_budget() {
    with_library();
    if Command::new("python3").arg("--version").output().is_err() {
        println!("SKIP a program in a locked budget: python3 is missing. Get it: apt-get install python3");
        return;
    }
    let scratch = Scratch::new();
    for faults in ["direct", "auto"] {
        let options = ["--lock", "--memory", "64M", "--swap", "ram:256M", "--stats=json", "--faults", faults];
        let (status, said) = scratch.run(&[&["run"], &options[..], &["--", "python3", "-c", UNDER_LOCK]].concat());
        if status == 125 && said.contains("a locked budget") {
            println!("SKIP a program in a locked budget: {said}");
            return;
        }
        assert_eq!((status, scratch.text("out").as_str()), (0, "swept\n"), "{faults}: {said}");
        let stats: serde_json::Value = serde_json::from_str(&said).expect("one JSON object");
        assert!(stats["swapped_out_bytes"].as_u64() > Some(64 << 20), "{said}");
    }
}

#[test]
fn a_small_limit_of_locked_memory_is_named() {
    let scratch = Scratch::new();
    // A copy, because an ordinary user may not have access to the build directory.
    let copy = scratch.path("folioswap");
    fs::copy(FOLIOSWAP, &copy).expect("a new file");
    let as_user = if is_root() { "setpriv --reuid=65534 --regid=65534 --clear-groups" } else { "" };
    let line = format!("ulimit -l 8192 && exec {as_user} {} run --lock --memory 64M -- true", copy.display());
    let mut command = Command::new("sh");
    command.args(["-c", &line]).stderr(File::create(scratch.path("err")).expect("a new file"));
    let status = Guarded(command.spawn().expect("it starts")).wait(&[&line]);
    let said = scratch.text("err");
    if !said.starts_with("folioswap: ") {
        println!("SKIP a small limit of locked memory: {said}");
        return;
    }
    assert_eq!((status.code(), said.lines().count()), (Some(125), 1), "{said}");
    assert!(
        ["limit of locked memory is 8M", "ulimit -l", "CAP_IPC_LOCK"].iter().all(|part| said.contains(part)),
        "{said}"
    );
    let names = fs::read_dir(&scratch.0).expect("ours").map(|entry| entry.expect("readable").file_name());
    assert_eq!(names.count(), 2, "the copy and err");
}

#[test]
fn small_sweeps_are_right_in_every_combination() {
    let scratch = Scratch::new();
    let swap = format!("{}:256M", scratch.path("swap").display());
    for faults in ["direct", "monitor"] {
        if faults == "monitor" && !monitor_permitted() {
            println!("SKIPPED: monitor faults are not permitted here; see `folioswap doctor`");
            continue;
        }
        for mapper in ["move", "copy"] {
            for (swap, threads) in [(swap.as_str(), "1"), ("ram:128M", "4")] {
                let json = scratch.path("sweep.json");
                let shape =
                    ["bench", "sweep", "--size", "64M", "--memory", "16M", "--threads", threads, "--rounds", "2"];
                let paging =
                    ["--faults", faults, "--mapper", mapper, "--swap", swap, "--json", json.to_str().expect("text")];
                let args = [&shape[..], &paging[..]].concat();
                let (status, said) = scratch.run(&args);
                assert_eq!(status, 0, "{args:?}: {said}");
                check_sweep(&fs::read_to_string(&json).expect("it was written"), mapper, swap);
            }
        }
    }
}

fn check_sweep(text: &str, mapper: &str, swap: &str) {
    let report: serde_json::Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(report["bench"], "sweep");
    let measures = &report["measures"];
    assert_eq!(measures["bad_words"], 0, "{text}");
    assert!(measures["over_budget_bytes"].as_u64().expect("a number") < 32 << 20, "{text}");
    assert!(measures["write_gbps"].as_f64().expect("a number") > 0.0, "{text}");
    assert!(measures["read_gbps"].as_f64().expect("a number") > 0.0, "{text}");
    assert_eq!(measures["read_vs_raw"].is_number(), !swap.starts_with("ram:"), "{text}");
    if mapper == "copy" {
        assert!(measures["huge_share"].is_number(), "{text}");
    }
    assert!(report["machine"]["kernel"].is_string());
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.iter().filter(|row| row["system"] == "folioswap").count(), 4, "2 write and 2 read rounds");
}

/// Serializes the tests that turn on kernel swap: a second one would be refused.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the peer should have removed but did not.
fn left_by_peer(directory: &Path) -> Vec<String> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mine = directory.display().to_string();
    let mut left: Vec<String> = swaps.lines().filter(|line| line.contains(&mine)).map(str::to_owned).collect();
    let files = fs::read_dir(directory).expect("ours").map(|entry| entry.expect("readable").file_name());
    left.extend(files.map(|name| name.to_string_lossy().into_owned()).filter(|name| name.contains("folioswap-kernel")));
    left
}

#[test]
fn the_kernels_swap_is_set_up_and_undone() {
    if !is_root() {
        println!("SKIPPED: the kernel's swap needs root");
        return;
    }
    let _alone = alone();
    let scratch = Scratch::new();
    let directory = scratch.0.display().to_string();
    let base = ["__kernel", "--memory", "64M", "--swap-size", "128M", "--swap-dir", &directory, "--"];
    let (status, said) =
        scratch.run(&[&base[..], &["sh", "-c", "cat /proc/swaps; cat /proc/self/cgroup; exit 5"]].concat());
    if status == 125 && said.contains(NO_KERNEL_SWAP) {
        println!("SKIPPED: {said}");
        return;
    }
    assert_eq!(status, 5, "{said}");
    assert!(scratch.text("out").contains(&directory), "{}", scratch.text("out"));
    let cgroup = cgroup_of(&scratch.text("out")).expect("the program was in a cgroup of ours");
    assert_eq!(left_by_peer(&scratch.0), [""; 0]);
    assert!(!exists_anywhere(&cgroup));
    // What the program leaves in memory comes back from swap, though its cgroup was full.
    let file = format!("/dev/shm/folioswap-cli-{}", std::process::id());
    let of = format!("of={file}");
    let dd = ["dd", "if=/dev/urandom", &of, "bs=1M", "count=100", "status=none"];
    let (status, said) = scratch.run(&[&base[..], &dd].concat());
    std::fs::remove_file(&file).unwrap();
    assert_eq!((status, left_by_peer(&scratch.0)), (0, vec![]), "{said}");
    for signal in ["-TERM", "-KILL"] {
        let args = [&base[..], &["sh", "-c", "cat /proc/self/cgroup; echo ready; exec sleep 1000"]].concat();
        let mut run = scratch.start(&args);
        run.until(&scratch, || scratch.text("out").contains("ready"));
        let cgroup = cgroup_of(&scratch.text("out")).expect("the program was in a cgroup of ours");
        assert_eq!(left_by_peer(&scratch.0).len(), 2, "a swap device and its file while it runs");
        run.signal(signal);
        run.wait(&args);
        assert!(within(LIMIT, || left_by_peer(&scratch.0).is_empty()), "{signal}: {:?}", left_by_peer(&scratch.0));
        assert!(within(LIMIT, || !exists_anywhere(&cgroup)), "{signal}: cgroup {cgroup} is left");
    }
}

/// All zrams of the system.
fn zrams() -> Vec<String> {
    let names = fs::read_dir("/sys/block").expect("sysfs").map(|entry| entry.expect("readable").file_name());
    let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name.starts_with("zram"));
    names.sort_unstable();
    names
}

#[test]
fn the_kernels_zram_is_set_up_and_undone() {
    if !is_root() {
        println!("SKIPPED: the kernel's zram needs root");
        return;
    }
    let _alone = alone();
    // The first run loads the zram module. The device that the module creates is not ours.
    let scratch = Scratch::new();
    let base = ["__kernel", "--memory", "32M", "--swap-size", "128M", "--swap-dir", "zram", "--"];
    let (status, said) = scratch.run(&[&base[..], &["true"]].concat());
    if status == 125 && said.contains(NO_KERNEL_SWAP) {
        println!("SKIPPED: {said}");
        return;
    }
    assert_eq!(status, 0, "{said}");
    let before = zrams();
    let script = format!(
        "cat /proc/swaps; {} __sweep --size 64M --rounds 2 --read-rounds 1 --data records || exit 6
         for device in $(grep -o 'zram[0-9]*' /proc/swaps); do echo stat $(cat /sys/block/$device/mm_stat); done
         cat /proc/self/cgroup; exit 5",
        FOLIOSWAP
    );
    let (status, said) = scratch.run(&[&base[..], &["sh", "-c", &script]].concat());
    let out = scratch.text("out");
    assert_eq!(status, 5, "{said}");
    let device = out.lines().find_map(|line| line.strip_prefix("/dev/zram")).expect("swap on a zram");
    let name = format!("zram{}", device.split_whitespace().next().expect("a number"));
    assert!(!before.contains(&name), "{name} is of our own: {before:?}");
    assert_eq!(out.lines().filter(|line| line.starts_with("row ") && line.ends_with(" 0")).count(), 3, "{out}");
    let stat = out.lines().find_map(|line| line.strip_prefix("stat ")).expect("what it says of itself");
    let most_used: u64 = stat.split(' ').nth(4).and_then(|number| number.parse().ok()).expect("a number");
    assert!((8 << 20..32 << 20).contains(&most_used), "half of the sweep was there, compressed: {stat}");
    let cgroup = cgroup_of(&out).expect("the program was in a cgroup of ours");
    assert_eq!(zrams(), before);
    assert!(!exists_anywhere(&cgroup));
    for signal in ["-TERM", "-KILL"] {
        let args = [&base[..], &["sh", "-c", "cat /proc/self/cgroup; echo ready; exec sleep 1000"]].concat();
        let mut run = scratch.start(&args);
        run.until(&scratch, || scratch.text("out").contains("ready"));
        assert_eq!(zrams().len(), before.len() + 1, "one more while it runs");
        run.signal(signal);
        run.wait(&args);
        assert!(within(LIMIT, || zrams() == before), "{signal}: {:?}", zrams());
        let swaps = fs::read_to_string("/proc/swaps").expect("procfs");
        assert!(!swaps.contains("zram"), "{signal}: {swaps}");
    }
}

fn cgroup_of(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("/folioswap-"))?;
    line.rsplit('/').next().map(str::to_owned)
}

fn exists_anywhere(cgroup: &str) -> bool {
    ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].iter().any(|root| Path::new(root).join(cgroup).exists())
}
