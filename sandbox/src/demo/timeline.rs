//! What happened in a demo, when, on what node and at what price per hour.

use std::{io::IsTerminal, path::Path, time::Instant};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

/// One line of the timeline, as `timeline.json` holds it.
#[derive(Debug, Clone, Serialize)]
pub struct Entry {
    /// Seconds since the play began, set-up not counted.
    pub t_seconds: f64,
    /// What happened, as a short stable name such as `node-ready`.
    pub event: String,
    /// On what, in words.
    pub detail: String,
}

/// Collects the entries of one demo and prints each as it happens.
#[derive(Debug)]
pub struct Timeline {
    begin: Instant,
    entries: Vec<Entry>,
}

impl Timeline {
    /// Starts the clock.
    pub fn begin() -> Self {
        Self { begin: Instant::now(), entries: Vec::new() }
    }

    /// Records an event now and prints its line.
    pub fn record(&mut self, event: &str, detail: impl Into<String>) {
        let entry = Entry {
            t_seconds: (self.begin.elapsed().as_secs_f64() * 10.0).round() / 10.0,
            event: event.to_owned(),
            detail: detail.into(),
        };
        let (time, name) = if std::io::stdout().is_terminal() {
            (Style::new().dimmed(), Style::new().fg_color(Some(AnsiColor::Cyan.into())).bold())
        } else {
            (Style::new(), Style::new())
        };
        anstream::println!(
            "{time}{:>7.1} s{time:#}  {name}{:<22}{name:#} {}",
            entry.t_seconds,
            entry.event,
            entry.detail
        );
        self.entries.push(entry);
    }

    /// Returns the seconds since the play began.
    pub fn seconds(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Writes the entries as a JSON array, creating the folder when it is missing.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        write_json(path, &self.entries)
    }
}

/// Writes a value as JSON, creating the folder when it is missing.
///
/// # Errors
/// When the file cannot be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // Two demos of one checkout may end at once: the file is one's or the other's, never a mix.
    let fresh = path.with_extension(format!("json.{}", std::process::id()));
    std::fs::write(&fresh, serde_json::to_string_pretty(value)? + "\n")?;
    std::fs::rename(&fresh, path)?;
    Ok(())
}
