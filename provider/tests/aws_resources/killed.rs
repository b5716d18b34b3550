//! The provider's process dies at random moments of an apply and of a destroy of each kind of resource that makes something. The next apply
//! comes to an empty plan, and the next destroy leaves nothing.
//!
//! What a process that was killed had asked for and not heard of is in no state: its mark tells the next run that it is its own, and nothing
//! is adopted here. Only the spot role, which an account has one of and AWS lets nobody mark, counts as somebody's.

use std::time::Duration;

use aws_sdk_ec2::types::TagDescription;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::stand::{Sandbox, Stand};
use crate::stopped::{APPLY, DESTROY, RESOURCES};
use crate::teardown::{AwsAuth, Kubectl};

/// What each round has of its own, beside what others do that are stopped.
const EACH: &str = r#"
resource "karp_access_entry" "this" {
  principal_arn = karp_node_role.this.arn
}
resource "karp_discovery_tags" "this" {
  resource_ids = SUBNETS
  key          = "karp.test/NAME"
  value        = "x"
}
resource "karp_controller_role" "this" {
  name            = "NAME-controller"
  auth            = "pod_identity"
  service_account = "NAME"
  policy_mode     = "managed"
}
resource "karp_controller_policy" "this" {
  name = "NAME-policy"
}
resource "karp_pod_identity_association" "this" {
  namespace       = "apps"
  service_account = "NAME"
  role_arn        = karp_controller_role.this.arn
}
"#;
/// What an account has one of.
const OF_ACCOUNT: &str = r#"
resource "karp_oidc_provider" "this" {}
resource "karp_spot_service_linked_role" "this" {
  delete_on_destroy = true
}
"#;
/// What a cluster has one of; its objects are [`OBJECTS`].
const OF_CLUSTER: &str = r#"
resource "karp_crds" "this" {
  keep_on_destroy = false
}
resource "karp_controller" "this" {
  namespace = "NAME"
  image     = "karp:nowhere"
  replicas  = 0
}
"#;
/// Objects of a cluster that has its definitions.
pub const OBJECTS: &str = r#"
resource "karp_node_class" "this" {
  name                          = "NAME"
  instance_profile              = "p"
  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = [{ id = "subnet-1" }]
  security_group_selector_terms = [{ id = "sg-1" }]
  wait_for_ready                = false
  depends_on                    = [karp_crds.this]
}
resource "karp_node_pool" "this" {
  name           = "NAME"
  template       = { node_class_ref = { name = "NAME" }, requirements = [] }
  wait_for_ready = false
  depends_on     = [karp_crds.this]
}
resource "karp_node_overlay" "this" {
  name             = "NAME"
  price_adjustment = "-30%"
  requirements     = [{ key = "karpenter.k8s.aws/instance-family", operator = "In", values = ["m7i"] }]
  depends_on       = [karp_crds.this]
}
resource "karp_aws_auth_entry" "this" {
  role_arn = karp_node_role.this.arn
}
"#;
/// Kills are spread over so many calls to AWS that name what is made: a whole apply makes some more.
const CALLS: u64 = 90;
/// Kills are spread over so many resources that were begun or done with: all of a cluster's, twice.
const EVENTS: u64 = 30;
/// A kill comes so much later at most.
const PAUSE_MS: u64 = 40;

/// Draws the next number of a seed (SplitMix64).
fn draw(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Rounds of one kind, one after the other.
struct Rounds<'a> {
    sandbox: &'a Sandbox,
    kubectl: &'a Kubectl,
    of_cluster: bool,
}

impl Rounds<'_> {
    fn config(&self, name: &str) -> String {
        let cluster = format!("  kubernetes = {{ config_path = {:?} }}", self.kubectl.kubeconfig);
        let own = if self.of_cluster { [OF_CLUSTER, OBJECTS].concat() } else { OF_ACCOUNT.to_owned() };
        let resources = format!("{RESOURCES}{EACH}{own}").replace("NAME", name);
        self.sandbox.provider(&cluster) + &resources.replace("SUBNETS", &format!("{:?}", self.sandbox.subnet_ids))
    }

    /// Runs OpenTofu and kills the provider at a moment that the seed tells: after so many calls to AWS, or so many steps where the API
    /// server is called, too. Says whether the run came to grief.
    fn kill(&self, stand: &Stand<'_>, arguments: &[&str], name: &str, seed: &mut u64) -> bool {
        let after = 1 + draw(seed) % if self.of_cluster { EVENTS } else { CALLS };
        let pause = Duration::from_millis(draw(seed) % PAUSE_MS);
        let (mut since, mut calls) = (self.sandbox.last_call(), 0);
        let mut running = stand.begin(arguments);
        while !running.is_over() {
            let seen = if self.of_cluster {
                running.progress() as u64
            } else {
                for call in self.sandbox.calls(since) {
                    since = call["number"].as_u64().unwrap();
                    calls += u64::from(call.to_string().contains(name));
                }
                calls
            };
            if seen >= after {
                std::thread::sleep(pause);
                running.kill_provider();
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        running.end().code != 0
    }

    /// Kills the provider in an apply and in a destroy. Gives how many of the two came to grief.
    fn survives(&self, seed: u64) -> u64 {
        let name = format!("k{}-kill{seed}x", std::process::id());
        let stand = self.sandbox.stand(&self.config(&name));
        // The first round of a cluster makes its namespace, too; a namespace takes some seconds to go.
        let is_found = self.of_cluster && seed > 1;
        if is_found {
            self.kubectl.create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
        }
        let mut seed = seed;
        let applying = self.kill(&stand, &APPLY, &name, &mut seed);
        stand.apply();
        stand.assert_empty_plan();
        let spot_role = self.sandbox.adopted_spot_role(&stand);
        let destroying = self.kill(&stand, &DESTROY, &name, &mut seed);
        stand.destroy();
        // State told that it was there before, as far as anybody can know: it stays.
        Runtime::new().unwrap().block_on(self.sandbox.delete_role(spot_role));
        let left = self.sandbox.what_exists().to_string();
        assert!(!left.contains(&name), "{name}: something is left: {left}");
        if self.of_cluster {
            self.assert_gone(&name, is_found);
        }
        if is_found {
            self.kubectl.delete("--wait=false", &format!("namespace/{name}"));
        }
        u64::from(applying) + u64::from(destroying)
    }

    /// Holds that nothing is left in the cluster.
    fn assert_gone(&self, name: &str, is_found: bool) {
        let left = self.kubectl.names("customresourcedefinitions,clusterroles,clusterrolebindings,namespaces");
        let found = format!("namespace/{name}");
        let ours = |line: &&str| line.contains("karpenter") || (line.contains(name) && !(is_found && *line == found));
        assert_eq!(left.lines().filter(ours).collect::<Vec<_>>(), Vec::<&str>::new(), "{name}");
        let entries = self.kubectl.get(&["-n", "kube-system", "configmap", "aws-auth"]);
        assert!(!entries.to_string().contains(name), "{entries}");
    }
}

/// The tags of this run's rounds that are left.
async fn tags_left(sandbox: &Sandbox) -> Vec<TagDescription> {
    let all = sandbox.clients().await.ec2().describe_tags().into_paginator().items().send();
    let all = all.collect::<Result<Vec<_>, _>>().await.unwrap();
    let key = format!("karp.test/k{}-", std::process::id());
    all.into_iter().filter(|tag| tag.key().is_some_and(|known| known.starts_with(&key))).collect()
}

#[test]
fn a_provider_that_is_killed_loses_nothing() {
    let Some(sandbox) = Sandbox::with_cluster("killed") else { return };
    let Some(kubectl) = Kubectl::find() else {
        eprintln!("skipped: killed: KARP_TEST_KUBECONFIG is not set");
        return;
    };
    let before = sandbox.what_exists();
    let _aws_auth = AwsAuth::new(&kubectl);
    let seeds: u64 = if std::env::var_os("KARP_DEEP").is_some() { 200 } else { 10 };
    // Two kinds of rounds side by side: neither has what the other has one of.
    let grief: u64 = std::thread::scope(|scope| {
        let kinds = [false, true].map(|of_cluster| {
            let rounds = Rounds { sandbox: &sandbox, kubectl: &kubectl, of_cluster };
            scope.spawn(move || {
                (0..seeds).filter(|seed| (seed % 2 == 1) == of_cluster).map(|seed| rounds.survives(seed)).sum::<u64>()
            })
        });
        kinds.map(|kind| kind.join().unwrap()).iter().sum()
    });
    eprintln!("{grief} of {} runs were cut off", 2 * seeds);
    assert!(grief >= seeds, "only {grief} of {} runs were cut off", 2 * seeds);
    assert_eq!(sandbox.what_exists(), before, "something is left");
    let tags = Runtime::new().unwrap().block_on(tags_left(&sandbox));
    assert_eq!(tags, vec![], "tags are left");
    // Other tests find the definitions.
    let crds = sandbox.stand(&format!(
        "{}resource \"karp_crds\" \"this\" {{}}\n",
        sandbox.provider(&format!("  kubernetes = {{ config_path = {:?} }}", kubectl.kubeconfig))
    ));
    crds.apply();
}
