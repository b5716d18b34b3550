//! The CLI configuration by which OpenTofu takes the built provider.

use std::path::{Path, PathBuf};

/// Writes `tofu.rc` into a folder.
pub fn write(folder: &Path) {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_terraform-provider-karp"));
    let built = binary.parent().unwrap();
    let rc = format!(
        "provider_installation {{\n  dev_overrides {{\n    \"registry.opentofu.org/karp/karp\" = {built:?}\n  }}\n  direct {{}}\n}}\n"
    );
    std::fs::write(folder.join("tofu.rc"), rc).unwrap();
}
