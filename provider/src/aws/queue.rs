//! The interruption queue with its policy and EventBridge rules: one thing in five pieces, created, read and healed together.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_eventbridge::types::{RuleState, Tag as RuleTag, Target};
use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use serde_json::{Value as Json, json};
use tfplugin::Context;

use super::document::{canonical, canonical_value};
use super::names::{self, LONGEST_ROLE};
use super::tags::{Change, Tags, retag_queue};
use super::wait::{SETTLE_LIMIT, detached_within, settle};
use crate::marks::Mark;
use crate::report::{Failure, Kind};
use crate::session::Aws;

/// EventBridge's id of the one target of each rule.
const TARGET: &str = "KarpInterruptionQueue";

/// What AWS announces, and how the rule for it is called and matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The name in `events`.
    pub name: &'static str,
    /// The end of the rule's name.
    pub suffix: &'static str,
    source: &'static str,
    detail_types: &'static [&'static str],
}

/// All events that the controller understands.
pub const EVENTS: [Event; 5] = [
    Event {
        name: "capacity_reservation",
        suffix: "CapacityReservation",
        source: "aws.ec2",
        // AWS documents the warning under both names.
        detail_types: &[
            "EC2 Capacity Reservation Instance Interruption Warning",
            "EC2 Interruptible Capacity Reservation Instance Interruption Warning",
        ],
    },
    Event { name: "health", suffix: "Health", source: "aws.health", detail_types: &["AWS Health Event"] },
    Event {
        name: "rebalance",
        suffix: "Rebalance",
        source: "aws.ec2",
        detail_types: &["EC2 Instance Rebalance Recommendation"],
    },
    Event {
        name: "spot",
        suffix: "SpotInterruption",
        source: "aws.ec2",
        detail_types: &["EC2 Spot Instance Interruption Warning"],
    },
    Event {
        name: "state_change",
        suffix: "StateChange",
        source: "aws.ec2",
        detail_types: &["EC2 Instance State-change Notification"],
    },
];

impl Event {
    /// Finds an event by its name in `events`.
    pub fn named(name: &str) -> Option<Self> {
        EVENTS.into_iter().find(|event| event.name == name)
    }

    /// Gives the name of the rule of a queue: a function of the queue's name.
    pub fn rule_name(self, queue: &str) -> String {
        let suffix = format!("-{}", self.suffix);
        format!("{}{suffix}", names::fit("", queue, LONGEST_ROLE - suffix.len()))
    }

    /// Says in its rule whose it is.
    fn description(self, queue: &str) -> String {
        format!("Sends {:?} to queue {queue} for karp", self.detail_types.join(" and "))
    }

    /// EventBridge wants lists even for one value.
    fn pattern(self) -> String {
        json!({ "source": [self.source], "detail-type": self.detail_types }).to_string()
    }
}

/// A queue as it should be, or as SQS describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queue {
    pub url: String,
    pub arn: String,
    pub retention_seconds: i64,
    pub kms_key: Option<String>,
    /// Whether SQS's own key encrypts messages.
    pub sqs_managed_sse: bool,
    pub policy: String,
    pub tags: Tags,
}

impl Queue {
    /// Gives its name, which is the end of its URL.
    pub fn name(&self) -> &str {
        self.url.rsplit('/').next().unwrap_or_default()
    }

    /// Says whether its attributes are those of the other one.
    fn is_set_as(&self, wanted: &Self) -> bool {
        (self.retention_seconds, &self.kms_key, self.sqs_managed_sse, &self.policy)
            == (wanted.retention_seconds, &wanted.kms_key, wanted.sqs_managed_sse, &wanted.policy)
    }
}

/// Gives the queue's policy: rules of its account and region may send, and nobody without TLS; then the user's own statements.
pub fn policy(queue_arn: &str, own: impl IntoIterator<Item = Json>) -> String {
    let mut policy = karp_domain::iam::queue_policy(queue_arn);
    if let Some(statements) = policy["Statement"].as_array_mut() {
        statements.extend(own);
    }
    canonical_value(&policy)
}

/// Gives the URL of a queue by its name.
pub async fn url_of(aws: &Aws, name: &str) -> Result<Option<String>, Failure> {
    match aws.sqs().get_queue_url().queue_name(name).send().await {
        Ok(answer) => Ok(answer.queue_url().map(str::to_owned)),
        Err(e) => match Failure::aws(format!("look for queue {name:?}"), e) {
            failure if failure.is_missing() => Ok(None),
            failure => Err(failure),
        },
    }
}

/// Creates the bare queue, with a mark; SQS refuses a name that was deleted less than 60 s ago, which is waited for.
pub async fn create(aws: &Aws, ctx: &Context, name: &str, wanted: &Queue, mark: &Mark) -> Result<String, Failure> {
    let doing = format!("create queue {name:?}");
    let tags = mark.on(&wanted.tags).into_iter().collect();
    let call = aws.sqs().create_queue().queue_name(name).set_attributes(Some(settings(wanted))).set_tags(Some(tags));
    let answer =
        settle(ctx, &doing, || async { call.clone().send().await.map_err(|e| Failure::aws(&doing, e).at("name")) });
    let url = answer.await?.queue_url().unwrap_or_default().to_owned();
    Ok(url)
}

/// Reads a queue.
pub async fn find(aws: &Aws, url: &str) -> Result<Option<Queue>, Failure> {
    let doing = format!("read queue {url}");
    let answer = match aws.sqs().get_queue_attributes().queue_url(url).attribute_names(Attribute::All).send().await {
        Ok(answer) => answer,
        Err(e) => match Failure::aws(&doing, e) {
            failure if failure.is_missing() => return Ok(None),
            failure => return Err(failure),
        },
    };
    let attributes = answer.attributes.unwrap_or_default();
    let text = |name: Attribute| attributes.get(&name).filter(|text| !text.is_empty()).cloned();
    let tags = match aws.sqs().list_queue_tags().queue_url(url).send().await.map_err(|e| Failure::aws(&doing, e)) {
        Err(failure) if failure.is_missing() => return Ok(None),
        tags => tags?,
    };
    let kms_key = text(Attribute::KmsMasterKeyId);
    Ok(Some(Queue {
        url: url.to_owned(),
        arn: text(Attribute::QueueArn).unwrap_or_default(),
        retention_seconds: text(Attribute::MessageRetentionPeriod).and_then(|t| t.parse().ok()).unwrap_or_default(),
        sqs_managed_sse: is_sqs_managed(kms_key.as_deref(), text(Attribute::SqsManagedSseEnabled).as_deref()),
        kms_key,
        policy: text(Attribute::Policy).map(|policy| canonical(&policy)).unwrap_or_default(),
        tags: tags.tags.unwrap_or_default().into_iter().collect(),
    }))
}

/// Says whether SQS's own key encrypts messages: no other one does, and SQS does not tell that nothing does.
fn is_sqs_managed(kms_key: Option<&str>, told: Option<&str>) -> bool {
    kms_key.is_none() && told != Some("false")
}

/// Brings the queue to what is wanted; says whether its attributes changed.
pub async fn converge(aws: &Aws, ctx: &Context, found: &Queue, wanted: &Queue, owned: &Tags) -> Result<bool, Failure> {
    let (url, differs) = (&found.url, !found.is_set_as(wanted));
    if differs {
        let mut attributes = settings(wanted);
        attributes.insert(Attribute::Policy, wanted.policy.clone());
        if found.kms_key.is_some() && wanted.kms_key.is_none() {
            // SQS keeps a key that it is not told to drop.
            attributes.insert(Attribute::KmsMasterKeyId, String::new());
        }
        let call = aws.sqs().set_queue_attributes().queue_url(url).set_attributes(Some(attributes));
        let doing = format!("configure queue {url}");
        settle(ctx, &doing, || async {
            let answer = call.clone().send().await;
            answer.map(drop).map_err(|e| named_lately(Failure::aws(&doing, e), &wanted.policy))
        })
        .await?;
    }
    retag_queue(aws, url, &Change::between(&wanted.tags, &found.tags, owned)).await?;
    Ok(differs)
}

/// Waits until SQS shows a queue as it was set, which may take a minute: a plan that comes sooner would show what is done already. That it does not
/// come to it is no failure, for it was set.
pub async fn shown_as(aws: &Aws, ctx: &Context, url: &str, wanted: &Queue) {
    let doing = format!("read queue {url}");
    let shown = settle(ctx, &doing, || async {
        match find(aws, url).await? {
            Some(found) if !found.is_set_as(wanted) => {
                Err(Failure::new(Kind::Unsettled, &doing, "SQS does not show yet how it was set"))
            }
            _ => Ok(()),
        }
    });
    if let Err(failure) = shown.await {
        tracing::debug!(%url, failure.message, "set, and not seen to be");
    }
}

/// Reads the refusal of a policy as "not settled yet" where it names roles or users: SQS takes none that IAM does not show everywhere, and says no
/// more than that the policy is wrong.
fn named_lately(failure: Failure, policy: &str) -> Failure {
    if failure.kind != Kind::Invalid || !failure.message.contains("parameter Policy") {
        return failure;
    }
    let failure = failure.at("extra_statements").with_fix(
        "Check that the roles, users and accounts exist that `extra_statements` names, and that its actions are those of SQS.",
    );
    failure.unsettled_if(|_| policy.contains(r#""AWS":"#) && policy.contains(":iam::"))
}

/// Gives the rules that work: event to rule name, for each that is there, enabled, matching, and aimed at the queue.
pub async fn working_rules(
    aws: &Aws,
    queue: &str,
    queue_arn: &str,
    events: &BTreeSet<String>,
) -> Result<BTreeMap<String, String>, Failure> {
    let named = || events.iter().filter_map(|name| Event::named(name)).map(|event| (event, event.rule_name(queue)));
    let rules = aws.reads().rules(named().map(|(_, rule)| rule)).await?;
    let matches = |event: &Event, rule: &str| {
        rules.get(rule).is_some_and(|found| found.enabled && found.pattern == Some(canonical(&event.pattern())))
    };
    let matching: Vec<(Event, String)> = named().filter(|(event, rule)| matches(event, rule)).collect();
    if matching.is_empty() {
        return Ok(BTreeMap::new());
    }
    let aimed = aimed_at(aws, queue_arn, matching.iter().map(|(_, rule)| rule.as_str())).await?;
    let working = matching.into_iter().filter(|(_, rule)| aimed.contains(rule));
    Ok(working.map(|(event, rule)| (event.name.to_owned(), rule)).collect())
}

/// Gives the events beside those that state knows of which this queue has a rule: a run that was killed wrote it. Its description tells it from somebody
/// else's of that name, also where it was not aimed at the queue yet.
pub async fn left_rules(aws: &Aws, queue: &str, known: &BTreeSet<String>) -> Result<BTreeSet<String>, Failure> {
    let mut left = BTreeSet::new();
    if EVENTS.iter().all(|event| known.contains(event.name)) {
        return Ok(left);
    }
    let rules = match aws.reads().rules(EVENTS.map(|event| event.rule_name(queue))).await {
        // of what may not be seen nobody can say that it is the queue's
        Err(failure) if failure.kind == Kind::Denied => return Ok(left),
        rules => rules?,
    };
    let is_there = |event: &Event| !known.contains(event.name) && rules.contains_key(&event.rule_name(queue));
    for event in EVENTS.into_iter().filter(is_there) {
        if is_own(aws, event, queue).await? {
            left.insert(event.name.to_owned());
        }
    }
    Ok(left)
}

async fn is_own(aws: &Aws, event: Event, queue: &str) -> Result<bool, Failure> {
    let rule = event.rule_name(queue);
    match aws.events().describe_rule().name(&rule).send().await {
        Ok(answer) => Ok(answer.description() == Some(&*event.description(queue))),
        Err(e) => match Failure::aws(format!("read EventBridge rule {rule:?}"), e) {
            failure if failure.is_missing() || failure.kind == Kind::Denied => Ok(false),
            failure => Err(failure),
        },
    }
}

/// Writes a rule and its target; repeats make no difference, and come where EventBridge is still at another change.
pub async fn put_rule(
    aws: &Aws,
    ctx: &Context,
    event: Event,
    queue: &Queue,
    tags: &Tags,
    owned: &Tags,
) -> Result<(), Failure> {
    let doing = format!("write EventBridge rule {:?}", event.rule_name(queue.name()));
    settle(ctx, &doing, || write_rule(aws, &doing, event, queue, (tags, owned))).await
}

async fn write_rule(
    aws: &Aws,
    doing: &str,
    event: Event,
    queue: &Queue,
    (tags, owned): (&Tags, &Tags),
) -> Result<(), Failure> {
    let (rule, queue_name) = (event.rule_name(queue.name()), queue.name());
    // Tags in PutRule count for new rules only; an existing one is tagged by its ARN.
    let call = aws.events().put_rule().name(&rule).event_pattern(event.pattern()).state(RuleState::Enabled);
    let answer = call.description(event.description(queue_name)).send().await.map_err(|e| Failure::aws(doing, e))?;
    let arn = answer.rule_arn().unwrap_or_default().to_owned();
    // the rule was written just now
    let unseen = |failure: Failure| failure.unsettled_if(Failure::is_missing);
    retag_rule(aws, &arn, tags, owned).await.map_err(|failure| unseen(failure.at("tags")))?;
    let target = Target::builder().id(TARGET).arn(&queue.arn).build();
    let target = target.map_err(|e| Failure::new(Kind::Unexpected, doing, e.to_string()))?;
    let answer = aws.events().put_targets().rule(&rule).targets(target).send().await;
    let answer = answer.map_err(|e| unseen(Failure::aws(doing, e)))?;
    match answer.failed_entries().first() {
        Some(failed) => Err(unseen(of_entry(doing, failed.error_code(), failed.error_message()))),
        None => Ok(()),
    }
}

/// Reads why EventBridge refused one entry of a call that it answered well.
fn of_entry(doing: &str, code: Option<&str>, message: Option<&str>) -> Failure {
    let message = message.unwrap_or("EventBridge gives no reason").to_owned();
    match code {
        Some(code) => Failure::from_aws(doing, karp_aws::Error::from_code("events", code, message)),
        None => Failure::new(Kind::Unexpected, doing, message),
    }
}

/// Deletes a rule: its target first, as EventBridge wants it. One that is gone already is fine.
pub async fn delete_rule(aws: &Aws, ctx: &Context, event: Event, queue: &str) -> Result<(), Failure> {
    let rule = event.rule_name(queue);
    let doing = format!("delete EventBridge rule {rule:?}");
    let untargeted = settle(ctx, &doing, || async {
        let answer = aws.events().remove_targets().rule(&rule).ids(TARGET).send().await;
        let answer = answer.map_err(|e| Failure::aws(&doing, e))?;
        let refused = answer.failed_entries().first();
        match refused.map(|failed| of_entry(&doing, failed.error_code(), failed.error_message())) {
            Some(failure) if !failure.is_missing() => Err(failure),
            _ => Ok(()),
        }
    });
    match untargeted.await {
        Err(failure) if failure.is_missing() => return Ok(()),
        untargeted => untargeted?,
    }
    detached_within(ctx, SETTLE_LIMIT, &doing, || async {
        let answer = aws.events().delete_rule().name(&rule).send().await;
        answer.map(drop).map_err(|e| still_aimed(Failure::aws(&doing, e)))
    })
    .await
}

/// Reads the refusal to delete a rule that has targets, for which EventBridge has no code of its own: the one that was taken off a moment ago may
/// still count.
fn still_aimed(failure: Failure) -> Failure {
    if failure.message.contains("has targets") {
        failure.of_kind(Kind::InUse).with_fix("Take off the rule what else it is aimed at, then run this again.")
    } else {
        failure
    }
}

/// Deletes a queue; one that is gone already is fine. SQS may show it for up to a minute, which is waited for: whoever makes one of the same name next
/// would take it for another's.
pub async fn delete(aws: &Aws, ctx: &Context, url: &str) -> Result<(), Failure> {
    let doing = format!("delete queue {url}");
    if let Err(e) = aws.sqs().delete_queue().queue_url(url).send().await {
        let failure = Failure::aws(&doing, e);
        return if failure.is_missing() { Ok(()) } else { Err(failure) };
    }
    let name = url.rsplit('/').next().unwrap_or_default();
    let gone = settle(ctx, &doing, || async {
        match url_of(aws, name).await? {
            Some(_) => Err(Failure::new(Kind::Unsettled, &doing, "SQS still shows it")),
            None => Ok(()),
        }
    });
    if let Err(failure) = gone.await {
        tracing::debug!(%url, failure.message, "deleted, and not seen to be gone");
    }
    Ok(())
}

fn settings(wanted: &Queue) -> std::collections::HashMap<Attribute, String> {
    let retention = (Attribute::MessageRetentionPeriod, wanted.retention_seconds.to_string());
    let encryption = match &wanted.kms_key {
        Some(key) => (Attribute::KmsMasterKeyId, key.clone()),
        None => (Attribute::SqsManagedSseEnabled, "true".to_owned()),
    };
    [retention, encryption].into_iter().collect()
}

/// Gives the rules that are aimed at a queue; where listing them is not allowed, those of `rules` that are.
async fn aimed_at(aws: &Aws, queue_arn: &str, rules: impl Iterator<Item = &str>) -> Result<BTreeSet<String>, Failure> {
    let doing = format!("list the rules that are aimed at {queue_arn}");
    let (mut aimed, mut page) = (BTreeSet::new(), None);
    loop {
        let call = aws.events().list_rule_names_by_target().target_arn(queue_arn).set_next_token(page);
        match call.send().await.map_err(|e| Failure::aws(&doing, e)) {
            Ok(answer) => {
                page = answer.next_token;
                aimed.extend(answer.rule_names.into_iter().flatten());
            }
            Err(failure) if failure.kind == Kind::Denied => break,
            Err(failure) => return Err(failure),
        }
        if page.is_none() {
            return Ok(aimed);
        }
    }
    for rule in rules {
        let answer = aws.events().list_targets_by_rule().rule(rule).send().await;
        let targets = answer.map_err(|e| Failure::aws(format!("read EventBridge rule {rule:?}"), e))?;
        if targets.targets().iter().any(|target| target.arn() == queue_arn) {
            aimed.insert(rule.to_owned());
        }
    }
    Ok(aimed)
}

async fn retag_rule(aws: &Aws, arn: &str, tags: &Tags, owned: &Tags) -> Result<(), Failure> {
    let doing = format!("tag {arn}");
    let actual =
        aws.events().list_tags_for_resource().resource_arn(arn).send().await.map_err(|e| Failure::aws(&doing, e))?;
    let actual: Tags = actual.tags().iter().map(|tag| (tag.key().to_owned(), tag.value().to_owned())).collect();
    let change = Change::between(tags, &actual, owned);
    if !change.put.is_empty() {
        let tags = change.put.iter().filter_map(|(key, value)| RuleTag::builder().key(key).value(value).build().ok());
        let call = aws.events().tag_resource().resource_arn(arn).set_tags(Some(tags.collect()));
        call.send().await.map_err(|e| Failure::aws(&doing, e))?;
    }
    if !change.remove.is_empty() {
        let call =
            aws.events().untag_resource().resource_arn(arn).set_tag_keys(Some(change.remove.into_iter().collect()));
        call.send().await.map_err(|e| Failure::aws(&doing, e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_names_fit_and_stay_apart() {
        for queue in ["karp-demo", &"q".repeat(80)] {
            let names: BTreeSet<String> = EVENTS.into_iter().map(|event| event.rule_name(queue)).collect();
            assert_eq!(names.len(), EVENTS.len());
            assert!(names.iter().all(|name| name.len() <= 64), "{names:?}");
        }
        assert_eq!(EVENTS[1].rule_name("karp-demo"), "karp-demo-Health");
    }

    /// What no rule lets through never reaches the controller; what the controller does not know is of no use to it.
    #[test]
    fn the_rules_let_through_what_the_controller_reads() {
        for event in EVENTS {
            let pattern: serde_json::Value = serde_json::from_str(&event.pattern()).expect("a pattern");
            assert_eq!(pattern["source"], json!([event.source]));
            for kind in pattern["detail-type"].as_array().expect("kinds") {
                let detail = json!({ "instance-id": "i-1", "state": "stopping", "service": "EC2",
                    "eventTypeCategory": "scheduledChange", "affectedEntities": [{ "entityValue": "i-1" }] });
                let sent = json!({ "source": event.source, "detail-type": kind, "detail": detail });
                let read = karp_domain::interruption::parse(&sent.to_string());
                assert_eq!(read.notices().len(), 1, "{kind}: {read:?}");
            }
        }
    }

    #[test]
    fn what_passes_is_told_from_what_is_wrong() {
        let failure = |code: &str, message: &str| of_entry("x", Some(code), Some(message));
        let (role, service) = (
            r#"{"Principal":{"AWS":"arn:aws:iam::111122223333:role/new"}}"#,
            r#"{"Principal":{"Service":"sns.amazonaws.com"}}"#,
        );
        let refused = || failure("InvalidAttributeValue", "Invalid value for the parameter Policy.");
        assert_eq!(named_lately(refused(), role).kind, Kind::Unsettled);
        assert_eq!(named_lately(refused(), service).kind, Kind::Invalid, "nobody is new");
        let other = failure("InvalidAttributeValue", "Invalid value for the parameter MessageRetentionPeriod.");
        assert_eq!(named_lately(other, role).kind, Kind::Invalid);
        let aimed = failure("ValidationException", "Rule can't be deleted since it has targets.");
        assert_eq!(still_aimed(aimed).kind, Kind::InUse);
        assert_eq!(still_aimed(failure("ValidationException", "m")).kind, Kind::Invalid);
        assert_eq!(failure("ConcurrentModificationException", "m").kind, Kind::Unsettled);
        assert_eq!(failure("ResourceNotFoundException", "m").kind, Kind::Missing);
        assert_eq!(of_entry("x", None, None).kind, Kind::Unexpected);
    }

    #[test]
    fn a_queue_without_encryption_differs() {
        for (kms_key, told, managed) in [
            (None, Some("true"), true),
            (None, Some("false"), false),
            (None, None, true),
            (Some("alias/own"), Some("false"), false),
            (Some("alias/own"), Some("true"), false),
        ] {
            assert_eq!(is_sqs_managed(kms_key, told), managed, "{kms_key:?}, {told:?}");
        }
        let encrypted = Queue { sqs_managed_sse: true, ..Queue::default() };
        assert!(encrypted.is_set_as(&encrypted) && !Queue::default().is_set_as(&encrypted));
    }

    #[test]
    fn the_policy_refuses_plain_http() {
        let policy = policy("arn:aws:sqs:eu-west-1:1:q", []);
        assert!(
            policy.contains(r#""aws:SecureTransport":"false""#) && policy.contains("events.amazonaws.com"),
            "{policy}"
        );
        assert!(policy.contains(r#""aws:SourceArn":"arn:aws:events:eu-west-1:1:rule/*""#), "{policy}");
        assert_eq!(canonical(&policy), policy);
    }
}
