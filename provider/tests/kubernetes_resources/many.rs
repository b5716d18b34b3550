//! Many objects at once: as many as OpenTofu is told to begin together, of which each entry of `aws-auth` is written to one ConfigMap.

use crate::stand::{AwsAuth, Cluster};
use crate::{CRDS, PROVIDER, class, pool};

/// How many there are of each kind.
const COUNT: usize = 20;

const OTHERS: &str = r#"
resource "karp_node_overlay" "it" {
  count        = COUNT
  name         = "NAME-${count.index}"
  requirements = [{ key = "karpenter.k8s.aws/instance-family", operator = "In", values = ["m7i"] }]
  price        = "0.25"
  weight       = count.index + 1
  depends_on   = [karp_crds.this]
}

resource "karp_aws_auth_entry" "it" {
  count    = COUNT
  role_arn = "arn:aws:iam::111122223333:role/NAME-${count.index}"
}
"#;

/// So many of a block that stands for one.
fn times(block: &str, name: &str) -> String {
    let (one, each) = (format!("{name:?}"), format!("\"{name}-${{count.index}}\""));
    block.replace(&one, &each).replacen(" {\n", &format!(" {{\n  count = {COUNT}\n"), 1)
}

/// All of it comes with one parallelism and goes with the other; nothing is lost, and nothing is left.
fn come_and_go_at_once(test: &str, [comes, goes]: [&str; 2]) {
    let Some(cluster) = Cluster::find(test) else { return };
    let name = cluster.unique(test);
    let theirs = "- rolearn: arn:aws:iam::111122223333:role/workers\n  username: system:node:{{EC2PrivateDNSName}}\n";
    let aws_auth = AwsAuth::with(&cluster, theirs);
    let pools =
        times(&class(&name, "  wait_for_ready = false"), &name) + &times(&pool(&name, r#"{ cpu = "100" }"#), &name);
    let others = OTHERS.replace("NAME", &name).replace("COUNT", &COUNT.to_string());
    let stand = cluster.stand(&format!("{PROVIDER}{CRDS}{pools}{others}"));
    let live = || {
        let kinds = ["nodepool", "ec2nodeclass", "nodeoverlay"];
        let named = |kind: &&str| {
            let all = cluster.get(&[kind]);
            let names =
                all["items"].as_array().into_iter().flatten().filter_map(|one| one["metadata"]["name"].as_str());
            names.filter(|one| one.starts_with(&name)).count()
        };
        kinds.map(|kind| named(&kind))
    };
    let entries = || aws_auth.roles().matches(&format!("role/{name}-")).count();

    let run = stand.tofu(&["apply", "-json", "-auto-approve", comes]);
    assert_eq!(run.code, 0, "{}", run.text);
    assert_eq!((live(), entries()), ([COUNT; 3], COUNT));
    let plan = stand.tofu(&["plan", "-json", "-detailed-exitcode", goes]);
    assert_eq!((plan.code, plan.changes()), (0, vec![]), "{}", plan.text);
    let run = stand.tofu(&["destroy", "-json", "-auto-approve", goes]);
    assert_eq!(run.code, 0, "{}", run.text);
    assert_eq!((live(), entries()), ([0; 3], 0));
    assert!(aws_auth.roles().contains("role/workers"), "{}", aws_auth.roles());
}

#[test]
fn ten_come_and_fifty_go_at_once() {
    come_and_go_at_once("ten", ["-parallelism=10", "-parallelism=50"]);
}

#[test]
fn fifty_come_and_ten_go_at_once() {
    come_and_go_at_once("fifty", ["-parallelism=50", "-parallelism=10"]);
}
