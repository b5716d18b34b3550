//! The program that the provider is tested with, and the CLI configuration by which it takes the built one.

use std::path::{Path, PathBuf};

/// Names the program in place of the sandbox's OpenTofu: the tests hold of Terraform, too.
const PROGRAM: &str = "KARP_TEST_TERRAFORM";
/// Either's own registry: `karp/karp` is short for a provider there.
const HOSTS: [&str; 2] = ["registry.opentofu.org", "registry.terraform.io"];

/// Finds the program: what `KARP_TEST_TERRAFORM` names, or else `tofu` in the folder `KARP_TEST_TOOLS`. Says so, and gives nothing, where there
/// is none.
pub fn program(test: &str) -> Option<PathBuf> {
    let given = std::env::var_os(PROGRAM).map(PathBuf::from);
    let program = given.or_else(|| Some(PathBuf::from(std::env::var_os("KARP_TEST_TOOLS")?).join("tofu")));
    let found = program.filter(|program| program.is_file());
    if found.is_none() {
        eprintln!("skipped: {test}: {PROGRAM} names no program, and KARP_TEST_TOOLS no folder with tofu");
    }
    found
}

/// Writes `tofu.rc` into a folder.
pub fn write(folder: &Path) {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_terraform-provider-karp"));
    let built = binary.parent().unwrap();
    let overrides = HOSTS.map(|host| format!("    \"{host}/karp/karp\" = {built:?}\n")).concat();
    let rc = format!("provider_installation {{\n  dev_overrides {{\n{overrides}  }}\n  direct {{}}\n}}\n");
    std::fs::write(folder.join("tofu.rc"), rc).unwrap();
}
