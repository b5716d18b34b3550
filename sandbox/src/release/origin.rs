//! What a release is of: version, commit and time. There is no other time in its files, so that they can be made again.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;

use crate::checkout;

/// A time that whoever builds again asks for, in seconds since 1970 (<https://reproducible-builds.org/specs/source-date-epoch/>).
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// Where a release comes from.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The workspace's version.
    pub version: String,
    /// What all files and archive entries are dated: `SOURCE_DATE_EPOCH`, or the commit's time.
    pub time: Timestamp,
    /// The commit, with `-dirty` where files differ from it; nothing outside a repository.
    pub revision: Option<String>,
}

impl Origin {
    /// Asks git about the checkout.
    ///
    /// # Errors
    /// When nothing tells a time, or it is none.
    pub fn of(root: &Path) -> Result<Self> {
        let time = match std::env::var(EPOCH) {
            Ok(given) => seconds(&given).with_context(|| format!("{EPOCH}={given}"))?,
            Err(_) => {
                let told =
                    checkout::git(root, &["log", "-1", "--no-show-signature", "--format=%ct"]).with_context(|| {
                        format!("git does not tell the commit's time: set {EPOCH} to seconds since 1970")
                    })?;
                seconds(&told)?
            }
        };
        let revision = checkout::commit(root);
        if revision.as_ref().is_some_and(|commit| commit.ends_with("-dirty")) {
            eprintln!("warning: files differ from the commit; its name gets the suffix -dirty");
        }
        Ok(Self { version: env!("CARGO_PKG_VERSION").to_owned(), time, revision })
    }
}

fn seconds(text: &str) -> Result<Timestamp> {
    let seconds: i64 = text.trim().parse().with_context(|| format!("{text:?} is no number of seconds since 1970"))?;
    ensure!(seconds >= 0, "{seconds} is before 1970, which archives cannot say");
    Timestamp::from_second(seconds).with_context(|| format!("{seconds} is no time"))
}

#[cfg(test)]
pub(super) fn fixture() -> Origin {
    Origin {
        version: "1.2.3".to_owned(),
        time: "2026-01-02T03:04:05Z".parse().unwrap(),
        revision: Some("0123456789abcdef".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_seconds_since_1970() {
        assert_eq!(seconds("1767323045\n").unwrap(), fixture().time);
        assert_eq!(seconds("0").unwrap(), Timestamp::UNIX_EPOCH);
        for bad in ["", "today", "-1", "99999999999999"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
