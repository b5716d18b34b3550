//! The controller and the provider as they were built when the sandbox started.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::layout::Layout;

/// A sandbox's own links to both binaries: a build that happens meanwhile neither changes them nor the checksum that tofu locked.
#[derive(Debug, Clone)]
pub struct Products {
    /// The controller.
    pub karp: PathBuf,
    /// The provider.
    pub provider: PathBuf,
}

impl Products {
    /// Links, or copies from another file system, what is built. What is not built stays missing: whoever starts it will say so.
    ///
    /// # Errors
    /// When a binary cannot be copied.
    pub fn freeze(layout: &Layout, run_dir: &Path) -> Result<Self> {
        let folder = run_dir.join("bin");
        std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        Ok(Self { karp: freeze(&layout.karp(), &folder)?, provider: freeze(&layout.provider(), &folder)? })
    }
}

fn freeze(built: &Path, folder: &Path) -> Result<PathBuf> {
    let frozen = folder.join(built.file_name().context("a binary has a name")?);
    if built.exists() && std::fs::hard_link(built, &frozen).is_err() {
        std::fs::copy(built, &frozen).with_context(|| format!("copying {}", built.display()))?;
    }
    Ok(frozen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_build_does_not_change_what_was_frozen() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout {
            root: folder.path().to_path_buf(),
            cache: folder.path().join("cache"),
            binaries: folder.path().to_path_buf(),
        };
        std::fs::write(layout.karp(), "old").unwrap();
        let products = Products::freeze(&layout, &folder.path().join("run")).unwrap();
        // As a linker does: the old file goes, a new one takes its name.
        std::fs::remove_file(layout.karp()).unwrap();
        std::fs::write(layout.karp(), "new").unwrap();
        assert_eq!(std::fs::read_to_string(products.karp).unwrap(), "old");
        assert!(!products.provider.exists(), "what is not built is not made up");
    }
}
