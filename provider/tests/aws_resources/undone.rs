//! A change that fails in the middle: what it has done, and what it has yet to take away, is known to the state, so that the next apply goes on with it
//! and a destroy leaves nothing. Where the provider is killed in the middle, state knows nothing of the change, and what was made is found by what it
//! says of itself.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::halfway::{apply_denied, config, unique};
use crate::policies::statements;
use crate::stand::{Sandbox, Stand};
use crate::stopped::Cut;

const UPDATE: &str = "update";

/// Holds that one denied call of the change from one text to another leaves a change to plan; that going on ends on an empty plan; and that giving up,
/// by the first text or by a destroy, leaves nothing.
fn goes_on(test: &str, address: &str, (from, to): (&str, &str), (action, after): (&str, u32)) {
    let Some(sandbox) = Sandbox::find(test) else { return };
    let before = sandbox.what_exists();
    for way in ["on", "back", "away"] {
        let name = format!("{}-{way}", unique(test));
        let (from, to) = (config(from, &name, &sandbox), config(to, &name, &sandbox));
        let stand = sandbox.stand(&from);
        stand.apply();
        stand.assert_empty_plan();
        stand.write(&to);
        apply_denied(&stand, &sandbox, action, after, &name);
        match way {
            "on" => {
                assert_eq!(stand.apply().changes(), [(UPDATE.to_owned(), address.to_owned())]);
                stand.assert_empty_plan();
            }
            "back" => {
                stand.write(&from);
                stand.apply();
                stand.assert_empty_plan();
            }
            _ => {}
        }
        stand.destroy();
        assert_eq!(sandbox.what_exists(), before, "{way}: something is left");
    }
}

#[test]
fn events_of_a_queue_that_go() {
    let queue = |events: &str| {
        format!("resource \"karp_interruption_queue\" \"this\" {{\n  name = \"NAME\"\n  events = {events}\n}}\n")
    };
    let texts = (&*queue(r#"["health", "spot"]"#), &*queue(r#"["spot"]"#));
    goes_on("dropped_event", "karp_interruption_queue.this", texts, ("DeleteRule", 0));
}

#[test]
fn a_resource_that_loses_its_discovery_tag() {
    let tags = |ids: &str, value: &str| {
        format!(
            "resource \"karp_discovery_tags\" \"this\" {{\n  key = \"karp.test/NAME\"\n  value = {value:?}\n  resource_ids = {ids}\n}}\n"
        )
    };
    let all = tags("SUBNETS", "x");
    let less = "slice(SUBNETS, 0, 1)";
    for (test, to) in [("dropped_tag", tags(less, "x")), ("other_tag", tags(less, "y"))] {
        goes_on(test, "karp_discovery_tags.this", (&all, &to), ("DeleteTags", 0));
    }
}

/// Of two further policies the second is refused: the first is on the role by then, and so are its new tags.
#[test]
fn policies_of_a_role_of_which_one_is_refused() {
    let role = |further: &str| {
        format!(
            "resource \"karp_node_role\" \"this\" {{\n  name = \"NAME\"\n  additional_policy_arns = {further}\n}}\n"
        )
    };
    let further =
        r#"{ a = "arn:aws:iam::aws:policy/AmazonEC2ReadOnlyAccess", b = "arn:aws:iam::aws:policy/ReadOnlyAccess" }"#;
    let (from, to) = (role("{}"), role(further));
    goes_on("refused_policy", "karp_node_role.this", (&from, &to), ("AttachRolePolicy", 1));
    let Some(sandbox) = Sandbox::find("reverted_policy") else { return };
    let name = unique("reverted_policy");
    let stand = sandbox.stand(&config(&from, &name, &sandbox));
    stand.apply();
    let own = stand.attribute("karp_node_role.this", "policy_arns");
    let tagged = to.replace("\n}\n", "\n  tags = { further = \"x\" }\n}\n");
    stand.write(&config(&tagged, &name, &sandbox));
    apply_denied(&stand, &sandbox, "AttachRolePolicy", 1, &name);
    stand.write(&config(&from, &name, &sandbox));
    let since = sandbox.last_call();
    assert_eq!(stand.apply().changes(), [(UPDATE.to_owned(), "karp_node_role.this".to_owned())], "it is taken off");
    let untags = |call: &Value| call["action"] == "UntagRole" && call["params"].to_string().contains("further");
    assert!(sandbox.calls(since).iter().any(untags), "so is the tag that came before it");
    assert_eq!(stand.attribute("karp_node_role.this", "policy_arns"), own);
    stand.destroy();
}

impl Sandbox {
    /// How many of each kind exist: what is made anew has another id.
    fn how_many_exist(&self) -> BTreeMap<String, usize> {
        let all: BTreeMap<String, Vec<Value>> = serde_json::from_value(self.what_exists()).unwrap();
        all.into_iter().map(|(kind, all)| (kind, all.len())).collect()
    }
}

/// Holds that nothing stays of the change from one text to another that was killed while a call was carried out and not answered: the first text
/// takes all back, and a destroy takes all away.
fn leaves_nothing(test: &str, (from, to): (&str, &str), [back, away]: [&str; 2]) {
    let Some(sandbox) = Sandbox::find(test) else { return };
    let (before, name) = (sandbox.what_exists(), unique(test));
    let (from, to) = (config(from, &name, &sandbox), config(to, &name, &sandbox));
    let stand = sandbox.stand(&from);
    stand.apply();
    let made = sandbox.how_many_exist();
    stand.write(&to);
    sandbox.cut(&stand, &[(back, &["this"])], Cut::Kill);
    stand.write(&from);
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(sandbox.how_many_exist(), made, "{back}: it is not taken back");
    stand.write(&to);
    sandbox.cut(&stand, &[(away, &["this"])], Cut::Kill);
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "{away}: something is left");
}

/// A rule that was not aimed at the queue yet is the queue's, too.
#[test]
fn an_event_of_a_queue_whose_provider_is_killed() {
    let queue = |events: &str| {
        format!("resource \"karp_interruption_queue\" \"this\" {{\n  name = \"NAME\"\n  events = {events}\n}}\n")
    };
    let texts = (&*queue(r#"["spot"]"#), &*queue(r#"["health", "spot"]"#));
    leaves_nothing("killed_event", texts, ["PutTargets", "PutRule"]);
}

#[tokio::test]
async fn a_rule_of_somebody_elses_that_is_called_as_a_queues() {
    let Some(sandbox) = Sandbox::find("foreign_rule") else { return };
    let name = unique("foreign_rule");
    let text = "resource \"karp_interruption_queue\" \"this\" {\n  name = \"NAME\"\n  events = [\"spot\"]\n}\n";
    let stand = sandbox.stand(&config(text, &name, &sandbox));
    stand.apply();
    let clients = sandbox.clients().await;
    let events = aws_sdk_eventbridge::Client::new(&clients.config_for(karp_aws::config::Service::EventBridge));
    let rule = format!("{name}-Health");
    let call =
        events.put_rule().name(&rule).event_pattern(r#"{"source":["aws.health"],"detail-type":["AWS Health Event"]}"#);
    call.send().await.unwrap();
    let arn = stand.attribute("karp_interruption_queue.this", "arn");
    let target = aws_sdk_eventbridge::types::Target::builder().id("own").arn(arn.as_str().unwrap()).build().unwrap();
    events.put_targets().rule(&rule).targets(target).send().await.unwrap();
    stand.assert_empty_plan();
    stand.destroy();
    events.describe_rule().name(&rule).send().await.expect("it stays");
    events.remove_targets().rule(&rule).ids("own").send().await.unwrap();
    events.delete_rule().name(&rule).send().await.unwrap();
}

#[test]
fn a_part_of_a_policy_whose_provider_is_killed() {
    let policy = |more: &str| format!("resource \"karp_controller_policy\" \"this\" {{\n  name = \"NAME\"\n{more}}}\n");
    let (from, to) = (policy(""), policy(&statements(25)));
    leaves_nothing("killed_part", (&from, &to), ["CreatePolicy"; 2]);
}

/// A role that pods get by an association, or by their tokens.
fn role(more: &str) -> String {
    format!("resource \"karp_controller_role\" \"this\" {{\n  name = \"NAME\"\n  {more}\n}}\n")
}

fn role_of(account: &str) -> String {
    role(&format!("auth = \"pod_identity\"\n  service_account = {account:?}"))
}

#[test]
fn an_association_for_another_account_whose_provider_is_killed() {
    let texts = (&*role_of("NAME-first"), &*role_of("NAME"));
    leaves_nothing("killedaccount", texts, ["CreatePodIdentityAssociation"; 2]);
}

#[test]
fn a_first_association_whose_provider_is_killed() {
    let tokens = role("oidc_provider_arn = \"arn:aws:iam::123456789012:oidc-provider/oidc.example.com/id/1\"");
    leaves_nothing("killedtokens", (&tokens, &role_of("NAME")), ["CreatePodIdentityAssociation"; 2]);
}

/// The policy's two homes: in the role, and beside it.
fn in_two_ways() -> [String; 2] {
    ["inline", "managed"].map(|mode| {
        format!(
            "resource \"karp_controller_role\" \"this\" {{\n  name = \"NAME\"\n  auth = \"pod_identity\"\n  service_account = \"NAME\"\n  \
             policy_mode = {mode:?}\n}}\n"
        )
    })
}

#[test]
fn a_policy_that_moves_out_of_its_role_and_stays_in_it() {
    let [inline, managed] = in_two_ways();
    goes_on("keptinline", "karp_controller_role.this", (&inline, &managed), ("DeleteRolePolicy", 0));
}

#[test]
fn a_policy_that_moves_into_its_role_and_stays_beside_it() {
    let [inline, managed] = in_two_ways();
    goes_on("keptmanaged", "karp_controller_role.this", (&managed, &inline), ("DeletePolicy", 0));
}

#[tokio::test]
async fn a_role_that_is_made_anew_is_in_its_instance_profile_again() {
    let Some(sandbox) = Sandbox::find("renewed_role") else { return };
    let (before, name) = (sandbox.what_exists(), unique("renewed_role"));
    let text = "resource \"karp_node_role\" \"this\" {\n  name = \"NAME\"\n}\n\
                resource \"karp_instance_profile\" \"this\" {\n  name = \"NAME\"\n  role_name = karp_node_role.this.name\n}\n";
    let stand = sandbox.stand(&config(text, &name, &sandbox));
    stand.apply();
    let run = stand.tofu(&["apply", "-json", "-auto-approve", "-replace=karp_node_role.this"]);
    assert_eq!(run.code, 0, "{}", run.text);
    let found = sandbox.iam().await.get_instance_profile().instance_profile_name(&name).send().await.unwrap();
    let roles: Vec<String> = found.instance_profile.unwrap().roles.into_iter().map(|role| role.role_name).collect();
    assert_eq!(roles, [name], "nodes go on to start");
    stand.assert_empty_plan();
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

/// A profile has one role at most: the old one stays until the new one is there, and comes back where that is refused.
#[tokio::test]
async fn an_instance_profile_keeps_its_role_where_the_new_one_is_refused() {
    let Some(sandbox) = Sandbox::find("refused_role") else { return };
    let name = unique("refused_role");
    let config = |role: &str| {
        let text = format!(
            "resource \"karp_node_role\" \"a\" {{\n  name = \"NAME-a\"\n}}\nresource \"karp_node_role\" \"b\" {{\n  name = \"NAME-b\"\n}}\n\
             resource \"karp_instance_profile\" \"this\" {{\n  name = \"NAME\"\n  role_name = karp_node_role.{role}.name\n}}\n"
        );
        config(&text, &name, &sandbox)
    };
    let stand: Stand<'_> = sandbox.stand(&config("a"));
    stand.apply();
    stand.write(&config("b"));
    apply_denied(&stand, &sandbox, "AddRoleToInstanceProfile", 0, &name);
    let found = sandbox.iam().await.get_instance_profile().instance_profile_name(&name).send().await.unwrap();
    let roles: Vec<String> = found.instance_profile.unwrap().roles.into_iter().map(|role| role.role_name).collect();
    assert_eq!(roles, [format!("{name}-a")]);
    stand.apply();
    stand.assert_empty_plan();
    stand.destroy();
}

#[test]
fn a_role_that_pod_identity_does_not_know_yet_is_waited_for() {
    let Some(sandbox) = Sandbox::find("newidentity") else { return };
    let [inline, _] = in_two_ways();
    let stand = sandbox.stand(&config(&inline, &unique("newidentity"), &sandbox));
    let fault = json!([{ "action": "CreatePodIdentityAssociation", "code": "InvalidParameterException", "status": 400, "times": 2,
        "message": "Role provided in the request does not exist." }]);
    sandbox.door("POST", "/_karp/fail", &fault.to_string());
    stand.apply();
    stand.assert_empty_plan();
    stand.destroy();
}

/// A module passes on a tag that nobody set.
#[test]
fn a_tag_without_a_value_is_none() {
    let Some(sandbox) = Sandbox::find("unset_tag") else { return };
    let tags = "tags = { Owner = null, Team = \"a\" }";
    let text = format!(
        "resource \"karp_node_role\" \"this\" {{\n  name = \"NAME\"\n  {tags}\n}}\n\
         resource \"karp_instance_profile\" \"this\" {{\n  name = \"NAME\"\n  role_name = karp_node_role.this.name\n  {tags}\n}}\n\
         resource \"karp_interruption_queue\" \"this\" {{\n  name = \"NAME\"\n  {tags}\n}}\n\
         resource \"karp_access_entry\" \"this\" {{\n  principal_arn = karp_node_role.this.arn\n  {tags}\n}}\n"
    );
    let stand = sandbox.stand(&config(&text, &unique("unset_tag"), &sandbox));
    stand.apply();
    stand.assert_empty_plan();
    for kind in ["karp_node_role", "karp_instance_profile", "karp_interruption_queue", "karp_access_entry"] {
        let all = stand.attribute(&format!("{kind}.this"), "tags_all");
        assert_eq!((&all["Owner"], &all["Team"]), (&Value::Null, &json!("a")), "{kind}");
    }
    stand.destroy();
}
