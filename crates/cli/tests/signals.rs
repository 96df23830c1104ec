//! Tests of how the command starts its program, and of signals to both. Each child has a watchdog.

mod scratch;

use scratch::{FOLIOSWAP, Guarded, LIMIT, Scratch, with_library, within};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

/// Runs a line of bash. In it, RUN is the command's `run`, and FOLDER the test's folder. Returns the exit status, and
/// all that was printed.
fn bash(scratch: &Scratch, line: &str) -> (Option<i32>, String) {
    let status = bash_status(scratch, line);
    (status.code(), scratch.text("out") + &scratch.text("err"))
}

/// The same, but returns how it ended.
fn bash_status(scratch: &Scratch, line: &str) -> ExitStatus {
    let mut command = Command::new("bash");
    let file = |name| File::create(scratch.path(name)).expect("a new file");
    command.args(["-c", line]).env("RUN", format!("{FOLIOSWAP} run --memory 64M --"));
    command.env("FOLDER", &scratch.0).env("FOLIOSWAP", FOLIOSWAP);
    command.stdout(file("out")).stderr(file("err"));
    Guarded(command.spawn().expect("it starts")).wait(&[line])
}

#[test]
fn a_program_is_started_as_the_command_was() {
    with_library();
    let scratch = Scratch::new();
    // SIGCHLD ignored: the kernel forgets the statuses of children. SIGPIPE: Rust's runtime ignores it.
    // The C library has two signals of its own above the first 28.
    let same = "a=$(grep -oE 'Sig(Ign|Blk):.*' /proc/self/status | sed -E 's/.*(.{7})$/\\1/'); \
                b=$($RUN grep -oE 'Sig(Ign|Blk):.*' /proc/self/status | sed -E 's/.*(.{7})$/\\1/'); \
                echo $a, $b; [ \"$a\" = \"$b\" ]";
    let said = "cd /; exec sh -c \"echo \\$FOLIOSWAP_DIR\"";
    let lines = [
        (format!("mkdir $FOLDER/here && cd $FOLDER && FOLIOSWAP_DIR=here $RUN sh -c '{said}' | grep ^/"), 0),
        ("trap '' CHLD; exec $RUN sh -c 'exit 5'".to_owned(), 5),
        (format!("trap '' HUP INT USR1 PIPE; {same}"), 0),
        (same.to_owned(), 0),
        ("$RUN /bin/echo 2>/dev/null >&-".to_owned(), 1),
        ("$RUN cat /dev/stdin <&-".to_owned(), 1),
        (format!("exec env --block-signal=URG,USR2 bash -c '{}'", same.replace('\'', "'\\''")), 0),
        ("trap '' HUP; $RUN sh -c 'sleep 1; exit 6' & sleep 0.5; kill -HUP $!; wait $!".to_owned(), 6),
    ];
    for (line, expected) in lines {
        let (status, said) = bash(&scratch, &line);
        assert_eq!(status, Some(expected), "{line}: {said}");
    }
}

#[test]
fn no_message_gets_into_a_file_in_place_of_standard_error() {
    with_library();
    let scratch = Scratch::new();
    let program = "import os; assert os.open(\"own\", os.O_WRONLY | os.O_CREAT) == 2; x = b\"x\" * (150 << 20)";
    // Where python3 is a script, that one takes the number.
    let python = "$(python3 -c 'import sys; print(sys.executable)')";
    let line = format!("cd $FOLDER; $FOLIOSWAP run --memory 16M --swap ram:2M -- {python} -c '{program}' 2>&-");
    if Command::new("python3").arg("--version").output().is_err() {
        println!("SKIPPED: python3 is missing. Get it: apt-get install python3");
        return;
    }
    assert_eq!(bash(&scratch, &line).0, Some(70));
    assert_eq!(scratch.text("own"), "");
}

/// A program that ends two seconds after its first signal. Its exit status is the number of signals.
const COUNT: &str = "perl -e '$| = 1; $SIG{$_} = sub { $n++ } for @ARGV; print qq(ready\n); sleep 1000 until $n; \
                     $end = time + 2; select undef, undef, undef, 0.1 while time < $end; exit $n'";

/// Waits until the program that counts is there.
const READY: &str = "until grep -q ready $FOLDER/out; do sleep 0.02; done";

#[test]
fn a_signal_reaches_the_program_once() {
    with_library();
    let scratch = Scratch::new();
    let cases = [
        ("setsid", "", "kill -TERM $!", 1),
        ("setsid", "", "kill -TERM -- -$!", 1),
        ("setsid", "", "kill -TERM $(pgrep -s $!)", 1), // one after the other, as systemd does
        ("timeout --preserve-status 1000", "", "kill -TERM $!", 1),
        ("setsid", "setsid", "kill -TERM $!", 1),
        ("setsid", "", "kill -TERM -- -$!; sleep 0.3; kill -TERM $!; sleep 0.3; kill -TERM -- -$!", 3),
        ("setsid", "", "sleep 1.1; pkill -KILL -s $! group-signals && kill -TERM $!", 1),
        ("setsid", "", "sleep 1.1; pkill -KILL -s $! group-signals && sleep 0.2; kill -TERM -- -$!", 1),
    ];
    for (before, after, sent, expected) in cases {
        let line = format!("{before} $RUN {after} {COUNT} TERM & {READY}; {sent}; wait $!");
        let (status, said) = bash(&scratch, &line);
        assert_eq!(status, Some(expected), "{before}, {after}, {sent}: {said}");
    }
}

#[test]
fn each_of_many_signals_reaches_the_program_once() {
    with_library();
    if Command::new("python3").arg("--version").output().is_err() {
        println!("SKIPPED: python3 is missing. Get it: apt-get install python3");
        return;
    }
    let scratch = Scratch::new();
    // Those from 32 on are queued, and this program takes each.
    let count = "from signal import *; pthread_sigmask(SIG_BLOCK, {40}); print(\"ready\", flush=True)\nn = 0\n\
                 while sigtimedwait({40}, 2 if n else 1000): n += 1\nexit(n)";
    let sent = "kill -40 -- -$!; kill -40 $!; kill -40 -- -$!; kill -40 $!; kill -40 $(pgrep -s $!)";
    let line = format!("setsid $RUN python3 -c $'{}' & {READY}; {sent}; wait $!", count.replace('\n', "\\n"));
    let (status, said) = bash(&scratch, &line);
    assert_eq!(status, Some(5), "{said}");
}

#[test]
fn all_signals_are_passed_on() {
    with_library();
    let scratch = Scratch::new();
    for signals in [
        "HUP INT QUIT ABRT USR1 SEGV USR2 PIPE ALRM",
        "TERM STKFLT CHLD TSTP TTIN TTOU URG XCPU XFSZ",
        "VTALRM PROF WINCH IO PWR SYS NUM37 NUM60 TRAP",
    ] {
        // Perl begins a number with NUM.
        let sent = format!("for signal in {signals}; do kill -${{signal#NUM}} $!; done");
        let (status, said) = bash(&scratch, &format!("$RUN {COUNT} {signals} & {READY}; {sent}; wait $!"));
        assert_eq!(status, Some(9), "{signals}: {said}");
    }
}

fn is_without_namespaces() -> bool {
    let works = Command::new("unshare").args(["-pf", "--mount-proc", "true"]).status();
    let is_without = !works.is_ok_and(|status| status.success());
    if is_without {
        println!("SKIPPED: a PID namespace needs root, and util-linux");
    }
    is_without
}

#[test]
fn init_takes_the_statuses_of_orphans() {
    with_library();
    let scratch = Scratch::new();
    if is_without_namespaces() {
        return;
    }
    let program = "for i in $(seq 30); do (sh -c \"exit 3\" &); done; for i in $(seq 200); do \
                   grep -q \") Z \" /proc/[0-9]*/stat 2>/dev/null || exit 4; sleep 0.05; done";
    let (status, said) = bash(&scratch, &format!("unshare -pf --mount-proc $RUN bash -c '{program}'"));
    assert_eq!(status, Some(4), "{said}");
}

#[test]
fn signals_are_passed_on() {
    with_library();
    let scratch = Scratch::new();
    for (signal, name, expected) in
        [("-TERM", "TERM", 41), ("-INT", "INT", 42), ("-USR1", "USR1", 43), ("-HUP", "HUP", 44)]
    {
        let program = format!("trap 'exit {expected}' {name}; echo ready; while :; do sleep 0.02; done");
        let args = ["run", "--memory", "64M", "--", "sh", "-c", &program];
        let mut run = scratch.start(&args);
        run.until(&scratch, || scratch.text("out").contains("ready"));
        run.signal(signal);
        assert_eq!(run.wait(&args).code(), Some(expected), "{name}");
    }
    let args = ["run", "--memory", "64M", "--", "sh", "-c", "echo ready; exec sleep 1000"];
    let mut run = scratch.start(&args);
    run.until(&scratch, || scratch.text("out").contains("ready"));
    run.signal("-TERM");
    assert_eq!(run.wait(&args).signal(), Some(15), "a program that the signal ends");
}

/// With these limits the program fails with and without folioswap, with it only, and in neither case.
#[test]
fn what_a_limit_of_addresses_refuses_because_of_folioswap_is_said_and_nothing_else_is() {
    with_library();
    let scratch = Scratch::new();
    let memory =
        "import mmap; kept = mmap.mmap(-1, 200 << 20); more = bytearray(120 << 20); more[::4096] = kept[:30720]";
    let stack = "import threading; threading.stack_size(200 << 20); threading.Thread(target=print).start()";
    let blocks = "kept = [bytes(1 << 20) for number in range(100)]";
    let limits_mib = [180, 400, 440, 480, 560, 1200];
    for (program, limits_mib) in [(memory, &limits_mib[..]), (stack, &limits_mib), (blocks, &[280, 300, 400, 560])] {
        said_if_refused(&scratch, program, limits_mib);
    }
}

fn said_if_refused(scratch: &Scratch, program: &str, limits_mib: &[u32]) {
    let mut nr_said = 0;
    for mib in limits_mib {
        let limit = format!("ulimit -v {}; exec", mib << 10);
        let (alone, _) = bash(scratch, &format!("{limit} python3 -c '{program}'"));
        let (status, said) = bash(scratch, &format!("{limit} $RUN python3 -c '{program}'"));
        let is_said = said.contains("note: the limit of addresses (ulimit -v)");
        assert_eq!(is_said, alone == Some(0) && status != Some(0), "{mib} MiB: {alone:?}, {status:?}: {said}");
        nr_said += usize::from(is_said);
    }
    assert!(nr_said > 0, "folioswap takes some addresses");
}

#[test]
fn the_command_ends_by_the_signal_of_its_program() {
    with_library();
    let scratch = Scratch::new();
    for signal in [1, 2, 3, 6, 9, 11, 13, 15, 24, 31, 34, 64] {
        let line = format!("ulimit -c unlimited; cd $FOLDER; exec $RUN perl -e 'kill {signal}, $$; sleep 1000'");
        let status = bash_status(&scratch, &line);
        assert_eq!((status.signal(), status.core_dumped()), (Some(signal), false), "{status}");
    }
    // What ran longer than it should, and what folioswap says at the end.
    let (status, said) = bash(&scratch, "timeout -s INT 3 $FOLIOSWAP run --memory 64M --stats -- sleep 1000; exit $?");
    assert_eq!(status, Some(124), "{said}");
    assert!(said.contains("swapped in"), "{said}");
    if is_without_namespaces() {
        return;
    }
    let (status, said) = bash(&scratch, "exec unshare -pf --mount-proc $RUN sh -c 'kill -TERM $$'");
    assert_eq!(status, Some(128 + 15), "PID 1 cannot end so: {said}");
}

#[test]
fn the_command_stops_with_its_program_and_continues_it() {
    with_library();
    let scratch = Scratch::new();
    let until_stopped = "for i in $(seq 200); do jobs | grep -q Stopped && break; sleep 0.05; done; jobs";
    // bash may not have seen it continue.
    let until_ended = "code=147; while [ $code -ge 147 ]; do wait $!; code=$?; done; exit $code";
    for (signal, receiver) in [("STOP", "-$!"), ("STOP", "$!"), ("TSTP", "$!"), ("TTIN", "-$!")] {
        let program = format!("kill -{signal} $$; exit 7");
        let line = format!("set -m; $RUN sh -c '{program}' & {until_stopped}; kill -CONT -- {receiver}; {until_ended}");
        let (status, said) = bash(&scratch, &line);
        assert_eq!(status, Some(7), "{line}: {said}");
        assert!(said.contains("Stopped"), "{line}: {said}");
    }
    // Sent to the command alone.
    let until = |file: &str| format!("until [ -e $FOLDER/{file} ]; do sleep 0.05; done");
    let program = format!("touch $FOLDER/begun; {}; touch $FOLDER/over", until("go"));
    let stop = format!("{}; kill -TSTP $!; {until_stopped}", until("begun"));
    let go_on = format!("touch $FOLDER/go; kill -CONT $!; {}; exit 7", until("over"));
    let line = format!("set -m; $RUN sh -c '{program}' & {stop}; {go_on}");
    let (status, said) = bash(&scratch, &line);
    assert_eq!(status, Some(7), "{said}");
    assert!(said.contains("Stopped"), "{said}");
}

#[test]
fn the_program_does_not_outlive_a_killed_command() {
    with_library();
    let scratch = Scratch::new();
    let mut run = scratch.start(&["run", "--memory", "64M", "--", "sh", "-c", "echo $$; exec sleep 1000"]);
    run.until(&scratch, || scratch.text("out").ends_with('\n'));
    let program = PathBuf::from("/proc").join(scratch.text("out").trim());
    assert!(program.exists());
    run.0.kill().expect("ours");
    run.0.wait().expect("ours");
    // Its new parent may take some time to reap it.
    let gone = || fs::read_to_string(program.join("stat")).is_ok_and(|stat| stat.contains(") Z ")) || !program.exists();
    assert!(within(LIMIT, gone), "the program lives on");
}
