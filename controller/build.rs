//! Links the development build small in memory: unoptimised dependencies hold many equal functions, which the linker folds, and
//! relocations of a binary that can lie anywhere, all of which are read and written when it starts.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = |name: &str| variable(&format!("CARGO_CFG_TARGET_{name}"));
    let platform = [target("OS"), target("ARCH"), target("ENV")];
    // rustc links with its own lld there; other linkers do not know the option.
    if platform == ["linux", "x86_64", "gnu"] && brings_lld() {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
        if variable("PROFILE") == "debug" {
            println!("cargo:rustc-link-arg-bins=-no-pie");
        }
    }
}

/// Whether rustc comes with an lld to link with, as rustup's does; what distributions build takes the system's linker.
fn brings_lld() -> bool {
    let Ok(answer) = Command::new(variable("RUSTC")).args(["--print", "sysroot"]).output() else { return false };
    let sysroot = String::from_utf8_lossy(&answer.stdout);
    let host = Path::new(sysroot.trim()).join("lib/rustlib").join(variable("HOST"));
    host.join("bin/gcc-ld/ld.lld").is_file()
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}
