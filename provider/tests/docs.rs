//! The pages under `docs/` are what the provider writes from its schema.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn the_registry_pages_are_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let out = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_terraform-provider-karp"));
    command.arg("docs").arg("--out").arg(out.path()).arg("--examples").arg(root.join("examples"));
    assert!(command.status().unwrap().success());

    let mut pages: Vec<PathBuf> =
        std::fs::read_dir(out.path().join("resources")).unwrap().map(|page| page.unwrap().path()).collect();
    pages.push(out.path().join("index.md"));
    for page in pages {
        let name = page.strip_prefix(out.path()).unwrap();
        let kept = std::fs::read_to_string(root.join("docs").join(name)).unwrap_or_default();
        let written = std::fs::read_to_string(&page).unwrap();
        let hint = "write them with: cargo run -p terraform-provider-karp -- docs --out docs --examples examples";
        assert!(kept == written, "docs/{} is out of date; {hint}", name.display());
    }
}
