//! The pages under `docs/` are what the provider writes from its schema, and the index of pains names what is there.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn the_registry_pages_are_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let out = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_terraform-provider-karp"));
    command.arg("docs").arg("--out").arg(out.path()).arg("--examples").arg(root.join("examples"));
    assert!(command.status().unwrap().success());

    let folders = ["resources", "data-sources", "ephemeral-resources", "functions"];
    let of_folder = |folder: &str| {
        let pages = std::fs::read_dir(out.path().join(folder)).unwrap();
        pages.map(|page| page.unwrap().path()).collect::<Vec<PathBuf>>()
    };
    let mut pages: Vec<PathBuf> = folders.into_iter().flat_map(of_folder).collect();
    pages.push(out.path().join("index.md"));
    for folder in folders {
        let kept = std::fs::read_dir(root.join("docs").join(folder)).unwrap().count();
        assert_eq!(kept, of_folder(folder).len(), "docs/{folder} has pages of what is no more");
    }
    for page in pages {
        let name = page.strip_prefix(out.path()).unwrap();
        let kept = std::fs::read_to_string(root.join("docs").join(name)).unwrap_or_default();
        let written = std::fs::read_to_string(&page).unwrap();
        let hint = "write them with: cargo run -p terraform-provider-karp -- docs --out docs --examples examples";
        assert!(kept == written, "docs/{} is out of date; {hint}", name.display());
    }
}

/// Decision 0021: in each row the code, then the tests, each after its file.
#[test]
fn what_ends_each_pain_is_where_the_index_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let index = std::fs::read_to_string(root.join("docs/decisions/0021-where-each-pain-ends.md")).unwrap();
    let rows: Vec<&str> = index.lines().filter(|line| line.starts_with("| P")).collect();
    assert_eq!(rows.len(), 19, "the survey has so many");
    for (at, row) in rows.iter().enumerate() {
        assert!(row.starts_with(&format!("| P{} | ", at + 1)), "{row}");
        for cell in row.split(" | ").skip(2) {
            let mut text = String::new();
            for name in cell.split('`').skip(1).step_by(2) {
                if name.contains('/') {
                    text = std::fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
                } else {
                    assert!(text.contains(&format!("fn {name}(")), "{row}: there is no test {name}");
                }
            }
        }
    }
}
