//! A scratch directory for each test, and children of the command with a watchdog.

// Each test file uses only a part of this.
#![allow(dead_code)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The command under test.
pub const FOLIOSWAP: &str = env!("CARGO_BIN_EXE_folioswap");
/// Limit for everything that is waited for.
pub const LIMIT: Duration = Duration::from_secs(240);

/// Builds the preload library next to the command, once.
pub fn with_library() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = Path::new(FOLIOSWAP).parent().expect("a directory");
        let profile = match directory.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(name) => name,
        };
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "-p", "folioswap-preload", "--profile", profile, "--manifest-path"])
            .arg(manifest)
            .env("CARGO_TARGET_DIR", directory.parent().expect("a target directory"))
            .status()
            .expect("cargo runs");
        assert!(status.success(), "folioswap-preload does not build");
    });
}

/// A test's own directory. Dropping it removes it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Creates a directory.
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("folioswap-cli-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new("/var/tmp").join(name);
        fs::create_dir(&path).expect("/var/tmp is writable");
        Scratch(path)
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The content of a file in the directory. Empty if there is none.
    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Starts the command. Its output goes to the files `out` and `err`.
    pub fn start(&self, args: &[&str]) -> Guarded {
        let file = |name| File::create(self.path(name)).expect("a new file");
        let child = Command::new(FOLIOSWAP).args(args).stdout(file("out")).stderr(file("err")).spawn();
        Guarded(child.expect("the command starts"))
    }

    /// Runs the command to its end. Returns its exit status and standard error.
    pub fn run(&self, args: &[&str]) -> (i32, String) {
        let status = self.start(args).wait(args);
        let said = self.text("err");
        assert!(!said.contains("panicked"), "{args:?}: {said}");
        (status.code().unwrap_or(-1), said)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("the test's own directory");
    }
}

/// A child. It is killed when its test fails or its time is up.
pub struct Guarded(pub Child);

impl Guarded {
    /// Waits for the child's end.
    pub fn wait(&mut self, what: &[&str]) -> ExitStatus {
        let mut status = None;
        assert!(
            within(LIMIT, || {
                status = self.0.try_wait().expect("our own child");
                status.is_some()
            }),
            "{what:?} did not end within {LIMIT:?}"
        );
        status.expect("it ended")
    }

    /// Waits until `holds` is true. Fails if the child ends first, or if the time is up.
    pub fn until(&mut self, scratch: &Scratch, mut holds: impl FnMut() -> bool) {
        let mut ended = false;
        let met = within(LIMIT, || {
            ended = self.0.try_wait().expect("our own child").is_some();
            holds() || ended
        });
        assert!(met && holds(), "ended: {ended}; it said: {}", scratch.text("err"));
    }

    /// Sends a signal, named as for kill(1).
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.0.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // The child may have ended already, as most tests expect.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Polls until `holds` is true or the time is up.
pub fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    loop {
        if holds() {
            return true;
        }
        if begin.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
