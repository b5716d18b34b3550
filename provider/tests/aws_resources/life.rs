//! Applying, changing, healing, adopting, importing and destroying. Each test ends on an empty plan, or with nothing left.

use std::collections::BTreeSet;

use crate::stand::Sandbox;
use crate::tofu::Run;
use aws_sdk_iam::types::Tag;
use karp_aws::config::Service;

const EVERYTHING: &str = r#"
resource "terraform_data" "cluster" {
  input = "CLUSTER"
}
locals {
  cluster_name = terraform_data.cluster.output
}
resource "karp_oidc_provider" "this" {
  cluster_name = local.cluster_name
}
resource "karp_spot_service_linked_role" "this" {
  delete_on_destroy = local.cluster_name != ""
}
resource "karp_teardown" "this" {
  cluster_name = local.cluster_name
}
resource "karp_interruption_queue" "this" {
  cluster_name = local.cluster_name
  name         = "NAME"
}
resource "karp_node_role" "this" {
  cluster_name = local.cluster_name
  name         = "NAME-node"
  description  = "DESCRIPTION"
}
resource "karp_instance_profile" "this" {
  cluster_name = local.cluster_name
  name         = "NAME"
  role_name    = karp_node_role.this.name
}
resource "karp_controller_role" "irsa" {
  cluster_name           = local.cluster_name
  name                   = "NAME-irsa"
  oidc_provider_arn      = karp_oidc_provider.this.arn
  node_role_arns         = [karp_node_role.this.arn]
  interruption_queue_arn = karp_interruption_queue.this.arn
}
resource "karp_controller_role" "pods" {
  auth                   = "pod_identity"
  policy_mode            = "managed"
  instance_profiles      = "terraform"
  cluster_name           = local.cluster_name
  name                   = "NAME-pods"
  service_account        = "NAME"
  node_role_arns         = [karp_node_role.this.arn]
  interruption_queue_arn = karp_interruption_queue.this.arn
}
resource "karp_access_entry" "this" {
  cluster_name  = local.cluster_name
  principal_arn = karp_node_role.this.arn
}
resource "karp_discovery_tags" "this" {
  resource_ids = SUBNETS
  key          = "karp.test/NAME"
  value        = local.cluster_name
}
resource "karp_fargate_pod_execution_role" "this" {
  cluster_name = local.cluster_name
  name         = "NAME-fargate"
}
resource "karp_fargate_profile" "this" {
  cluster_name           = local.cluster_name
  name                   = "NAME"
  pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn
  subnet_ids             = SUBNETS
  selectors              = [{ namespace = "NAME" }]
}
"#;

impl Sandbox {
    /// A configuration of all resources that live in AWS.
    pub fn everything(&self, name: &str, description: &str) -> String {
        let config =
            EVERYTHING.replace("CLUSTER", &self.cluster).replace("NAME", name).replace("DESCRIPTION", description);
        config.replace("SUBNETS", &format!("{:?}", self.subnet_ids))
    }

    /// A client of the emulator's IAM.
    pub async fn iam(&self) -> aws_sdk_iam::Client {
        aws_sdk_iam::Client::new(&self.clients().await.config_for(Service::Iam))
    }
}

/// A name of this run alone.
pub fn unique(test: &str) -> String {
    format!("t{}-{test}", std::process::id())
}

fn node_role(name: &str, more: &str) -> String {
    format!("PROVIDER\nresource \"karp_node_role\" \"this\" {{\n  name = {name:?}\n{more}\n}}\n")
}

#[tokio::test]
async fn all_resources_come_from_nothing_change_and_go() {
    let Some(sandbox) = Sandbox::with_cluster("all_resources") else { return };
    let name = unique("all");
    let before = sandbox.door("GET", "/_karp/inventory", "");
    let cluster_later = sandbox.provider("  cluster_name = local.cluster_name");
    let stand = sandbox.stand(&format!("{cluster_later}{}", sandbox.everything(&name, "first")));
    let since = sandbox.last_call();
    stand.apply();
    sandbox.settle();
    let marks = sandbox.calls(since).into_iter().filter(|call| call["params"].to_string().contains("unfinished"));
    let actions = marks.map(|call| call["action"].as_str().unwrap().to_owned());
    let (taken, put): (Vec<_>, Vec<_>) = actions.partition(|action| action.starts_with("Untag"));
    assert!(
        put.len() >= 8 && taken.len() == put.len(),
        "when a run ends nothing is marked any more: {put:?}, {taken:?}"
    );
    stand.assert_empty_plan();

    let tagged = sandbox
        .provider("  cluster_name = local.cluster_name\n  default_tags = {\n    tags = { stage = \"test\" }\n  }");
    let own_tag = "= \"second\"\n  tags         = { stage = \"own\" }";
    let second = sandbox.everything(&name, "second").replace("= \"second\"", own_tag);
    stand.write(&format!("{tagged}{second}"));
    let run = stand.apply();
    assert!(
        run.changes().len() == 9 && run.changes().iter().all(|(action, _)| action == "update"),
        "{:?}",
        run.changes()
    );
    stand.assert_empty_plan();
    assert_eq!(stand.attribute("karp_node_role.this", "description"), "second");
    assert_eq!(stand.attribute("karp_fargate_profile.this", "tags_all")["stage"], "test");
    assert_eq!(stand.attribute("karp_node_role.this", "tags_all")["stage"], "own", "its own tags win");
    let policies = stand.attribute("karp_controller_role.pods", "policy_arns");
    for arn in policies.as_array().unwrap() {
        let found = sandbox.iam().await.get_policy().policy_arn(arn.as_str().unwrap()).send().await.unwrap();
        let tags = found.policy().unwrap().tags();
        assert!(tags.iter().any(|tag| (tag.key(), tag.value()) == ("stage", "test")), "{arn}: {tags:?}");
    }

    // A default tag that is taken out goes from all that had it: from all but the role with a tag of its own.
    stand.write(&format!("{cluster_later}{second}"));
    let since = sandbox.last_call();
    let run = stand.apply();
    assert!(
        run.changes().len() == 8 && run.changes().iter().all(|(action, _)| action == "update"),
        "{:?}",
        run.changes()
    );
    let takes = |call: &serde_json::Value| {
        call["action"].as_str().is_some_and(|action| action.starts_with("Untag"))
            && call["params"].to_string().contains("stage")
    };
    let taken = sandbox.calls(since).into_iter().filter(takes).count();
    assert!(taken >= 8, "{taken} objects lost it");
    stand.assert_empty_plan();
    assert_eq!(stand.attribute("karp_node_role.this", "tags_all")["stage"], "own");

    stand.destroy();
    assert_eq!(sandbox.door("GET", "/_karp/inventory", ""), before, "something is left");
}

#[tokio::test]
async fn drift_is_seen_and_healed_and_foreign_things_stay() {
    let Some(sandbox) = Sandbox::find("drift") else { return };
    let name = unique("drift");
    let config = node_role(&name, "");
    let config = format!("{config}resource \"karp_interruption_queue\" \"this\" {{\n  name = {name:?}\n}}\n");
    let stand = sandbox.stand(&config);
    stand.apply();

    let iam = sandbox.iam().await;
    let cni = "arn:aws:iam::aws:policy/AmazonEKS_CNI_Policy";
    let foreign = "arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess";
    iam.detach_role_policy().role_name(&name).policy_arn(cni).send().await.unwrap();
    iam.attach_role_policy().role_name(&name).policy_arn(foreign).send().await.unwrap();
    iam.untag_role().role_name(&name).tag_keys("karp.sh/cluster").send().await.unwrap();
    let tag = Tag::builder().key("foreign").value("1").build().unwrap();
    iam.tag_role().role_name(&name).tags(tag).send().await.unwrap();
    let events = aws_sdk_eventbridge::Client::new(&sandbox.clients().await.config_for(Service::EventBridge));
    events.disable_rule().name(format!("{name}-Health")).send().await.unwrap();

    let run = stand.apply();
    assert_eq!(run.changes().len(), 2, "{}", run.text);
    stand.assert_empty_plan();
    let attached = iam.list_attached_role_policies().role_name(&name).send().await.unwrap();
    let attached: Vec<&str> = attached.attached_policies().iter().filter_map(|policy| policy.policy_arn()).collect();
    assert!(attached.contains(&cni) && attached.contains(&foreign), "{attached:?}");
    let role = iam.get_role().role_name(&name).send().await.unwrap();
    let keys: Vec<&str> = role.role().unwrap().tags().iter().map(Tag::key).collect();
    assert!(keys.contains(&"foreign") && keys.contains(&"karp.sh/cluster"), "{keys:?}");
    stand.destroy();
}

#[tokio::test]
async fn what_vanished_is_made_again() {
    let Some(sandbox) = Sandbox::find("vanished") else { return };
    let name = unique("vanished");
    let stand = sandbox.stand(&node_role(&name, "  attach_ssm_policy = false"));
    stand.apply();
    let iam = sandbox.iam().await;
    for arn in stand.attribute("karp_node_role.this", "policy_arns").as_array().unwrap() {
        iam.detach_role_policy().role_name(&name).policy_arn(arn.as_str().unwrap()).send().await.unwrap();
    }
    iam.delete_role().role_name(&name).send().await.unwrap();
    assert_eq!(stand.apply().changes(), [("create".to_owned(), "karp_node_role.this".to_owned())]);
    stand.assert_empty_plan();
    stand.destroy();
}

#[test]
fn an_import_needs_no_change() {
    let Some(sandbox) = Sandbox::find("import") else { return };
    let name = unique("import");
    let role = "resource \"karp_controller_role\" \"this\" {\n  auth = \"pod_identity\"\n  name = \"NAME-c\"\n  service_account = \"NAME\"\n  \
                policy_mode = \"managed\"\n  node_role_arns = [karp_node_role.this.arn]\n  tags = { own = \"1\" }\n}\n";
    let config =
        node_role(&name, "  attach_cni_policy = false\n  tags = { own = \"1\" }") + &role.replace("NAME", &name);
    let config = format!(
        "{config}resource \"karp_interruption_queue\" \"this\" {{\n  name = {name:?}\n  events = [\"spot\"]\n}}\n"
    );
    let first = sandbox.stand(&config);
    first.apply();
    let url = first.attribute("karp_interruption_queue.this", "url").as_str().unwrap().to_owned();

    let import = |to: &str, id: &str| format!("import {{\n  to = {to}\n  id = {id:?}\n}}\n");
    let imports = import("karp_node_role.this", &name)
        + &import("karp_controller_role.this", &format!("{name}-c"))
        + &import("karp_interruption_queue.this", &url);
    let second = sandbox.stand(&format!("{config}{imports}"));
    let run = second.apply();
    assert!(
        run.changes().iter().all(|(action, _)| action == "import" || action == "noop"),
        "{:?}\n{}",
        run.changes(),
        run.text
    );
    second.assert_empty_plan();
    second.destroy();
}

#[test]
fn a_half_made_queue_stays_in_state_and_the_next_apply_goes_on() {
    let Some(sandbox) = Sandbox::find("half_made") else { return };
    let name = unique("half");
    let stand =
        sandbox.stand(&format!("PROVIDER\nresource \"karp_interruption_queue\" \"this\" {{\n  name = {name:?}\n}}\n"));
    let fault = r#"[{"action": "PutTargets", "code": "AccessDeniedException", "message": "not you", "status": 400, "times": 1}]"#;
    sandbox.door("POST", "/_karp/fail", fault);
    let error = stand.apply_failing().one_error();
    assert!(error.contains("Not authorised") && error.contains("not you"), "{error}");
    let url = stand.attribute("karp_interruption_queue.this", "url");
    assert!(url.as_str().is_some_and(|url| url.ends_with(&name)), "{}", stand.state());
    stand.apply();
    stand.assert_empty_plan();
    stand.destroy();
}

#[test]
fn a_role_that_eks_does_not_know_yet_is_waited_for() {
    let Some(sandbox) = Sandbox::find("propagation") else { return };
    let name = unique("new");
    let entry = "resource \"karp_access_entry\" \"this\" {\n  principal_arn = karp_node_role.this.arn\n}\n";
    let stand = sandbox.stand(&(node_role(&name, "") + entry));
    let fault = r#"[{"action": "CreateAccessEntry", "code": "InvalidParameterException", "status": 400, "times": 2,
                     "message": "The specified principalArn is invalid: invalid principal."}]"#;
    sandbox.door("POST", "/_karp/fail", fault);
    stand.apply();
    stand.assert_empty_plan();
    stand.destroy();
}

#[test]
fn a_wait_ends_at_the_limit_that_the_user_set() {
    let Some(sandbox) = Sandbox::find("limit") else { return };
    let name = unique("limit");
    let entry = "resource \"karp_access_entry\" \"this\" {\n  principal_arn = karp_node_role.this.arn\n  \
                 timeouts = { create = \"2s\" }\n}\n";
    let stand = sandbox.stand(&(node_role(&name, "") + entry));
    let fault = r#"[{"action": "CreateAccessEntry", "code": "InvalidParameterException", "status": 400, "times": 1000,
                     "message": "The specified principalArn is invalid: invalid principal."}]"#;
    sandbox.door("POST", "/_karp/fail", fault);
    let error = stand.apply_failing().one_error();
    sandbox.door("POST", "/_karp/reset-faults", "{}");
    for told in ["Gave up waiting", "limit of 2 s", "invalid principal", "`timeouts`"] {
        assert!(error.contains(told), "{told}: {error}");
    }
    stand.apply();
    stand.assert_empty_plan();
    stand.destroy();
}

#[test]
fn an_existing_role_is_adopted_only_when_asked_and_ours() {
    let Some(sandbox) = Sandbox::find("adopt") else { return };
    let name = unique("adopt");
    let owner = sandbox.stand(&node_role(&name, ""));
    owner.apply();

    let other = sandbox.stand(&node_role(&name, ""));
    let run = other.apply_failing();
    assert!(run.one_error().contains("adopt = true"), "{}", run.text);
    // Who may not have it is told so at once, with whose it is.
    other.write(&node_role(&name, "  cluster_name = \"another\""));
    let refused = other.apply_failing().one_error();
    assert!(refused.contains(&format!("is {:?}", sandbox.cluster)), "{refused}");
    other.write(&node_role(&name, "  adopt = true\n  cluster_name = \"another\""));
    let run = other.apply_failing();
    assert!(run.one_error().contains("serves another cluster"), "{}", run.text);
    other.write(&node_role(&name, "  adopt = true\n  description = \"adopted\""));
    other.apply();
    other.assert_empty_plan();
    assert_eq!(owner.plan().changes().len(), 1, "the owner sees the other description");
    other.destroy();
}

#[test]
fn a_discovery_tag_of_another_cluster_is_not_taken() {
    let Some(sandbox) = Sandbox::find("discovery") else { return };
    let key = format!("karp.test/{}", unique("tags"));
    let config = |value: &str, more: &str, count: usize| {
        let ids = &sandbox.subnet_ids[..count];
        format!(
            "PROVIDER\nresource \"karp_discovery_tags\" \"this\" {{\n  resource_ids = {ids:?}\n  key = {key:?}\n  value = {value:?}\n{more}\n}}\n"
        )
    };
    let (one, two) = (sandbox.stand(&config("one", "", 2)), sandbox.stand(&config("two", "", 1)));
    one.apply();
    // an apply plans twice, and says what a plan says each time
    let warned = |run: &Run| -> BTreeSet<String> {
        let summary = |warning: &&serde_json::Value| warning["summary"].as_str().unwrap().to_owned();
        run.warnings().iter().map(summary).collect()
    };
    let planned = two.plan();
    let belongs = ["The discovery tag belongs to another cluster"].map(str::to_owned);
    assert_eq!(warned(&planned), belongs.into(), "{}", planned.text);
    assert!(planned.text.contains(&sandbox.subnet_ids[0]) && planned.text.contains("one"), "{}", planned.text);
    let run = two.apply_failing();
    assert!(run.one_error().contains("on_conflict"), "{}", run.text);
    two.write(&config("two", "  on_conflict = \"overwrite\"", 1));
    let run = two.apply();
    let both = ["Tags of another cluster will be overwritten", "Tags were overwritten"].map(str::to_owned);
    assert_eq!(warned(&run), both.into(), "{}", run.text);
    two.assert_empty_plan();

    // The first lost one of its two subnets; it leaves the other's tag alone when it goes.
    one.write(&config("one", "", 2));
    assert_eq!(one.plan().changes().len(), 1);
    one.destroy();
    two.assert_empty_plan();
    two.destroy();
}

#[tokio::test]
async fn a_node_role_leaves_the_profiles_that_a_controller_made() {
    let Some(sandbox) = Sandbox::find("profiles") else { return };
    let name = unique("profiles");
    let stand = sandbox.stand(&node_role(&name, ""));
    stand.apply();
    let iam = sandbox.iam().await;
    let tag = |key: &str, value: &str| Tag::builder().key(key).value(value).build().unwrap();
    let profile = format!("{name}-made");
    let call = iam.create_instance_profile().instance_profile_name(&profile);
    let call = call.tags(tag(&format!("kubernetes.io/cluster/{}", sandbox.cluster), "owned"));
    call.tags(tag("karpenter.k8s.aws/ec2nodeclass", "default")).send().await.unwrap();
    iam.add_role_to_instance_profile().instance_profile_name(&profile).role_name(&name).send().await.unwrap();
    let foreign = format!("{name}-foreign");
    iam.create_instance_profile().instance_profile_name(&foreign).send().await.unwrap();
    iam.add_role_to_instance_profile().instance_profile_name(&foreign).role_name(&name).send().await.unwrap();

    let run = stand.tofu(&["destroy", "-json", "-auto-approve"]);
    assert!(run.one_error().contains(&foreign), "{}", run.text);
    iam.remove_role_from_instance_profile().instance_profile_name(&foreign).role_name(&name).send().await.unwrap();
    iam.delete_instance_profile().instance_profile_name(&foreign).send().await.unwrap();
    stand.destroy();
    assert!(
        iam.get_instance_profile().instance_profile_name(&profile).send().await.is_err(),
        "the controller's profile is left"
    );
}
