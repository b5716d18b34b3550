//! `karp snapshot`: what a live cluster's decisions depend on, in a file that every `-f` reads.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use super::live::Cluster;
use super::text::{counted, to_stdout};
use crate::files::{Found, Objects};

/// Holds the options of `karp snapshot`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// File to write, packed when its name ends with .gz; standard output without it, or with -.
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    cluster: Cluster,
}

/// Writes the snapshot.
///
/// # Errors
/// When the cluster does not answer, or the file cannot be written.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let objects = options.cluster.objects()?;
    let Some(path) = options.output.as_deref().filter(|path| *path != Path::new("-")) else {
        return to_stdout(|mut out| write(&objects, &mut out));
    };
    let failed = |error: io::Error| anyhow::anyhow!("{}: {error}", path.display());
    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
    if path.extension().is_some_and(|extension| extension == "gz") {
        let mut packed = GzEncoder::new(file, Compression::default());
        write(&objects, &mut packed).map_err(failed)?;
        packed.finish().and_then(|mut file| file.flush()).map_err(failed)?;
    } else {
        write(&objects, &mut file).map_err(failed)?;
    }
    anstream::eprintln!("{}: {}", path.display(), counted(count(&objects), "object"));
    Ok(())
}

/// Writes a List with an object on each line, so that snapshots can be compared line by line.
fn write(objects: &Objects, out: &mut impl Write) -> io::Result<()> {
    write!(out, r#"{{"apiVersion":"v1","kind":"List","items":["#)?;
    let mut first = true;
    let mut items = Items { out, first: &mut first };
    items.add(&objects.classes)?;
    items.add(&objects.overlays)?;
    items.add(&objects.buffers)?;
    items.add(&objects.pod_templates)?;
    items.add(&objects.deployments)?;
    items.add(&objects.stateful_sets)?;
    items.add(&objects.replica_sets)?;
    items.add(&objects.pools)?;
    items.add(&objects.claims)?;
    items.add(&objects.nodes)?;
    items.add(&objects.csi_nodes)?;
    items.add(&objects.daemons)?;
    items.add(&objects.limit_ranges)?;
    items.add(&objects.budgets)?;
    items.add(&objects.namespaces)?;
    items.add(&objects.priority_classes)?;
    items.add(&objects.config_maps)?;
    items.add(&objects.storage_classes)?;
    items.add(&objects.volumes)?;
    items.add(&objects.volume_claims)?;
    items.add(&objects.attachments)?;
    items.add(&objects.pods)?;
    writeln!(out, "\n]}}")?;
    out.flush()
}

fn count(objects: &Objects) -> usize {
    let cluster =
        [objects.classes.len(), objects.overlays.len(), objects.pools.len(), objects.claims.len(), objects.nodes.len()];
    let others = [
        objects.csi_nodes.len(),
        objects.daemons.len(),
        objects.limit_ranges.len(),
        objects.budgets.len(),
        objects.namespaces.len(),
    ];
    let buffers = [
        objects.buffers.len(),
        objects.pod_templates.len(),
        objects.deployments.len(),
        objects.stateful_sets.len(),
        objects.replica_sets.len(),
    ];
    let volumes =
        [objects.storage_classes.len(), objects.volumes.len(), objects.volume_claims.len(), objects.attachments.len()];
    let all = cluster.into_iter().chain(others).chain(buffers).chain(volumes);
    all.sum::<usize>() + objects.priority_classes.len() + objects.config_maps.len() + objects.pods.len()
}

struct Items<'a, W> {
    out: &'a mut W,
    first: &'a mut bool,
}

impl<W: Write> Items<'_, W> {
    fn add<K: Serialize>(&mut self, objects: &[Found<K>]) -> io::Result<()> {
        for found in objects {
            self.out.write_all(if *self.first { b"\n" } else { b",\n" })?;
            *self.first = false;
            serde_json::to_writer(&mut *self.out, &found.object)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use karp_domain::cluster::{Catalogues, Settings, Snapshot};
    use karp_domain::scheduling::{Purpose, outlook};

    use super::*;
    use crate::files::{self, Offered, Redact};

    fn redacted<K: Redact>(objects: Vec<Found<K>>) -> Vec<Found<K>> {
        objects.into_iter().map(|found| Found { object: Box::new(found.object.redacted()), ..found }).collect()
    }

    /// Reads objects again from what is written of them.
    fn again(objects: &Objects) -> Objects {
        let mut text = Vec::new();
        write(objects, &mut text).expect("text");
        let name = format!("karp-snapshot-{}-{:?}.json", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, &text).expect("a file");
        let again = files::read(std::slice::from_ref(&path));
        std::fs::remove_file(&path).expect("gone");
        let again = again.expect("objects");
        assert_eq!(count(&again), count(objects));
        again
    }

    fn read(name: &str) -> Objects {
        files::read(&[Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(name)]).expect("objects")
    }

    fn decided_on(objects: &Objects) -> Snapshot {
        files::snapshot(objects, Catalogues::default(), Settings::default(), jiff::Timestamp::UNIX_EPOCH)
            .expect("a snapshot")
    }

    #[test]
    fn what_is_written_is_read_back_the_same() {
        let mut objects = read("cluster.yaml");
        let before = decided_on(&objects);
        objects.pods = redacted(objects.pods);
        objects.nodes = redacted(objects.nodes);
        objects.pools = redacted(objects.pools);
        let after = decided_on(&again(&objects));
        assert_eq!((after.pods, after.nodes, after.pools), (before.pods, before.nodes, before.pools));
    }

    #[test]
    fn what_is_kept_is_planned_the_same_from_what_is_written() {
        let planned = |objects: &Objects| {
            let types = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/types.json");
            let now = jiff::Timestamp::UNIX_EPOCH;
            let catalogues = Offered::new(Some(&types), &[], None).expect("types").catalogues(objects, now);
            outlook(&files::snapshot(objects, catalogues, Settings::default(), now).expect("a snapshot"))
        };
        let mut objects = read("kept.yaml");
        let before = planned(&objects);
        assert_eq!(before.rooms.len(), 3);
        assert!(before.launches.iter().any(|launch| launch.purpose == Purpose::Replicas));
        objects.buffers = redacted(objects.buffers);
        objects.pod_templates = redacted(objects.pod_templates);
        objects.deployments = redacted(objects.deployments);
        let again = again(&objects);
        assert!(!format!("{:?}", (&again.pod_templates[0].object, &again.deployments[0].object)).contains("hunter2"));
        assert_eq!(planned(&again), before);
        assert_eq!(files::unready(&again).map(|one| one.buffer.to_string()).collect::<Vec<_>>(), ["shop/lost"]);
    }

    #[test]
    fn an_empty_cluster_is_a_list_too() {
        let mut text = Vec::new();
        write(&Objects::default(), &mut text).expect("text");
        let list: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(list["items"], serde_json::json!([]));
    }
}
