//! The tests that `cargo verify` runs on sandboxes, in lanes side by side: each lane has a sandbox of its own, on which its parts follow one another.
//! On one sandbox controllers take turns, and their tests wait more than they work.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// Tests of the controller and the provider that are parts of their own, by lane; all others of each are of the part of [`REST`]. What measures
/// how long something takes comes last in its lane, when less goes on beside it.
const NAMED: [(&str, &str, &[&str]); 4] = [
    ("1", CONTROLLER, &["mishaps", "aws"]),
    ("2", CONTROLLER, &["simulated", "faults"]),
    ("3", CONTROLLER, &["together"]),
    ("4", PROVIDER, &["aws_resources", "kubernetes_resources"]),
];
/// AWS emulators of a lane's sandbox, where it has more than one: the provider's tests change the whole account, and took turns at one.
const EMULATORS: [(&str, usize); 1] = [("4", 2)];
/// Where the other tests of both are, those beside the code among them: lane, package, part.
const REST: [(&str, &str, &str); 2] = [("3", CONTROLLER, "controller"), ("4", PROVIDER, "provider")];
/// Where the tests of all other packages are.
const OTHERS: (&str, &str) = ("3", "others");
/// The packages that have parts of their own.
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
    /// AWS emulators of its sandbox.
    pub emulators: usize,
    /// In the order in which they are run.
    pub parts: Vec<Part>,
}

/// Lists the lanes of a checkout: whatever tests its packages have, each is in one part.
///
/// # Errors
/// When the controller's tests cannot be listed, or one that is named is not there.
pub fn all(root: &Path) -> Result<Vec<Lane>> {
    let mut lanes: Vec<Lane> = NAMED.iter().map(|(name, package, tests)| lane(name, package, tests)).collect();
    let mut add = |lane: &str, part: Part| {
        lanes.iter_mut().filter(|known| known.name == lane).for_each(|lane| lane.parts.insert(0, part.clone()));
    };
    for (lane, package, name) in REST {
        let targets = targets(&root.join(folder(package)).join("tests"))?;
        let named: Vec<&str> = named(package).collect();
        let there = |test: &&&str| !targets.iter().any(|target| target == **test);
        let missing: Vec<_> = named.iter().filter(there).collect();
        ensure!(missing.is_empty(), "of the tests of {package} these have a lane and are not there: {missing:?}");
        let mut arguments = vec!["test", "-p", package, "--bins"];
        let rest = targets.iter().filter(|target| !named.contains(&target.as_str()));
        arguments.extend(rest.flat_map(|target| ["--test", target]));
        add(lane, part(name, &arguments));
    }
    let others = ["test", "--workspace", "--exclude", PURE, "--exclude", CONTROLLER, "--exclude", PROVIDER];
    add(OTHERS.0, part(OTHERS.1, &others));
    Ok(lanes)
}

/// The tests of a package that are parts of their own.
fn named(package: &str) -> impl Iterator<Item = &'static str> {
    NAMED.iter().filter(move |(_, of, _)| *of == package).flat_map(|(_, _, tests)| tests.iter().copied())
}

fn folder(package: &str) -> &str {
    if package == CONTROLLER { "controller" } else { "provider" }
}

fn lane(name: &str, package: &str, tests: &[&str]) -> Lane {
    let of = |test: &&str| part(test, &["test", "-p", package, "--test", test]);
    let emulators = EMULATORS.iter().find(|(lane, _)| *lane == name).map_or(1, |(_, count)| *count);
    Lane { name: name.to_owned(), emulators, parts: tests.iter().map(of).collect() }
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
    fn each_test_of_controller_and_provider_is_in_one_part() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let lanes = all(root).unwrap();
        for package in [CONTROLLER, PROVIDER] {
            let of = |part: &&Part| part.arguments.windows(2).any(|pair| pair == ["-p", package]);
            let mut run: Vec<&str> = Vec::new();
            for part in lanes.iter().flat_map(|lane| &lane.parts).filter(of) {
                run.extend(part.arguments.windows(2).filter(|pair| pair[0] == "--test").map(|pair| pair[1].as_str()));
            }
            let there = targets(&root.join(folder(package)).join("tests")).unwrap();
            assert_eq!(run.iter().copied().collect::<BTreeSet<_>>(), there.iter().map(String::as_str).collect());
            assert_eq!(run.len(), there.len(), "none twice");
        }
        let names: BTreeSet<&str> = lanes.iter().flat_map(|lane| &lane.parts).map(|part| part.name.as_str()).collect();
        let parts = lanes.iter().map(|lane| lane.parts.len()).sum::<usize>();
        assert_eq!(names.len(), parts, "each has a log of its own");
        let tests = NAMED.iter().map(|(_, _, tests)| tests.len()).sum::<usize>();
        assert_eq!(parts, tests + REST.len() + 1, "whatever is left has its lane");
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
