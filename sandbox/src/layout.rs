//! Where things are: the checkout, the cache, the built binaries, the run directories.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The folders that the sandbox reads and writes.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The workspace's root.
    pub root: PathBuf,
    /// `KARP_CACHE`, or `$HOME/.cache/karp`: tools and virtual environments.
    pub cache: PathBuf,
    /// Cargo's profile folder, where `karp` and `terraform-provider-karp` are built.
    pub binaries: PathBuf,
}

impl Layout {
    /// Finds the folders of this process.
    ///
    /// # Errors
    /// When neither `KARP_CACHE` nor `HOME` is set, or the running program has no path.
    pub fn here() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.parent().context("the sandbox crate lies in the workspace's root")?.to_path_buf();
        Ok(Self { root, cache: cache()?, binaries: binaries()? })
    }

    /// Returns the run directory of a sandbox.
    pub fn run_dir(&self, name: &str) -> PathBuf {
        self.runs().join(name)
    }

    /// Returns the folder of all run directories of this checkout.
    pub fn runs(&self) -> PathBuf {
        self.root.join("target").join("sandbox")
    }

    /// Returns the folder with a tool's `go.mod`.
    pub fn tool_source(&self, tool: &str) -> PathBuf {
        self.root.join("sandbox").join("tools").join(tool)
    }

    /// Returns the folder of the emulator's overlay.
    pub fn moto_source(&self) -> PathBuf {
        self.root.join("sandbox").join("moto")
    }

    /// Returns the path of the built controller.
    pub fn karp(&self) -> PathBuf {
        self.binaries.join("karp")
    }

    /// Returns the path of the built provider.
    pub fn provider(&self) -> PathBuf {
        self.binaries.join("terraform-provider-karp")
    }
}

fn cache() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("KARP_CACHE").filter(|value| !value.is_empty()) {
        return Ok(std::path::absolute(given)?);
    }
    let home = std::env::var_os("HOME").context("set HOME or KARP_CACHE: the built tools are kept there")?;
    Ok(Path::new(&home).join(".cache").join("karp"))
}

/// The profile folder holds this program; a test's program lies one folder deeper, in `deps`.
fn binaries() -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding the running program")?;
    let folder = program.parent().context("the running program lies in a folder")?;
    Ok(if folder.ends_with("deps") { folder.parent().unwrap_or(folder).to_path_buf() } else { folder.to_path_buf() })
}
