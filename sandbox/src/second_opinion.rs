//! Another evaluator of IAM policies, made by others: it must reach the same verdicts as [`crate::iam`].
//!
//! It is a package of npm under a copyleft licence, so it is a tool of the tests only: installed into the cache from what
//! `sandbox/tools/iam-simulate/package-lock.json` pins (versions and checksums; npm's own configuration says from where), never shipped.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    layout::Layout,
    progress::Step,
    tools::{key, read, run, whole},
};

/// What is installed, and by what it is run: all of it decides the folder's name.
const SOURCES: [&str; 3] = ["package.json", "package-lock.json", "check.mjs"];

/// The program that holds the other evaluator's verdicts against ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecondOpinion {
    folder: PathBuf,
}

impl SecondOpinion {
    /// Installs it if the cache has it not.
    ///
    /// # Errors
    /// When npm cannot install what is pinned; the message has the end of its output.
    pub fn ensure(layout: &Layout) -> Result<Self> {
        let (source, folder) = (source(layout), place(layout)?);
        whole(&folder, |fresh| install(&source, fresh))?;
        Ok(Self { folder })
    }

    /// Returns it if it is in the cache already.
    ///
    /// # Errors
    /// When its sources cannot be read.
    pub fn installed(layout: &Layout) -> Result<Option<Self>> {
        let folder = place(layout)?;
        Ok(folder.is_dir().then_some(Self { folder }))
    }

    /// Prepares the call that judges a file of verdicts ([`crate::iam::Proof`]); it fails where the two differ, and tells it.
    pub fn on(&self, cases: &Path) -> Command {
        let mut command = Command::new("node");
        command.arg(self.folder.join("check.mjs")).arg(cases);
        command
    }
}

fn source(layout: &Layout) -> PathBuf {
    layout.tool_source("iam-simulate")
}

fn place(layout: &Layout) -> Result<PathBuf> {
    let source = source(layout);
    let parts = SOURCES.iter().map(|name| read(&source.join(name))).collect::<Result<Vec<_>>>()?;
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    Ok(layout.cache.join("tools").join(format!("iam-simulate-{}", key(&parts))))
}

fn install(source: &Path, fresh: &Path) -> Result<()> {
    let mut step = Step::begin("install another evaluator of IAM policies from pinned packages");
    for name in SOURCES {
        std::fs::copy(source.join(name), fresh.join(name)).with_context(|| format!("copying {name}"))?;
    }
    let mut command = Command::new("npm");
    // `ci` installs what the lock file says, checksums included, or fails; none of the packages has a script that it needs.
    command.current_dir(fresh).args(["ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund"]);
    run(&mut step, "npm ci", &mut command, &fresh.with_extension("log"))?;
    step.end();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(root: &Path, cache: &Path) -> Layout {
        Layout { root: root.to_path_buf(), cache: cache.to_path_buf(), binaries: cache.to_path_buf() }
    }

    #[test]
    fn each_source_decides_the_folder() {
        let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let layout = layout(root.path(), cache.path());
        assert!(place(&layout).is_err(), "without its sources it has no place");
        std::fs::create_dir_all(source(&layout)).unwrap();
        for name in SOURCES {
            std::fs::write(source(&layout).join(name), name).unwrap();
        }
        let one = place(&layout).unwrap();
        assert_eq!(SecondOpinion::installed(&layout).unwrap(), None);
        std::fs::create_dir_all(&one).unwrap();
        assert_eq!(SecondOpinion::installed(&layout).unwrap(), Some(SecondOpinion { folder: one.clone() }));
        for name in SOURCES {
            std::fs::write(source(&layout).join(name), "changed").unwrap();
            assert_ne!(place(&layout).unwrap(), one, "{name}");
            std::fs::write(source(&layout).join(name), name).unwrap();
        }
    }

    #[test]
    fn what_is_pinned_names_checksums_and_no_registry() {
        let lock = std::fs::read(source(&Layout::here().unwrap()).join("package-lock.json")).unwrap();
        let lock: serde_json::Value = serde_json::from_slice(&lock).unwrap();
        let packages = lock["packages"].as_object().unwrap().iter().filter(|(path, _)| !path.is_empty());
        for (path, package) in packages {
            assert!(package["integrity"].as_str().is_some_and(|sum| sum.starts_with("sha512-")), "{path}");
            assert!(package["resolved"].is_null(), "{path}: npm's configuration says where packages come from");
        }
    }
}
