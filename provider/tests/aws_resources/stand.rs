//! What the edge tests share: real OpenTofu on the built provider, and the sandbox's AWS.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use karp_aws::config::{AccessKeys, Clients, Service, Settings};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::others::{self, Left};
use crate::rc;
use crate::tofu::{self, Run, Running};
use crate::turn::{Need, Turn};

/// Seconds that a Fargate profile takes to come or to go where a test does not ask for more: it is seen on its way once.
pub const FARGATE_SECONDS: f64 = 0.2;
/// Emulators that a sandbox may have.
const MOST: usize = 4;
/// An emulator that has answered nothing for so long has nothing left to answer.
const QUIET: Duration = Duration::from_secs(1);
/// Of each emulator's log a call that was seen already.
static LAST_CALL: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// The sandbox as the tests find it.
pub struct Sandbox {
    pub endpoint: String,
    pub region: String,
    pub cluster: String,
    pub subnet_ids: Vec<String>,
    pub tofu: PathBuf,
    turn: Turn,
}

impl Sandbox {
    /// Finds an emulator and OpenTofu; says what is missing and gives nothing when either is.
    pub fn find(test: &str) -> Option<Self> {
        Self::with(test, Need::Any)
    }

    /// The same for a test that also uses the sandbox's API server.
    pub fn with_cluster(test: &str) -> Option<Self> {
        Self::with(test, Need::Cluster)
    }

    /// The same for a test that measures how long something takes.
    pub fn in_quiet(test: &str) -> Option<Self> {
        Self::with(test, Need::Quiet)
    }

    fn with(test: &str, need: Need) -> Option<Self> {
        let Ok(endpoints) = std::env::var("KARP_TEST_AWS_ENDPOINTS") else {
            eprintln!("skipped: {test}: KARP_TEST_AWS_ENDPOINTS is not set");
            return None;
        };
        let endpoints: Vec<&str> = endpoints.split(',').take(MOST).collect();
        let tofu = rc::program(test)?;
        let turn = Turn::take(endpoints.len(), need);
        let endpoint = endpoints[turn.place].to_owned();
        let seed = http(&endpoint, "GET", "/_karp/seed", "");
        let text = |name: &str| seed[name].as_str().unwrap().to_owned();
        let subnet_ids =
            seed["subnet_ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect();
        let (region, cluster) = (text("region"), text("cluster_name"));
        let sandbox = Self { endpoint, region, cluster, subnet_ids, tofu, turn };
        sandbox.fargate_takes(FARGATE_SECONDS);
        sandbox.knows_callers_by("API_AND_CONFIG_MAP");
        Some(sandbox)
    }

    /// Lets Fargate profiles take so many seconds to come or to go; the next test finds them as usual.
    pub fn fargate_takes(&self, seconds: f64) {
        self.door("POST", "/_karp/settings", &json!({ "fargate_seconds": seconds }).to_string());
    }

    /// Gives the sandbox's cluster another authentication mode; the next test finds it as usual.
    pub fn knows_callers_by(&self, mode: &str) {
        self.door("POST", "/_karp/settings", &json!({ "authentication_mode": mode }).to_string());
    }

    /// Asks the emulator's own door.
    pub fn door(&self, method: &str, path: &str, body: &str) -> Value {
        http(&self.endpoint, method, path, body)
    }

    /// What exists in the emulator's AWS.
    pub fn what_exists(&self) -> Value {
        self.door("GET", "/_karp/inventory", "")
    }

    /// The calls that the emulator answered after the one of this number, oldest first.
    pub fn calls(&self, since: u64) -> Vec<Value> {
        self.door("GET", &format!("/_karp/calls?since={since}"), "").as_array().cloned().unwrap_or_default()
    }

    /// The number of the last call. Asks from the last one that was asked for: the whole log is long.
    pub fn last_call(&self) -> u64 {
        let seen = &LAST_CALL[self.turn.place];
        let known = seen.load(Ordering::Relaxed);
        let last = self.calls(known).last().and_then(|call| call["number"].as_u64()).unwrap_or(known);
        seen.fetch_max(last, Ordering::Relaxed);
        last
    }

    /// Waits until nothing is answered any more: a provider that ends with OpenTofu has asked for what the emulator does a moment later.
    pub fn settle(&self) {
        let mut seen = self.last_call();
        loop {
            std::thread::sleep(QUIET);
            let now = self.last_call();
            if now == seen {
                return;
            }
            seen = now;
        }
    }

    /// Makes clients of the emulator, to look and to meddle.
    pub async fn clients(&self) -> Clients {
        let keys = AccessKeys { access_key_id: "test".into(), secret_access_key: "test".into(), session_token: None };
        let settings = Settings {
            region: Some(self.region.clone()),
            access_keys: Some(keys),
            endpoints: Service::ALL.into_iter().map(|service| (service, self.endpoint.clone())).collect(),
            ..Settings::default()
        };
        Clients::load(&settings).await.unwrap()
    }

    /// Makes a working folder with a configuration; `PROVIDER` in it stands for a usual provider block.
    pub fn stand(&self, config: &str) -> Stand<'_> {
        let dir = tempfile::tempdir().unwrap();
        rc::write(dir.path());
        let stand = Stand { sandbox: self, dir };
        stand.write(config);
        stand
    }

    /// A provider block for the emulator, with more lines in it.
    pub fn provider(&self, more: &str) -> String {
        let services = ["ec2", "eks", "events", "iam", "pricing", "sqs", "ssm", "sts"];
        let endpoints: Vec<String> =
            services.iter().map(|name| format!("    {name} = {:?}\n", self.endpoint)).collect();
        let region = if more.contains("region") { String::new() } else { format!("  region = {:?}\n", self.region) };
        let name = if more.contains("cluster_name") {
            String::new()
        } else {
            format!("  cluster_name = {:?}\n", self.cluster)
        };
        let endpoints = if more.contains("endpoints") {
            String::new()
        } else {
            format!("  endpoints = {{\n{}  }}\n", endpoints.concat())
        };
        let keys = if more.contains("profile") { "" } else { "  access_key = \"test\"\n  secret_key = \"test\"\n" };
        format!("provider \"karp\" {{\n{region}{name}{endpoints}{keys}{more}\n}}\n")
    }
}

/// A working folder of OpenTofu.
pub struct Stand<'a> {
    sandbox: &'a Sandbox,
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
        let config = config.replace("PROVIDER", &self.sandbox.provider(""));
        std::fs::write(self.dir.path().join("main.tf"), format!("{head}{config}")).unwrap();
    }

    /// The working folder.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        tofu::command(&self.sandbox.tofu, self.dir.path(), arguments)
    }

    /// Runs OpenTofu, whatever it comes to.
    pub fn tofu(&self, arguments: &[&str]) -> Run {
        Run::of(self.command(arguments))
    }

    /// Runs OpenTofu with more in the environment.
    pub fn tofu_in(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Run {
        let mut command = self.command(arguments);
        command.envs(environment.iter().copied());
        Run::of(command)
    }

    /// Begins a run of OpenTofu in a process group of its own, as a shell does.
    pub fn begin(&self, arguments: &[&str]) -> Running {
        Running::begin(self.command(arguments), self.dir.path())
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

    /// Puts another state in the place of the folder's.
    pub fn put_state(&self, state: &str) {
        std::fs::write(self.dir.path().join("terraform.tfstate"), state).unwrap();
    }

    /// The state file as it is.
    pub fn state(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("terraform.tfstate")).unwrap_or_default()
    }

    /// An attribute of a resource in state.
    pub fn attribute(&self, address: &str, name: &str) -> Value {
        self.instance(address)["attributes"][name].clone()
    }

    /// The identity of a resource in state; null where it has none.
    pub fn identity(&self, address: &str) -> Value {
        self.instance(address)["identity"].clone()
    }

    fn instance(&self, address: &str) -> Value {
        let (kind, label) = address.split_once('.').unwrap();
        let state: Value = serde_json::from_str(&self.state()).unwrap_or_default();
        let resources = state["resources"].as_array().cloned().unwrap_or_default();
        let found = resources.into_iter().find(|resource| resource["type"] == kind && resource["name"] == label);
        found.map(|resource| resource["instances"][0].clone()).unwrap_or_default()
    }
}

/// Asks a server on this machine for JSON.
fn http(endpoint: &str, method: &str, path: &str, body: &str) -> Value {
    let address = endpoint.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{method} {path}: {answer}");
    serde_json::from_str(body).unwrap_or_default()
}
