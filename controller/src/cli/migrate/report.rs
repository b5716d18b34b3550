//! What is told on standard error: what was converted, what was not, and which workloads use old keys.

use std::fmt::{self, Write};
use std::path::Path;

use super::super::text::{BAD, BOLD, counted, written};
use super::hcl::Value;
use super::installed::Installed;
use super::objects::{Conversion, Item};
use super::successor;
use super::workloads::{Finding, Remedy};

/// Where it is said how the rest of an installation becomes karp's.
const GUIDE: &str = "docs/guides/moving-to-karp.md";

/// Tells of a conversion, of workloads, and of Karpenter's controller: also of the file with karp in its place, where one is written.
pub fn tell(
    conversion: &Conversion,
    findings: &[Finding],
    installed: Option<&Installed>,
    file: Option<&Path>,
) -> String {
    written(|out| {
        conversion.items.iter().try_for_each(|item| converted(out, item))?;
        match (installed, file) {
            (Some(installed), Some(file)) => replaced(out, installed, file, &conversion.items)?,
            (Some(installed), None) => controller(out, installed)?,
            (None, _) => {}
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
    let Installed { queue, role, namespace, account, settings, .. } = installed;
    writeln!(out, "{}, which is not written ({GUIDE}):", named(installed))?;
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
    told(out, settings)?;
    writeln!(out, "  --controller FILE writes karp in its place, with its settings and a role and a queue of its own")
}

/// Tells what is written in the controller's place, and what its owner has to do.
fn replaced(out: &mut String, installed: &Installed, file: &Path, items: &[Item]) -> fmt::Result {
    let (how, command) = successor::stop(installed);
    writeln!(out, "{}; karp in its place is written to {} ({GUIDE}):", named(installed), file.display())?;
    writeln!(out, "  apply that once the Deployment is {how}: {command}")?;
    writeln!(
        out,
        "  pools and classes name its karp_teardown, so that a destroy ends their nodes first: apply both files together"
    )?;
    writeln!(
        out,
        "  what its chart made under the names of karp's objects is taken over with force_conflicts = true alone"
    )?;
    match &installed.queue {
        Some(queue) => writeln!(out, "  queue {queue}: stays as it is, and karp gets one of its own")?,
        None => writeln!(out, "  it reads no queue, and karp gets none: karp_interruption_queue makes one")?,
    }
    match &installed.role {
        Some(role) => writeln!(out, "  role {role}: stays as it is, and karp gets one of its own")?,
        None => writeln!(out, "  its role stays as it is, and karp gets one of its own")?,
    }
    for role in successor::node_roles(items) {
        writeln!(out, "  role {role} of the nodes: stays as it is, with its access; whatever made it has to keep it")?;
    }
    if !installed.settings.is_empty() {
        writeln!(out, "  written, since it is set otherwise than by default:")?;
    }
    told(out, &installed.settings)?;
    writeln!(out, "  not looked at: affinity, topology spread, priority class, budget, ServiceMonitor, volumes")
}

fn named(installed: &Installed) -> String {
    let cluster = installed.cluster.as_ref().map(|name| format!(" of cluster {name}")).unwrap_or_default();
    format!("Deployment {}: the controller{cluster}", installed.deployment)
}

fn told(out: &mut String, settings: &[(&'static str, Value)]) -> fmt::Result {
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
