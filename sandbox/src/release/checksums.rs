//! The files of a release, and their sums as `sha256sum -c` reads them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use super::archive::Entry;

/// A file that was written, or a folder of files.
#[derive(Debug, Clone)]
pub struct Written {
    /// Its name; a folder's ends with a slash.
    pub name: String,
    /// Its size; of a folder, that of all its files.
    pub bytes: u64,
    /// The hexadecimal SHA-256 of a file.
    sha256: Option<String>,
}

/// A folder that remembers what was written into it.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
    written: Vec<Written>,
}

impl Files {
    /// Makes the folder where it is missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn in_folder(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        Ok(Self { folder: folder.to_path_buf(), written: Vec::new() })
    }

    /// Writes a file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, name: &str, content: &[u8]) -> Result<()> {
        write(&self.folder.join(name), content)?;
        let sha256 = Some(sha256(content));
        self.written.push(Written { name: name.to_owned(), bytes: content.len() as u64, sha256 });
        Ok(())
    }

    /// Writes sums. A signature that was made of others goes: it is taken for theirs, and refused.
    ///
    /// # Errors
    /// When they cannot be written, or the signature cannot be removed.
    pub fn write_sums(&mut self, name: &str, sums: &str) -> Result<()> {
        let signature = self.folder.join(format!("{name}.sig"));
        let same = std::fs::read(self.folder.join(name)).is_ok_and(|there| there == sums.as_bytes());
        if !same && signature.exists() {
            std::fs::remove_file(&signature).with_context(|| format!("removing {}", signature.display()))?;
        }
        self.write(name, sums.as_bytes())
    }

    /// Writes a folder that holds these files and no others; it gets no sum.
    ///
    /// # Errors
    /// When what was there cannot be removed, or a file cannot be written.
    pub fn write_folder(&mut self, name: &str, entries: &[Entry<'_>]) -> Result<()> {
        let folder = self.folder.join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
        }
        for entry in entries {
            let path = folder.join(&entry.path);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
            }
            write(&path, &entry.content)?;
        }
        let bytes = entries.iter().map(|entry| entry.content.len() as u64).sum();
        self.written.push(Written { name: format!("{name}/"), bytes, sha256: None });
        Ok(())
    }

    /// Answers one line a file, `SUM  NAME`, in the order of names.
    pub fn sums(&self, which: impl Fn(&str) -> bool) -> String {
        let files = self.written.iter().filter(|file| which(&file.name));
        let mut files: Vec<(&str, &str)> =
            files.filter_map(|file| Some((file.name.as_str(), file.sha256.as_deref()?))).collect();
        files.sort_unstable();
        files.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect()
    }

    /// Lists what was written, in that order.
    pub fn written(&self) -> &[Written] {
        &self.written
    }

    /// Tells where it was written.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    std::fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}

/// Returns the hexadecimal SHA-256 of some bytes.
pub fn sha256(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}
