//! What the edge tests share: real OpenTofu on the built provider, and the sandbox's API server.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use karp_kube::client::{Choice, Connection, connect};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{self, Runtime};

use crate::others::{self, Left};
use crate::rc;
use crate::tofu::{self, Run, Running};

/// Tests share the CRDs; one that changes them has the cluster alone.
static SHARED: RwLock<()> = RwLock::new(());

/// A cluster has one `aws-auth`: tests of its entries take their turn.
static AWS_AUTH: Mutex<()> = Mutex::new(());

/// How a test shares the cluster with others.
enum Share {
    #[allow(dead_code)] // held, not read
    WithOthers(RwLockReadGuard<'static, ()>),
    #[allow(dead_code)]
    Alone(RwLockWriteGuard<'static, ()>),
}

/// The API server as the tests find it.
pub struct Cluster {
    pub kubeconfig: String,
    tools: PathBuf,
    tofu: PathBuf,
    _share: Share,
}

/// The path of what kubectl's `get` would read, for the kinds that tests ask for most.
fn path(what: &[&str]) -> Option<String> {
    let (namespace, rest) = match what {
        ["-n", namespace, rest @ ..] => (format!("namespaces/{namespace}/"), rest),
        rest => (String::new(), rest),
    };
    let (kind, rest) = rest.split_first()?;
    let (group, plural, is_namespaced) = match *kind {
        "nodepool" => ("apis/karpenter.sh/v1", "nodepools", false),
        "nodeclaim" | "nodeclaims" => ("apis/karpenter.sh/v1", "nodeclaims", false),
        "nodeoverlay" => ("apis/karpenter.sh/v1alpha1", "nodeoverlays", false),
        "ec2nodeclass" => ("apis/karpenter.k8s.aws/v1", "ec2nodeclasses", false),
        "crd" => ("apis/apiextensions.k8s.io/v1", "customresourcedefinitions", false),
        "namespace" => ("api/v1", "namespaces", false),
        "pods" => ("api/v1", "pods", true),
        "configmap" => ("api/v1", "configmaps", true),
        "deployment" => ("apis/apps/v1", "deployments", true),
        _ => return None,
    };
    if is_namespaced == namespace.is_empty() {
        return None;
    }
    let of = match rest {
        [] => String::new(),
        ["-l", label] => format!("?labelSelector={}", label.replace('=', "%3D").replace('/', "%2F")),
        [name] => format!("/{name}"),
        _ => return None,
    };
    Some(format!("/{group}/{namespace}{plural}{of}"))
}

/// Says whether an answer is about an object, rather than about a path that nobody serves.
fn names_object(status: &kube::core::Status) -> bool {
    status.details.as_ref().is_some_and(|details| !details.name.is_empty())
}

impl Cluster {
    /// Finds the API server and the tools; says what is missing and gives nothing when either is.
    pub fn find(test: &str) -> Option<Self> {
        let share = || Share::WithOthers(SHARED.read().unwrap_or_else(PoisonError::into_inner));
        Self::shared(test, share)
    }

    /// Finds them for a test that no other may run beside.
    pub fn find_alone(test: &str) -> Option<Self> {
        Self::shared(test, || Share::Alone(SHARED.write().unwrap_or_else(PoisonError::into_inner)))
    }

    fn shared(test: &str, share: impl FnOnce() -> Share) -> Option<Self> {
        let value = |name: &str| {
            let value = std::env::var(name).ok();
            if value.is_none() {
                eprintln!("skipped: {test}: {name} is not set");
            }
            value
        };
        let (kubeconfig, tools) = (value("KARP_TEST_KUBECONFIG")?, value("KARP_TEST_TOOLS")?.into());
        Some(Self { kubeconfig, tools, tofu: rc::program(test)?, _share: share() })
    }

    /// Makes a name that no other test or run has.
    pub fn unique(&self, what: &str) -> String {
        format!("edge-{what}-{}", std::process::id())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.tools.join("kubectl"));
        command.args(["--kubeconfig", &self.kubeconfig]).args(arguments);
        command
    }

    /// Has finalizers keep an object, which is named as for `get`; null lets it go.
    pub fn hold(&self, object: &[&str], finalizers: &Value) {
        let patch = json!({ "metadata": { "finalizers": finalizers } }).to_string();
        self.kubectl(&[&["patch"], object, &["--type=merge", "-p", &patch]].concat());
    }

    /// Runs kubectl; it must succeed.
    pub fn kubectl(&self, arguments: &[&str]) {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Reads an object, or a list, named as for kubectl's `get`; null when it is not there. What tests ask for again and again is asked for without
    /// kubectl, which takes longer to start than the API server to answer.
    pub fn get(&self, what: &[&str]) -> Value {
        if let Some(path) = path(what) {
            return self.ask(&path);
        }
        let output = self.command(&[&["get", "-o", "json"], what].concat()).output().unwrap();
        let missing = String::from_utf8_lossy(&output.stderr).contains("NotFound");
        assert!(output.status.success() || missing, "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Asks the API server for what is at a path; null when nothing is.
    fn ask(&self, path: &str) -> Value {
        static SHARED: OnceLock<(Runtime, kube::Client)> = OnceLock::new();
        let (runtime, client) = SHARED.get_or_init(|| {
            let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let client = runtime.block_on(self.client());
            (runtime, client)
        });
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        match runtime.block_on(client.request(request)) {
            Ok(found) => found,
            // a kind that the server does not serve has no name in its answer: such a path is wrong
            Err(kube::Error::Api(status)) if status.code == 404 && names_object(&status) => Value::Null,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// Makes a token of a service account.
    pub fn token(&self, namespace: &str, account: &str) -> String {
        let output = self.command(&["-n", namespace, "create", "token", account]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Makes a namespace that a controller finds and leaves: nobody waits some seconds for its end.
    pub fn namespace(&self, name: &str) -> Namespace<'_> {
        self.create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
        Namespace { cluster: self, name: name.to_owned() }
    }

    /// Creates an object.
    pub fn create(&self, object: &Value) {
        self.feed(&["create", "-f", "-"], object);
    }

    /// Puts an object in the place of the live one, in the name of a field manager.
    pub fn replace(&self, manager: &str, object: &Value) {
        self.feed(&["replace", &format!("--field-manager={manager}"), "-f", "-"], object);
    }

    fn feed(&self, arguments: &[&str], object: &Value) {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(object.to_string().as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// Connects as the kubeconfig file says, for what takes too long by kubectl.
    pub async fn client(&self) -> kube::Client {
        connect(&Connection::Kubeconfig { paths: vec![self.kubeconfig.clone().into()], choice: Choice::default() })
            .await
            .unwrap()
    }

    /// Makes a working folder with a configuration; `KUBECONFIG` in it stands for the file's path.
    pub fn stand(&self, config: &str) -> Stand<'_> {
        let dir = tempfile::tempdir().unwrap();
        rc::write(dir.path());
        let stand = Stand { cluster: self, dir };
        stand.write(config);
        stand
    }
}

/// A namespace of a test's own, which goes with it.
pub struct Namespace<'a> {
    cluster: &'a Cluster,
    name: String,
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        let _ = self.cluster.command(&["delete", "namespace", &self.name, "--wait=false"]).output();
    }
}

/// The cluster's `aws-auth`, which goes with the test.
pub struct AwsAuth<'a> {
    cluster: &'a Cluster,
    _turn: MutexGuard<'static, ()>,
}

impl<'a> AwsAuth<'a> {
    /// None: a test begins without it.
    pub fn absent(cluster: &'a Cluster) -> Self {
        Self { cluster, _turn: AWS_AUTH.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// One with these entries.
    pub fn with(cluster: &'a Cluster, roles: &str) -> Self {
        let absent = Self::absent(cluster);
        cluster.create(&json!({ "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "aws-auth", "namespace": "kube-system" }, "data": { "mapRoles": roles, "mapUsers": "[]\n" } }));
        absent
    }

    /// Deletes it by hand.
    pub fn delete(&self) {
        self.cluster.kubectl(&["-n", "kube-system", "delete", "configmap", "aws-auth"]);
    }

    /// The entries as they are written.
    pub fn roles(&self) -> String {
        let live = self.cluster.get(&["-n", "kube-system", "configmap", "aws-auth"]);
        live["data"]["mapRoles"].as_str().unwrap().to_owned()
    }

    /// Writes the entries by hand.
    pub fn edit(&self, roles: &str) {
        let patch = json!({ "data": { "mapRoles": roles } }).to_string();
        self.cluster.kubectl(&["-n", "kube-system", "patch", "configmap", "aws-auth", "--type=merge", "-p", &patch]);
    }
}

impl Drop for AwsAuth<'_> {
    fn drop(&mut self) {
        let _ = self.cluster.command(&["-n", "kube-system", "delete", "configmap", "aws-auth"]).output();
    }
}

/// A working folder of OpenTofu.
pub struct Stand<'a> {
    cluster: &'a Cluster,
    dir: TempDir,
}

impl Stand<'_> {
    /// Puts into the folder's state what other providers left.
    pub fn hand_over(&self, left: &[Left]) {
        others::leave(self.dir.path(), left);
    }

    /// Replaces the configuration.
    pub fn write(&self, config: &str) {
        let head = "terraform {\n  required_providers {\n    karp = {\n      source = \"karp/karp\"\n    }\n  }\n}\n";
        let config = config.replace("KUBECONFIG", &format!("{:?}", self.cluster.kubeconfig));
        std::fs::write(self.dir.path().join("main.tf"), format!("{head}{config}")).unwrap();
    }

    /// Writes a file that the configuration reads.
    pub fn put(&self, name: &str, content: &Value) {
        std::fs::write(self.dir.path().join(name), content.to_string()).unwrap();
    }

    /// The working folder.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Runs OpenTofu, whatever it comes to.
    pub fn tofu(&self, arguments: &[&str]) -> Run {
        self.tofu_logging(arguments, None)
    }

    /// Plans; answers what the provider logged meanwhile, too.
    pub fn plan_with_log(&self) -> (Run, String) {
        self.tofu_with_log(&["plan", "-json", "-detailed-exitcode"])
    }

    /// Runs OpenTofu, whatever it comes to; answers what the provider logged meanwhile, too.
    pub fn tofu_with_log(&self, arguments: &[&str]) -> (Run, String) {
        let log = self.dir.path().join("provider.log");
        // Each run adds to the file.
        let _ = std::fs::remove_file(&log);
        let run = self.tofu_logging(arguments, Some(&log));
        (run, std::fs::read_to_string(&log).unwrap_or_default())
    }

    /// Plans with more in the environment.
    pub fn plan_with(&self, environment: &[(&str, &str)]) -> Run {
        self.run(&["plan", "-json", "-detailed-exitcode"], environment)
    }

    fn tofu_logging(&self, arguments: &[&str], log: Option<&Path>) -> Run {
        match log.and_then(Path::to_str) {
            Some(log) => self.run(arguments, &[("TF_LOG_PROVIDER", "INFO"), ("TF_LOG_PATH", log)]),
            None => self.run(arguments, &[]),
        }
    }

    fn run(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Run {
        let mut command = self.command(arguments);
        command.envs(environment.iter().copied());
        Run::of(command)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        tofu::command(&self.cluster.tofu, self.dir.path(), arguments)
    }

    /// Begins a run in a process group of its own, as a shell does.
    pub fn begin(&self, arguments: &[&str]) -> Running {
        Running::begin(self.command(arguments), self.dir.path())
    }

    /// Puts another state in the place of the folder's.
    pub fn put_state(&self, state: &str) {
        std::fs::write(self.dir.path().join("terraform.tfstate"), state).unwrap();
    }

    /// The state file as it is.
    pub fn state(&self) -> Value {
        let text = std::fs::read_to_string(self.dir.path().join("terraform.tfstate")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Plans.
    pub fn plan(&self) -> Run {
        self.tofu(&["plan", "-json", "-detailed-exitcode"])
    }

    /// Applies; it must succeed.
    pub fn apply(&self) -> Run {
        let run = self.tofu(&["apply", "-json", "-auto-approve"]);
        assert_eq!(run.code, 0, "{}", run.text);
        run
    }

    /// Applies; it must fail.
    pub fn apply_failing(&self) -> Run {
        let run = self.tofu(&["apply", "-json", "-auto-approve"]);
        assert_eq!(run.code, 1, "{}", run.text);
        run
    }

    /// Holds that nothing is left to do.
    pub fn assert_empty_plan(&self) -> Run {
        let run = self.plan();
        assert_eq!((run.code, run.changes()), (0, vec![]), "{}", run.text);
        run
    }

    /// Destroys all; it must succeed.
    pub fn destroy(&self) {
        let run = self.tofu(&["destroy", "-json", "-auto-approve"]);
        assert_eq!(run.code, 0, "{}", run.text);
    }
}
