//! Archives whose bytes depend on nothing but their entries and one time: sorted, owned by root, compressed in one way.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::{Cursor, Write as _},
};

use anyhow::{Context as _, Result};
use flate2::{Compression, write::GzEncoder};
use jiff::{Timestamp, tz::TimeZone};
use tar::{EntryType, Header};
use zip::{CompressionMethod, DateTime, ZipWriter, write::SimpleFileOptions};

/// DEFLATE's best: a release is made once and fetched often.
const LEVEL: u32 = 9;

/// A file in an archive.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    /// Its path in the archive, with `/` between names and none at the start.
    pub path: String,
    /// Its permission bits.
    pub mode: u32,
    /// Its bytes.
    pub content: Cow<'a, [u8]>,
}

impl<'a> Entry<'a> {
    /// Makes an entry of bytes that it owns or borrows.
    pub fn new(path: String, mode: u32, content: impl Into<Cow<'a, [u8]>>) -> Self {
        Self { path, mode, content: content.into() }
    }
}

/// Makes a zip; it has no folders of its own. Its times are UTC, to two seconds, and not before 1980.
///
/// # Errors
/// When a name comes twice or a file has 4 GiB.
pub fn zipped(entries: &[Entry<'_>], time: Timestamp) -> Result<Vec<u8>> {
    let mut sorted: Vec<&Entry<'_>> = entries.iter().collect();
    sorted.sort_by(|one, other| one.path.cmp(&other.path));
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .compression_level(Some(i64::from(LEVEL)))
        .last_modified_time(dos(time));
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for entry in sorted {
        let context = || format!("packing {}", entry.path);
        zip.start_file(entry.path.as_str(), options.unix_permissions(entry.mode)).with_context(context)?;
        zip.write_all(&entry.content).with_context(context)?;
    }
    Ok(zip.finish().context("finishing a zip")?.into_inner())
}

fn dos(time: Timestamp) -> DateTime {
    let at = TimeZone::UTC.to_datetime(time);
    let [month, day, hour, minute, second] =
        [at.month(), at.day(), at.hour(), at.minute(), at.second()].map(i8::unsigned_abs);
    DateTime::from_date_and_time(at.year().unsigned_abs(), month, day, hour, minute, second).unwrap_or_default()
}

/// Makes a tar of root's files with the folders that they lie in (mode 755), in the order of their paths.
///
/// # Errors
/// When a path is not one that a tar can hold.
pub fn tarred(entries: &[Entry<'_>], time: Timestamp) -> Result<Vec<u8>> {
    let mut places: BTreeMap<&str, Option<&Entry<'_>>> = BTreeMap::new();
    for entry in entries {
        for (end, _) in entry.path.match_indices('/') {
            places.insert(&entry.path[..end], None);
        }
        places.insert(&entry.path, Some(entry));
    }
    let mut archive = tar::Builder::new(Vec::new());
    for (path, entry) in places {
        let mut header = Header::new_ustar();
        header.set_mtime(time.as_second().unsigned_abs());
        header.set_uid(0);
        header.set_gid(0);
        let appended = match entry {
            Some(entry) => {
                header.set_entry_type(EntryType::Regular);
                header.set_mode(entry.mode);
                header.set_size(entry.content.len() as u64);
                archive.append_data(&mut header, path, &*entry.content)
            }
            None => {
                header.set_entry_type(EntryType::Directory);
                header.set_mode(0o755);
                header.set_size(0);
                archive.append_data(&mut header, format!("{path}/"), std::io::empty())
            }
        };
        appended.with_context(|| format!("packing {path}"))?;
    }
    archive.into_inner().context("finishing a tar")
}

/// Compresses with gzip, whose header gets neither name nor time.
///
/// # Errors
/// None that a writer into memory has.
pub fn gzipped(content: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::new(LEVEL));
    gzip.write_all(content).context("compressing")?;
    gzip.finish().context("compressing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_entries_does_not_matter() {
        let entries = [("b/c/d", 0o755), ("a", 0o644), ("b/a", 0o644)]
            .map(|(path, mode)| Entry::new(path.to_owned(), mode, path.as_bytes()));
        let reversed: Vec<Entry<'_>> = entries.iter().rev().cloned().collect();
        let time = Timestamp::from_second(1_767_323_045).unwrap();
        let tar = tarred(&entries, time).unwrap();
        assert_eq!(tar, tarred(&reversed, time).unwrap());
        assert_eq!(zipped(&entries, time).unwrap(), zipped(&reversed, time).unwrap());
        let mut archive = tar::Archive::new(&tar[..]);
        let told = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
            assert_eq!(header.mtime().unwrap(), 1_767_323_045);
            (entry.path().unwrap().to_str().unwrap().to_owned(), header.mode().unwrap())
        });
        let expected = [("a", 0o644), ("b/", 0o755), ("b/a", 0o644), ("b/c/", 0o755), ("b/c/d", 0o755)];
        assert!(told.eq(expected.map(|(path, mode)| (path.to_owned(), mode))));
    }

    #[test]
    fn a_time_that_a_zip_cannot_say_is_its_first() {
        assert_eq!(dos(Timestamp::UNIX_EPOCH), DateTime::default());
        assert_eq!(dos("2026-01-02T23:04:05Z".parse().unwrap()).to_string(), "2026-01-02 23:04:04");
        assert!(
            zipped(
                &[Entry::new("a".into(), 0o644, &b""[..]), Entry::new("a".into(), 0o644, &b""[..])],
                Timestamp::UNIX_EPOCH
            )
            .is_err()
        );
    }
}
