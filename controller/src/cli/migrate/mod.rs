//! `karp migrate`: Terraform for a cluster that runs Karpenter, or for its manifests.

mod attributes;
mod document;
mod hcl;
mod installed;
mod live;
mod objects;
mod report;
mod successor;
mod workloads;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use self::objects::{Inputs, Source};
use super::live::Cluster;
use super::text::to_stdout;
use crate::files::{self, BadInput};

/// The exit code when some objects could not be converted, and the others are written.
const NOT_ALL_CONVERTED: u8 = 2;

/// Holds the options of `karp migrate`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Files and directories with manifests (YAML or JSON, also .gz) in place of a live cluster; - is standard input.
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR", num_args = 1.., conflicts_with = "context")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    cluster: Cluster,
    /// File to write the HCL to; standard output without it, or with -.
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
    /// File for karp in the place of Karpenter's controller: a role, a queue, a `karp_controller` with its settings and a `karp_teardown`, all
    /// of them new. The HCL of the pools then names that teardown, and goes into one folder with it.
    #[arg(long, value_name = "FILE")]
    controller: Option<PathBuf>,
    /// The EKS cluster for the provider block; without it the one that Karpenter's Deployment names, or else a variable.
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
    /// Write no import blocks for what files have of today's version: no cluster has it yet.
    #[arg(long, requires = "files")]
    no_import: bool,
    /// The nodes' IAM role, for older classes that name none.
    #[arg(long, value_name = "NAME")]
    role: Option<String>,
    /// The nodes' instance profile, for older classes that name none (`aws.defaultInstanceProfile` of Karpenter's old settings).
    #[arg(long, value_name = "NAME", conflicts_with = "role")]
    instance_profile: Option<String>,
    /// Print kubectl commands that give workloads today's keys. On standard output they take the place of the HCL.
    #[arg(long)]
    patch: bool,
}

/// Converts and writes; exit code 0 when all of it was converted, 2 when some was not.
///
/// # Errors
/// When the input cannot be used, the cluster does not answer, or the file cannot be written.
pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let output = options.output.as_deref().filter(|path| *path != Path::new("-"));
    let is_taken = |file: &Path| file == Path::new("-") || output.is_some_and(|output| place(output) == place(file));
    anyhow::ensure!(!options.controller.as_deref().is_some_and(is_taken), "--controller takes a file of its own");
    let (manifests, source) = match (options.files.is_empty(), options.no_import) {
        (true, _) => (live::manifests(&options.cluster)?, Source::Cluster),
        (false, false) => (files::manifests(&options.files)?, Source::Files),
        (false, true) => (files::manifests(&options.files)?, Source::NewFiles),
    };
    let inputs = Inputs { role: options.role.clone(), instance_profile: options.instance_profile.clone(), source };
    let conversion = objects::convert(&manifests, &inputs);
    if conversion.items.is_empty() && !conversion.refused.is_empty() {
        return Err(BadInput(conversion.refused).into());
    }
    let findings = workloads::find(&manifests);
    let installed = installed::find(&manifests);
    let told = report::tell(&conversion, &findings, installed.as_ref(), options.controller.as_deref());
    let successor = match (&options.controller, &installed) {
        (Some(file), Some(installed)) => Some((file, successor::write(installed, &conversion.items))),
        (Some(_), None) => anyhow::bail!("--controller: there is no Deployment of Karpenter's, or there are several"),
        (None, _) => None,
    };
    if conversion.items.is_empty() && findings.is_empty() && successor.is_none() {
        // what was passed over may be all that there is
        anstream::eprint!("{told}");
        let kinds = "NodePool, EC2NodeClass, NodeOverlay, Provisioner or AWSNodeTemplate";
        anyhow::bail!("there is no {kinds} for karp, and no workload uses an old key: nothing to migrate");
    }
    let named = installed.as_ref().and_then(|installed| installed.cluster.as_deref());
    let teardown = successor.as_ref().map(|_| successor::TEARDOWN);
    let hcl = document::write(&conversion.items, options.cluster_name.as_deref().or(named), teardown);
    if let Some(path) = output {
        save(path, &hcl)?;
    }
    if let Some((path, hcl)) = &successor {
        save(path, hcl)?;
    }
    let shown = match (options.patch, output) {
        (true, _) => report::patches(&findings),
        (false, None) => hcl,
        (false, Some(_)) => String::new(),
    };
    anstream::eprint!("{told}");
    if options.patch && output.is_none() && !conversion.items.is_empty() {
        anstream::eprintln!("note: no HCL is written: --patch takes its place on standard output; -o FILE writes it");
    }
    to_stdout(|out| out.write_all(shown.as_bytes()))?;
    Ok(if conversion.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(NOT_ALL_CONVERTED) })
}

/// Answers where a file is or will be, the same for each path that leads to it.
fn place(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let new = || Some(parent.canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(new).unwrap_or_else(|| path.to_owned())
}

fn save(path: &Path, hcl: &str) -> anyhow::Result<()> {
    std::fs::write(path, hcl).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_to_one_file_have_one_place() {
        let whole = std::env::current_dir().expect("a folder").join("none-such.tf");
        let file = place(Path::new("none-such.tf"));
        assert_eq!(place(&whole), file);
        for same in ["./none-such.tf", "src/../none-such.tf"] {
            assert_eq!(place(Path::new(same)), file);
        }
        assert_eq!(place(Path::new("./Cargo.toml")), place(Path::new("Cargo.toml")), "one that is there");
        for other in ["none.tf", "src/none-such.tf", "none-such/none-such.tf"] {
            assert_ne!(place(Path::new(other)), file);
        }
    }
}
