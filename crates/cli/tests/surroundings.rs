//! Programs and file systems of other kinds than usual: rights that the program gains or lacks, limits of its user, an
//! overlay in RAM. The tests need root, and skip loudly where something is missing.

mod scratch;

use scratch::{FOLIOSWAP, Scratch, with_library};
use std::fs;
use std::process::Command;

/// Runs a script, with the command as `$0` and a scratch directory as `$1` and the working directory. Returns its
/// status, and all that it printed.
fn script(scratch: &Scratch, before: &[&str], text: &str) -> (i32, String) {
    let folder = scratch.path("");
    let all = [before, &["bash", "-c", text, FOLIOSWAP]].concat();
    let output = Command::new(all[0]).args(&all[1..]).arg(&folder).current_dir(&folder).output().expect("bash runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned())
}

/// As a user who is not root.
const AS_USER: [&str; 6] = ["setpriv", "--reuid", "61234", "--regid", "61234", "--clear-groups"];

/// Whether a command works here: it is told if not.
fn works(command: &[&str]) -> bool {
    let works = Command::new(command[0]).args(&command[1..]).args(["test", "-x", FOLIOSWAP]).output();
    let works = works.is_ok_and(|output| output.status.success());
    if !works {
        println!("SKIPPED: {command:?} does not work here. Run the test as root, with util-linux");
    }
    works
}

/// Writes as many MiB as it is told, and checks them.
const FILL: &str = "#include <stdlib.h>\nint main(int c, char **v) { long n = atol(v[1]) << 20; char *p = malloc(n); \
    for (long i = 0; i < n; i += 4096) p[i] = i >> 12; \
    for (long i = 0; i < n; i += 4096) if (p[i] != (char)(i >> 12)) return 1; return 0; }";

fn compile(scratch: &Scratch, source: &str) {
    let (file, program) = (scratch.path("program.c"), scratch.path("program"));
    fs::write(&file, source).expect("a new file");
    let compiled = Command::new("gcc").args(["-O1", "-o"]).args([&program, &file]).status();
    assert!(compiled.expect("gcc runs").success());
}

#[test]
fn what_the_heap_keeps_free_is_in_the_budget() {
    with_library();
    let scratch = Scratch::new();
    compile(
        &scratch,
        "#include <stdlib.h>\n#include <string.h>\nenum { N = 1200000 };\nint main(void) { static char *all[N]; \
         for (int i = 0; i < N; i++) memset(all[i] = malloc(200), 1, 200); \
         for (int i = 0; i < N; i++) free(all[i]); return 0; }",
    );
    let program = scratch.path("program");
    let program = program.to_str().expect("a path in UTF-8");
    let (status, said) = scratch.run(&["run", "--memory", "320M", "--stats=json", "--", program]);
    let stats: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let outside = stats["outside"]["processes"][0]["outside_bytes"].as_u64();
    assert!(status == 0 && outside.is_some_and(|outside| outside < 6 << 20), "{status}: {outside:?}");
}

#[test]
fn an_overlay_in_ram_is_no_disk() {
    if !works(&["unshare", "-m"]) {
        return;
    }
    let scratch = Scratch::new();
    let text = "mkdir ram lower over && mount -t tmpfs tmpfs ram && mkdir ram/upper ram/work || exit 77
        mount -t overlay -o lowerdir=lower,upperdir=$1/ram/upper,workdir=$1/ram/work overlay over || exit 77
        FOLIOSWAP_DIR=over $0 doctor | grep '^disk'
        $0 run --memory 24M --swap over/swap -- true; status=$?; umount over ram; exit $status";
    let (status, said) = script(&scratch, &["unshare", "-m"], text);
    if status == 77 {
        println!("SKIPPED: no overlay can be mounted: {said}");
        return;
    }
    assert!(status == 125 && said.matches("tmpfs").count() == 2, "{status}: {said}");
}

#[test]
fn doctor_says_of_the_disk_what_run_says() {
    let scratch = Scratch::new();
    for (limits, why) in [("FOLIOSWAP_DIR=/dev/shm", "tmpfs"), ("FOLIOSWAP_DIR=.; ulimit -f 100", "ulimit -f")] {
        let (_, said) = script(&scratch, &[], &format!("export {limits}; $0 doctor"));
        let line = said.lines().find(|line| line.starts_with("disk")).unwrap_or_default();
        assert!(line.contains(why), "{limits}: {said}");
    }
}

#[test]
fn a_folder_for_swap_that_cannot_be_used_is_named_with_its_variable() {
    let scratch = Scratch::new();
    for (directory, why) in [("/etc/passwd", "a part of its path is no directory"), ("/dev/shm", "tmpfs")] {
        let (status, said) = script(&scratch, &[], &format!("FOLIOSWAP_DIR={directory} $0 run --memory 24M -- true"));
        assert!(status == 125 && said.contains(why) && said.contains("(FOLIOSWAP_DIR names"), "{directory}: {said}");
    }
}

#[test]
fn figures_are_right_for_a_user_in_many_groups() {
    with_library();
    if !works(&AS_USER) {
        return;
    }
    let scratch = Scratch::new();
    compile(&scratch, FILL);
    let text =
        "setpriv --groups $(seq -s, 20000 21500) $0 run --stats=json --memory 24M --swap ram:100M -- ./program 60";
    let (status, said) = script(&scratch, &[], text);
    let stats: serde_json::Value = serde_json::from_str(said.lines().last().unwrap_or_default()).expect("JSON");
    let peak = stats["outside"]["processes"][0]["peak_resident_bytes"].as_u64();
    assert!(status == 0 && peak > Some(20 << 20), "{status}: {said}");
}

#[test]
fn a_program_that_uses_all_its_descriptors_is_managed_from_the_start() {
    with_library();
    let scratch = Scratch::new();
    compile(
        &scratch,
        "#include <fcntl.h>\n#include <stdlib.h>\n#include <string.h>\nint main(void) { \
            char *p = malloc(50 << 20); memset(p, 9, 50 << 20); while (open(\"/dev/null\", O_RDONLY) >= 0); \
            for (int i = 0; i < 80; i++) memset(malloc(1 << 20), i, 1 << 20); \
            for (int i = 0; i < 50 << 20; i += 4096) if (p[i] != 9) return 1; return 0; }",
    );
    for faults in ["direct", "monitor"] {
        let text =
            format!("ulimit -Sn 64; $0 run --stats=json --faults {faults} --memory 80M --swap ram:200M -- ./program");
        let (status, said) = script(&scratch, &[], &text);
        if faults == "monitor" && said.contains("permitted") {
            println!("SKIPPED: {said}");
            continue;
        }
        let stats: serde_json::Value = serde_json::from_str(said.lines().last().unwrap_or_default()).expect("JSON");
        let peak = stats["outside"]["processes"][0]["peak_resident_bytes"].as_u64();
        assert!(status == 0 && !said.contains("cannot be") && peak > Some(0), "{faults}: {said}");
    }
}

#[test]
fn a_program_that_may_not_be_read_is_managed() {
    with_library();
    if !works(&AS_USER) {
        return;
    }
    let scratch = Scratch::new();
    compile(&scratch, FILL);
    script(&scratch, &[], "chmod 711 program");
    for faults in ["direct", "auto"] {
        let text = format!("$0 run --stats=json --faults {faults} --memory 24M --swap ram:200M -- ./program 60");
        let (status, said) = script(&scratch, &AS_USER, &text);
        let stats: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{faults}: {said}"));
        assert!(status == 0 && stats["pswpout"].as_u64() > Some(0), "{faults}: {said}");
    }
}

#[test]
fn rights_that_a_program_gains_are_said_where_it_gains_them() {
    with_library();
    if !works(&AS_USER) {
        return;
    }
    let scratch = Scratch::new();
    compile(&scratch, FILL);
    // CAP_NET_RAW, permitted and effective.
    let text = "cp program capable && chmod 755 capable && cp program other && chmod 4755 other
        python3 -c 'import os, struct
os.setxattr(\"capable\", \"security.capability\", struct.pack(\"<5I\", 0x2000001, 1 << 13, 0, 0, 0))'";
    let (status, said) = script(&scratch, &[], text);
    if status != 0 {
        println!("SKIPPED: no file gets capabilities: {said}");
        return;
    }
    let said_of = |before: &[&str], program: &str| {
        let text = format!("$0 run --memory 24M --swap ram:200M -- ./{program} 10");
        let (status, said) = script(&scratch, before, &text);
        assert_eq!(status, 0, "{program}: {said}");
        said
    };
    assert!(said_of(&AS_USER, "capable").contains("is not paged: it runs with capabilities"));
    assert!(said_of(&AS_USER, "other").contains("is not paged: it runs with its owner's rights"));
    for program in ["capable", "other"] {
        assert_eq!(said_of(&[&AS_USER[..], &["--no-new-privs"]].concat(), program), "", "{program}");
        assert_eq!(said_of(&[], program), "", "{program} of root");
    }
}

#[test]
fn a_program_begins_only_if_its_signals_can_be_forwarded() {
    with_library();
    let as_another = AS_USER.map(|word| if word == "61234" { "61235" } else { word }); // with no other process
    if !works(&as_another) {
        return;
    }
    let scratch = Scratch::new();
    script(&scratch, &[], "chmod 777 .");
    let text = "for most in 2 3 4; do
        (ulimit -u $most; exec $0 run --memory 24M --swap ram:50M -- touch begun.$most); echo ended $?; done";
    let (_, said) = script(&scratch, &as_another, text);
    let ended: Vec<bool> =
        said.lines().filter_map(|line| line.strip_prefix("ended ")).map(|code| code == "0").collect();
    let begun = [2, 3, 4].map(|most| scratch.path(&format!("begun.{most}")).exists());
    assert!(ended == begun && begun[2] && !begun[0], "{begun:?}: {said}");
}
