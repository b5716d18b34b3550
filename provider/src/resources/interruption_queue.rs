//! `karp_interruption_queue`: the queue on which the controller hears that AWS will take an instance away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tfplugin::schema::validate::{self, Validator};
use tfplugin::{
    Attribute, Context, Diagnostic, Diagnostics, Moved, PlannedChange, Resource, Schema, Timeouts, Type, Value,
    async_trait,
};

use super::statement::{self, Statement};
use super::{identity, inherit, moved};
use crate::aws::Origin;
use crate::aws::marked::{Answered, Marked};
use crate::aws::names::{self, LONGEST_QUEUE, is_region};
use crate::aws::queue::{self, EVENTS, Event, Queue};
use crate::aws::role::check_adoptable;
use crate::aws::tags::{Change, GivenTags, Tags, retag_queue};
use crate::aws::wait::{in_time, settle};
use crate::marks::Mark;
use crate::provider::{Handle, Part};
use crate::report::{Failure, Kind};
use crate::session::{Aws, Session};

const PREFIX: &str = "Karp-";
/// An interruption that is older than its two minutes' notice is of no use; Karpenter's own templates keep messages as long.
const RETENTION_SECONDS: i64 = 300;

/// The interruption queue.
pub struct InterruptionQueue {
    handle: Arc<Handle>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Model {
    id: Option<String>,
    arn: Option<String>,
    url: Option<String>,
    cluster_name: Option<String>,
    name: Option<String>,
    name_prefix: Option<String>,
    message_retention_seconds: Option<i64>,
    kms_master_key_id: Option<String>,
    sqs_managed_sse_enabled: Option<bool>,
    events: Option<BTreeSet<String>>,
    extra_statements: Option<Vec<Statement>>,
    rules: Option<BTreeMap<String, String>>,
    policy: Option<String>,
    adopt: Option<bool>,
    tags: Option<GivenTags>,
    tags_all: Option<Tags>,
}

impl InterruptionQueue {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }
}

#[async_trait]
impl Resource for InterruptionQueue {
    fn type_name(&self) -> &'static str {
        "karp_interruption_queue"
    }

    fn schema(&self) -> Schema {
        let schema = Schema::new(
            "The SQS queue on which the controller hears of interruptions, with its policy and the EventBridge rules that feed it, as \
             one resource.",
        );
        let schema = inherit::region(inherit::adopt(inherit::tags(inherit::cluster_name(schema))));
        let events = Value::canonical_set(EVENTS.map(|event| Value::from(event.name)));
        let schema = inherit::with_prefix(schema, PREFIX, inherit::plain_name(names::longest_prefix(LONGEST_QUEUE)));
        inherit::id_and_arn(schema, "The queue's URL.")
            .identity(identity::of_queue())
            .attribute("url", Attribute::string().computed().use_state_for_unknown().describe("The queue's URL."))
            .attribute("name", queue_name())
            .attribute(
                "message_retention_seconds",
                // SQS's own limits.
                Attribute::number()
                    .default(RETENTION_SECONDS)
                    .validate(validate::whole(60, 1_209_600))
                    .describe("How long messages wait to be read."),
            )
            .attribute(
                "kms_master_key_id",
                Attribute::string().optional().validate(own_key()).describe(
                    "A KMS key of your own that encrypts messages; with SQS's own key when left out. Its policy must let `events.amazonaws.com` \
                     use it (`kms:Decrypt`, `kms:GenerateDataKey`), and the controller needs `kms:Decrypt` on it, as by `extra_statements` of \
                     its role: without these nobody hears of interruptions.",
                ),
            )
            .attribute(
                "sqs_managed_sse_enabled",
                Attribute::bool().computed().describe(
                    "Whether SQS's own key encrypts messages: it does unless `kms_master_key_id` names another. Where somebody switches it \
                     off, it is switched on again.",
                ),
            )
            .attribute(
                "events",
                Attribute::set(Type::String)
                    .default(events)
                    .validate(validate::each(validate::one_of(EVENTS.map(|event| event.name))))
                    .validate(validate::count(1, EVENTS.len()))
                    .describe(
                        "What is announced: `capacity_reservation`, `health`, `rebalance`, `spot`, `state_change`; all when left out.",
                    ),
            )
            .attribute(
                "rules",
                Attribute::map(Type::String)
                    .computed()
                    .describe(
                        "The EventBridge rule of each event. A rule that is gone, disabled or changed is written again. Its tags are the \
                         queue's; a refresh does not read them, since AWS shows them one rule at a time, and each update of this resource puts \
                         them right.",
                    ),
            )
            .attribute("extra_statements", statement::of_queue())
            .attribute("policy", Attribute::string().computed().describe("The queue's policy, JSON in canonical form."))
            .timeouts(Timeouts::default())
    }

    fn validate(&self, config: &Value) -> Diagnostics {
        statement::check(config, karps())
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let session = self.handle.session();
        let mut found = inherit::plan_cluster_name(&session, change);
        if change.is_destroy() {
            return found;
        }
        inherit::plan_name(change, PREFIX, LONGEST_QUEUE);
        found.extend(inherit::plan_tags(&session, change));
        inherit::plan_region(&session, change).await;
        inherit::reopen_on_replace(change, &["id", "arn", "url"]);
        let rules = rules(change.planned.get("name"), change.planned.get("events"));
        change.planned.set("rules", rules);
        change.planned.set("sqs_managed_sse_enabled", planned_encryption(change.planned.get("kms_master_key_id")));
        change.planned.set("policy", planned_policy(&change.planned));
        found
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let aws = &session.aws_of(&planned).await?;
        let model = resolve(&session, &planned)?;
        let name = model.name.clone().unwrap_or_default();
        let mut answered = session.answered(aws);
        let (found, origin) = create_or_adopt(&session, aws, ctx, &name, &model, &mut answered).await?;
        // a creation that was killed, or karp before the queue was adopted, may have made rules of events that are wanted no more
        let events = match origin {
            Start::New => None,
            _ => Some(queue::left_rules(aws, &name, model.events.as_ref().unwrap_or(&BTreeSet::new())).await?),
        };
        let origin = if origin == Start::Adopted { Origin::Adopted } else { Origin::Made };
        finish(aws, ctx, &name, model, found, &Before { model: Model { events, ..Model::default() }, origin }).await
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        let model: Model = tfplugin::from_value(&state)?;
        let look = async {
            let aws = &session.aws_of(&state).await?;
            let url = model.url.clone().or(model.id.clone()).unwrap_or_default();
            let Some(found) = queue::find(aws, &url).await? else { return Ok(None) };
            let name = url.rsplit('/').next().unwrap_or_default().to_owned();
            let every = || EVENTS.iter().map(|event| event.name.to_owned()).collect();
            let mut events = model.events.clone().unwrap_or_else(every);
            events.extend(queue::left_rules(aws, &name, &events).await?);
            let rules = queue::working_rules(aws, &name, &found.arn, &events).await?;
            let events = if model.events.is_some() { events } else { rules.keys().cloned().collect() };
            // An import finds the statements of others in the policy, so that a plan shows what becomes of them.
            let imported = model.policy.is_none();
            let statements = imported.then(|| own_statements(&found.policy, &found.arn)).flatten();
            let now = Model {
                extra_statements: model.extra_statements.clone().or(statements),
                id: Some(url.clone()),
                url: Some(url),
                arn: Some(found.arn),
                name: Some(name),
                message_retention_seconds: Some(found.retention_seconds),
                kms_master_key_id: found.kms_key,
                sqs_managed_sse_enabled: Some(found.sqs_managed_sse),
                events: Some(events),
                rules: Some(rules),
                policy: Some(found.policy),
                tags_all: Some(session.owned_part(&found.tags, model.tags_all.as_ref())),
                ..model.clone()
            };
            let state = tfplugin::to_value(&now);
            let state = state.map_err(|e| Failure::new(Kind::Unexpected, "write the state", e.to_string()))?;
            Ok(Some(session.recover(state, &found.tags, model.tags_all.as_ref())))
        };
        session.refresh(ctx, &[Part::Aws], &state, look).await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let aws = &session.aws_of(&prior).await?;
        let before: Model = tfplugin::from_value(&prior)?;
        let model = resolve(&session, &planned)?;
        let name = model.name.clone().unwrap_or_default();
        let url = before.url.clone().unwrap_or_default();
        let Some(found) = queue::find(aws, &url).await? else {
            let doing = format!("update queue {name:?}");
            return Err(Failure::new(Kind::Missing, doing, "it was deleted after this plan was made")
                .with_fix("Plan again.")
                .into());
        };
        let before = Before { model: Model { tags_all: Some(session.owned(&prior)), ..before }, origin: Origin::Made };
        finish(aws, ctx, &name, model, found, &before).await
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let session = self.handle.session();
        let aws = &session.aws_of(&prior).await?;
        let model: Model = tfplugin::from_value(&prior)?;
        let name = model.name.clone().unwrap_or_default();
        // Also events without a working rule: a half-made or damaged one must not stay.
        let mut events = model.events.unwrap_or_default();
        events.extend(queue::left_rules(aws, &name, &events).await?);
        for event in events.iter().filter_map(|event| Event::named(event)) {
            in_time(ctx, &format!("delete the rules of queue {name:?}"))?;
            queue::delete_rule(aws, ctx, event, &name).await?;
        }
        in_time(ctx, &format!("delete queue {name:?}"))?;
        Ok(queue::delete(aws, ctx, &model.url.unwrap_or_default()).await?)
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        let (url, region) = inherit::id_and_region(id);
        if !url.contains("://") {
            let detail = "Write the queue's URL, or `URL@REGION`.";
            return Err(Diagnostic::error("The import id is malformed", detail).into());
        }
        Ok(bare(url, region))
    }

    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        moved::from_aws(source, "aws_sqs_queue", |old| {
            // states from before the attribute `url` have it as the id
            let url = old.text("url").or_else(|_| old.text("id"))?;
            Ok(old.tagged(bare(url, old.region())))
        })
    }
}

/// Gives the state with which an import begins. A queue's URL tells its region, except at emulators and private endpoints.
fn bare(url: &str, region: Option<&str>) -> Value {
    let host = url.split_once("://").and_then(|(_, rest)| rest.strip_prefix("sqs."));
    let told = host.and_then(|host| host.split('.').next()).filter(|region| is_region(region));
    Value::object([("id", url), ("url", url)]).with("region", region.or(told))
}

/// Refuses the key that AWS manages for SQS: its policy, which nobody can change, does not let EventBridge in, so that no message would ever come.
fn own_key() -> Validator {
    let must = "must be a key of your own, since EventBridge cannot use the one that AWS manages";
    validate::text(must, |key| !key.is_empty() && !key.ends_with("alias/aws/sqs"))
}

fn queue_name() -> Attribute {
    let valid = inherit::plain_name(LONGEST_QUEUE);
    Attribute::string().optional().computed().requires_replace().validate(valid).describe(format!(
        "The queue's name, known at plan; `{PREFIX}` and the cluster's name when left out. The rules' names begin with it."
    ))
}

/// Gives the rules of a queue: known at plan, because their names follow from the queue's.
fn rules(name: &Value, events: &Value) -> Value {
    let Some(name) = name.as_str().filter(|_| events.whole_known()) else { return Value::Unknown };
    let events = events.as_list().iter().filter_map(Value::as_str).filter_map(Event::named);
    Value::object(events.map(|event| (event.name, event.rule_name(name))))
}

/// Says whether SQS's own key will encrypt messages; unknown while the user's is.
fn planned_encryption(kms_key: &Value) -> Value {
    if kms_key.is_known() { Value::from(kms_key.is_null()) } else { Value::Unknown }
}

/// Gives the queue's policy; unknown while its ARN or a statement is.
fn planned_policy(planned: &Value) -> Value {
    let (arn, own) = (planned.get("arn").as_str(), planned.get("extra_statements"));
    match (arn, tfplugin::from_value::<Option<Vec<Statement>>>(own)) {
        (Some(arn), Ok(own)) if planned.get("extra_statements").whole_known() => Value::from(policy(arn, own.as_ref())),
        _ => Value::Unknown,
    }
}

fn policy(arn: &str, own: Option<&Vec<Statement>>) -> String {
    queue::policy(arn, own.into_iter().flatten().map(|statement| statement.on(arn).to_json()))
}

/// Reads the user's own statements out of a queue's policy: those that are not karp's, and on this queue alone.
fn own_statements(policy: &str, arn: &str) -> Option<Vec<Statement>> {
    let others = statement::of_others(&serde_json::from_str(policy).unwrap_or_default(), &karps());
    let own: Vec<Statement> = others.into_iter().filter(|one| one.is_on(arn)).map(Statement::anywhere).collect();
    (!own.is_empty()).then_some(own)
}

/// What karp's own statements are called.
fn karps() -> BTreeSet<String> {
    statement::sids(&karp_domain::iam::queue_policy(""))
}

fn resolve(session: &Session, planned: &Value) -> Result<Model, Diagnostics> {
    statement::ensure(planned, karps())?;
    let mut model: Model = tfplugin::from_value(planned)?;
    let tags = session.tags_all(planned.get("tags"), planned.get("cluster_name"));
    model.tags_all = Some(tfplugin::from_value(&tags)?);
    model.sqs_managed_sse_enabled = Some(model.kms_master_key_id.is_none());
    Ok(model)
}

fn wanted(model: &Model) -> Queue {
    Queue {
        retention_seconds: model.message_retention_seconds.unwrap_or(RETENTION_SECONDS),
        kms_key: model.kms_master_key_id.clone(),
        sqs_managed_sse: model.kms_master_key_id.is_none(),
        tags: model.tags_all.clone().unwrap_or_default(),
        ..Queue::default()
    }
}

/// Gives the state of a queue whose rules are not written yet.
fn partial(model: &Model, found: &Queue) -> Model {
    Model {
        id: Some(found.url.clone()),
        url: Some(found.url.clone()),
        arn: Some(found.arn.clone()),
        rules: Some(BTreeMap::new()),
        policy: Some(found.policy.clone()),
        ..model.clone()
    }
}

async fn create_or_adopt(
    session: &Session,
    aws: &Aws,
    ctx: &Context,
    name: &str,
    model: &Model,
    answered: &mut Answered<'_>,
) -> Result<(Queue, Start), Diagnostics> {
    let doing = format!("create queue {name:?}");
    let wanted = wanted(model);
    let mark = Mark::new();
    let mut save = |url: &str| -> Result<(), Diagnostics> {
        ctx.save(tfplugin::to_value(&partial(model, &Queue { url: url.to_owned(), ..Queue::default() }))?);
        answered.made(Origin::Made, Marked::Queue(url.to_owned()));
        Ok(())
    };
    // CreateQueue answers an existing queue's URL when the attributes agree: look first, so that nothing is taken over by chance.
    let (url, is_new) = match queue::url_of(aws, name).await? {
        Some(url) => (url, false),
        None => match queue::create(aws, ctx, name, &wanted, &mark).await {
            Ok(url) => {
                save(&url)?;
                (url, true)
            }
            // one that was made a moment ago is not looked up everywhere yet
            Err(failure) if failure.kind == Kind::Exists => (queue::url_of(aws, name).await?.ok_or(failure)?, false),
            Err(failure) => return Err(failure.into()),
        },
    };
    // one that was made a moment ago is not shown everywhere yet
    let shown = || async {
        let hidden = || Failure::new(Kind::Unsettled, &doing, "SQS has the queue but does not show it");
        queue::find(aws, &url).await?.ok_or_else(hidden)
    };
    let found = settle(ctx, &doing, shown).await?;
    if let Some(tags) = mark.resumed(&found.tags, &wanted.tags) {
        if !is_new {
            save(&url)?;
        }
        return Ok((Queue { tags, ..found }, if is_new { Start::New } else { Start::Resumed }));
    }
    if is_new {
        return Ok((found, Start::New));
    }
    check_adoptable(&doing, &found.tags, &wanted.tags).map_err(|f| f.at("name"))?;
    if !model.adopt.unwrap_or(session.model().adopt_existing) {
        return Err(Failure::new(Kind::Exists, doing, format!("there is a queue {url}")).at("name").into());
    }
    Ok((found, Start::Adopted))
}

/// How a queue came to be this resource's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// It was made now.
    New,
    /// It was made by a run that did not come to its end.
    Resumed,
    /// Others made it.
    Adopted,
}

/// What was known before queue and rules are brought to what is wanted.
struct Before {
    model: Model,
    origin: Origin,
}

/// Brings queue and rules to what is wanted, and takes away the rules of events that are wanted no more.
async fn finish(
    aws: &Aws,
    ctx: &Context,
    name: &str,
    model: Model,
    found: Queue,
    before: &Before,
) -> Result<Value, Diagnostics> {
    let Before { model: before, origin } = before;
    let owned = before.tags_all.clone().unwrap_or_default();
    let wanted = Queue { policy: policy(&found.arn, model.extra_statements.as_ref()), ..wanted(&model) };
    // Its own tags come last: as long as they are the old ones, a refresh sees that rules may have them, too.
    let still_tagged = Queue { tags: found.tags.clone(), ..wanted.clone() };
    let changed = queue::converge(aws, ctx, &found, &still_tagged, &owned).await?;
    let events = model.events.clone().unwrap_or_default();
    let mut state = Model { policy: Some(wanted.policy.clone()), ..partial(&model, &found) };
    // until the rules of other events are gone, they are this queue's
    state.events = Some(before.events.iter().flatten().chain(&events).cloned().collect());
    state.tags_all = before.tags_all.clone().or(state.tags_all);
    let save = |state: &Model| -> Result<(), Diagnostics> {
        if *origin == Origin::Made {
            ctx.save(tfplugin::to_value(state)?);
        }
        Ok(())
    };
    save(&state)?;
    let (mut rules, doing) = (BTreeMap::new(), format!("write the rules of queue {name:?}"));
    for event in events.iter().filter_map(|event| Event::named(event)) {
        in_time(ctx, &doing)?;
        queue::put_rule(aws, ctx, event, &found, &wanted.tags, &owned).await?;
        rules.insert(event.name.to_owned(), event.rule_name(name));
        state.rules = Some(rules.clone());
        save(&state)?;
    }
    for event in
        before.events.iter().flatten().filter(|event| !events.contains(*event)).filter_map(|event| Event::named(event))
    {
        in_time(ctx, &doing)?;
        queue::delete_rule(aws, ctx, event, name).await?;
    }
    retag_queue(aws, &found.url, &Change::between(&wanted.tags, &found.tags, &owned)).await?;
    if changed {
        queue::shown_as(aws, ctx, &found.url, &wanted).await;
    }
    (state.events, state.tags_all) = (model.events, model.tags_all);
    Ok(tfplugin::to_value(&state)?)
}
