//! `cargo demo`: plays the main job on a sandbox of its own and tells what happened.

mod calls;
mod cluster;
mod inventory;
mod memory;
mod play;
mod timeline;

use std::{env::consts::OS, path::PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::{
    audit::CONTROLLER,
    control_plane::audit_log,
    iam,
    layout::Layout,
    moto::{call_log, rights_log},
    sandbox::{Options, Sandbox},
    tools::Tools,
};

use self::{calls::Calls, cluster::Cluster, inventory::Inventory, memory::Watch, play::Play, timeline::Timeline};

/// The most memory that the controller may keep resident while it is played, in MiB: more than this is a leak or a blunder. The aim is 60,
/// which the development build missed by 3 when it began to watch volumes and namespaces, and by 6 when it launched several claims at once.
/// Some 50 of it are pages of the program's own file.
const CONTROLLER_MEMORY: f64 = 73.0;

/// Where the demo leaves what the controller was granted and did, in the checkout.
pub const RIGHTS: &str = "target/demo/rights.json";
/// The same of what it asked of AWS.
pub const AWS_RIGHTS: &str = "target/demo/aws-rights.json";
/// Where it leaves all calls of AWS.
const CALLS: &str = "target/demo/aws-calls.json";

/// Plays the demo on a fresh sandbox, which is ended afterwards whatever happens.
///
/// # Errors
/// Names the step that failed, what it saw and where the logs are.
pub async fn run(layout: &Layout, tools: &Tools) -> Result<()> {
    let name = format!("demo-{}", std::process::id());
    let mut timeline = Timeline::begin();
    let sandbox = Sandbox::start(layout, tools, Options::named(&name)).await?;
    timeline.record("sandbox", format!("{name}: API server, scheduler, emulated AWS on loopback"));
    let watch = Watch::start(&sandbox.products.karp, &sandbox.log_dir);
    let records = [RIGHTS, AWS_RIGHTS, CALLS].map(|record| layout.root.join(record));
    // what an earlier demo left is not what this one did
    for record in &records {
        let _ = std::fs::remove_file(record);
    }
    let played = tokio::select! {
        played = play(&sandbox, &records, &mut timeline) => played,
        broken = sandbox.broken() => Err(broken),
    };
    let peak = watch.stop().await;
    let played = played.and_then(|()| judge_memory(peak, OS, &mut timeline));
    timeline.write(&layout.root.join("target/demo/timeline.json")).context("writing target/demo/timeline.json")?;
    match played {
        Ok(()) => {
            sandbox.stop().await?;
            anstream::println!("timeline: target/demo/timeline.json; calls of AWS: {CALLS}\ndemo: ok");
            Ok(())
        }
        Err(error) => {
            let logs = sandbox.stop_keeping_logs().await;
            Err(error.context(format!("demo failed after {:.0} s; logs: {}", timeline.seconds(), logs.display())))
        }
    }
}

async fn play(
    sandbox: &Sandbox,
    [rights_file, aws_rights_file, calls_file]: &[PathBuf; 3],
    timeline: &mut Timeline,
) -> Result<()> {
    let seed = Inventory::read(&sandbox.aws_endpoint).await?;
    let mut rights = Play {
        cluster: Cluster::new(sandbox.client.clone()),
        aws: &sandbox.aws_endpoint,
        tofu: sandbox.workspace("quickstart")?,
        seed,
        timeline,
    }
    .run()
    .await?;
    rights.add_deeds(&audit_log(&sandbox.run_dir), CONTROLLER)?;
    let (granted, unused) = (rights.granted.len(), rights.unused().count());
    timeline.record("controller-rights", format!("{} of {granted} used", granted - unused));
    rights.judge_forbidden()?;
    timeline::write_json(rights_file, &rights)?;
    let asked = iam::Rights::read(&rights_log(&sandbox.run_dir, 1))?;
    timeline.record("aws-rights", format!("{} requests, each allowed by the role's policy", asked.count()));
    asked.judge_allowed()?;
    timeline::write_json(aws_rights_file, &asked)?;
    let calls = Calls::read(&call_log(&sandbox.log_dir, 1))?;
    timeline.record("aws-calls", calls.told());
    timeline::write_json(calls_file, &calls)
}

fn judge_memory(peak: Option<f64>, os: &str, timeline: &mut Timeline) -> Result<()> {
    if peak.is_none() && os != "linux" {
        timeline.record("controller-memory", format!("not known: {os} has no /proc to read it from"));
        return Ok(());
    }
    let peak = peak.context("the controller's process was never seen, so its memory is not known")?;
    timeline.record("controller-memory", format!("{peak:.1} MiB resident at most"));
    if peak > CONTROLLER_MEMORY {
        bail!("the controller kept {peak:.1} MiB resident; {CONTROLLER_MEMORY} MiB is the limit");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_where_it_can_be_known() {
        let judged = |peak, os| judge_memory(peak, os, &mut Timeline::begin());
        assert!(judged(Some(CONTROLLER_MEMORY), "linux").is_ok() && judged(None, "macos").is_ok());
        assert!(judged(Some(CONTROLLER_MEMORY + 1.0), "linux").is_err() && judged(None, "linux").is_err());
    }
}
