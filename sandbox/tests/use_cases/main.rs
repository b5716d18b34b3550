//! The modules under `terraform/` hold what their tests say, and each use case under `examples/use-cases` is applied as it stands, planned
//! again without a difference, used by pods, and destroyed without a trace; so is what `karp migrate` writes.
//!
//! Runs where `KARP_TEST_TOOLS` is set, as `cargo verify` does. Controllers and CRDs are a whole cluster's: the use cases go one after the
//! other on a sandbox of their own, and need no other.

mod abandoned;
mod migrated;
mod order;
mod promised;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use order::Order;
use sandbox::{Options, Sandbox, layout::Layout, tofu, tofu::Workspace, tools::Tools};
use serde_json::{Value, json};

/// Bounds the wait for pods: a node takes some 3 s, more on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often the API server is asked meanwhile.
const POLL: Duration = Duration::from_millis(250);
/// Pods of a use case.
const REPLICAS: usize = 2;
/// An account has one service-linked role for each service; it stays when what made it goes.
const SERVICE_LINKED: &str = "AWSServiceRoleFor";
/// Nothing listens here: a plan that calls AWS fails.
const NOWHERE: &str = "http://127.0.0.1:9";

/// One folder of `examples/use-cases`.
struct UseCase {
    name: &'static str,
    /// Pods for one of its pools.
    workload: Workload,
    /// An argument of a further plan while they run, and what that plan tells.
    edit: Option<(&'static str, &'static str)>,
}

/// What the pods of a Deployment want, as the use case's README says it.
struct Workload {
    /// The pool that their nodes must be of.
    pool: &'static str,
    node_selector: Value,
    tolerations: Value,
    limits: Value,
    replicas: usize,
    /// What each pod asks for.
    cpu: &'static str,
}

impl Default for Workload {
    fn default() -> Self {
        let (node_selector, tolerations, limits) = (json!({}), json!([]), json!({}));
        Self { pool: "default", node_selector, tolerations, limits, replicas: REPLICAS, cpu: "1" }
    }
}

fn use_cases() -> [UseCase; 6] {
    let plain = |name| UseCase { name, workload: Workload::default(), edit: None };
    [
        plain("nodeless-fargate"),
        UseCase {
            workload: Workload {
                pool: "on-demand",
                node_selector: json!({ "karpenter.sh/nodepool": "on-demand" }),
                ..Workload::default()
            },
            ..plain("spot-and-on-demand")
        },
        UseCase {
            workload: Workload {
                pool: "ci",
                node_selector: json!({ "workload": "ci" }),
                tolerations: json!([{ "key": "workload", "value": "ci", "effect": "NoSchedule" }]),
                ..Workload::default()
            },
            ..plain("ci-agents-on-spot")
        },
        UseCase {
            edit: Some(("ami_alias=bottlerocket@latest", "nodes will be replaced")),
            ..plain("expiry-and-drift")
        },
        plain("from-provisioner"),
        UseCase {
            workload: Workload {
                pool: "gpu",
                node_selector: json!({ "karpenter.sh/nodepool": "gpu" }),
                tolerations: json!([{ "key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule" }]),
                limits: json!({ "nvidia.com/gpu": "1" }),
                ..Workload::default()
            },
            ..plain("gpu")
        },
    ]
}

/// Finds the tools; says what is missing and gives nothing when something is.
fn tools(layout: &Layout) -> Result<Option<Tools>> {
    if std::env::var_os("KARP_TEST_TOOLS").is_none_or(|value| value.is_empty()) {
        println!("skipped: KARP_TEST_TOOLS is not set");
        return Ok(None);
    }
    if let Some(missing) = [layout.karp(), layout.provider()].iter().find(|product| !product.is_file()) {
        println!("skipped: {} is not built", missing.display());
        return Ok(None);
    }
    let tools = Tools::built(layout)?;
    if tools.is_none() {
        println!("skipped: the sandbox's tools are not built");
    }
    Ok(tools)
}

/// Makes a folder ready for the other commands.
async fn init(tofu: &Workspace) -> Result<String> {
    tofu.run(&["init", "-input=false", "-no-color"]).await?.success()
}

/// Applies; answers what tofu says.
async fn apply(tofu: &Workspace) -> Result<String> {
    tofu.run(&["apply", "-input=false", "-no-color", "-auto-approve"]).await?.success()
}

/// Destroys all; answers what tofu says.
async fn destroy(tofu: &Workspace) -> Result<String> {
    tofu.run(&["destroy", "-input=false", "-no-color", "-auto-approve"]).await?.success()
}

/// What stands in the place of the quickstart's pool: one small type, with more arguments of the pool and of its template.
fn small_nodes(pool: &str, template: &str) -> String {
    format!(
        r#"
resource "karp_node_pool" "default" {{
  limits = {{ cpu = "200" }}
  {pool}
  template = {{
    {template}
    node_class_ref = {{ name = karp_node_class.default.name }}
    requirements = [
      {{ key = "node.kubernetes.io/instance-type", operator = "In", values = ["c5.large"] }},
      {{ key = "karpenter.sh/capacity-type", operator = "In", values = ["on-demand"] }},
    ]
  }}
}}
"#
    )
}

/// Copies a folder with all that is below it, but for what tofu may have left there.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("making {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        if name.to_string_lossy().starts_with('.') || name.to_string_lossy().contains(".tfstate") {
            continue;
        }
        if path.is_dir() {
            copy_tree(&path, &to.join(&name))?;
        } else {
            fs::copy(&path, to.join(&name)).with_context(|| format!("copying {}", path.display()))?;
        }
    }
    Ok(())
}

// --- use cases -------------------------------------------------------------------------------------------------------------------------

/// Plays in a sandbox of its own, and panics with the place of its logs where that fails.
async fn in_a_sandbox(name: &str, play: impl AsyncFnOnce(&Layout, &Sandbox) -> Result<()>) -> Result<()> {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    let layout = Layout::here()?;
    let Some(tools) = tools(&layout)? else { return Ok(()) };
    let sandbox = Sandbox::start(&layout, &tools, Options::named(format!("{name}-{}", std::process::id()))).await?;
    let played = tokio::select! {
        played = play(&layout, &sandbox) => played,
        broken = sandbox.broken() => Err(broken),
    };
    match played {
        Ok(()) => sandbox.stop().await,
        Err(error) => {
            let logs = sandbox.stop_keeping_logs().await;
            panic!("{error:#}; logs: {}", logs.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_use_case_is_applied_used_and_destroyed_without_a_trace() -> Result<()> {
    in_a_sandbox("cases", play_all).await
}

async fn play_all(layout: &Layout, sandbox: &Sandbox) -> Result<()> {
    // Beside each other as in the checkout, so that relative addresses of modules hold.
    for folder in ["terraform", "examples/use-cases"] {
        copy_tree(&layout.root.join(folder), &sandbox.run_dir.join("tofu").join(folder))?;
    }
    let before = inventory(&sandbox.aws_endpoint).await?;
    for case in use_cases() {
        let played = traceless(sandbox, &before, play(layout, sandbox, &case));
        let seconds = played.await.with_context(|| format!("use case {}", case.name))?;
        println!("{}: {seconds:.1} s", case.name);
    }
    let migrated = traceless(sandbox, &before, migrated::play(sandbox));
    let seconds = migrated.await.context("what karp migrate writes")?;
    println!("what karp migrate writes: {seconds:.1} s");
    Ok(())
}

/// Plays, and holds that AWS has what it had before; says how many seconds it took.
async fn traceless(sandbox: &Sandbox, before: &Inventory, play: impl Future<Output = Result<()>>) -> Result<f64> {
    let begin = Instant::now();
    play.await?;
    let after = inventory(&sandbox.aws_endpoint).await?;
    ensure!(after == *before, "destroy left something behind, or took too much: {after:?} instead of {before:?}");
    Ok(begin.elapsed().as_secs_f64())
}

async fn play(layout: &Layout, sandbox: &Sandbox, case: &UseCase) -> Result<()> {
    let place = format!("examples/use-cases/{}", case.name);
    let tofu = sandbox.workspace_of(&layout.root.join(&place), &place)?;
    init(&tofu).await?;
    apply(&tofu).await?;
    let again = tofu.run(&["plan", "-input=false", "-no-color", "-detailed-exitcode"]).await?;
    again.success().context("the second plan must be empty (exit code 2 means that it shows changes)")?;
    case.workload.create(&sandbox.client, case.name).await?;
    case.workload.run(&sandbox.client, case.name).await?;
    if let Some((argument, told)) = case.edit {
        let edit = ["plan", "-input=false", "-no-color", "-detailed-exitcode", "-var", argument];
        let plan = tofu.run(&edit).await?;
        ensure!(plan.code == 2, "exit code {} of the plan of an edit:\n{}", plan.code, plan.output);
        ensure!(plan.output.contains(told), "the plan of an edit does not tell `{told}`:\n{}", plan.output);
    }
    // With nodes running.
    destroy(&tofu).await?;
    remove(&sandbox.client, case.name).await
}

/// Names of what exists in AWS, by kind.
type Inventory = BTreeMap<String, BTreeSet<String>>;

/// Lists what exists in the emulator's AWS.
async fn inventory(endpoint: &str) -> Result<Inventory> {
    let answer = sandbox::http::get(&format!("{endpoint}/_karp/inventory")).await?;
    let mut things: Inventory = serde_json::from_str(&answer)?;
    for names in things.values_mut() {
        names.retain(|name| !name.starts_with(SERVICE_LINKED));
    }
    Ok(things)
}

impl Workload {
    async fn create(&self, client: &Client, name: &str) -> Result<()> {
        let deployment: Deployment = serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": name },
            "spec": {
                "replicas": self.replicas,
                "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name } },
                    "spec": {
                        "terminationGracePeriodSeconds": 0,
                        "nodeSelector": self.node_selector,
                        "tolerations": self.tolerations,
                        "containers": [{
                            "name": "main",
                            "image": "pause",
                            "resources": { "requests": { "cpu": self.cpu }, "limits": self.limits },
                        }],
                    },
                },
            },
        }))?;
        let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
        deployments.create(&PostParams::default(), &deployment).await.with_context(|| format!("creating {name}"))?;
        Ok(())
    }

    /// Waits until all pods run on nodes of the pool.
    async fn run(&self, client: &Client, name: &str) -> Result<()> {
        let begin = Instant::now();
        loop {
            let pools = pools_of_running_pods(client, name).await?;
            if pools.len() == self.replicas && pools.iter().all(|pool| pool == self.pool) {
                return Ok(());
            }
            ensure!(
                begin.elapsed() < PATIENCE,
                "waited {} s for {} pods on nodes of the pool {}; pods run on nodes of {pools:?}",
                PATIENCE.as_secs(),
                self.replicas,
                self.pool
            );
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Names the pool of each running pod's node; empty for a node of no pool.
async fn pools_of_running_pods(client: &Client, name: &str) -> Result<Vec<String>> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let nodes: Api<Node> = Api::all(client.clone());
    let mut pools = Vec::new();
    for pod in pods.list(&ListParams::default().labels(&format!("app={name}"))).await? {
        let running = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())
            && running
            && pod.metadata.deletion_timestamp.is_none()
        {
            let node = nodes.get_opt(node).await?;
            let pool = node.and_then(|node| node.labels().get("karpenter.sh/nodepool").cloned());
            pools.push(pool.unwrap_or_default());
        }
    }
    Ok(pools)
}

/// Deletes the Deployment and waits until its pods are gone, so that the next use case does not launch nodes for them.
async fn remove(client: &Client, name: &str) -> Result<()> {
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    deployments.delete(name, &DeleteParams::background()).await.with_context(|| format!("deleting {name}"))?;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let begin = Instant::now();
    while !pods.list(&ListParams::default().labels(&format!("app={name}"))).await?.items.is_empty() {
        ensure!(begin.elapsed() < PATIENCE, "pods of {name} are still there after {} s", PATIENCE.as_secs());
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

#[test]
fn every_use_case_is_played_and_read_about() {
    let folder = Layout::here().unwrap().root.join("examples/use-cases");
    let index = fs::read_to_string(folder.join("README.md")).unwrap();
    let played: BTreeSet<_> = use_cases().iter().map(|case| case.name.to_owned()).collect();
    let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().is_dir());
    let there: BTreeSet<_> = folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert_eq!(there, played);
    for name in there {
        assert!(folder.join(&name).join("README.md").is_file(), "{name} has no README.md");
        assert!(index.contains(&format!("({name})")), "README.md does not list {name}");
    }
}

// --- modules ---------------------------------------------------------------------------------------------------------------------------

/// Copies `terraform/` and makes a workspace of one folder in it, in which nothing is called but the provider.
fn module(layout: &Layout, tools: &Tools, copy: &Path, name: &str) -> Result<Workspace> {
    copy_tree(&layout.root.join("terraform"), copy)?;
    let config = tofu::write_cli_config(copy, &layout.provider())?;
    let env = [
        ("TF_CLI_CONFIG_FILE", config.display().to_string()),
        ("AWS_ENDPOINT_URL", NOWHERE.to_owned()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
    ];
    let env = env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    // The copy holds all files already: a workspace of an empty folder adds none.
    let nothing = copy.join(".nothing");
    fs::create_dir_all(&nothing)?;
    Workspace::copy(tools.program("tofu"), &nothing, copy.join(name), env)
}

#[tokio::test]
async fn the_modules_own_tests_pass() -> Result<()> {
    let layout = Layout::here()?;
    let Some(tools) = tools(&layout)? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let karp = module(&layout, &tools, folder.path(), "karp")?;
    init(&karp).await?;
    karp.run(&["validate", "-no-color"]).await?.success()?;
    karp.run(&["test", "-no-color"]).await?.success()?;
    order::hold_of_karp(&Order::of(&karp).await?)
}

#[tokio::test]
async fn the_eks_root_is_planned_with_stubs_in_place_of_its_modules() -> Result<()> {
    let layout = Layout::here()?;
    let Some(tools) = tools(&layout)? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let eks = module(&layout, &tools, folder.path(), "eks")?;
    let main = eks.folder().join("main.tf");
    fs::write(&main, with_stubs(&fs::read_to_string(&main)?))?;
    // The aws provider, and nothing else: no stub needs it.
    fs::remove_file(eks.folder().join("aws.tf"))?;
    init(&eks).await?;
    eks.run(&["validate", "-no-color"]).await?.success()?;
    eks.run(&["test", "-no-color"]).await?.success()?;
    // As a user plans it: the cluster is not there, and nobody is asked for it.
    let plan =
        eks.run(&["plan", "-input=false", "-no-color", "-var=name=prod", "-var=region=eu-west-1"]).await?.success()?;
    for made in [
        "module.karp.karp_controller.this",
        "module.karp.karp_node_pool.this[\"default\"]",
        "module.karp.karp_teardown.this",
    ] {
        ensure!(plan.contains(&format!("# {made} will be created")), "{made} is not in the plan:\n{plan}");
    }
    order::hold_of_eks(&Order::of(&eks).await?)
}

/// Puts stubs in the place of modules of the registry; a local module has no version.
fn with_stubs(root: &str) -> String {
    let mut text = String::new();
    let mut stubbed = false;
    for line in root.lines() {
        let module = line.split_once("\"terraform-aws-modules/").and_then(|(_, rest)| rest.strip_suffix("/aws\""));
        match module {
            Some(module) => text.push_str(&format!("  source = \"./tests/stubs/{module}\"\n")),
            None if stubbed && line.trim_start().starts_with("version") => {}
            None => text.push_str(&format!("{line}\n")),
        }
        stubbed = module.is_some();
    }
    text
}

#[test]
fn only_sources_and_versions_of_registry_modules_give_way_to_stubs() {
    let root = "module \"vpc\" {\n  source  = \"terraform-aws-modules/vpc/aws\"\n  version = \"~> 6.0\"\n\n  name = \"a\"\n}\n\
                module \"karp\" {\n  source = \"../karp\"\n  version = \"1\"\n}\n";
    let stubbed = "module \"vpc\" {\n  source = \"./tests/stubs/vpc\"\n\n  name = \"a\"\n}\n\
                   module \"karp\" {\n  source = \"../karp\"\n  version = \"1\"\n}\n";
    assert_eq!(with_stubs(root), stubbed);
}

#[test]
fn all_of_it_is_formatted() -> Result<()> {
    let layout = Layout::here()?;
    let Some(tools) = tools(&layout)? else { return Ok(()) };
    let mut fmt = Command::new(tools.program("tofu"));
    fmt.args(["fmt", "-check", "-recursive", "-diff", "-no-color", "terraform", "examples"]).current_dir(&layout.root);
    let output = fmt.output().context("starting tofu fmt")?;
    let told = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "run `tofu fmt -recursive`:\n{}", String::from_utf8_lossy(&told));
    Ok(())
}

#[test]
fn readmes_list_all_inputs_and_outputs() {
    let terraform = Layout::here().unwrap().root.join("terraform");
    for module in ["karp", "eks"].map(|name| terraform.join(name)) {
        let readme = fs::read_to_string(module.join("README.md")).unwrap();
        let listed: BTreeSet<_> =
            readme.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).map(str::to_owned).collect();
        assert_eq!(declared(&module), listed, "{}", module.display());
    }
}

/// Names the variables and outputs that a folder's files declare.
fn declared(module: &Path) -> BTreeSet<String> {
    let files: Vec<PathBuf> = fs::read_dir(module).unwrap().map(|entry| entry.unwrap().path()).collect();
    let sources = files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "tf"));
    let texts: Vec<String> = sources.map(|file| fs::read_to_string(file).unwrap()).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    let names = lines.filter_map(|line| line.strip_prefix("variable \"").or_else(|| line.strip_prefix("output \"")));
    names.filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect()
}
