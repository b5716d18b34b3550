//! What every resource must bear besides its own story: it vanishes and comes back, gives way to another, is imported; and the attributes
//! that have no story of their own. Each test ends on an empty plan.

use std::time::Duration;

use karp_aws::config::Service;

use crate::life::unique;
use crate::stand::{Sandbox, Stand};
use crate::tofu::Run;

/// One of each resource that can stand by itself, on one role that stays.
const EACH: &str = r#"
resource "karp_node_role" "base" {
  name = "BASE"
}
resource "karp_node_role" "this" {
  name = "NAME"
  path = "/karp/"
}
resource "karp_instance_profile" "this" {
  name      = "NAME"
  path      = "/karp/"
  role_name = karp_node_role.base.name
}
resource "karp_fargate_pod_execution_role" "this" {
  name = "NAME-fargate"
  path = "/karp/"
}
resource "karp_fargate_profile" "this" {
  name                   = "NAME"
  pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn
  subnet_ids             = SUBNETS
  selectors              = [{ namespace = "NAME" }]
}
resource "karp_controller_role" "this" {
  name            = "NAME-controller"
  path            = "/karp/"
  auth            = "pod_identity"
  service_account = "NAME"
  policy_mode     = "managed"
}
resource "karp_access_entry" "this" {
  principal_arn = karp_node_role.this.arn
}
resource "karp_discovery_tags" "this" {
  resource_ids = SUBNETS
  key          = "karp.test/NAME"
  value        = "x"
}
resource "karp_interruption_queue" "this" {
  name   = "NAME"
  events = ["spot"]
}
"#;
const KINDS: [&str; 8] = [
    "karp_access_entry",
    "karp_controller_role",
    "karp_discovery_tags",
    "karp_fargate_pod_execution_role",
    "karp_fargate_profile",
    "karp_instance_profile",
    "karp_interruption_queue",
    "karp_node_role",
];

impl Sandbox {
    fn each(&self, base: &str, name: &str) -> String {
        let each = EACH.replace("BASE", base).replace("NAME", name);
        self.provider("") + &each.replace("SUBNETS", &format!("{:?}", self.subnet_ids))
    }

    /// Deletes all of [`EACH`] but the role that stays, as somebody does at AWS's own console.
    async fn delete_behind_the_back(&self, name: &str, stand: &Stand<'_>) {
        let clients = self.clients().await;
        let (iam, eks) = (clients.iam(), clients.eks());
        let call = eks.delete_access_entry().cluster_name(&self.cluster);
        let principal = stand.attribute("karp_access_entry.this", "principal_arn");
        call.principal_arn(principal.as_str().unwrap()).send().await.unwrap();
        eks.delete_fargate_profile().cluster_name(&self.cluster).fargate_profile_name(name).send().await.unwrap();
        let profile = eks.describe_fargate_profile().cluster_name(&self.cluster).fargate_profile_name(name);
        while profile.clone().send().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let tag = aws_sdk_ec2::types::Tag::builder().key(format!("karp.test/{name}")).build();
        clients.ec2().delete_tags().set_resources(Some(self.subnet_ids.clone())).tags(tag).send().await.unwrap();
        let url = stand.attribute("karp_interruption_queue.this", "url");
        clients.sqs().delete_queue().queue_url(url.as_str().unwrap()).send().await.unwrap();
        let profile = iam.remove_role_from_instance_profile().instance_profile_name(name);
        let base = stand.attribute("karp_instance_profile.this", "role_name");
        profile.role_name(base.as_str().unwrap()).send().await.unwrap();
        iam.delete_instance_profile().instance_profile_name(name).send().await.unwrap();
        for role in [name.to_owned(), format!("{name}-fargate"), format!("{name}-controller")] {
            let attached = iam.list_attached_role_policies().role_name(&role).send().await.unwrap();
            for policy in attached.attached_policies() {
                let call = iam.detach_role_policy().role_name(&role);
                call.policy_arn(policy.policy_arn().unwrap()).send().await.unwrap();
            }
            iam.delete_role().role_name(&role).send().await.unwrap();
        }
    }
}

/// The changes of a plan, sorted.
fn changes(run: &Run) -> Vec<(String, String)> {
    let mut changes = run.changes();
    changes.sort();
    changes
}

fn all(action: &str) -> Vec<(String, String)> {
    KINDS.map(|kind| (action.to_owned(), format!("{kind}.this"))).to_vec()
}

#[tokio::test]
async fn each_resource_comes_back_and_gives_way() {
    let Some(sandbox) = Sandbox::with_cluster("each") else { return };
    let before = sandbox.what_exists();
    let (base, one, two) = (unique("base"), unique("one"), unique("two"));
    // Which subnets there are, the first apply finds out.
    let subnets = format!("{:?}", sandbox.subnet_ids);
    let later = format!("resource \"terraform_data\" \"subnets\" {{\n  input = {subnets}\n}}\n");
    let config =
        |name: &str| sandbox.each(&base, name).replace(&subnets, "terraform_data.subnets.output") + later.as_str();
    let stand = sandbox.stand(&config(&one));
    stand.apply();
    stand.assert_empty_plan();
    for kind in ["node_role", "instance_profile", "fargate_pod_execution_role", "controller_role"] {
        let arn = stand.attribute(&format!("karp_{kind}.this"), "arn");
        assert!(arn.as_str().unwrap().contains("/karp/"), "{kind}: {arn}");
    }

    sandbox.delete_behind_the_back(&one, &stand).await;
    let run = stand.apply();
    assert_eq!(changes(&run), all("create"), "{}", run.text);
    stand.assert_empty_plan();

    stand.write(&config(&two));
    let run = stand.apply();
    assert_eq!(changes(&run), all("replace"), "{}", run.text);
    stand.assert_empty_plan();
    let left = sandbox.what_exists().to_string();
    assert!(!left.contains(&one) && left.contains(&two), "{left}");

    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[test]
fn each_resource_is_imported_without_a_change() {
    let Some(sandbox) = Sandbox::with_cluster("imports") else { return };
    let (base, name) = (unique("ibase"), unique("imports"));
    let more = "resource \"karp_oidc_provider\" \"this\" {}\nresource \"karp_teardown\" \"this\" {}\n";
    let config = sandbox.each(&base, &name) + more;
    let owner = sandbox.stand(&config);
    owner.apply();
    let kinds = KINDS.iter().map(|kind| format!("{kind}.this"));
    let rest = ["karp_node_role.base", "karp_oidc_provider.this", "karp_teardown.this"].map(str::to_owned);
    let imports = kinds.chain(rest).map(|address| {
        let id = owner.attribute(&address, "id");
        format!("import {{\n  to = {address}\n  id = {id}\n}}\n")
    });
    let second = sandbox.stand(&(config.clone() + &imports.collect::<String>()));
    second.apply().assert_imports_alone();
    second.assert_empty_plan();
    second.destroy();
}

#[tokio::test]
async fn a_boundary_and_a_key_come_change_and_go() {
    let Some(sandbox) = Sandbox::find("boundary") else { return };
    let name = unique("bound");
    // All resources that make a role.
    let roles = [
        ("karp_controller_role", "c", "  auth = \"pod_identity\"\n"),
        ("karp_fargate_pod_execution_role", "f", ""),
        ("karp_node_role", "n", ""),
    ];
    let config = |boundary: &str, key: &str| {
        let role = |(kind, end, more): &(&str, &str, &str)| {
            format!("resource {kind:?} \"this\" {{\n  name = \"{name}-{end}\"\n{more}{boundary}}}\n")
        };
        let queue = format!("resource \"karp_interruption_queue\" \"this\" {{\n  name = {name:?}\n{key}}}\n");
        format!("PROVIDER\n{}{queue}", roles.iter().map(role).collect::<String>())
    };
    let boundary = |policy: &str| format!("  permissions_boundary = \"arn:aws:iam::aws:policy/{policy}\"\n");
    let key = |alias: &str| format!("  kms_master_key_id = {alias:?}\n");
    let stand = sandbox.stand("");
    let clients = sandbox.clients().await;
    let iam = aws_sdk_iam::Client::new(&clients.config_for(Service::Iam));
    let steps = [
        (Some("PowerUserAccess"), Some("alias/other")),
        (Some("ReadOnlyAccess"), Some("alias/karp")),
        (None, None),
        (Some("PowerUserAccess"), Some("alias/karp")),
    ];
    let mut ids = Vec::new();
    for (step, (policy, alias)) in steps.into_iter().enumerate() {
        stand.write(&config(&policy.map(boundary).unwrap_or_default(), &alias.map(key).unwrap_or_default()));
        let run = stand.apply();
        if step > 0 {
            let updates = [
                "karp_controller_role.this",
                "karp_fargate_pod_execution_role.this",
                "karp_interruption_queue.this",
                "karp_node_role.this",
            ];
            assert_eq!(changes(&run), updates.map(|address| ("update".to_owned(), address.to_owned())), "{}", run.text);
        }
        stand.assert_empty_plan();
        let mut found = Vec::new();
        for (_, end, _) in roles {
            let role = iam.get_role().role_name(format!("{name}-{end}")).send().await.unwrap().role.unwrap();
            let bound = role.permissions_boundary().and_then(|it| it.permissions_boundary_arn()).map(str::to_owned);
            assert_eq!(bound, policy.map(|policy| format!("arn:aws:iam::aws:policy/{policy}")), "{end}, step {step}");
            found.push(role.role_id().to_owned());
        }
        assert!(step == 0 || found == ids, "step {step}: they are the same roles");
        ids = found;
        let url = stand.attribute("karp_interruption_queue.this", "url");
        let call = clients.sqs().get_queue_attributes().queue_url(url.as_str().unwrap());
        let all = call.attribute_names(aws_sdk_sqs::types::QueueAttributeName::All).send().await.unwrap();
        let found = all.attributes.unwrap_or_default().remove(&aws_sdk_sqs::types::QueueAttributeName::KmsMasterKeyId);
        assert_eq!(found.filter(|key| !key.is_empty()).as_deref(), alias);
    }
    stand.destroy();
}

#[test]
fn a_prefix_makes_a_name_that_fits_and_stays() {
    let Some(sandbox) = Sandbox::find("prefix") else { return };
    let prefix = unique("prefix-");
    // three of the kinds are roles
    let prefix_of = |kind: &str| match kind {
        "karp_controller_role" => format!("{prefix}own-"),
        "karp_fargate_pod_execution_role" => format!("{prefix}pods-"),
        _ => prefix.clone(),
    };
    let long = |kind: &str| format!("{}{}", prefix_of(kind), "long-".repeat(30));
    // What the names of each kind may have, and what else it takes.
    let fargate = format!(
        "  pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn\n  subnet_ids = {:?}\n  selectors = [{{ namespace = \
         \"{prefix}x\" }}]\n",
        sandbox.subnet_ids
    );
    let controller = format!("  auth = \"pod_identity\"\n  service_account = \"{prefix}x\"\n");
    let kinds = [
        // A number comes behind it.
        ("karp_controller_policy", 125, ""),
        ("karp_controller_role", 64, &*controller),
        ("karp_fargate_pod_execution_role", 64, ""),
        ("karp_fargate_profile", 63, &*fargate),
        ("karp_instance_profile", 128, "  role_name = karp_node_role.this.name\n"),
        ("karp_interruption_queue", 80, ""),
        ("karp_node_role", 64, ""),
    ];
    let config = |prefix: &dyn Fn(&str, usize) -> String| {
        let resource = |(kind, longest, more): &(&str, usize, &str)| {
            let prefix = prefix(kind, *longest);
            format!("resource {kind:?} \"this\" {{\n  name_prefix = {prefix:?}\n{more}}}\n")
        };
        sandbox.provider("") + &kinds.iter().map(resource).collect::<String>()
    };
    let stand = sandbox.stand(&config(&|kind, _| prefix_of(kind)));
    stand.apply();
    stand.assert_empty_plan();
    let name = |kind: &str| stand.attribute(&format!("{kind}.this"), "name").as_str().unwrap().to_owned();
    for (kind, ..) in kinds {
        assert_eq!(name(kind), format!("{}{}", prefix_of(kind), sandbox.cluster));
    }
    // A long one leaves room for what tells names apart.
    stand.write(&config(&|kind, longest| long(kind)[..longest - 9].to_owned()));
    let run = stand.apply();
    let replaced = run.changes().iter().filter(|(action, _)| action == "replace").count();
    assert!(replaced == kinds.len() && run.changes().len() == kinds.len(), "{}", run.text);
    stand.assert_empty_plan();
    for (kind, longest, _) in kinds {
        let name = name(kind);
        assert!(name.starts_with(&prefix) && name.len() <= longest, "{name}");
    }
    stand.destroy();
}
