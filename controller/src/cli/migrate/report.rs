//! What is told on standard error: what was converted, what was not, and which workloads use old keys.

use std::fmt::{self, Write};

use super::super::text::{BAD, BOLD, counted, written};
use super::installed::Installed;
use super::objects::{Conversion, Item};
use super::workloads::{Finding, Remedy};

/// Where it is said how the rest of an installation becomes karp's.
const GUIDE: &str = "docs/guides/moving-to-karp.md";

/// Tells of a conversion, of workloads, and of Karpenter's controller.
pub fn tell(conversion: &Conversion, findings: &[Finding], installed: Option<&Installed>) -> String {
    written(|out| {
        conversion.items.iter().try_for_each(|item| converted(out, item))?;
        if let Some(installed) = installed {
            controller(out, installed)?;
        }
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

fn controller(out: &mut String, installed: &Installed) -> fmt::Result {
    let Installed { deployment, cluster, queue, role, namespace, account, settings } = installed;
    let cluster = cluster.as_ref().map(|name| format!(" of cluster {name}")).unwrap_or_default();
    writeln!(out, "Deployment {deployment}: the controller{cluster}, which is not written ({GUIDE}):")?;
    writeln!(out, "  scale it to 0 before karp_controller is applied: two controllers would fight over the nodes")?;
    if let Some(queue) = queue {
        writeln!(out, "  queue {queue}: import it as karp_interruption_queue, with that name")?;
    }
    if let Some(role) = role {
        writeln!(
            out,
            "  role {role}: import it as karp_controller_role, with its name and path, and as long as this runs"
        )?;
        writeln!(out, "    with namespace = {namespace:?} and service_account = {account:?}, or it loses the role")?;
    }
    if !settings.is_empty() {
        writeln!(out, "  set otherwise than by default, for karp_controller:")?;
    }
    settings.iter().try_for_each(|(attribute, value)| writeln!(out, "    {attribute} = {}", value.inline()))
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
