//! karp as an agent of continuous integration runs it: no home, no configuration of AWS, a disk that cannot be written but for one folder,
//! and a web identity for credentials, which AWS and the API server take. Plan and apply work, and no token and no key is found afterwards in
//! state, plan, log or output.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use aws_sdk_eks::types::{AccessScope, AccessScopeType};
use serde_json::Value;

use crate::stand::Sandbox;

/// What lets the agent's role write in the cluster.
const CLUSTER_ADMIN: &str = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy";
/// The role of the agent: the pods of the cluster's own default service account may have it.
const SETUP: &str = r#"PROVIDER
resource "karp_crds" "this" {}
resource "karp_oidc_provider" "this" {}
resource "karp_controller_role" "this" {
  name              = "NAME-agent"
  namespace         = "default"
  service_account   = "default"
  oidc_provider_arn = karp_oidc_provider.this.arn
}
"#;
const CONFIG: &str = r#"
terraform {
  required_providers {
    karp = { source = "karp/karp" }
  }
}
provider "karp" {
  cluster_name = "CLUSTER"
}
resource "karp_node_role" "this" {
  name = "NAME-made"
}
resource "karp_node_overlay" "this" {
  name             = "NAME-made"
  price_adjustment = "-30%"
  requirements     = [{ key = "karpenter.k8s.aws/instance-family", operator = "In", values = ["m7i"] }]
}
"#;

/// Stands before STS and keeps what it answers: the only way to know the keys that the provider got.
struct Ear {
    endpoint: String,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Ear {
    fn at(upstream: &str) -> Self {
        let upstream = upstream.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let keeps = Arc::clone(&heard);
        std::thread::spawn(move || {
            for asker in listener.incoming().flatten() {
                let server = TcpStream::connect(&upstream).unwrap();
                let (asks, asked) = (asker.try_clone().unwrap(), server.try_clone().unwrap());
                let keeps = Arc::clone(&keeps);
                std::thread::spawn(move || pass_on(asks, asked, None));
                std::thread::spawn(move || pass_on(server, asker, Some(&keeps)));
            }
        });
        Self { endpoint, heard }
    }

    /// The values of an element in all answers.
    fn values(&self, element: &str) -> Vec<String> {
        let heard = self.heard.lock().unwrap();
        let text = String::from_utf8_lossy(&heard);
        let begin = format!("<{element}>");
        let after = text.split(&begin).skip(1);
        after.filter_map(|rest| Some(rest.split_once('<')?.0.to_owned())).collect()
    }
}

/// Copies one direction of a connection until it ends, and keeps a copy where one is wanted.
fn pass_on(mut from: TcpStream, mut to: TcpStream, keeps: Option<&Mutex<Vec<u8>>>) {
    let mut buffer = [0; 8192];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if let Some(keeps) = keeps {
            keeps.lock().unwrap().extend_from_slice(&buffer[..length]);
        }
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// A token of the cluster's default service account, as a projected volume holds it.
pub fn token() -> Option<String> {
    let (tools, kubeconfig) = (std::env::var("KARP_TEST_TOOLS").ok()?, std::env::var("KARP_TEST_KUBECONFIG").ok()?);
    let mut command = Command::new(Path::new(&tools).join("kubectl"));
    command.args(["--kubeconfig", &kubeconfig, "create", "token", "default", "--audience", "sts.amazonaws.com"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

/// Makes the disk read-only for what is run by it, but for the folder that it gets; permissions alone do not bind root.
const READ_ONLY: &str = r#"set -e
mount --bind "$1" "$1"
mount -o remount,bind,ro /
mount --bind "$1/checkout" "$1/checkout"
mount -o remount,bind,ro "$1/checkout"
shift
# What is mounted now, not what was there before.
cd "$PWD"
exec "$@"
"#;

/// A disk of which nothing can be written but what lies in this folder outside of `checkout`.
struct Disk<'a> {
    folder: &'a Path,
    /// Whether it is mounted so; without, the permissions of the checkout bind whoever is not root.
    is_mounted: bool,
}

impl<'a> Disk<'a> {
    /// Makes one of a folder with a checkout; says where the kernel allows no more than permissions.
    fn of(folder: &'a Path) -> Self {
        fs::set_permissions(folder.join("checkout"), Permissions::from_mode(0o555)).unwrap();
        let mut disk = Self { folder, is_mounted: true };
        let output = disk.command("true").output();
        disk.is_mounted = output.is_ok_and(|output| output.status.success());
        if !disk.is_mounted {
            eprintln!("not run on a read-only disk, which wants `unshare -m`: the checkout alone is read-only");
        }
        let mut places = vec![folder.join("checkout/x")];
        places.extend(disk.is_mounted.then(|| "/karp-agent".into()));
        for place in places {
            let written = disk.command("touch").arg(&place).output().unwrap();
            assert!(!written.status.success() && !place.exists(), "{} can be written", place.display());
        }
        disk
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        if !self.is_mounted {
            return Command::new(program);
        }
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", READ_ONLY, "sh"]).arg(self.folder).arg(program);
        command
    }
}

#[tokio::test]
async fn an_agent_needs_no_home_and_leaves_no_secret() {
    let Some(sandbox) = Sandbox::with_cluster("agent") else { return };
    let Some(token) = token() else {
        eprintln!("skipped: agent: KARP_TEST_KUBECONFIG is not set");
        return;
    };
    let before = sandbox.what_exists();
    let name = format!("g{}", std::process::id());
    let stand = sandbox.stand(&SETUP.replace("NAME", &name));
    stand.apply();
    let role = stand.attribute("karp_controller_role.this", "arn").as_str().unwrap().to_owned();
    let eks = sandbox.clients().await.eks().clone();
    let entry = eks.create_access_entry().cluster_name(&sandbox.cluster).principal_arn(&role);
    entry.send().await.unwrap();
    let admin = eks.associate_access_policy().cluster_name(&sandbox.cluster).principal_arn(&role);
    let everywhere = AccessScope::builder().r#type(AccessScopeType::Cluster).build();
    admin.policy_arn(CLUSTER_ADMIN).access_scope(everywhere).send().await.unwrap();

    let ear = Ear::at(&sandbox.endpoint);
    let outside = tempfile::tempdir().unwrap();
    let folder = outside.path().join("checkout");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("main.tf"), CONFIG.replace("CLUSTER", &sandbox.cluster).replace("NAME", &name)).unwrap();
    fs::write(outside.path().join("token"), &token).unwrap();
    let temporary = outside.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let disk = Disk::of(outside.path());
    let (state, plan, log) =
        (path(outside.path(), "state"), path(outside.path(), "plan"), path(outside.path(), "trace.log"));

    let since = sandbox.last_call();
    let mut told = String::new();
    let mut tofu = |arguments: &[&str]| {
        let mut command = disk.command(&sandbox.tofu);
        command.args(arguments).current_dir(&folder).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("TMPDIR", &temporary);
        command.env("TF_CLI_CONFIG_FILE", stand.folder().join("tofu.rc")).env("TF_IN_AUTOMATION", "1");
        command.env("TF_INPUT", "0").env("TF_DATA_DIR", outside.path().join("data"));
        command.env("TF_LOG", "TRACE").env("TF_LOG_PATH", &log);
        command.env("AWS_WEB_IDENTITY_TOKEN_FILE", outside.path().join("token")).env("AWS_ROLE_ARN", &role);
        command.env("AWS_REGION", &sandbox.region).env("AWS_EC2_METADATA_DISABLED", "true");
        command.env("AWS_ENDPOINT_URL", &sandbox.endpoint).env("AWS_ENDPOINT_URL_STS", &ear.endpoint);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        told += &text;
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {text}");
        text
    };
    let state_at = format!("-state={state}");
    tofu(&["plan", "-json", &state_at, &format!("-out={plan}")]);
    let planned = tofu(&["show", "-json", &plan]);
    assert!(planned.contains(&format!("{name}-made")), "{planned}");
    tofu(&["apply", "-json", &state_at, &plan]);
    tofu(&["plan", "-json", "-detailed-exitcode", &state_at]);
    let applied = fs::read_to_string(&state).unwrap();
    assert!(applied.contains(&format!("{name}-made")), "{applied}");
    tofu(&["destroy", "-json", "-auto-approve", &state_at]);
    let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, ["main.tf"], "the folder was written to");
    let left: Vec<_> = fs::read_dir(&temporary).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?} is left in TMPDIR");
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();

    let (secrets, sessions, ids) =
        (ear.values("SecretAccessKey"), ear.values("SessionToken"), ear.values("AccessKeyId"));
    assert!(!secrets.is_empty() && secrets.len() == sessions.len(), "STS was not asked through the ear");
    let used = |call: &Value| ids.iter().any(|id| call["caller"] == id.as_str()) && call["action"] == "CreateRole";
    assert!(sandbox.calls(since).iter().any(used), "the role was made with other credentials");
    let traced = fs::read_to_string(&log).unwrap();
    assert!(traced.contains("[TRACE]") && traced.contains("terraform-provider-karp"), "nothing was traced");
    let places = [("the state", &applied), ("the output and the plan", &told), ("the log", &traced)];
    let signature = token.rsplit('.').next().unwrap().to_owned();
    let bearer = "k8s-aws-v1.".to_owned();
    for secret in [token, signature, bearer].into_iter().chain(secrets).chain(sessions) {
        for (place, text) in places {
            assert!(!text.contains(&secret), "{place} tells a secret of {} characters", secret.len());
        }
    }
    eks.delete_access_entry().cluster_name(&sandbox.cluster).principal_arn(&role).send().await.unwrap();
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
