//! The AWS emulator of one sandbox: moto with karp's overlay, which seeds the EKS cluster and its network.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::{
    control_plane::{self, KUBERNETES_VERSION},
    http,
    layout::Layout,
    port::Ports,
    process::{Handle, Processes},
    tools::Tools,
};

/// How long the emulator may take to answer: 3 s on a quiet machine, more beside a compiler.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// How often it is asked.
const POLL: Duration = Duration::from_millis(100);

/// What the overlay made before anyone called.
#[derive(Debug, Clone, Deserialize)]
pub struct Seed {
    /// The AWS account.
    pub account_id: String,
    /// Private subnets, one a zone.
    pub subnet_ids: Vec<String>,
    /// Security groups of the nodes.
    pub security_group_ids: Vec<String>,
}

/// An emulator that runs.
pub struct Moto {
    /// Its URL, without a slash at the end.
    pub url: String,
    child: Handle,
}

impl Moto {
    /// Starts an emulator for the control plane that `plan` describes, the first or a further one; each has logs of its own.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(
        layout: &Layout,
        tools: &Tools,
        ports: &Ports,
        processes: &Processes,
        cluster: &Cluster<'_>,
        number: usize,
    ) -> Result<Self> {
        let port = ports.pick()?;
        let mut command = Command::new(&tools.python);
        command
            .args(["-m", "karp_moto", "--port", &port.to_string()])
            .args(["--region", cluster.region, "--cluster-name", cluster.name])
            .args(["--api-endpoint", &cluster.plan.url, "--issuer", &cluster.plan.url])
            .arg("--ca-file")
            .arg(&cluster.plan.pki.ca)
            .arg("--issuer-key")
            .arg(&cluster.plan.pki.service_account_public_key)
            .args(["--kubernetes-version", KUBERNETES_VERSION])
            .arg("--log")
            .arg(call_log(cluster.log_dir, number))
            .arg("--rights-log")
            .arg(rights_log(cluster.run_dir, number))
            .env("PYTHONPATH", layout.moto_source())
            // The checkout stays as it was cloned.
            .env("PYTHONDONTWRITEBYTECODE", "1");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("AWS_") {
                command.env_remove(name);
            }
        }
        Ok(Self {
            url: format!("http://127.0.0.1:{port}"),
            child: processes.start(&numbered("moto", number, ""), &mut command)?,
        })
    }

    /// Waits until it answers and returns its seed.
    ///
    /// # Errors
    /// When it ends or does not answer in time.
    pub async fn seed(&self) -> Result<Seed> {
        let (begin, url) = (Instant::now(), format!("{}/_karp/seed", self.url));
        let body = loop {
            self.check()?;
            match http::get(&url).await {
                Ok(body) => break body,
                Err(error) if begin.elapsed() > READY_LIMIT => {
                    bail!(
                        "waited {} s for the AWS emulator: {error:#}; log: {}",
                        READY_LIMIT.as_secs(),
                        self.child.log.display()
                    )
                }
                Err(_) => tokio::time::sleep(POLL).await,
            }
        };
        serde_json::from_str(&body).with_context(|| format!("the AWS emulator's seed is not understood: {body}"))
    }

    /// Fails when it has ended.
    ///
    /// # Errors
    /// With the end of its log.
    pub fn check(&self) -> Result<()> {
        self.child.check()
    }
}

/// Where an emulator of a sandbox logs the calls that it answers, one JSON line each.
pub fn call_log(log_dir: &Path, number: usize) -> PathBuf {
    log_dir.join(numbered("aws-calls", number, ".jsonl"))
}

/// Where an emulator of a sandbox logs what AWS would ask of the calls that roles make.
pub fn rights_log(run_dir: &Path, number: usize) -> PathBuf {
    run_dir.join(numbered("aws-rights", number, ".jsonl"))
}

/// The first has the plain name.
fn numbered(name: &str, number: usize, ending: &str) -> String {
    if number == 1 { format!("{name}{ending}") } else { format!("{name}.{number}{ending}") }
}

/// The EKS cluster that the emulator shows.
pub struct Cluster<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its region.
    pub region: &'a str,
    /// The control plane behind it.
    pub plan: &'a control_plane::Plan,
    /// Where the logs are.
    pub log_dir: &'a Path,
    /// The sandbox's folder.
    pub run_dir: &'a Path,
}
