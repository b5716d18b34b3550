//! `karp_discovery_tags`: the tag by which node classes find subnets and security groups.

mod place;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aws_sdk_ec2::types::{Filter, Tag};
use serde::{Deserialize, Serialize};
use tfplugin::schema::validate;
use tfplugin::{
    Attribute, Context, Diagnostic, Diagnostics, Moved, PlannedChange, Resource, Schema, Timeouts, Type, Value,
    async_trait,
};

use self::place::{Finder, Place};
use super::{inherit, moved};
use crate::aws::wait::{in_time, settle};
use crate::provider::{Handle, Part};
use crate::report::{Failure, Kind};
use crate::session::{Aws, Session};

const DEFAULT_KEY: &str = "karpenter.sh/discovery";
/// EC2 takes at most 200 values in one filter and 1000 resources in one tagging call; both stay well below.
const BATCH: usize = 100;

/// The discovery tag of some subnets and security groups.
pub struct DiscoveryTags {
    handle: Arc<Handle>,
    finder: Finder,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Model {
    id: Option<String>,
    resource_ids: BTreeSet<String>,
    key: String,
    value: String,
    on_conflict: Option<String>,
}

impl Model {
    fn overwrites(&self) -> bool {
        self.on_conflict.as_deref() == Some("overwrite")
    }

    /// Says what is done to the tags, without the ids, of which there may be hundreds.
    fn doing(&self, what: &str) -> String {
        format!("{what} tag {} of subnets and security groups", self.key)
    }
}

/// What of the tags is karp's before they are brought to what is wanted.
enum Before<'a> {
    /// None.
    Nothing,
    /// Those of these ids, with the value that is wanted.
    Same(&'a BTreeSet<String>),
    /// Those of these ids, with another value: one that is still there is no conflict.
    Other(&'a BTreeSet<String>),
}

impl Before<'_> {
    /// Gives the ids that a state with the wanted value may name from the start; nothing where it cannot tell of both values.
    fn told(&self) -> Option<BTreeSet<String>> {
        match self {
            Self::Nothing => Some(BTreeSet::new()),
            Self::Same(ids) => Some((*ids).clone()),
            Self::Other(_) => None,
        }
    }
}

impl DiscoveryTags {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle), finder: Finder::default() }
    }
}

#[async_trait]
impl Resource for DiscoveryTags {
    fn type_name(&self) -> &'static str {
        "karp_discovery_tags"
    }

    fn schema(&self) -> Schema {
        let schema = Schema::new(
            "The tag by which node classes find subnets and security groups. karp owns this one tag on these resources and no other; \
             where a module manages their tags too, let that module ignore this key. The provider block's \
             `ignore_tags` does not concern it.",
        );
        inherit::region(schema)
        .attribute("id", Attribute::string().computed().describe("`key,value,id1+id2+…`, as import takes it."))
        .attribute(
            "resource_ids",
            Attribute::set(Type::String)
                .required()
                .validate(validate::count(1, usize::MAX))
                .validate(validate::each(validate::text("must be an EC2 resource id such as \"subnet-0123abcd\"", |id| {
                    id.contains('-') && !id.contains([':', '/'])
                })))
                .describe("The subnets and security groups."),
        )
        .attribute(
            "key",
            Attribute::string()
                .default(DEFAULT_KEY)
                .requires_replace()
                .validate(validate::length(1, 128))
                .validate(validate::text("must not begin with \"aws:\"", |key| !key.starts_with("aws:")))
                .describe("The tag's key. Give each cluster a key of its own where several share a subnet."),
        )
        .attribute(
            "value",
            Attribute::string().required().validate(validate::length(0, 256)).describe("The tag's value: the cluster's name."),
        )
        .attribute(
            "on_conflict",
            Attribute::string().default("error").validate(validate::one_of(["error", "overwrite"])).describe(
                "What to do where the key holds another value already, as of another cluster: `error` or `overwrite`.",
            ),
        )
        .timeouts(Timeouts::default())
    }

    async fn plan(&self, ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        if !change.is_destroy() {
            let id = tfplugin::from_value::<Model>(&change.planned)
                .map_or(Value::Unknown, |model| Value::from(id_of(&model)));
            change.planned.set("id", id);
        }
        self.plan_region(ctx, change).await;
        self.foresee(ctx, change).await.into_iter().collect()
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let model: Model = tfplugin::from_value(&planned)?;
        let session = self.handle.session();
        let aws = &session.aws_of(&planned).await?;
        // whatever becomes of it: what is in state then tells where it is
        self.finder.note(ctx, &session, aws, Place::default()).await;
        self.converge(aws, ctx, model, &Before::Nothing).await
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let model: Model = tfplugin::from_value(&state)?;
        let session = self.handle.session();
        let look = async {
            let (aws, place, doing) = (session.aws_of(&state).await?, Place::of(ctx), model.doing("read"));
            place.check_region(&state, aws.region(), &doing)?;
            let actual = aws.reads().tags(&model.resource_ids).await?;
            let ours = actual.into_iter().filter(|(_, tags)| tags.get(&model.key) == Some(&model.value));
            let tagged: BTreeSet<String> = ours.map(|(id, _)| id).collect();
            if tagged.is_empty() {
                place.check_account(&session, &doing).await?;
                return Ok(None);
            }
            self.finder.note(ctx, &session, &aws, place).await;
            let mut now = state.clone();
            now.set("resource_ids", super::iam_role::text_set(&tagged));
            Ok(Some(now))
        };
        session.refresh(ctx, &[Part::Aws], &state, look).await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        let before: Model = tfplugin::from_value(&prior)?;
        let model: Model = tfplugin::from_value(&planned)?;
        let session = self.handle.session();
        let aws = &ctx.run(home(&session, ctx, &prior, &model.doing("change"))).await??;
        let dropped: BTreeSet<String> = before.resource_ids.difference(&model.resource_ids).cloned().collect();
        let (same, all) =
            (before.value == model.value, before.resource_ids.union(&model.resource_ids).cloned().collect());
        let own = if same { Before::Same(&before.resource_ids) } else { Before::Other(&before.resource_ids) };
        if !same && !dropped.is_empty() {
            // one state cannot tell of two values: those that go do so first
            untag(aws, ctx, &before.key, &before.value, &dropped).await?;
            let kept = before.resource_ids.intersection(&model.resource_ids).cloned().collect();
            ctx.save(prior.with("resource_ids", super::iam_role::text_set(&kept)));
        }
        let state = self.converge(aws, ctx, model, &own).await?;
        if same {
            // what has yet to be untagged is karp's until then
            ctx.save(state.clone().with("resource_ids", super::iam_role::text_set(&all)));
            untag(aws, ctx, &before.key, &before.value, &dropped).await?;
        }
        Ok(state)
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let model: Model = tfplugin::from_value(&prior)?;
        let session = self.handle.session();
        let aws = ctx.run(home(&session, ctx, &prior, &model.doing("remove"))).await??;
        Ok(untag(&aws, ctx, &model.key, &model.value, &model.resource_ids).await?)
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        let (id, region) = inherit::id_and_region(id);
        let parts: Vec<&str> = id.splitn(3, ',').collect();
        let [key, value, ids] = parts[..] else {
            return Err(Diagnostic::error(
                "The import id is malformed",
                "Write `key,value,id1+id2`, such as `karpenter.sh/discovery,prod,subnet-0123+sg-0456`; with `@REGION` behind it \
                 where that is not the provider block's.",
            )
            .into());
        };
        let state = known(key, value, ids.split('+').map(str::to_owned).collect())?;
        // All is known of it at once, so that no first look takes the provider's own region out.
        let own = if region.is_some() { self.handle.session().region().await } else { None };
        Ok(state.with("region", region.filter(|region| Some(*region) != own.as_deref())))
    }

    /// An `aws_ec2_tag` is the tag of one resource; the others join it by the next apply.
    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        moved::from_aws(source, "aws_ec2_tag", |old| {
            // a tag may have no value
            let value = source.text("value").unwrap_or_default();
            let state = known(old.text("key")?, value, BTreeSet::from([old.text("resource_id")?.to_owned()]))?;
            let session = self.handle.session();
            let own = session.model().aws.region.as_deref();
            Ok(state.with("region", old.region().filter(|region| Some(*region) != own)))
        })
    }
}

/// Gives the clients of where the tags of a state are, which may be another region than the provider block's by now; refuses those of another
/// account, to whom they would seem to be gone.
async fn home(session: &Session, ctx: &Context, prior: &Value, doing: &str) -> Result<Aws, Failure> {
    let place = Place::of(ctx);
    place.check_account(session, doing).await?;
    session.aws_of(&place.shown_in(prior)).await
}

/// Gives the state with which an import begins: all of it.
fn known(key: &str, value: &str, resource_ids: BTreeSet<String>) -> Result<Value, Diagnostics> {
    let (key, value) = (key.to_owned(), value.to_owned());
    let model = Model { id: None, resource_ids, key, value, on_conflict: Some("error".to_owned()) };
    Ok(tfplugin::to_value(&Model { id: Some(id_of(&model)), ..model })?)
}

impl DiscoveryTags {
    /// Plans `region` by where the tags are.
    async fn plan_region(&self, ctx: &Context, change: &mut PlannedChange) {
        if change.is_update() && change.changed("region") {
            let placed = Place::of(ctx).shown_in(&change.prior);
            let prior = std::mem::replace(&mut change.prior, placed);
            inherit::plan_region(&self.handle.session(), change).await;
            change.prior = prior;
        }
    }

    /// Says at plan which tags are another cluster's; nothing where that cannot be seen, and the apply finds out.
    async fn foresee(&self, ctx: &Context, change: &PlannedChange) -> Option<Diagnostic> {
        let session = self.handle.session();
        let same = ["key", "resource_ids", "value"].iter().all(|name| !change.changed(*name));
        if change.is_destroy() || same {
            return None;
        }
        let model: Model = tfplugin::from_value(&change.planned).ok()?;
        let before: Option<Model> = change.is_update().then(|| tfplugin::from_value(&change.prior).ok()).flatten();
        let ours = before.filter(|before| before.key == model.key).map(|before| before.resource_ids);
        let look = async {
            let found = session.aws_of(&change.planned).await.ok()?.reads().tags(&model.resource_ids).await.ok()?;
            Some(found.into_iter().filter_map(|(id, mut tags)| Some((id, tags.remove(&model.key)?))).collect())
        };
        let actual = session.foresee(ctx, look).await?;
        let foreign = foreign(&model, &actual, ours.as_ref())?;
        let key = &model.key;
        Some(if model.overwrites() {
            Diagnostic::warning(
                "Tags of another cluster will be overwritten",
                format!(
                    "{key} holds other values on: {foreign}. What finds its nodes' network by them finds it no more."
                ),
            )
        } else {
            Diagnostic::warning(
                "The discovery tag belongs to another cluster",
                format!(
                    "{key} is set already on: {foreign}. The apply refuses to change that: choose another `key` for this cluster, or set \
                     `on_conflict = \"overwrite\"`."
                ),
            )
        })
    }

    /// Tags what lacks the tag, and puts what it has tagged, or may have, into state as it goes.
    async fn converge(
        &self,
        aws: &Aws,
        ctx: &Context,
        model: Model,
        before: &Before<'_>,
    ) -> Result<Value, Diagnostics> {
        let actual = values(aws, &model.key, &model.resource_ids).await?;
        let ours = if let Before::Other(ids) = before { Some(*ids) } else { None };
        if let Some(list) = foreign(&model, &actual, ours) {
            if !model.overwrites() {
                return Err(Diagnostic::error(
                    "The tag holds another value",
                    format!(
                        "{} is set already on: {list}. Another cluster may find its nodes' network by it. Choose another `key` for \
                         this cluster, or set `on_conflict = \"overwrite\"`.",
                        model.key
                    ),
                )
                .at("resource_ids")
                .into());
            }
            ctx.warn(Diagnostic::warning(
                "Tags were overwritten",
                format!("{} held other values on: {list}.", model.key),
            ));
        }
        let missing: Vec<String> =
            model.resource_ids.iter().filter(|id| actual.get(*id) != Some(&model.value)).cloned().collect();
        let mut told = before.told();
        for ids in missing.chunks(BATCH) {
            let tag = Tag::builder().key(&model.key).value(&model.value).build();
            let doing = format!("tag {} with {}", ids.join(", "), model.key);
            let answer = settle(ctx, &doing, || async {
                aws.clients().pace().tag.take().await;
                let call = aws.ec2().create_tags().set_resources(Some(ids.to_vec())).tags(tag.clone());
                call.send().await.map_err(|e| {
                    // A subnet that was made a moment ago is "not found" for a while.
                    Failure::aws(&doing, e).at("resource_ids").unsettled_if(|f| f.kind == Kind::Missing)
                })
            })
            .await;
            if let Some(told) = told.as_mut().filter(|_| may_be_done(answer.as_ref().err())) {
                told.extend(ids.iter().cloned());
                let so_far = Model { resource_ids: told.clone(), ..model.clone() };
                ctx.save(tfplugin::to_value(&Model { id: Some(id_of(&so_far)), ..so_far })?);
            }
            answer?;
        }
        let mut model = model;
        model.id = Some(id_of(&model));
        Ok(tfplugin::to_value(&model)?)
    }
}

/// Says whether a call may have done its work: it did, or nobody said that it did not.
fn may_be_done(failure: Option<&Failure>) -> bool {
    let Some(failure) = failure else { return true };
    match failure.code.as_deref() {
        // What EC2 answers with HTTP 500 and 503, but for the calls that were too many.
        Some(code) => {
            code.starts_with("Internal")
                || matches!(
                    code,
                    "ServerException" | "ServiceUnavailable" | "ServiceUnavailableException" | "Unavailable"
                )
        }
        None => matches!(failure.kind, Kind::Unreachable | Kind::Unexpected),
    }
}

/// Names what holds another value than the wanted one, apart from what is `ours`; nothing where nothing does.
fn foreign(model: &Model, actual: &BTreeMap<String, String>, ours: Option<&BTreeSet<String>>) -> Option<String> {
    let is_foreign = |id: &String, value: &String| *value != model.value && !ours.is_some_and(|ours| ours.contains(id));
    let foreign = actual.iter().filter(|(id, value)| is_foreign(id, value));
    let foreign: Vec<String> = foreign.map(|(id, value)| format!("{id} ({value:?})")).collect();
    (!foreign.is_empty()).then(|| foreign.join(", "))
}

fn id_of(model: &Model) -> String {
    let ids = model.resource_ids.iter().map(String::as_str).collect::<Vec<_>>().join("+");
    format!("{},{},{ids}", model.key, model.value)
}

/// Reads the values that the tag has on these resources.
async fn values(aws: &Aws, key: &str, ids: &BTreeSet<String>) -> Result<BTreeMap<String, String>, Failure> {
    let mut found = BTreeMap::new();
    let all: Vec<String> = ids.iter().cloned().collect();
    for ids in all.chunks(BATCH) {
        let resources = Filter::builder().name("resource-id").set_values(Some(ids.to_vec())).build();
        let keys = Filter::builder().name("key").values(key).build();
        let mut pages = aws.ec2().describe_tags().filters(resources).filters(keys).into_paginator().items().send();
        while let Some(tag) = pages.next().await {
            let tag = tag.map_err(|e| Failure::aws(format!("read tag {key} of subnets and security groups"), e))?;
            if let (Some(id), Some(value)) = (tag.resource_id(), tag.value()) {
                found.insert(id.to_owned(), value.to_owned());
            }
        }
    }
    Ok(found)
}

/// Removes the tag where it holds karp's value; a resource that is gone is fine.
async fn untag(aws: &Aws, ctx: &Context, key: &str, value: &str, ids: &BTreeSet<String>) -> Result<(), Failure> {
    for id in ids {
        let doing = format!("remove tag {key} from {id}");
        in_time(ctx, &doing)?;
        // With the value given, EC2 leaves a tag alone that has another one by now.
        let tag = Tag::builder().key(key).value(value).build();
        if let Err(e) = aws.ec2().delete_tags().resources(id).tags(tag).send().await {
            let failure = Failure::aws(doing, e);
            if !failure.is_missing() {
                return Err(failure);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_refused_is_surely_not_done() {
        let failed =
            |code: &str| Failure::from_aws("tag it", karp_aws::Error::from_code("ec2:CreateTags", code, "m".into()));
        for refused in ["UnauthorizedOperation", "InvalidSubnetID.NotFound", "TagLimitExceeded", "RequestLimitExceeded"]
        {
            assert!(!may_be_done(Some(&failed(refused))), "{refused}");
        }
        for unsure in ["InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable"] {
            assert!(may_be_done(Some(&failed(unsure))), "{unsure}");
        }
        assert!(may_be_done(None));
        for (kind, may) in [(Kind::Unreachable, true), (Kind::Unexpected, true), (Kind::TimedOut, false)] {
            assert_eq!(may_be_done(Some(&Failure::new(kind, "tag it", "m"))), may, "{kind:?}");
        }
    }

    #[test]
    fn a_state_tells_of_one_value() {
        let ids = BTreeSet::from(["subnet-1".to_owned()]);
        assert_eq!(Before::Nothing.told(), Some(BTreeSet::new()));
        assert_eq!(Before::Same(&ids).told(), Some(ids.clone()));
        assert_eq!(Before::Other(&ids).told(), None);
    }
}
