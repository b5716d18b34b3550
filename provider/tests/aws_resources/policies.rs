//! Where the controller's policy is kept: in its role, in policies of their own, or in policies for a role that is made elsewhere. Each test
//! ends on an empty plan, or with nothing left.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::life::unique;
use crate::stand::{Sandbox, Stand};

const POLICY: &str = "karp_controller_policy.this";
const ROLE: &str = "karp_controller_role.this";

/// Statements of the user's own, as many as wanted.
pub fn statements(count: usize) -> String {
    let one = |n: usize| {
        format!(
            "    {{\n      sid       = \"Own{n}\"\n      actions   = [\"ec2:DescribeTags\", \"ec2:DescribeVolumes\"]\n      resources = \
             [\"arn:aws:ec2:*:*:volume/{}\"]\n      conditions = [{{ test = \"StringEquals\", variable = \"aws:RequestedRegion\", values = \
             [\"eu-west-1\"] }}]\n    }},\n",
            "v".repeat(300)
        )
    };
    format!("  extra_statements = [\n{}  ]\n", (0..count).map(one).collect::<String>())
}

fn policy(name: &str, more: &str) -> String {
    format!(
        "PROVIDER\nresource \"karp_controller_policy\" \"this\" {{\n  name = {name:?}\n  path = \"/karp/\"\n{more}}}\n"
    )
}

fn arns(stand: &Stand<'_>) -> BTreeMap<String, String> {
    serde_json::from_value(stand.attribute(POLICY, "arns")).unwrap()
}

#[tokio::test]
async fn the_policy_is_kept_for_a_role_of_others() {
    let Some(sandbox) = Sandbox::find("controller_policy") else { return };
    let (name, before, iam) = (unique("policy"), sandbox.what_exists(), sandbox.iam().await);
    // The names are known at plan, so that each can be attached by `for_each`.
    let each = "resource \"terraform_data\" \"attached\" {\n  for_each = karp_controller_policy.this.arns\n  input = each.value\n}\n";
    let stand = sandbox.stand(&(policy(&name, "") + each));
    stand.apply();
    stand.assert_empty_plan();
    let first = arns(&stand);
    assert_eq!(first.keys().next(), Some(&format!("{name}-1")), "{first:?}");
    assert_eq!(stand.attribute(POLICY, "arn"), first.values().next().unwrap().as_str());
    let size = stand.attribute(POLICY, "policy_size").as_u64().unwrap();
    assert_eq!(stand.attribute(POLICY, "policy_json").as_str().map(|text| text.len() as u64), Some(size));

    // It grows by a part, and shrinks again.
    let parameter = "  ami_ssm_parameter_arns = [\"arn:aws:ssm:eu-west-1:111122223333:parameter/images/*\"]\n";
    let more = statements(9) + parameter + "  tags = { own = \"1\" }\n";
    stand.write(&(policy(&name, &more) + each));
    stand.apply();
    stand.assert_empty_plan();
    let grown = arns(&stand);
    assert!(grown.len() > first.len(), "{grown:?}");
    let mut whole = String::new();
    for arn in grown.values() {
        let found = iam.get_policy().policy_arn(arn).send().await.unwrap().policy.unwrap();
        assert!(found.tags().iter().any(|tag| tag.key() == "own"), "{found:?}");
        let version = found.default_version_id().unwrap();
        let version = iam.get_policy_version().policy_arn(arn).version_id(version).send().await.unwrap();
        let text = version.policy_version().unwrap().document().unwrap();
        // IAM shows it percent-encoded, and counts the characters behind that.
        let length = text.len() - 2 * text.matches('%').count();
        assert!(length <= 6_144, "{arn} has {length} characters");
        whole += text;
    }
    assert!(whole.contains("Own8") && whole.contains("AllowSSMReadActions"), "{whole}");

    // A change behind karp's back is seen and healed: one part is gone, another says something else.
    let (gone, changed) = (grown.values().next_back().unwrap(), grown.values().next().unwrap());
    for version in iam.list_policy_versions().policy_arn(gone).send().await.unwrap().versions() {
        if !version.is_default_version() {
            let id = version.version_id().unwrap();
            iam.delete_policy_version().policy_arn(gone).version_id(id).send().await.unwrap();
        }
    }
    iam.delete_policy().policy_arn(gone).send().await.unwrap();
    let other = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Action":"ec2:*","Resource":"*"}]}"#;
    let versions = async || {
        let all = iam.list_policy_versions().policy_arn(changed).send().await.unwrap().versions.unwrap_or_default();
        all.iter().map(|version| version.version_id().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first_version = versions().await.remove(0);
    // As many as IAM keeps of a policy: the oldest has to make room.
    while versions().await.len() < 5 {
        let call = iam.create_policy_version().policy_arn(changed).policy_document(other);
        call.set_as_default(true).send().await.unwrap();
    }
    let (others, _) = sandbox.version_and_tags(changed).await;
    let run = stand.apply();
    assert!(run.changes().contains(&("update".to_owned(), POLICY.to_owned())), "{}", run.text);
    stand.assert_empty_plan();
    let (kept, (own, _)) = (versions().await, sandbox.version_and_tags(changed).await);
    assert!(kept.len() == 5 && kept.contains(&others) && kept.contains(&own), "{kept:?}");
    assert!(own != others && !kept.contains(&first_version), "{kept:?}");

    // An import finds all parts by the name or by one ARN.
    for id in [name.clone(), arns(&stand).into_values().next_back().unwrap()] {
        let import = format!("import {{\n  to = {POLICY}\n  id = {id:?}\n}}\n");
        let second = sandbox.stand(&(policy(&name, &more) + &import));
        let run = second.plan();
        let quiet = |(action, _): &(String, String)| action == "import" || action == "noop";
        assert!(run.errors().is_empty() && run.changes().iter().all(quiet), "{id}: {:?} {}", run.changes(), run.text);
    }

    // Nobody else takes it over unasked.
    let other = sandbox.stand(&policy(&name, ""));
    let refused = other.apply_failing().one_error();
    assert!(refused.contains("exists already"), "{refused}");
    other.write(&policy(&name, "  cluster_name = \"another\"\n"));
    let refused = other.apply_failing().one_error();
    assert!(refused.contains(&format!("is {:?}", sandbox.cluster)), "{refused}");

    stand.write(&(policy(&name, "") + each));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(arns(&stand), first);
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[tokio::test]
async fn a_policy_moves_out_of_the_role_when_it_grows_too_long() {
    let Some(sandbox) = Sandbox::find("policy_mode") else { return };
    let (name, before, iam) = (unique("auto"), sandbox.what_exists(), sandbox.iam().await);
    let role = |more: &str| {
        format!(
            "PROVIDER\nresource \"karp_controller_role\" \"this\" {{\n  name = {name:?}\n  auth = \"pod_identity\"\n  service_account = \
             {name:?}\n  policy_mode = \"auto\"\n{more}}}\n"
        )
    };
    let parts = |stand: &Stand<'_>| stand.attribute(ROLE, "policy_arns").as_array().map(Vec::len);
    let inline = || async { iam.list_role_policies().role_name(&name).send().await.unwrap().policy_names };
    let stand = sandbox.stand(&role(""));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!((parts(&stand), inline().await.len()), (Some(0), 1));

    let long = role(&statements(12));
    stand.write(&long);
    stand.apply();
    stand.assert_empty_plan();
    assert!(parts(&stand) > Some(1), "{}", stand.state());
    assert_eq!(inline().await, Vec::<String>::new());
    assert!(stand.attribute(ROLE, "policy_size").as_u64() > Some(10_240));
    // A policy that was taken off is put on again.
    let arn = stand.attribute(ROLE, "policy_arns")[0].as_str().unwrap().to_owned();
    iam.detach_role_policy().role_name(&name).policy_arn(&arn).send().await.unwrap();
    let run = stand.apply();
    assert_eq!(run.changes(), [("update".to_owned(), ROLE.to_owned())], "{}", run.text);
    stand.assert_empty_plan();

    // What does not fit into the role is told at plan.
    stand.write(&long.replace("\"auto\"", "\"inline\""));
    let refused = stand.plan().one_error();
    assert!(refused.contains("does not fit") && refused.contains("`policy_mode = \"auto\"`"), "{refused}");

    stand.write(&role(""));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!((parts(&stand), inline().await.len()), (Some(0), 1));
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
    assert_eq!(stand.attribute(ROLE, "arn"), Value::Null);
}

impl Sandbox {
    /// Which version of a policy counts, and its tags.
    async fn version_and_tags(&self, arn: &str) -> (String, BTreeMap<String, String>) {
        let found = self.iam().await.get_policy().policy_arn(arn).send().await.unwrap().policy.unwrap();
        let tags = found.tags().iter().map(|tag| (tag.key().to_owned(), tag.value().to_owned())).collect();
        (found.default_version_id().unwrap().to_owned(), tags)
    }
}

#[tokio::test]
async fn policies_of_others_that_are_called_like_a_roles_are_theirs() {
    let Some(sandbox) = Sandbox::find("role_policies") else { return };
    let (before, name, iam) = (sandbox.what_exists(), unique("rolepolicies"), sandbox.iam().await);
    let role = |mode: &str, more: &str| {
        format!(
            "PROVIDER\nresource \"karp_controller_role\" \"this\" {{\n  name = {name:?}\n  auth = \"pod_identity\"\n  service_account = \
             {name:?}\n  policy_mode = {mode:?}\n{more}}}\n"
        )
    };
    let text = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Action":"ec2:*","Resource":"*"}]}"#;
    let call = iam.create_policy().policy_name(format!("{name}-1")).policy_document(text);
    let theirs = call.send().await.unwrap().policy.unwrap();
    let theirs = theirs.arn().unwrap();
    let (with_theirs, untouched) = (sandbox.what_exists(), sandbox.version_and_tags(theirs).await);
    let refused = |stand: &Stand<'_>| {
        let error = stand.apply_failing().one_error();
        assert!(error.contains("exists already") && error.contains("`adopt = true`"), "{error}");
    };

    // A role that is made with policies; that it could not be finished does not take theirs away.
    let stand = sandbox.stand(&role("managed", ""));
    refused(&stand);
    assert_eq!(sandbox.version_and_tags(theirs).await, untouched);
    stand.destroy();
    assert_eq!(sandbox.what_exists(), with_theirs);

    // One whose policy moves out of it.
    stand.write(&role("inline", ""));
    stand.apply();
    stand.write(&role("managed", ""));
    refused(&stand);
    assert_eq!(sandbox.version_and_tags(theirs).await, untouched);
    assert_eq!(iam.list_role_policies().role_name(&name).send().await.unwrap().policy_names().len(), 1);

    // Asked for, it is taken over, and is the role's with all its tags.
    stand.write(&role("managed", "  adopt = true\n  tags = { one = \"1\" }\n"));
    stand.apply();
    stand.assert_empty_plan();
    stand.write(&role("managed", "  adopt = true\n  tags = { two = \"2\" }\n"));
    stand.apply();
    stand.assert_empty_plan();
    let arns = stand.attribute(ROLE, "policy_arns");
    let arns: Vec<&str> = arns.as_array().unwrap().iter().map(|arn| arn.as_str().unwrap()).collect();
    assert!(arns.contains(&theirs), "{arns:?}");
    for arn in arns {
        let (_, tags) = sandbox.version_and_tags(arn).await;
        let keys: Vec<&str> = tags.keys().map(String::as_str).collect();
        assert_eq!(keys, ["karp.sh/cluster", "karp.sh/controller-role", "two"], "{arn}");
        assert_eq!(tags["karp.sh/cluster"], sandbox.cluster, "{arn}");
    }
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[tokio::test]
async fn nodes_of_an_ipv6_cluster_get_a_policy_for_their_addresses() {
    let Some(sandbox) = Sandbox::find("ipv6") else { return };
    let (name, before, iam) = (unique("ipv6"), sandbox.what_exists(), sandbox.iam().await);
    let role = |more: &str| format!("PROVIDER\nresource \"karp_node_role\" \"this\" {{\n  name = {name:?}\n{more}}}\n");
    let inline = || async { iam.list_role_policies().role_name(&name).send().await.unwrap().policy_names };
    let stand = sandbox.stand(&role(""));
    stand.apply();
    stand.assert_empty_plan();
    assert!(stand.state().contains("AmazonEKS_CNI_Policy") && inline().await.is_empty());

    let ipv6 = role("  ip_family = \"ipv6\"\n");
    stand.write(&ipv6);
    stand.apply();
    stand.assert_empty_plan();
    assert!(!stand.state().contains("AmazonEKS_CNI_Policy"), "{}", stand.state());
    let kept = inline().await;
    let [policy] = &kept[..] else { panic!("{kept:?}") };
    let text = iam.get_role_policy().role_name(&name).policy_name(policy).send().await.unwrap();
    assert!(text.policy_document().contains("AssignIpv6Addresses"), "{text:?}");

    // An import finds it, and one that was taken away is written again.
    let import = format!("import {{\n  to = karp_node_role.this\n  id = {name:?}\n}}\n");
    let run = sandbox.stand(&format!("{ipv6}{import}")).plan();
    let quiet = |(action, _): &(String, String)| action == "import" || action == "noop";
    assert!(run.errors().is_empty() && run.changes().iter().all(quiet), "{}", run.text);
    iam.delete_role_policy().role_name(&name).policy_name(policy).send().await.unwrap();
    let run = stand.apply();
    assert_eq!(run.changes(), [("update".to_owned(), "karp_node_role.this".to_owned())], "{}", run.text);
    stand.assert_empty_plan();
    assert_eq!(inline().await.len(), 1);

    stand.write(&role(""));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(inline().await, Vec::<String>::new());
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[tokio::test]
async fn further_policies_have_names_of_the_users_choice() {
    let Some(sandbox) = Sandbox::find("further") else { return };
    let before = sandbox.what_exists();
    let name = unique("further");
    let config = |further: &str, later: &str| {
        format!(
            "PROVIDER\nresource \"terraform_data\" \"later\" {{\n  input = \"arn:aws:iam::aws:policy/{later}\"\n}}\n\
             resource \"karp_node_role\" \"this\" {{\n  name = \"{name}-n\"\n  additional_policy_arns = {further}\n}}\n\
             resource \"karp_fargate_pod_execution_role\" \"this\" {{\n  name = \"{name}-f\"\n  additional_policy_arns = {further}\n}}\n"
        )
    };
    let read = "arn:aws:iam::aws:policy/ReadOnlyAccess";
    let both = format!("{{ read = {read:?}, later = terraform_data.later.output }}");
    let iam = sandbox.iam().await;
    let attached = async |policy: &str| {
        let mut roles = Vec::new();
        for role in [format!("{name}-n"), format!("{name}-f")] {
            let all = iam.list_attached_role_policies().role_name(&role).send().await.unwrap();
            let has = all.attached_policies().iter().any(|one| one.policy_name() == Some(policy));
            roles.extend(has.then_some(role));
        }
        roles.len()
    };

    // Not known at plan, as an ARN that another resource has after the apply.
    let stand = sandbox.stand(&config(&both, "PowerUserAccess"));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!((attached("ReadOnlyAccess").await, attached("PowerUserAccess").await), (2, 2));

    stand.write(&config(&both.replace("read =", "look ="), "PowerUserAccess"));
    stand.assert_empty_plan();

    // An import finds them, and whatever they are called there is no difference.
    let import = |kind: &str, end: &str| format!("import {{\n  to = {kind}.this\n  id = \"{name}-{end}\"\n}}\n");
    let imports = import("karp_node_role", "n") + &import("karp_fargate_pod_execution_role", "f");
    let known = "{ a = \"arn:aws:iam::aws:policy/PowerUserAccess\", b = \"arn:aws:iam::aws:policy/ReadOnlyAccess\" }";
    let second = sandbox.stand(&(config(known, "PowerUserAccess") + &imports));
    let run = second.apply();
    let roles = run.changes().into_iter().filter(|(_, address)| address.starts_with("karp_"));
    assert!(roles.clone().all(|(action, _)| action == "import" || action == "noop"), "{}", run.text);
    second.assert_empty_plan();

    stand.write(&config(&format!("{{ read = {read:?} }}"), "PowerUserAccess"));
    let run = stand.apply();
    assert!(run.changes().len() == 2 && run.changes().iter().all(|(action, _)| action == "update"), "{}", run.text);
    stand.assert_empty_plan();
    assert_eq!((attached("ReadOnlyAccess").await, attached("PowerUserAccess").await), (2, 0));
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
