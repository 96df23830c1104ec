//! The library that the tests preload.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Builds the library in this test's own profile, and returns its path.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let profile = test.parent().unwrap().parent().unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--locked", "--quiet", "-p", "folioswap-preload", "--target-dir"]);
        build.arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the library could not be built");
        profile.join("libfolioswap_preload.so")
    })
}
