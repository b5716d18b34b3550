//! What exists is taken over where the provider block says so. What serves another cluster is not, asked or not, and neither is what lies under
//! another path. (An access entry and an identity provider belong to one cluster by their name, so that another's are never met; roles, policies
//! and discovery tags have their tests in `life` and `policies`.)

use serde_json::Value;

use crate::killed::OBJECTS;
use crate::life::unique;
use crate::stand::Sandbox;
use crate::stopped::RESOURCES;
use crate::teardown::{AwsAuth, Kubectl};

/// With [`RESOURCES`] and [`OBJECTS`] one of each resource that takes over what exists.
const OTHERS: &str = r#"
resource "karp_oidc_provider" "this" {}
resource "karp_controller_role" "this" {
  name            = "NAME-controller"
  auth            = "pod_identity"
  service_account = "NAME"
  policy_mode     = "managed"
  node_role_arns  = [karp_node_role.this.arn]
}
resource "karp_controller_policy" "this" {
  name           = "NAME-policy"
  node_role_arns = [karp_node_role.this.arn]
}
resource "karp_access_entry" "this" {
  principal_arn = karp_node_role.this.arn
}
resource "karp_pod_identity_association" "this" {
  namespace       = "apps"
  service_account = "NAME"
  role_arn        = karp_node_role.this.arn
}
resource "karp_crds" "this" {}
"#;
const KINDS: [&str; 15] = [
    "access_entry",
    "aws_auth_entry",
    "controller_policy",
    "controller_role",
    "crds",
    "fargate_pod_execution_role",
    "fargate_profile",
    "instance_profile",
    "interruption_queue",
    "node_class",
    "node_overlay",
    "node_pool",
    "node_role",
    "oidc_provider",
    "pod_identity_association",
];
/// What tells an object from another one of its name, or lists what belongs to it.
const TELLING: [&str; 6] = ["id", "arn", "arns", "association_id", "policy_arns", "unique_id"];
/// The same in the cluster, by kind.
const IN_CLUSTER: [&str; 3] = ["ec2nodeclass", "nodepool", "nodeoverlay"];

#[test]
fn what_exists_is_taken_over_where_the_block_says_so() {
    let Some(sandbox) = Sandbox::with_cluster("adopt_existing") else { return };
    let Some(kubectl) = Kubectl::find() else {
        eprintln!("skipped: adopt_existing: KARP_TEST_KUBECONFIG is not set");
        return;
    };
    let (before, name) = (sandbox.what_exists(), unique("existing"));
    let aws_auth = AwsAuth::new(&kubectl);
    let cluster = format!("  kubernetes = {{ config_path = {:?} }}", kubectl.kubeconfig);
    let all = format!("{RESOURCES}{OTHERS}{OBJECTS}");
    let all = all.replace("NAME", &name).replace("SUBNETS", &format!("{:?}", sandbox.subnet_ids));
    let owner = sandbox.stand(&(sandbox.provider(&cluster) + &all));
    owner.apply();
    // A mark that is left would say that the next run goes on with its own.
    sandbox.settle();
    let live = || {
        let uids = IN_CLUSTER.map(|kind| kubectl.get(&[kind, &name])["metadata"]["uid"].clone());
        (sandbox.what_exists(), uids, aws_auth.roles())
    };
    let found = live();

    let adopting = sandbox.provider(&format!("{cluster}\n  adopt_existing = true"));
    let other = sandbox.stand(&(adopting.clone() + &all));
    let mut changes = other.apply().changes();
    changes.sort();
    assert_eq!(changes, KINDS.map(|kind| ("create".to_owned(), format!("karp_{kind}.this"))));
    for kind in KINDS {
        let address = format!("karp_{kind}.this");
        for attribute in TELLING {
            let [ours, theirs] = [&other, &owner].map(|stand| stand.attribute(&address, attribute));
            assert_eq!(ours, theirs, "{address}: {attribute}: it is another one");
        }
    }
    assert_eq!(other.attribute("karp_oidc_provider.this", "adopted"), true);
    assert_eq!(live(), found, "nothing was made, and nothing gave way");
    other.assert_empty_plan();
    owner.assert_empty_plan();

    // EKS changes no entry's type, so that one of another is not what is wanted.
    let role = owner.attribute("karp_node_role.this", "arn");
    let windows =
        format!("resource \"karp_access_entry\" \"this\" {{\n  principal_arn = {role}\n  type = \"EC2_WINDOWS\"\n}}\n");
    let refused = sandbox.stand(&(adopting + &windows)).apply_failing().one_error();
    assert!(refused.contains("The existing entry has type EC2_LINUX"), "{refused}");
    assert_eq!(live(), found);

    // What was there before whoever took it over stays behind: the identity provider, which its maker ends.
    other.destroy();
    assert_eq!(sandbox.what_exists()["oidc_providers"], found.0["oidc_providers"]);
    owner.destroy();
    assert_eq!(IN_CLUSTER.map(|kind| kubectl.get(&[kind, &name])), [Value::Null, Value::Null, Value::Null]);
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

const CONFIG: &str = r#"
resource "karp_interruption_queue" "this" {
  name   = "NAME"
  events = ["spot"]
MORE
}
resource "karp_instance_profile" "this" {
  name      = "NAME"
  role_name = "NAME"
MORE
  depends_on = [terraform_data.roles]
}
resource "karp_fargate_profile" "this" {
  cluster_name           = "CLUSTER"
  name                   = "NAME"
  pod_execution_role_arn = "arn:aws:iam::123456789012:role/NAME-fargate"
  subnet_ids             = SUBNETS
  selectors              = [{ namespace = "NAME" }]
MORE
  depends_on = [terraform_data.roles]
}
resource "terraform_data" "roles" {
  input = ROLES
}
"#;
const ROLES: &str = "resource \"karp_node_role\" \"this\" {\n  name = \"NAME\"\n}\nresource \"karp_fargate_pod_execution_role\" \
                     \"this\" {\n  name = \"NAME-fargate\"\n}\n";

#[tokio::test]
async fn what_serves_another_cluster_is_not_taken() {
    let Some(sandbox) = Sandbox::find("adopt_others") else { return };
    let before = sandbox.what_exists();
    let name = unique("others");
    let config = |provider: &str, roles: &str, more: &str| {
        let config = CONFIG.replace("MORE", more).replace("ROLES", roles).replace("CLUSTER", &sandbox.cluster);
        sandbox.provider(provider)
            + &config.replace("NAME", &name).replace("SUBNETS", &format!("{:?}", sandbox.subnet_ids))
    };
    let made = "[karp_node_role.this.arn, karp_fargate_pod_execution_role.this.arn]";
    let of_another = "  cluster_name = \"another\"";
    let owner = sandbox.stand(&(config(of_another, made, "") + &ROLES.replace("NAME", &name)));
    owner.apply();
    // EKS keeps the profile in one cluster; whom it serves, its tag says.
    let arn = owner.attribute("karp_fargate_profile.this", "arn");
    let eks = sandbox.clients().await.eks().clone();
    let call = eks.tag_resource().resource_arn(arn.as_str().unwrap());
    call.tags("karp.sh/cluster", "another").send().await.unwrap();
    let owned = sandbox.what_exists();

    // Whose it is, is told at once, and not only after it was asked to be taken.
    let other = sandbox.stand(&config("", "[]", ""));
    for more in ["", "  adopt = true"] {
        other.write(&config("", "[]", more));
        let run = other.apply_failing();
        let errors = run.errors();
        assert_eq!(errors.len(), 3, "{}", run.text);
        for error in errors {
            let detail = error["detail"].as_str().unwrap();
            assert!(detail.contains("serves another cluster") && detail.contains("is \"another\""), "{error}");
        }
    }
    assert_eq!(sandbox.what_exists(), owned);
    let changes = owner.plan().changes();
    assert_eq!(changes, [("update".to_owned(), "karp_fargate_profile.this".to_owned())], "the rest is as it was");
    owner.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

const UNDER_A_PATH: &str = r#"PROVIDER
resource "karp_node_role" "this" {
  name  = "NAME"
  adopt = true
PATH
}
resource "karp_instance_profile" "this" {
  name      = "NAME"
  role_name = ROLE
  adopt     = true
PATH
}
"#;

/// IAM moves nothing to another path, and to take it over as if it lay under the planned one would replace it with the next apply.
#[tokio::test]
async fn what_lies_under_another_path_is_taken_over_under_that_one_alone() {
    let Some(sandbox) = Sandbox::find("adopt_path") else { return };
    let (before, name, iam) = (sandbox.what_exists(), unique("adopt-path"), sandbox.iam().await);
    let call = iam.create_role().role_name(&name).path("/karpenter/").assume_role_policy_document("{}");
    let role = call.send().await.unwrap().role.unwrap();
    let call = iam.create_instance_profile().instance_profile_name(&name).path("/karpenter/");
    let profile = call.send().await.unwrap().instance_profile.unwrap();
    let config =
        |role: &str, path: &str| UNDER_A_PATH.replace("ROLE", role).replace("NAME", &name).replace("PATH", path);

    // Each is refused by itself.
    let stand = sandbox.stand(&config(&format!("{name:?}"), ""));
    let since = sandbox.last_call();
    let run = stand.apply_failing();
    let errors = run.errors();
    assert_eq!(errors.len(), 2, "{}", run.text);
    for error in errors {
        let (summary, detail) = (error["summary"].as_str().unwrap(), error["detail"].as_str().unwrap());
        assert!(summary.starts_with("The object exists already"), "{error}");
        assert!(detail.contains("it exists under /karpenter/, not under /"), "{error}");
        assert!(detail.contains("Write `path = \"/karpenter/\"`"), "{error}");
    }
    let reads = |action: &str| ["Get", "List", "Describe"].iter().any(|verb| action.starts_with(verb));
    let written: Vec<_> = sandbox
        .calls(since)
        .into_iter()
        .filter(|call| call["error"].is_null() && !reads(call["action"].as_str().unwrap()))
        .collect();
    assert_eq!(written, Vec::<serde_json::Value>::new());

    stand.write(&config("karp_node_role.this.name", "  path = \"/karpenter/\""));
    stand.apply();
    stand.assert_empty_plan();
    for (address, id) in
        [("karp_node_role.this", role.role_id()), ("karp_instance_profile.this", profile.instance_profile_id())]
    {
        assert_eq!(stand.attribute(address, "unique_id"), id, "{address}: it is another one now");
    }
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
