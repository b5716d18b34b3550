//! The tests that `cargo verify` runs on sandboxes, in lanes side by side: each lane has a sandbox of its own, on which its parts follow one another.
//! On one sandbox controllers take turns, and their tests wait more than they work.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// Tests of the controller that are parts of their own, by lane; all others of it are of the part [`REST`].
const NAMED: [(&str, &[&str]); 3] = [("1", &["aws", "mishaps"]), ("2", &["faults", "simulated"]), ("3", &["together"])];
/// Where the controller's other tests are.
const REST: &str = "controller";
/// The packages that have parts of their own; the tests of all others are of the part `others`.
const CONTROLLER: &str = "karp";
const PROVIDER: &str = "terraform-provider-karp";
/// What is tested without a sandbox, see `PURE` in `verify`.
const PURE: &str = "karp-domain";

/// Some tests, by one call of cargo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Names the step and its log.
    pub name: String,
    /// Cargo's arguments.
    pub arguments: Vec<String>,
}

/// Parts that follow one another on one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Tells its sandbox from the others'.
    pub name: String,
    /// In the order in which they are run.
    pub parts: Vec<Part>,
}

/// Lists the lanes of a checkout: whatever tests its packages have, each is in one part. The longest parts begin.
///
/// # Errors
/// When the controller's tests cannot be listed, or one that is named is not there.
pub fn all(root: &Path) -> Result<Vec<Lane>> {
    let targets = targets(&root.join("controller").join("tests"))?;
    let (named, rest): (Vec<_>, Vec<_>) = targets.iter().partition(|target| is_named(target));
    ensure!(
        named.len() == NAMED.iter().map(|(_, tests)| tests.len()).sum::<usize>(),
        "of the controller's tests that have a lane only these are there: {named:?}"
    );
    let mut lanes: Vec<Lane> = NAMED.iter().map(|(name, tests)| lane(name, tests)).collect();
    let mut of_rest = vec!["test", "-p", CONTROLLER, "--bins"];
    of_rest.extend(rest.iter().flat_map(|target| ["--test", target]));
    let others = ["test", "--workspace", "--exclude", PURE, "--exclude", CONTROLLER, "--exclude", PROVIDER];
    if let Some(last) = lanes.last_mut() {
        last.parts.extend([part(REST, &of_rest), part("others", &others)]);
    }
    lanes.push(Lane { name: "4".to_owned(), parts: vec![part("provider", &["test", "-p", PROVIDER])] });
    Ok(lanes)
}

fn is_named(target: &str) -> bool {
    NAMED.iter().any(|(_, tests)| tests.contains(&target))
}

fn lane(name: &str, tests: &[&str]) -> Lane {
    let of = |test: &&str| part(test, &["test", "-p", CONTROLLER, "--test", test]);
    Lane { name: name.to_owned(), parts: tests.iter().map(of).collect() }
}

fn part(name: &str, arguments: &[&str]) -> Part {
    let arguments = arguments.iter().chain(&["--no-fail-fast"]).map(|&argument| argument.to_owned()).collect();
    Part { name: name.to_owned(), arguments }
}

/// Lists the test targets of a package as cargo finds them: files, and folders with a `main.rs`.
fn targets(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
        let path = entry?.path();
        let is_target = path.extension().is_some_and(|ending| ending == "rs") || path.join("main.rs").is_file();
        if let (true, Some(name)) = (is_target, path.file_stem().and_then(|name| name.to_str())) {
            found.push(name.to_owned());
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_test_of_the_controller_is_in_one_part() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let lanes = all(root).unwrap();
        let mut run: Vec<&str> = Vec::new();
        for part in lanes.iter().flat_map(|lane| &lane.parts) {
            run.extend(part.arguments.windows(2).filter(|pair| pair[0] == "--test").map(|pair| pair[1].as_str()));
        }
        let there = targets(&root.join("controller/tests")).unwrap();
        assert_eq!(run.iter().copied().collect::<BTreeSet<_>>(), there.iter().map(String::as_str).collect());
        assert_eq!(run.len(), there.len(), "none twice");
        let names: BTreeSet<&str> = lanes.iter().flat_map(|lane| &lane.parts).map(|part| part.name.as_str()).collect();
        assert_eq!(names.len(), lanes.iter().map(|lane| lane.parts.len()).sum::<usize>(), "each has a log of its own");
    }

    #[test]
    fn targets_are_files_and_folders_with_a_main() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b/main.rs", "a.rs", "support/mod.rs", "mistakes/01.tf"] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        assert_eq!(targets(folder.path()).unwrap(), ["a", "b"]);
        assert!(all(folder.path()).is_err(), "what has a lane is not there");
    }
}
