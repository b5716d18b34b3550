//! How subcommands write their answers: tables and words for people, JSON for programs.

use std::fmt;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, Table, presets};
use jiff::SignedDuration;
pub use karp_domain::counted;
use serde::Serialize;

use super::world::Output;

pub const BOLD: Style = Style::new().bold();
pub const DIM: Style = Style::new().dimmed();
pub const BAD: Style = AnsiColor::Red.on_default().bold();

/// Writes to standard output. A reader that has had enough (`| head`) is no failure: the rest is for nobody.
///
/// # Errors
/// When standard output cannot be written.
pub fn to_stdout(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(anstream::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            // what is left in the buffer would be tried once more when it is dropped
            drop(out.into_parts());
            Ok(())
        }
        done => Ok(done?),
    }
}

/// Prints an answer on standard output; only the form that is asked for is made.
///
/// # Errors
/// When standard output cannot be written.
pub fn print<A: Serialize>(
    output: Output,
    answer: impl FnOnce() -> A,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    to_stdout(|out| match output {
        Output::Json => {
            serde_json::to_writer(&mut *out, &answer())?;
            writeln!(out)
        }
        Output::Table => write!(out, "{}", text()),
    })
}

/// Gathers what is written, with colours, which the stream takes out where they are not wanted.
pub fn written(write: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut out = String::new();
    // writing to a string cannot fail
    let _ = write(&mut out);
    out
}

/// Says an age as kubectl does: two units while the second tells something, `8m30s`, `3h`, `2d5h`.
pub fn age(age: SignedDuration) -> String {
    let seconds = age.as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |more: i64, unit: &str, less: i64, lesser: &str| match less {
        0 => format!("{more}{unit}"),
        _ => format!("{more}{unit}{less}{lesser}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () => format!("{days}d"),
    }
}

/// Begins a table without lines.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().map(|column| column.to_uppercase()));
    table
}

/// Aligns columns of figures.
pub fn align(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_as_kubectl_tells_them() {
        let told = [0, 119, 120, 510, 600, 10_799, 10_800, 12_600, 28_800, 172_799, 190_800, 691_200]
            .map(|seconds| age(SignedDuration::from_secs(seconds)));
        let wanted = ["0s", "119s", "2m", "8m30s", "10m", "179m", "3h", "3h30m", "8h", "47h", "2d5h", "8d"];
        assert_eq!(told, wanted);
    }
}
