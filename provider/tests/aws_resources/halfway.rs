//! A creation that fails in the middle: what exists is in state, so that giving up leaves nothing behind and going on ends well; what
//! was there before and was only taken over is never destroyed for it.

use karp_aws::config::Service;
use serde_json::json;

use crate::stand::{Sandbox, Stand};

const ROLE: &str = "resource \"karp_node_role\" \"this\" {\n  name = \"NAME\"\n}\n";
const QUEUE: &str = "resource \"karp_interruption_queue\" \"this\" {\n  name = \"NAME\"\n}\n";

impl Sandbox {
    /// Makes the call of an action fail that comes after this many others, of those that name something.
    fn deny(&self, action: &str, after: u32, name: &str) {
        let rule = json!([{ "action": action, "code": "AccessDeniedException", "message": "not you", "status": 400,
            "times": 1, "after": after, "where": name }]);
        self.door("POST", "/_karp/fail", &rule.to_string());
    }
}

pub fn config(text: &str, name: &str, sandbox: &Sandbox) -> String {
    let text = text.replace("NAME", name).replace("SUBNETS", &format!("{:?}", sandbox.subnet_ids));
    format!("PROVIDER\n{text}")
}

pub fn unique(test: &str) -> String {
    format!("h{}-{test}", std::process::id())
}

/// Applies, with one call denied that names something.
pub fn apply_denied(stand: &Stand<'_>, sandbox: &Sandbox, action: &str, after: u32, name: &str) {
    sandbox.deny(action, after, name);
    let run = stand.apply_failing();
    let error = run.one_error();
    assert!(error.contains("Not authorised") && error.contains("not you"), "{action}: {error}");
}

/// What a user does about a creation that failed.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    GivesUp,
    GoesOn,
}

/// Holds that a denied call in the middle of a resource's creation leaves it in state, that destroying then leaves nothing, and that
/// applying again ends on an empty plan, after which destroying leaves nothing either. Both go side by side.
fn recovers(test: &str, address: &str, text: &str, denied: &[(&str, u32)]) {
    let Some(sandbox) = Sandbox::find(test) else { return };
    let before = sandbox.what_exists();
    std::thread::scope(|scope| {
        for then in [Then::GivesUp, Then::GoesOn] {
            let (sandbox, unique) = (&sandbox, unique(test));
            scope.spawn(move || {
                for (number, denied) in denied.iter().enumerate() {
                    let name = format!("{unique}{number}{}", u8::from(then == Then::GoesOn));
                    recovers_from(sandbox, address, &config(text, &name, sandbox), *denied, (&name, then));
                }
            });
        }
    });
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

fn recovers_from(
    sandbox: &Sandbox,
    address: &str,
    config: &str,
    (action, after): (&str, u32),
    (name, then): (&str, Then),
) {
    let stand = sandbox.stand(config);
    apply_denied(&stand, sandbox, action, after, name);
    assert!(stand.attribute(address, "id").is_string(), "{action}: not in state: {}", stand.state());
    if then == Then::GoesOn {
        stand.apply();
        stand.assert_empty_plan();
    }
    stand.destroy();
    let left = sandbox.what_exists().to_string();
    assert!(!left.contains(name), "{action}: something is left: {left}");
}

#[test]
fn a_node_role() {
    recovers("noderole", "karp_node_role.this", ROLE, &[("AttachRolePolicy", 1), ("GetRole", 0)]);
}

#[test]
fn a_fargate_pod_execution_role() {
    let text = "resource \"karp_fargate_pod_execution_role\" \"this\" {\n  name = \"NAME\"\n}\n";
    recovers("podrole", "karp_fargate_pod_execution_role.this", text, &[("AttachRolePolicy", 0)]);
}

#[test]
fn a_controller_role_with_its_policy_inside() {
    let text = "resource \"karp_controller_role\" \"this\" {\n  name = \"NAME\"\n  \
                oidc_provider_arn = \"arn:aws:iam::123456789012:oidc-provider/oidc.example.com/id/1\"\n}\n";
    recovers("inline", "karp_controller_role.this", text, &[("PutRolePolicy", 0)]);
}

#[test]
fn a_controller_role_with_managed_policies_and_an_association() {
    let text = "resource \"karp_controller_role\" \"this\" {\n  name = \"NAME\"\n  auth = \"pod_identity\"\n  \
                policy_mode = \"managed\"\n  service_account = \"NAME\"\n}\n";
    let denied = [("CreatePolicy", 0), ("AttachRolePolicy", 0), ("CreatePodIdentityAssociation", 0)];
    recovers("managed", "karp_controller_role.this", text, &denied);
}

/// A policy that moves out of its role is not on it when attaching it fails: the state has it all the same, since it might be.
#[test]
fn a_controller_role_whose_policy_moves_out_of_it() {
    let Some(sandbox) = Sandbox::find("split") else { return };
    let (before, name) = (sandbox.what_exists(), unique("split"));
    let role = |mode: &str| {
        let text = "resource \"karp_controller_role\" \"this\" {\n  name = \"NAME\"\n  auth = \"pod_identity\"\n  \
                    service_account = \"NAME\"\n  policy_mode = \"MODE\"\n}\n";
        config(&text.replace("MODE", mode), &name, &sandbox)
    };
    let stand = sandbox.stand(&role("inline"));
    stand.apply();
    stand.write(&role("managed"));
    apply_denied(&stand, &sandbox, "AttachRolePolicy", 0, &name);
    assert_eq!(stand.attribute("karp_controller_role.this", "policy_arns").as_array().map(Vec::len), Some(1));
    stand.apply();
    stand.assert_empty_plan();
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[test]
fn an_instance_profile() {
    let text =
        "resource \"karp_instance_profile\" \"this\" {\n  name = \"NAME\"\n  role_name = karp_node_role.this.name\n}\n";
    let denied = [("AddRoleToInstanceProfile", 0)];
    recovers("profile", "karp_instance_profile.this", &format!("{ROLE}{text}"), &denied);
}

#[test]
fn an_interruption_queue() {
    let denied = [("GetQueueAttributes", 0), ("SetQueueAttributes", 0), ("PutRule", 2), ("PutTargets", 0)];
    recovers("queue", "karp_interruption_queue.this", QUEUE, &denied);
}

#[test]
fn a_fargate_profile() {
    let text = "resource \"karp_fargate_pod_execution_role\" \"this\" {\n  name = \"NAME\"\n}\n\
                resource \"karp_fargate_profile\" \"this\" {\n  name = \"NAME\"\n  \
                pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn\n  subnet_ids = SUBNETS\n  \
                selectors = [{ namespace = \"NAME\" }]\n}\n";
    // A cluster makes one profile at a time.
    let Some(sandbox) = Sandbox::find("fargate") else { return };
    let before = sandbox.what_exists();
    for then in [Then::GivesUp, Then::GoesOn] {
        let name = unique(&format!("fargate{}", u8::from(then == Then::GoesOn)));
        let text = config(text, &name, &sandbox);
        recovers_from(&sandbox, "karp_fargate_profile.this", &text, ("DescribeFargateProfile", 0), (&name, then));
    }
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[tokio::test]
async fn discovery_tags() {
    let Some(sandbox) = Sandbox::find("tags") else { return };
    let ec2 = aws_sdk_ec2::Client::new(&sandbox.clients().await.config_for(Service::Ec2));
    let (name, mut ids) = (unique("tags"), Vec::new());
    // More than one call tags.
    for number in 0..102 {
        let call = ec2.create_security_group().group_name(format!("{name}-{number}")).description(&name);
        ids.push(call.send().await.unwrap().group_id.unwrap());
    }
    let of = |ids: &[String]| {
        let tags = format!(
            "resource \"karp_discovery_tags\" \"this\" {{\n  key = \"karp.test/{name}\"\n  value = \"x\"\n  resource_ids = {ids:?}\n}}\n"
        );
        config(&tags, &name, &sandbox)
    };
    let stand = sandbox.stand(&of(&ids));
    let tagged = async || {
        let filter = aws_sdk_ec2::types::Filter::builder().name("key").values(format!("karp.test/{name}")).build();
        let pages = ec2.describe_tags().filters(filter).into_paginator().items().send();
        pages.collect::<Result<Vec<_>, _>>().await.unwrap().len()
    };
    let known = || stand.attribute("karp_discovery_tags.this", "resource_ids").as_array().map(Vec::len);
    for gives_up in [true, false] {
        apply_denied(&stand, &sandbox, "CreateTags", 1, &name);
        assert_eq!(tagged().await, 100);
        assert_eq!(known(), Some(100), "what was tagged is in state");
        if !gives_up {
            stand.apply();
            stand.assert_empty_plan();
            assert_eq!(tagged().await, 102);
        }
        stand.destroy();
        assert_eq!(tagged().await, 0);
    }
    // So it is where more are added to some.
    stand.write(&of(&ids[..1]));
    stand.apply();
    stand.write(&of(&ids));
    apply_denied(&stand, &sandbox, "CreateTags", 1, &name);
    assert_eq!((tagged().await, known()), (101, Some(101)));
    stand.write(&of(&ids[..1]));
    stand.apply();
    assert_eq!(tagged().await, 1, "what was added is taken back");
    stand.destroy();
    for id in ids {
        ec2.delete_security_group().group_id(id).send().await.unwrap();
    }
}

/// Holds that what another made is not destroyed because taking it over failed, and that the next apply takes it over.
fn is_spared(test: &str, address: &str, text: &str, more: &str, action: &str, identity: &str) {
    let Some(sandbox) = Sandbox::find(test) else { return };
    let (before, name) = (sandbox.what_exists(), unique(test));
    let owner = sandbox.stand(&config(text, &name, &sandbox));
    owner.apply();
    let was = owner.attribute(address, identity);

    let adopting = text.replace("\n}\n", &format!("\n  {more}\n}}\n"));
    let other = sandbox.stand(&config(&adopting, &name, &sandbox));
    apply_denied(&other, &sandbox, action, 0, "");
    other.apply();
    other.assert_empty_plan();
    assert_eq!(other.attribute(address, identity), was, "it is another one now");
    other.destroy();
    owner.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[test]
fn an_adopted_role_is_spared() {
    let more = "adopt = true\n  description = \"taken over\"";
    is_spared("adoptrole", "karp_node_role.this", ROLE, more, "UpdateRole", "unique_id");
}

#[tokio::test]
async fn a_policy_that_a_role_adopts_is_spared() {
    let Some(sandbox) = Sandbox::find("adoptpolicy") else { return };
    let (before, name) = (sandbox.what_exists(), unique("adoptpolicy"));
    let text = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Action":"ec2:*","Resource":"*"}]}"#;
    let call = sandbox.iam().await.create_policy().policy_name(format!("{name}-1")).policy_document(text);
    call.send().await.unwrap();
    let with_policy = sandbox.what_exists();
    let role = "resource \"karp_controller_role\" \"this\" {\n  name = \"NAME\"\n  auth = \"pod_identity\"\n  \
                service_account = \"NAME\"\n  policy_mode = \"managed\"\n  adopt = true\n}\n";
    let stand = sandbox.stand(&config(role, &name, &sandbox));
    apply_denied(&stand, &sandbox, "AttachRolePolicy", 0, &name);
    stand.destroy();
    assert_eq!(sandbox.what_exists(), with_policy, "it was not the role's yet");
    stand.apply();
    stand.assert_empty_plan();
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[test]
fn an_adopted_queue_is_spared() {
    let more = "adopt = true\n  message_retention_seconds = 600";
    is_spared("adoptqueue", "karp_interruption_queue.this", QUEUE, more, "SetQueueAttributes", "arn");
}

#[test]
fn an_adopted_oidc_provider_is_spared() {
    let text = "resource \"karp_oidc_provider\" \"this\" {\n}\n";
    is_spared(
        "adoptoidc",
        "karp_oidc_provider.this",
        text,
        "tags = { who = \"other\" }",
        "TagOpenIDConnectProvider",
        "arn",
    );
}
