//! Block devices that hold data are refused as swap unless `force=yes` is given. Block devices in use are always
//! refused.
//!
//! The tests need a loop device of their own, and therefore root.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

mod scratch;

use scratch::{Scratch, with_library};

/// Runs a system command. Returns its output, or why it failed.
fn command(name: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(name).args(arguments).output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("{name} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

/// A loop device on a file. Dropping it detaches the device.
struct Loop(String);

impl Loop {
    fn new(file: &Path) -> Result<Loop, String> {
        command("losetup", &["--find", "--show", &file.display().to_string()]).map(Loop)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = command("umount", &[&self.0]);
        command("losetup", &["-d", &self.0]).expect("the test's own loop device");
    }
}

/// A program of several processes, sequential, concurrent and by exec. Each uses more memory than its budget.
const SEVERAL: &str = "python3 -c \"$1\" && python3 -c \"$1\" | cat && \
    (python3 -c \"$1\" \"$2/a\" \"$2/b\" & python3 -c \"$1\" \"$2/b\" \"$2/a\"; wait $!) && exec python3 -c \"$1\"";
/// With two names of files it makes the first, and waits for the second one.
const SWEEP: &str = "import mmap, os, sys, time; m = mmap.mmap(-1, 40 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for r in (1, 2):
    for i in range(0, 40 << 20, 4096): m[i] = (i >> 12) * r % 251
    assert all(m[i] == (i >> 12) * r % 251 for i in range(0, 40 << 20, 4096))
if len(sys.argv) > 2:
    open(sys.argv[1], 'w').close()
    while not os.path.exists(sys.argv[2]): time.sleep(0.01)
print('swept')";

#[test]
fn the_processes_of_a_program_share_what_only_one_can_have() {
    with_library();
    let scratch = Scratch::new();
    let run = |swap: &str, program: &[&str]| {
        let arguments = ["run", "--memory", "24M", "--swap", swap, "--stats=json", "--"];
        let (status, said) = scratch.run(&[&arguments[..], program].concat());
        assert_eq!(
            (status, scratch.text("out").matches("swept").count()),
            (0, 5),
            "{swap}: {said}\n{}",
            scratch.text("out")
        );
        said
    };
    let folder = scratch.path("").display().to_string();
    let several = ["sh", "-c", SEVERAL, "sh", SWEEP, &folder];
    let file = scratch.path("disk");
    File::create(&file).and_then(|disk| disk.set_len(512 << 20)).expect("a new file");
    let disk = match Loop::new(&file) {
        Ok(disk) => disk,
        Err(error) => {
            println!("SKIPPED: no loop device is available ({error}). Run it as root, where /dev/loop-control is");
            return;
        }
    };
    let said = run(&disk.0, &several);
    let own = said.lines().filter(|line| line.contains(&format!("another process of the program has swap {}", disk.0)));
    // The shell is small and holds no device. Of the two processes that run at the same time one has it, and the other
    // says so when it needs a file of its own.
    assert!(own.count() == 1 && said.lines().count() == 2, "{said}");
    let stats: serde_json::Value = serde_json::from_str(said.lines().last().expect("statistics")).expect("JSON");
    let devices = stats["devices"].as_array().expect("devices");
    let of_disk = devices.iter().find(|device| device["name"] == disk.0.as_str()).expect("the disk");
    assert!(of_disk["writes"]["bytes"].as_u64() > Some(8 << 20), "the last one has it: {said}");
    let left = fs::read(&file).expect("the file below");
    assert!(left.iter().all(|&byte| byte == 0), "what was written is wiped at the end");
}

/// The first MiB of the file below a loop device.
fn content(file: &Path) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    std::os::unix::fs::FileExt::read_exact_at(&File::open(file).expect("the file"), &mut bytes, 0).expect("its begin");
    bytes
}

#[test]
fn a_block_device_that_holds_something_is_refused() {
    let scratch = Scratch::new();
    let file = scratch.path("disk");
    File::create(&file).and_then(|disk| disk.set_len(64 << 20)).expect("a new file");
    let disk = match Loop::new(&file) {
        Ok(disk) => disk,
        Err(error) => {
            println!("SKIPPED: no loop device is available ({error}). Run it as root, where /dev/loop-control is");
            return;
        }
    };
    with_library();
    let sweep = |swap: &str| {
        let args = ["bench", "sweep", "--memory", "16M", "--size", "48M", "--rounds", "1", "--swap", swap];
        scratch.run(&args)
    };
    let run = |swap: &str| scratch.run(&["run", "--memory", "16M", "--swap", swap, "--", "true"]);
    let forced = format!("{},force=yes", disk.0);
    let (status, said) = sweep(&disk.0);
    assert_eq!(status, 0, "an empty one: {said}");
    command("blockdev", &["--setro", &disk.0]).expect("the test's own loop device");
    let (status, said) = run(&disk.0);
    assert!(status == 125 && said.contains("is not writable"), "a read-only one: {status}: {said}");
    command("blockdev", &["--setrw", &disk.0]).expect("the test's own loop device");
    let cases = [
        ("mkfs.ext4", &["-q", "-F"][..], "a file system (ext2, ext3 or ext4)"),
        ("mkswap", &["-f"][..], "swap space of the kernel"),
    ];
    for (make, options, what) in cases {
        command("wipefs", &["-a", &disk.0]).expect("the test's own loop device");
        if let Err(error) = command(make, &[options, &[&disk.0]].concat()) {
            println!("SKIPPED: {what}: {error}. Get it: apt-get install e2fsprogs util-linux");
            continue;
        }
        command("sync", &[&disk.0]).expect("the test's own loop device");
        let before = content(&file);
        for (status, said) in [run(&disk.0), sweep(&disk.0)] {
            assert_eq!(status, 125, "{make}: {said}");
            assert!(said.contains(what) && said.contains(&forced) && said.lines().count() == 1, "{make}: {said}");
        }
        assert!(content(&file) == before, "{make}: what was refused is as it was");
        if make == "mkfs.ext4" {
            let directory = scratch.path("mounted").display().to_string();
            fs::create_dir(&directory).expect("a new directory");
            match command("mount", &[&disk.0, &directory]) {
                Ok(_) => {
                    let refusals = [run(&disk.0), run(&forced), sweep(&forced)];
                    command("umount", &[&directory]).expect("mounted here");
                    for (status, said) in refusals {
                        assert!(status == 125 && said.contains("in use: mounted"), "{status}: {said}");
                    }
                }
                Err(error) => println!("SKIPPED: a mounted one: {error}"),
            }
        }
        let (status, said) = run(&forced);
        assert_eq!(status, 0, "{make}, forced, in a program: {said}");
        let (status, said) = sweep(&forced);
        assert_eq!(status, 0, "{make}, forced: {said}");
        assert!(content(&file) != before, "{make}: it was used");
    }
}

#[test]
fn a_disk_with_blocks_of_16_kib_is_refused() {
    let scratch = Scratch::new();
    let file = scratch.path("disk");
    File::create(&file).and_then(|disk| disk.set_len(64 << 20)).expect("a new file");
    let options = ["--sector-size", "16384", "--find", "--show", &file.display().to_string()];
    let disk = match command("losetup", &options).map(Loop) {
        Ok(disk) => disk,
        Err(error) => {
            println!("SKIPPED: no loop device with such blocks ({error}). Needed: root, Linux 6.12");
            return;
        }
    };
    with_library();
    let (status, said) = scratch.run(&["run", "--memory", "16M", "--swap", &disk.0, "--", "true"]);
    assert!(
        status == 125 && said.contains("smallest block is 16384 bytes") && said.lines().count() == 1,
        "{status}: {said}"
    );
}
