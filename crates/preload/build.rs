//! How the library is linked: its calls of functions that it exports stay within it. A program may define a function of
//! the C library by another name of it, and would be called by what it calls.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
