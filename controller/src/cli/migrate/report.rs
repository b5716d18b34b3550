//! What is told on standard error: what was converted, what was not, and which workloads use old keys.

use std::fmt::{self, Write};

use super::super::text::{BAD, BOLD, counted, written};
use super::objects::{Conversion, Item};
use super::workloads::{Finding, Remedy};

/// Tells of a conversion and of workloads.
pub fn tell(conversion: &Conversion, findings: &[Finding]) -> String {
    written(|out| {
        conversion.items.iter().try_for_each(|item| converted(out, item))?;
        for passed in &conversion.passed {
            writeln!(out, "note: {passed}")?;
        }
        if !conversion.refused.is_empty() {
            let count = conversion.refused.len();
            writeln!(out, "\n{BAD}{} could not be converted:{BAD:#}", counted(count, "thing"))?;
            for problem in &conversion.refused {
                writeln!(out, "  {problem}")?;
            }
        }
        if !findings.is_empty() {
            let verb = if findings.len() == 1 { "uses" } else { "use" };
            writeln!(out, "\n{BOLD}{} {verb} old keys:{BOLD:#}", counted(findings.len(), "object"))?;
            findings.iter().try_for_each(|finding| found(out, finding))?;
        }
        Ok(())
    })
}

fn converted(out: &mut String, item: &Item) -> fmt::Result {
    let fate = if item.exists { "is imported" } else { "is new" };
    writeln!(out, "{} {}: written as {}, which {fate}", item.was, item.name, item.kind.resource())?;
    item.notes.iter().try_for_each(|note| writeln!(out, "  {note}"))
}

fn found(out: &mut String, finding: &Finding) -> fmt::Result {
    writeln!(out, "  {finding}: {}", finding.uses.join("; "))?;
    match &finding.remedy {
        Remedy::Otherwise(what) => writeln!(out, "    {what}"),
        Remedy::Patch(_) => Ok(()),
    }
}

/// Writes the commands that give workloads today's keys, as a script.
pub fn patches(findings: &[Finding]) -> String {
    written(|out| {
        if findings.is_empty() {
            return Ok(());
        }
        writeln!(out, "# Run it when the new node pools are there: a changed template starts its pods anew.")?;
        for finding in findings {
            writeln!(out, "\n# {finding}: {}", finding.uses.join("; "))?;
            match (&finding.remedy, finding.command()) {
                (_, Some(command)) => writeln!(out, "{command}")?,
                (Remedy::Otherwise(what), None) => writeln!(out, "# {what}")?,
                (Remedy::Patch(_), None) => {}
            }
        }
        Ok(())
    })
}
