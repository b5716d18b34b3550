//! The record of `cargo verify --deep`, `target/deep/record.json`: on what machine which commit was verified, what each step came to,
//! and the figures that were measured. It is written after every step, so that an interrupted run leaves what it knows.

use std::{collections::BTreeMap, path::Path, time::Instant};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::checkout;

/// What became of one step.
#[derive(Debug, Clone, Serialize)]
pub struct StepRecord {
    /// Its name.
    pub step: String,
    /// Whether it held.
    pub passed: bool,
    /// How long it took.
    pub seconds: f64,
}

/// What one run of `cargo verify --deep` came to.
#[derive(Debug, Serialize)]
pub struct Record {
    /// The commit, with `-dirty` where files differed from it.
    pub commit: String,
    /// Processors of the machine.
    pub cores: usize,
    /// When it began.
    pub began: Timestamp,
    /// How long it has taken so far.
    pub seconds: f64,
    /// Whether all steps were run, and held.
    pub complete: bool,
    /// The steps in order.
    pub steps: Vec<StepRecord>,
    /// What was measured: times in milliseconds, and each demo's length and memory.
    pub figures: BTreeMap<String, Value>,
    #[serde(skip)]
    clock: Instant,
}

impl Record {
    /// Begins the record of a checkout.
    pub fn begin(root: &Path) -> Self {
        Self {
            commit: checkout::commit(root).unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            began: Timestamp::now(),
            seconds: 0.0,
            complete: false,
            steps: Vec::new(),
            figures: BTreeMap::new(),
            clock: Instant::now(),
        }
    }

    /// Adds a figure; a further one of the same name makes a list.
    pub fn figure(&mut self, name: &str, value: Value) {
        match self.figures.entry(name.to_owned()).or_insert_with(|| Value::Array(Vec::new())) {
            Value::Array(all) => all.push(value),
            other => *other = value,
        }
    }

    /// Adds what a demo's timeline tells: how long it took, and the controller's memory.
    ///
    /// # Errors
    /// When the timeline is not there or not understood.
    pub fn demo(&mut self, timeline: &Path) -> Result<()> {
        let text = std::fs::read(timeline).with_context(|| format!("reading {}", timeline.display()))?;
        let entries: Vec<Value> = serde_json::from_slice(&text)?;
        let memory = entries.iter().find(|entry| entry["event"] == "controller-memory");
        self.figure("demo_seconds", entries.last().map(|entry| entry["t_seconds"].clone()).unwrap_or_default());
        self.figure("demo_controller_memory", memory.map(|entry| entry["detail"].clone()).unwrap_or_default());
        Ok(())
    }

    /// Writes it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&mut self, path: &Path) -> Result<()> {
        self.seconds = rounded(self.clock);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        std::fs::write(path, serde_json::to_vec_pretty(self)?).with_context(|| format!("writing {}", path.display()))
    }
}

/// Returns the seconds since a moment, to a tenth.
pub fn rounded(begin: Instant) -> f64 {
    (begin.elapsed().as_secs_f64() * 10.0).round() / 10.0
}

/// Answers a number for what is committed, the same for the same files; 0 where git does not tell.
pub(crate) fn seed(root: &Path) -> u64 {
    let tree = checkout::git(root, &["rev-parse", "HEAD^{tree}"]).unwrap_or_default();
    tree.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_holds_steps_and_what_the_demos_told() {
        let folder = tempfile::tempdir().unwrap();
        let timeline = folder.path().join("timeline.json");
        let mut record = Record::begin(Path::new(env!("CARGO_MANIFEST_DIR")));
        for (seconds, memory) in [(90.5, "41.0 MiB resident at most"), (80.0, "40.0 MiB resident at most")] {
            let entries = json!([{ "t_seconds": seconds, "event": "controller-memory", "detail": memory }]);
            std::fs::write(&timeline, entries.to_string()).unwrap();
            record.demo(&timeline).unwrap();
        }
        record.steps.push(StepRecord { step: "tests".to_owned(), passed: true, seconds: 1.0 });
        let path = folder.path().join("deep/record.json");
        record.write(&path).unwrap();
        let read: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(read["figures"]["demo_seconds"], json!([90.5, 80.0]));
        assert_eq!((&read["steps"][0]["step"], &read["complete"]), (&json!("tests"), &json!(false)));
        assert!(record.demo(&folder.path().join("none.json")).is_err());
    }
}
