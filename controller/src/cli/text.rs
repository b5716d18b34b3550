//! How subcommands write their answers: tables and words for people, JSON for programs.

use std::fmt;
use std::io::Write;

use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::world::Output;

pub const BOLD: Style = Style::new().bold();
pub const DIM: Style = Style::new().dimmed();
pub const BAD: Style = AnsiColor::Red.on_default().bold();

/// Prints an answer on standard output; only the form that is asked for is made.
///
/// # Errors
/// When standard output cannot be written.
pub fn print<A: Serialize>(
    output: Output,
    answer: impl FnOnce() -> A,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(anstream::stdout().lock());
    match output {
        Output::Json => {
            serde_json::to_writer(&mut out, &answer())?;
            writeln!(out)?;
        }
        Output::Table => write!(out, "{}", text())?,
    }
    Ok(out.flush()?)
}

/// Gathers what is written, with colours, which the stream takes out where they are not wanted.
pub fn written(write: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut out = String::new();
    // writing to a string cannot fail
    let _ = write(&mut out);
    out
}

/// Says how many there are: `1 node`, `2 nodes`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
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
