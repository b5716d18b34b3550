//! Objects as they are written, of any version: for what reads older APIs, or has to keep what a type would not.

use std::path::PathBuf;

use serde_json::Value;

use super::text::Piece;
use super::{BadInput, Origin, source, text};

/// An object as it is written, and where.
pub struct Manifest {
    /// Where it begins.
    pub origin: Origin,
    /// `apiVersion`, its own or that of the list around it; empty where nothing says it.
    pub version: String,
    /// `kind`, its own or that of the list around it.
    pub kind: String,
    /// All of it.
    pub object: Value,
}

/// Reads every object of some files and directories as it is written; `-` is standard input.
///
/// # Errors
/// [`BadInput`] when a file cannot be read, or holds what is no object.
pub fn manifests(paths: &[PathBuf]) -> Result<Vec<Manifest>, BadInput> {
    let (mut all, mut problems) = (Vec::new(), Vec::new());
    for file in source::files(paths)? {
        let origin = Origin::new(&file);
        let text = source::text(&file)?;
        match text::split(&text, &file) {
            Ok(pieces) => {
                for piece in &pieces {
                    match read(piece, &origin) {
                        Ok(manifest) => all.push(manifest),
                        Err(fault) => problems.push(origin.at(fault.line).problem(fault.message)),
                    }
                }
            }
            Err(fault) => problems.push(origin.at(fault.line).problem(fault.message)),
        }
    }
    if problems.is_empty() { Ok(all) } else { Err(BadInput(problems)) }
}

fn read(piece: &Piece<'_>, origin: &Origin) -> Result<Manifest, text::Fault> {
    let fault = |message: &str| text::Fault { line: piece.line, message: message.to_owned() };
    let (version, kind) = piece.kind.as_ref().ok_or_else(|| fault("kind is missing"))?;
    let object: Value = piece.parse()?;
    if object["metadata"]["name"].as_str().is_none_or(str::is_empty) && !kind.ends_with("List") {
        return Err(fault(&format!("{kind}: metadata.name is missing")));
    }
    Ok(Manifest { origin: origin.at(piece.line), version: version.to_string(), kind: kind.to_string(), object })
}
