//! What the containers' processes wrote, for `kubectl logs`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use axum::body::{Body, Bytes};
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio_util::sync::CancellationToken;

/// How often a followed log is looked at.
const POLL: Duration = Duration::from_millis(100);
/// Bytes that are sent at once.
const CHUNK: usize = 64 * 1024;

/// A container by namespace, pod and name.
pub type Key = (String, String, String);

/// One run of a container.
#[derive(Clone)]
struct Run {
    file: PathBuf,
    ended: CancellationToken,
}

/// The log files of all containers, by run.
#[derive(Default)]
pub struct Logs {
    runs: Mutex<BTreeMap<Key, Vec<Run>>>,
}

/// What `kubectl logs` asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Wanted {
    tail_lines: Option<usize>,
    limit_bytes: Option<usize>,
    follow: bool,
    previous: bool,
}

impl Logs {
    /// Notes the log of a new run; the token is cancelled when the run has ended.
    pub fn begin(&self, key: Key, file: PathBuf) -> CancellationToken {
        let ended = CancellationToken::new();
        self.runs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(key)
            .or_default()
            .push(Run { file, ended: ended.clone() });
        ended
    }

    /// Forgets a container whose pod is gone.
    pub fn forget(&self, key: &Key) {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    fn run(&self, key: &Key, previous: bool) -> Option<Run> {
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.get(key)?.iter().rev().nth(usize::from(previous)).cloned()
    }
}

/// Returns the log of a container as asked for.
///
/// # Errors
/// When the container has not run, or its log cannot be read.
pub async fn read(logs: &Logs, key: &Key, wanted: &Wanted) -> Result<Body> {
    let run = logs.run(key, wanted.previous).with_context(|| {
        let run = if wanted.previous { "earlier run" } else { "run" };
        format!("container {} of pod {}/{} has no {run}", key.2, key.0, key.1)
    })?;
    let text = tokio::fs::read(&run.file).await.with_context(|| format!("reading {}", run.file.display()))?;
    let start = wanted.tail_lines.map_or(0, |lines| tail(&text, lines));
    let mut begin = text[start..].to_vec();
    if let Some(limit) = wanted.limit_bytes {
        begin.truncate(limit);
    }
    if !wanted.follow {
        return Ok(Body::from(begin));
    }
    let state = (run, text.len() as u64, Some(Bytes::from(begin)));
    Ok(Body::from_stream(futures::stream::try_unfold(state, |(run, at, first)| async move {
        if let Some(first) = first.filter(|first| !first.is_empty()) {
            return Ok::<_, std::io::Error>(Some((first, (run, at, None))));
        }
        loop {
            let ended = run.ended.is_cancelled();
            let more = read_from(&run.file, at).await?;
            if !more.is_empty() {
                let next = at + more.len() as u64;
                return Ok(Some((more, (run, next, None))));
            }
            if ended {
                return Ok(None);
            }
            tokio::time::sleep(POLL).await;
        }
    })))
}

async fn read_from(file: &Path, at: u64) -> std::io::Result<Bytes> {
    let mut file = tokio::fs::File::open(file).await?;
    file.seek(std::io::SeekFrom::Start(at)).await?;
    let mut buffer = vec![0; CHUNK];
    let count = file.read(&mut buffer).await?;
    buffer.truncate(count);
    Ok(buffer.into())
}

/// Returns where the last `lines` lines begin.
fn tail(text: &[u8], lines: usize) -> usize {
    let whole = text.strip_suffix(b"\n").unwrap_or(text);
    if lines == 0 {
        return text.len();
    }
    whole.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').nth(lines - 1).map_or(0, |(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_counted_in_lines() {
        let text = b"one\ntwo\nthree\n";
        for (lines, begin) in [(0, 14), (1, 8), (2, 4), (3, 0), (9, 0)] {
            assert_eq!(tail(text, lines), begin, "{lines} lines");
        }
        assert_eq!(tail(b"one\ntwo", 1), 4);
    }

    #[tokio::test]
    async fn a_followed_log_ends_with_its_run() {
        let folder = tempfile::tempdir().unwrap();
        let (file, key) = (folder.path().join("log"), ("n".to_owned(), "p".to_owned(), "c".to_owned()));
        std::fs::write(&file, "one\n").unwrap();
        let logs = Logs::default();
        let ended = logs.begin(key.clone(), file.clone());
        let body = read(&logs, &key, &Wanted { follow: true, ..Wanted::default() }).await.unwrap();
        let reader = tokio::spawn(http_body_util::BodyExt::collect(body));
        tokio::time::sleep(POLL * 2).await;
        std::fs::write(&file, "one\ntwo\n").unwrap();
        ended.cancel();
        assert_eq!(reader.await.unwrap().unwrap().to_bytes(), "one\ntwo\n");
        assert!(read(&logs, &key, &Wanted { previous: true, ..Wanted::default() }).await.is_err());
    }
}
