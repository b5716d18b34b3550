//! Links the development build small in memory: unoptimised dependencies hold many equal functions, which the linker folds, and
//! relocations of a binary that can lie anywhere, all of which are read and written when it starts.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    // rustc links with its own lld there; other linkers do not know the option.
    if target("OS") == "linux" && target("ARCH") == "x86_64" {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
        if std::env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
            println!("cargo:rustc-link-arg-bins=-no-pie");
        }
    }
}
