//! Files and directories as text, unpacked where they are compressed.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::{BadInput, Origin};

/// What a directory is searched for.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];
/// Most bytes of one file, unpacked: far above a cluster of 100,000 pods, far below what would hurt the machine.
const MAX_BYTES: u64 = 4 << 30;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Lists the files behind some paths. Directories are searched through, in the order of names; hidden entries are passed over.
pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, BadInput> {
    let mut all = Vec::new();
    for path in paths {
        if !path.is_dir() {
            all.push(path.clone());
            continue;
        }
        let before = all.len();
        search(path, &mut all)?;
        if all.len() == before {
            let message = "no .yaml, .yml or .json file in it (also packed, with .gz)";
            return Err(Origin::new(path).problem(message).into());
        }
    }
    Ok(all)
}

fn search(directory: &Path, all: &mut Vec<PathBuf>) -> Result<(), BadInput> {
    let failed = |error: std::io::Error| Origin::new(directory).problem(error.to_string());
    let mut entries = std::fs::read_dir(directory).map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        let plain = name.strip_suffix(".gz").unwrap_or(&name);
        let extension = plain.rsplit_once('.').map(|(_, extension)| extension);
        // a link is not followed into a directory: it may lead back up
        if entry.file_type().map_err(failed)?.is_dir() {
            search(&path, all)?;
        } else if extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) {
            all.push(path);
        }
    }
    Ok(())
}

/// Reads a file's text; standard input for `-`.
pub fn text(file: &Path) -> Result<String, BadInput> {
    let failed = |error: std::io::Error| Origin::new(file).problem(error.to_string());
    let reader: Box<dyn Read> = match file == Path::new("-") {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(std::fs::File::open(file).map_err(failed)?),
    };
    let mut bytes = Vec::new();
    // One byte more than is allowed tells that there is more.
    reader.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.starts_with(&GZIP_MAGIC) {
        let mut unpacked = Vec::new();
        let mut unpacker = flate2::read::MultiGzDecoder::new(bytes.as_slice()).take(MAX_BYTES + 1);
        unpacker.read_to_end(&mut unpacked).map_err(failed)?;
        bytes = unpacked;
    }
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Origin::new(file).problem("it is larger than 4 GiB").into());
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
        Origin::new(file).at(line).problem("it is not UTF-8 text").into()
    })
}
