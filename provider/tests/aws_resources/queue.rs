//! The interruption queue's policy with statements of the user's own, and what others edit of its parts.

use std::collections::BTreeMap;

use aws_sdk_eventbridge::Client as EventBridge;
use aws_sdk_eventbridge::types::{Tag, Target};
use aws_sdk_sqs::types::QueueAttributeName;
use karp_aws::config::Service;
use serde_json::{Value, json};

use crate::life::unique;
use crate::stand::Sandbox;

const QUEUE: &str = "karp_interruption_queue.this";
/// What others do to which rules; of the one of `state_change` they change the tags.
const EDITS: [(&str, Edit); 4] = [
    ("capacity_reservation", Edit::AimedElsewhere),
    ("health", Edit::Deleted),
    ("rebalance", Edit::Matching),
    ("spot", Edit::Untargeted),
];

/// What others do to a rule at AWS's own console.
#[derive(Debug, Clone, Copy)]
enum Edit {
    AimedElsewhere,
    Deleted,
    Matching,
    Untargeted,
}

impl Edit {
    async fn make(self, events: &EventBridge, rule: &str) {
        let target = events.list_targets_by_rule().rule(rule).send().await.unwrap().targets.unwrap().remove(0);
        match self {
            Self::AimedElsewhere => {
                let other = Target::builder().id(target.id()).arn(format!("{}-other", target.arn())).build().unwrap();
                events.put_targets().rule(rule).targets(other).send().await.unwrap();
            }
            Self::Matching => {
                let other = r#"{"source":["theirs"]}"#;
                events.put_rule().name(rule).event_pattern(other).send().await.unwrap();
            }
            Self::Deleted | Self::Untargeted => {
                events.remove_targets().rule(rule).ids(target.id()).send().await.unwrap();
            }
        }
        if matches!(self, Self::Deleted) {
            events.delete_rule().name(rule).send().await.unwrap();
        }
    }
}

/// What each rule lets through, and where to.
async fn live(events: &EventBridge, rules: &Value) -> BTreeMap<String, (Option<String>, Vec<Target>)> {
    let mut all = BTreeMap::new();
    for rule in rules.as_object().unwrap().values().map(|rule| rule.as_str().unwrap()) {
        let pattern = events.describe_rule().name(rule).send().await.unwrap().event_pattern;
        let targets = events.list_targets_by_rule().rule(rule).send().await.unwrap().targets;
        all.insert(rule.to_owned(), (pattern, targets.unwrap_or_default()));
    }
    all
}

/// The ARN of a rule, and its tags.
async fn tags_of(events: &EventBridge, rule: &str) -> (String, BTreeMap<String, String>) {
    let arn = events.describe_rule().name(rule).send().await.unwrap().arn.unwrap();
    let tags = events.list_tags_for_resource().resource_arn(&arn).send().await.unwrap().tags.unwrap_or_default();
    (arn, tags.into_iter().map(|tag| (tag.key, tag.value)).collect())
}

fn config(name: &str, statements: &str) -> String {
    format!(
        "PROVIDER\nresource \"terraform_data\" \"account\" {{\n  input = \"123456789012\"\n}}\n\
         resource \"karp_interruption_queue\" \"this\" {{\n  name   = {name:?}\n  events = [\"spot\"]\n{statements}}}\n"
    )
}

#[tokio::test]
async fn statements_of_the_user_come_change_heal_and_go() {
    let Some(sandbox) = Sandbox::find("statements") else { return };
    let before = sandbox.what_exists();
    let name = unique("statements");
    let sqs = sandbox.clients().await.sqs().clone();
    // As a topic of another account's alarms needs, and somebody who looks at the queue.
    let statements = |action: &str| {
        format!(
            r#"  extra_statements = [
    {{
      sid        = "Alarms"
      principals = [{{ type = "Service", identifiers = ["sns.amazonaws.com"] }}]
      actions    = ["sqs:SendMessage"]
      conditions = [{{ test = "StringEquals", variable = "aws:SourceAccount", values = [terraform_data.account.output] }}]
    }},
    {{
      principals = [{{ type = "AWS", identifiers = ["arn:aws:iam::123456789012:root"] }}]
      actions    = [{action:?}]
    }},
  ]
"#
        )
    };
    let stand = sandbox.stand(&config(&name, &statements("sqs:GetQueueAttributes")));
    stand.apply();
    stand.assert_empty_plan();
    let (url, arn) = (stand.attribute(QUEUE, "url"), stand.attribute(QUEUE, "arn"));
    let url = url.as_str().unwrap();
    let live = async || -> Vec<Value> {
        let call = sqs.get_queue_attributes().queue_url(url);
        let all = call.attribute_names(QueueAttributeName::Policy).send().await.unwrap();
        let text = all.attributes.unwrap().remove(&QueueAttributeName::Policy).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["Statement"].as_array().unwrap().clone()
    };
    let own = live().await.split_off(2);
    assert_eq!(
        own[0],
        json!({ "Sid": "Alarms", "Effect": "Allow", "Principal": { "Service": "sns.amazonaws.com" }, "Action": "sqs:SendMessage",
            "Resource": arn, "Condition": { "StringEquals": { "aws:SourceAccount": "123456789012" } } })
    );
    assert_eq!(own[1]["Principal"], json!({ "AWS": "arn:aws:iam::123456789012:root" }));

    let changes = [("update".to_owned(), QUEUE.to_owned())];
    stand.write(&config(&name, &statements("sqs:ReceiveMessage")));
    assert_eq!(stand.apply().changes(), changes);
    stand.assert_empty_plan();
    assert_eq!(live().await[3]["Action"], "sqs:ReceiveMessage");

    // Somebody takes them out.
    let bare = json!({ "Version": "2012-10-17", "Statement": live().await[..2] }).to_string();
    let call = sqs.set_queue_attributes().queue_url(url);
    call.attributes(QueueAttributeName::Policy, bare).send().await.unwrap();
    assert_eq!(stand.apply().changes(), changes);
    stand.assert_empty_plan();
    assert_eq!(live().await.len(), 4);

    // An import finds them.
    let import = format!("import {{\n  to = {QUEUE}\n  id = {url:?}\n}}\n");
    let second = sandbox.stand(&(config(&name, &statements("sqs:ReceiveMessage")) + &import));
    second.apply();
    second.assert_empty_plan();
    let third = sandbox.stand(
        &(config(
            &name,
            &statements("sqs:ReceiveMessage").replace("terraform_data.account.output", "\"123456789012\""),
        ) + &import),
    );
    let run = third.plan();
    let queue = run.changes().into_iter().find(|(_, address)| address == QUEUE);
    assert!(queue.is_none_or(|(action, _)| action == "import" || action == "noop"), "{}", run.text);

    stand.write(&config(&name, ""));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(live().await.len(), 2);
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[tokio::test]
async fn each_part_that_others_edit_shows_by_itself_and_heals() {
    let Some(sandbox) = Sandbox::find("queue_parts") else { return };
    let (before, name, clients) = (sandbox.what_exists(), unique("parts"), sandbox.clients().await);
    let (sqs, events) = (clients.sqs(), EventBridge::new(&clients.config_for(Service::EventBridge)));
    let stand = sandbox.stand(&format!(
        "PROVIDER\nresource \"karp_interruption_queue\" \"this\" {{\n  name = {name:?}\n  tags = {{ step = \"one\" }}\n}}\n"
    ));
    stand.apply();
    let (url, rules) = (stand.attribute(QUEUE, "url"), stand.attribute(QUEUE, "rules"));
    let url = url.as_str().unwrap();
    let (whole, working) = (sandbox.what_exists(), live(&events, &rules).await);

    for (event, edit) in EDITS {
        edit.make(&events, rules[event].as_str().unwrap()).await;
    }
    let call = sqs.set_queue_attributes().queue_url(url).attributes(QueueAttributeName::SqsManagedSseEnabled, "false");
    call.attributes(QueueAttributeName::MessageRetentionPeriod, "600").send().await.unwrap();
    let tagged = rules["state_change"].as_str().unwrap();
    let (arn, own) = tags_of(&events, tagged).await;
    assert_eq!(own["step"], "one");
    events.untag_resource().resource_arn(&arn).tag_keys("karp.sh/cluster").send().await.unwrap();
    let theirs = |key: &str| Tag::builder().key(key).value("theirs").build().unwrap();
    events.tag_resource().resource_arn(&arn).tags(theirs("step")).tags(theirs("other")).send().await.unwrap();
    sqs.tag_queue().queue_url(url).tags("step", "theirs").send().await.unwrap();

    let planned = stand.tofu(&["plan", "-json", "-out=plan"]);
    assert_eq!(planned.changes(), [("update".to_owned(), QUEUE.to_owned())], "{}", planned.text);
    let shown = stand.tofu(&["show", "-json", "plan"]);
    let change = &shown.events[0]["resource_changes"][0]["change"];
    for (event, edit) in EDITS {
        assert_eq!(change["before"]["rules"][event], Value::Null, "{event}, {edit:?}");
    }
    assert_eq!(change["before"]["rules"], json!({ "state_change": rules["state_change"] }));
    assert_eq!(change["after"]["rules"], rules);
    let settings = |side: &str| {
        let side = &change[side];
        json!([side["message_retention_seconds"], side["sqs_managed_sse_enabled"], side["tags_all"]["step"]])
    };
    assert_eq!(settings("before"), json!([600, false, "theirs"]));
    assert_eq!(settings("after"), json!([300, true, "one"]));

    let applied = stand.tofu(&["apply", "-json", "plan"]);
    assert_eq!(applied.code, 0, "{}", applied.text);
    stand.assert_empty_plan();
    assert_eq!((live(&events, &rules).await, sandbox.what_exists()), (working, whole));
    let call = sqs.get_queue_attributes().queue_url(url).attribute_names(QueueAttributeName::SqsManagedSseEnabled);
    let now = call.attribute_names(QueueAttributeName::MessageRetentionPeriod).send().await.unwrap().attributes;
    let now = now.unwrap();
    let now = |name: QueueAttributeName| now[&name].as_str();
    let tags = sqs.list_queue_tags().queue_url(url).send().await.unwrap().tags.unwrap();
    assert_eq!((now(QueueAttributeName::MessageRetentionPeriod), tags["step"].as_str()), ("300", "one"));
    assert_eq!(now(QueueAttributeName::SqsManagedSseEnabled), "true");
    let (_, mut tags) = tags_of(&events, tagged).await;
    assert_eq!(tags.remove("other").as_deref(), Some("theirs"), "what others add stays");
    assert_eq!(tags, own);
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[test]
fn nobody_gets_into_the_queue_unnamed() {
    let Some(sandbox) = Sandbox::find("anybody") else { return };
    let before = sandbox.what_exists();
    let name = unique("anybody");
    let statements = |who: &str, more: &str| {
        format!(
            "  extra_statements = [{{\n    principals = [{{ type = \"AWS\", identifiers = [{who}] }}]\n    actions = [\"sqs:SendMessage\"]\n{more}  \
             }}]\n"
        )
    };
    // Whom another resource names is known at apply only: it is refused then, before there is a queue.
    let told = "resource \"terraform_data\" \"who\" {\n  input = \"*\"\n}\n";
    let stand = sandbox.stand(&(config(&name, &statements("terraform_data.who.output", "")) + told));
    let refused = stand.apply_failing().one_error();
    assert!(refused.contains("extra_statements[0].principals") && refused.contains("lets anybody in"), "{refused}");
    assert_eq!(sandbox.what_exists(), before, "a queue was made");

    // With a condition that bounds them it is what the user means.
    let condition = "    conditions = [{ test = \"StringEquals\", variable = \"aws:PrincipalOrgID\", values = [\"o-a1b2c3d4e5\"] }]\n";
    stand.write(&(config(&name, &statements("terraform_data.who.output", condition)) + told));
    stand.apply();
    stand.assert_empty_plan();
    let policy: Value = serde_json::from_str(stand.attribute(QUEUE, "policy").as_str().unwrap()).unwrap();
    let own = &policy["Statement"][2];
    assert_eq!(
        (&own["Principal"], &own["Condition"]),
        (&json!({ "AWS": "*" }), &json!({ "StringEquals": { "aws:PrincipalOrgID": "o-a1b2c3d4e5" } }))
    );
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
