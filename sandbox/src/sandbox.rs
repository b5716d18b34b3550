//! One sandbox from start to stop.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use futures::future::try_join_all;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    context::Context,
    control_plane::{ControlPlane, Plan},
    kwok,
    layout::Layout,
    moto::{self, Moto, Seed},
    node_bridge,
    port::Ports,
    process::{self, Handle, Processes},
    process_kubelet,
    products::Products,
    state::{Journal, Phase, State},
    tofu::{self, Workspace},
    tools::Tools,
};

/// The region that a sandbox plays.
pub const REGION: &str = "us-east-1";
/// The variable with the URLs of all emulators, the cluster's first.
const ENDPOINTS: &str = "KARP_AWS_ENDPOINTS";
/// How long the in-process servers may take to stop.
const TASK_GRACE: Duration = Duration::from_secs(5);

/// How a sandbox is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the sandbox, unique among those of this checkout.
    pub name: String,
    /// How long an instance that runs takes to become a Node (EC2: some 40 s).
    pub node_delay: Duration,
    /// How many AWS emulators there are: the cluster is the first's, and nodes join from there. Each further one is an AWS of its own for tests
    /// of what needs no cluster, which would wait for one another at the first.
    pub emulators: usize,
}

impl Options {
    /// Names a sandbox and takes the defaults for the rest.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), node_delay: Duration::from_secs(1), emulators: 1 }
    }
}

/// A sandbox that runs. Dropping it kills what it started; `stop` does so gently and cleans up.
pub struct Sandbox {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub run_dir: PathBuf,
    /// Its logs, one a process.
    pub log_dir: PathBuf,
    /// The admin's kubeconfig file.
    pub kubeconfig: PathBuf,
    /// The admin's client.
    pub client: kube::Client,
    /// URL of the AWS emulator whose EKS has the cluster, without a slash at its end.
    pub aws_endpoint: String,
    /// Region that it plays.
    pub region: String,
    /// Name of its EKS cluster.
    pub cluster_name: String,
    /// What the emulator made beforehand.
    pub seed: Seed,
    /// The tools it runs with.
    pub tools: Tools,
    /// The controller and the provider as they were built when it started.
    pub products: Products,
    layout: Layout,
    env: BTreeMap<String, String>,
    control_plane: ControlPlane,
    emulators: Vec<Moto>,
    kwok: Handle,
    processes: Processes,
    stop: CancellationToken,
    tasks: Vec<(&'static str, JoinHandle<Result<()>>)>,
}

impl Sandbox {
    /// Starts a sandbox and waits until it can be used.
    ///
    /// # Errors
    /// When one of the same name runs, or a part does not start; nothing is left running then.
    pub async fn start(layout: &Layout, tools: &Tools, options: Options) -> Result<Self> {
        sweep(layout)?;
        let run_dir = layout.run_dir(&options.name);
        prepare(&run_dir, &options.name)?;
        let journal = Journal::begin(&run_dir, &options.name)?;
        let started = Self::start_parts(layout, tools, &options, &run_dir, &journal).await;
        let phase = match &started {
            Ok(sandbox) => {
                journal.edit(|state| state.env = sandbox.env.clone())?;
                Phase::Ready
            }
            Err(error) => Phase::Failed(format!("{error:#}")),
        };
        journal.edit(|state| state.phase = phase)?;
        started
            .with_context(|| format!("starting the sandbox {}; logs: {}", options.name, run_dir.join("log").display()))
    }

    async fn start_parts(
        layout: &Layout,
        tools: &Tools,
        options: &Options,
        run_dir: &Path,
        journal: &Journal,
    ) -> Result<Self> {
        let (parts, context) = Parts::start(layout, tools, options, run_dir, journal).await?;
        let tfrc = tofu::write_cli_config(run_dir, &parts.products.provider)?;
        let env = variables(&context, &parts, &tfrc)?;
        let stop = CancellationToken::new();
        let tasks = vec![
            ("node bridge", tokio::spawn(node_bridge::run(context.clone(), stop.clone()))),
            ("process kubelet", tokio::spawn(process_kubelet::run(context.clone(), stop.clone()))),
        ];
        Ok(Self {
            name: context.name,
            run_dir: context.run_dir,
            log_dir: context.log_dir,
            kubeconfig: context.kubeconfig,
            client: context.client,
            aws_endpoint: context.aws_endpoint,
            region: context.region,
            cluster_name: context.cluster_name,
            seed: parts.seed,
            tools: tools.clone(),
            products: parts.products,
            layout: layout.clone(),
            env,
            control_plane: parts.control_plane,
            emulators: parts.emulators,
            kwok: parts.kwok,
            processes: context.processes,
            stop,
            tasks,
        })
    }

    /// Returns the variables for kubectl, tofu and the AWS CLI, without `PATH`.
    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    /// Returns the variables by which tests find the sandbox, besides `env`.
    pub fn test_env(&self) -> BTreeMap<String, String> {
        test_variables(&self.env, &self.tools.bin, &self.run_dir)
    }

    /// Makes a folder for tofu with the files of an example, named by the path under `examples/`.
    ///
    /// # Errors
    /// When the example cannot be copied.
    pub fn workspace(&self, example: &str) -> Result<Workspace> {
        self.workspace_of(&self.layout.root.join("examples").join(example), example)
    }

    /// Copies a configuration into a folder of this name in which tofu calls this sandbox.
    ///
    /// # Errors
    /// When a file cannot be copied.
    pub fn workspace_of(&self, source: &Path, example: &str) -> Result<Workspace> {
        let folder = self.run_dir.join("tofu").join(example);
        let env = self.env.iter().filter(|(name, _)| *name != "KUBECONFIG").map(|(k, v)| (k.clone(), v.clone()));
        Workspace::copy(self.tools.program("tofu"), source, folder, env.collect())
    }

    /// Fails when something that the sandbox needs has ended.
    ///
    /// # Errors
    /// Names it, with the end of its log.
    pub fn check(&self) -> Result<()> {
        self.control_plane.check()?;
        self.emulators.iter().try_for_each(Moto::check)?;
        self.kwok.check()?;
        match self.tasks.iter().find(|(_, task)| task.is_finished()) {
            Some((name, _)) => bail!("the {name} has ended; run with RUST_LOG=info to see why"),
            None => Ok(()),
        }
    }

    /// Waits until something that the sandbox needs has ended, and returns why.
    pub async fn broken(&self) -> anyhow::Error {
        loop {
            if let Err(error) = self.check() {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Ends everything and removes the run directory.
    ///
    /// # Errors
    /// When the run directory cannot be removed.
    pub async fn stop(self) -> Result<()> {
        let run_dir = self.run_dir.clone();
        self.end().await;
        std::fs::remove_dir_all(&run_dir).with_context(|| format!("removing {}", run_dir.display()))
    }

    /// Ends everything, keeps the logs and returns their folder.
    pub async fn stop_keeping_logs(self) -> PathBuf {
        let (run_dir, log_dir) = (self.run_dir.clone(), self.log_dir.clone());
        self.end().await;
        remove_data(&run_dir);
        log_dir
    }

    async fn end(mut self) {
        self.stop.cancel();
        for (name, task) in std::mem::take(&mut self.tasks) {
            match tokio::time::timeout(TASK_GRACE, task).await {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(error))) => tracing::warn!("the {name} had ended: {error:#}"),
                Ok(Err(error)) => tracing::warn!("the {name} had ended: {error}"),
                Err(_) => tracing::warn!("the {name} did not stop in {} s", TASK_GRACE.as_secs()),
            }
        }
        self.processes.stop_all().await;
    }
}

/// What runs as processes of its own, before the in-process servers start.
struct Parts {
    control_plane: ControlPlane,
    emulators: Vec<Moto>,
    seed: Seed,
    kwok: Handle,
    products: Products,
}

impl Parts {
    async fn start(
        layout: &Layout,
        tools: &Tools,
        options: &Options,
        run_dir: &Path,
        journal: &Journal,
    ) -> Result<(Self, Context)> {
        let log_dir = run_dir.join("log");
        let ports = Ports::new(layout.cache.join("ports"))?;
        let processes = Processes::new(journal.clone(), log_dir.clone())?;
        let plan = Plan::make(run_dir, &ports)?;
        let cluster_name = format!("karp-{}", options.name);
        let cluster = moto::Cluster { name: &cluster_name, region: REGION, plan: &plan, log_dir: &log_dir, run_dir };
        let start = |number| Moto::start(layout, tools, &ports, &processes, &cluster, number);
        let emulators = (1..=options.emulators.max(1)).map(start).collect::<Result<Vec<_>>>()?;
        let first = &emulators[0];
        let token_review = format!("{}/_karp/token-review", first.url);
        let (seeds, control_plane) = tokio::try_join!(
            try_join_all(emulators.iter().map(Moto::seed)),
            plan.start(tools, &ports, &processes, &token_review)
        )?;
        let seed = seeds.into_iter().next().context("there is no emulator")?;
        let kwok = kwok::start(run_dir, tools, &processes, &control_plane.kubeconfig)?;
        let products = Products::freeze(layout, run_dir)?;
        let context = Context {
            name: options.name.clone(),
            client: control_plane.client.clone(),
            kubeconfig: control_plane.kubeconfig.clone(),
            api_server: control_plane.url.clone(),
            api_server_address: ("127.0.0.1".to_owned(), control_plane.port),
            ca_file: control_plane.pki.ca.clone(),
            kubelet_cert_file: control_plane.pki.kubelet.cert.clone(),
            kubelet_key_file: control_plane.pki.kubelet.key.clone(),
            aws_endpoint: first.url.clone(),
            cluster_name,
            region: REGION.to_owned(),
            account_id: seed.account_id.clone(),
            run_dir: run_dir.to_path_buf(),
            log_dir,
            karp_binary: products.karp.clone(),
            node_delay: options.node_delay,
            ports,
            processes,
        };
        Ok((Self { control_plane, emulators, seed, kwok, products }, context))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.stop.cancel();
        for (_, task) in &self.tasks {
            task.abort();
        }
        self.processes.kill_all();
        remove_data(&self.run_dir);
    }
}

fn variables(context: &Context, parts: &Parts, tfrc: &Path) -> Result<BTreeMap<String, String>> {
    let (seed, urls) = (&parts.seed, parts.emulators.iter().map(|one| one.url.as_str()));
    let list = |ids: &[String]| serde_json::to_string(ids);
    let variables = [
        ("KUBECONFIG", context.kubeconfig.display().to_string()),
        ("AWS_ENDPOINT_URL", context.aws_endpoint.clone()),
        (ENDPOINTS, urls.collect::<Vec<_>>().join(",")),
        ("AWS_REGION", REGION.to_owned()),
        ("AWS_DEFAULT_REGION", REGION.to_owned()),
        ("AWS_ACCESS_KEY_ID", "sandbox".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "sandbox".to_owned()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        // The profiles of the user's real account stay outside.
        ("AWS_CONFIG_FILE", "/dev/null".to_owned()),
        ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null".to_owned()),
        ("TF_CLI_CONFIG_FILE", tfrc.display().to_string()),
        ("TF_VAR_cluster_name", context.cluster_name.clone()),
        ("TF_VAR_region", REGION.to_owned()),
        ("TF_VAR_subnet_ids", list(&seed.subnet_ids)?),
        ("TF_VAR_security_group_ids", list(&seed.security_group_ids)?),
    ];
    Ok(variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Names the sandbox with these variables for tests: they run only when they find `KARP_TEST_*`.
pub fn test_variables(env: &BTreeMap<String, String>, tools: &Path, run_dir: &Path) -> BTreeMap<String, String> {
    let product = |name: &str| run_dir.join("bin").join(name).display().to_string();
    let of = |name: &str| env.get(name).cloned().unwrap_or_default();
    [
        ("KARP_TEST_AWS_ENDPOINT", of("AWS_ENDPOINT_URL")),
        ("KARP_TEST_AWS_ENDPOINTS", of(ENDPOINTS)),
        ("KARP_TEST_KUBECONFIG", of("KUBECONFIG")),
        ("KARP_TEST_REGION", of("AWS_REGION")),
        ("KARP_TEST_CLUSTER", of("TF_VAR_cluster_name")),
        ("KARP_TEST_TFRC", of("TF_CLI_CONFIG_FILE")),
        ("KARP_TEST_TOOLS", tools.display().to_string()),
        ("KARP_TEST_PROVIDER", product("terraform-provider-karp")),
        ("KARP_TEST_KARP", product("karp")),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// Makes room for a sandbox of this name.
fn prepare(run_dir: &Path, name: &str) -> Result<()> {
    if let Some(state) = State::read(run_dir)?
        && state.owner.alive()
    {
        bail!(
            "a sandbox named {name} runs already (pid {}); `cargo sandbox down --name {name}` ends it",
            state.owner.pid
        );
    }
    if run_dir.exists() {
        std::fs::remove_dir_all(run_dir).with_context(|| format!("removing {}", run_dir.display()))?;
    }
    Ok(())
}

/// Ends what sandboxes of this checkout left behind whose owners were killed, and drops their data but not their logs.
fn sweep(layout: &Layout) -> Result<()> {
    for (run_dir, state) in all(layout)? {
        if !state.owner.alive() {
            process::end_recorded(&state.processes);
            remove_data(&run_dir);
        }
    }
    Ok(())
}

/// Lists the run directories of this checkout that hold a state.
///
/// # Errors
/// When their folder cannot be read.
pub fn all(layout: &Layout) -> Result<Vec<(PathBuf, State)>> {
    let entries = match std::fs::read_dir(layout.runs()) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context("reading the run directories"),
    };
    let mut found = Vec::new();
    for entry in entries {
        let run_dir = entry?.path();
        // Beside the run directories lie the logs of their supervisors.
        if run_dir.is_dir()
            && let Some(state) = State::read(&run_dir)?
        {
            found.push((run_dir, state));
        }
    }
    found.sort_by(|one, other| one.1.name.cmp(&other.1.name));
    Ok(found)
}

/// Removes everything from a run directory but its logs.
fn remove_data(run_dir: &Path) {
    for entry in std::fs::read_dir(run_dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.file_name().is_some_and(|name| name == "log") {
            continue;
        }
        let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        if let Err(error) = removed {
            tracing::warn!("{} could not be removed: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What a test reads beside the sandbox's: it names a program to take in place of its OpenTofu.
    const OTHERS: [&str; 1] = ["KARP_TEST_TERRAFORM"];

    /// Adds the variables that are named as literals in the sources below a folder.
    fn named(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                named(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for rest in text.split("\"KARP_TEST_").skip(1) {
                    let end = rest.find(|letter: char| !letter.is_ascii_uppercase() && letter != '_');
                    found.extend(end.filter(|end| *end > 0).map(|end| format!("KARP_TEST_{}", &rest[..end])));
                }
            }
        }
    }

    #[test]
    fn each_variable_that_tests_look_for_is_given_so_that_none_is_skipped_for_ever() {
        let (root, mut read) = (Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap(), BTreeSet::new());
        for folder in ["controller", "provider", "sandbox", "shared"] {
            named(&root.join(folder), &mut read);
        }
        let given = test_variables(&BTreeMap::new(), Path::new("tools"), Path::new("run"));
        let missing: Vec<_> =
            read.iter().filter(|name| !given.contains_key(*name) && !OTHERS.contains(&name.as_str())).collect();
        assert!(read.len() >= given.len() && missing.is_empty(), "{read:?}, of these no sandbox gives {missing:?}");
    }
}
