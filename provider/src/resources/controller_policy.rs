//! `karp_controller_policy`: the controller's policy as managed policies, for a role that is made elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;
use tfplugin::{Attribute, Context, Diagnostics, PlannedChange, Resource, Schema, Timeouts, Type, Value, async_trait};

use super::{controller_scope as scope, iam_role, identity, inherit};
use crate::aws::managed_policy::{self, Kept, Part};
use crate::aws::marked::Marked;
use crate::aws::names::LONGEST_PROFILE;
use crate::aws::tags::{IamObject, Tags};
use crate::aws::{Origin, document};
use crate::provider::{self, Handle};
use crate::report::Failure;
use crate::session::{Aws, Session, part_of_arn};

const PREFIX: &str = "KarpController-";
/// The longest name: a managed policy may have as many characters as an instance profile, and a number comes behind it.
const LONGEST: usize = LONGEST_PROFILE - "-99".len();

/// The controller's policy.
pub struct ControllerPolicy {
    handle: Arc<Handle>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Model {
    name: Option<String>,
    path: Option<String>,
    adopt: Option<bool>,
    arns: Option<BTreeMap<String, String>>,
    tags_all: Option<Tags>,
}

impl Model {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    fn path(&self) -> &str {
        self.path.as_deref().unwrap_or("/")
    }
}

impl ControllerPolicy {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }
}

#[async_trait]
impl Resource for ControllerPolicy {
    fn type_name(&self) -> &'static str {
        "karp_controller_policy"
    }

    fn schema(&self) -> Schema {
        let schema = Schema::new(
            "The controller's policy as managed policies, for a role that is made elsewhere: attach each of `arns` to it. A managed policy may \
             have 6144 characters, so that there are as many as it takes. A change writes a new version; the oldest of five makes room. \
             `karp_controller_role` keeps its policy itself.",
        );
        let schema = inherit::adopt(inherit::tags(inherit::cluster_name(schema)));
        let schema = inherit::name(schema, PREFIX, LONGEST);
        let schema = inherit::id_and_arn(schema, "The name.")
            .identity(identity::of_account())
            .attribute("path", inherit::path("The path of the policies."));
        scope::attributes(schema)
            .attribute(
                "arns",
                Attribute::map(Type::String).computed().describe(
                    "The ARNs by the names of the policies: `name` with `-1`, `-2` … behind it. The names are known at plan, so that `for_each` \
                     takes them. `arn` is the first.",
                ),
            )
            .timeouts(Timeouts::default())
    }

    fn validate(&self, config: &Value) -> Diagnostics {
        scope::check(config)
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let session = self.handle.session();
        let mut found = inherit::plan_cluster_name(&session, change);
        if change.is_destroy() {
            return found;
        }
        inherit::plan_name(change, PREFIX, LONGEST);
        found.extend(inherit::plan_tags(&session, change));
        let policy = scope::document(&session, &change.planned).await;
        scope::plan(change, policy.as_deref());
        let arns = planned_arns(change, policy.as_deref());
        change.planned.set("arns", arns);
        inherit::reopen_on_replace(change, &["id", "arn"]);
        // the first part may be another's as long as one is missing
        let first = change.planned.get("arns").as_map().and_then(|arns| arns.values().next().cloned());
        if let Some(first) = first {
            change.planned.set("arn", first);
        }
        found
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let aws = session.aws().await?;
        self.converge(&session, aws, ctx, &Value::Null, planned).await
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        let model: Model = tfplugin::from_value(&state)?;
        let look = async {
            let aws = session.aws().await?;
            let known = match &model.arns {
                Some(_) => known_and_left(&session, aws, &state, &model).await?,
                None => managed_policy::parts_of(aws.iam(), model.name()).await?,
            };
            let found = managed_policy::find(aws, &known).await?;
            Ok(found.map(|kept| render(&session, state.clone(), &model, kept)))
        };
        session.refresh(ctx, &[provider::Part::Aws], &state, look).await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let aws = session.aws().await?;
        let before: Model = tfplugin::from_value(&prior)?;
        let state = self.converge(&session, aws, ctx, &prior, planned).await?;
        let now: Model = tfplugin::from_value(&state)?;
        let kept = now.arns.unwrap_or_default();
        let dropped = before.arns.into_iter().flatten().filter(|(name, _)| !kept.contains_key(name));
        managed_policy::delete_all(aws.iam(), ctx, &dropped.map(|(_, arn)| arn).collect()).await?;
        Ok(state)
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let session = self.handle.session();
        let model: Model = tfplugin::from_value(&prior)?;
        let aws = session.aws().await?;
        let arns = known_and_left(&session, aws, &prior, &model).await?;
        Ok(managed_policy::delete_all(aws.iam(), ctx, &arns).await?)
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        // A part's ARN or name means the whole.
        let name = id.rsplit('/').next().unwrap_or(id);
        let numbered = name.rsplit_once('-').filter(|(_, number)| number.parse::<u8>().is_ok());
        let name = if id.starts_with("arn:") { numbered.map_or(name, |(name, _)| name) } else { name };
        Ok(iam_role::import(name))
    }
}

impl ControllerPolicy {
    /// Writes each part; state has each from the moment that it was made. What is taken over comes into state when all is done.
    async fn converge(
        &self,
        session: &Session,
        aws: &Aws,
        ctx: &Context,
        prior: &Value,
        planned: Value,
    ) -> Result<Value, Diagnostics> {
        scope::ensure(&planned)?;
        let policy = scope::document(session, &planned).await.ok_or_else(iam_role::unknown_at_apply)?;
        // The ARNs of a creation are not known yet.
        let model: Model = tfplugin::from_value(&planned.clone().with("arns", Value::Null))?;
        let before: Model = if prior.is_null() { Model::default() } else { tfplugin::from_value(prior)? };
        let tags = session.tags_all(planned.get("tags"), planned.get("cluster_name"));
        let tags: Tags = tfplugin::from_value(&tags)?;
        let owned = session.owned(prior);
        let mut arns = before.arns.unwrap_or_default();
        let (mut kept, mut answered) = (arns.clone(), session.answered(aws));
        let state = scope::with_policy(planned.with("id", model.name()).with("tags_all", tags.clone()), Some(&policy));
        let parts = managed_policy::parts(model.name(), &policy);
        for (name, text) in &parts {
            let part = Part { path: model.path(), name, text, tags: &tags, owned: &owned };
            let adopt = model.adopt.unwrap_or(session.model().adopt_existing);
            let known = arns.get(name).map(String::as_str);
            let (arn, origin) = managed_policy::converge(aws.iam(), ctx, &part, known, adopt).await?;
            if origin == Origin::Made {
                kept.insert(name.clone(), arn.clone());
                ctx.save(with_arns(state.clone(), &kept));
                answered.made(origin, Marked::Iam(IamObject::Policy(arn.clone())));
            }
            arns.insert(name.clone(), arn);
        }
        arns.retain(|name, _| parts.contains_key(name));
        Ok(with_arns(state, &arns))
    }
}

/// Gives the policies of a state, and those behind them that a run which was killed made.
async fn known_and_left(
    session: &Session,
    aws: &Aws,
    state: &Value,
    model: &Model,
) -> Result<BTreeSet<String>, Failure> {
    let mut arns: BTreeSet<String> = model.arns.iter().flatten().map(|(_, arn)| arn.clone()).collect();
    arns.extend(managed_policy::left_parts(aws, &arns, &session.owned(state)).await?);
    Ok(arns)
}

fn with_arns(state: Value, arns: &BTreeMap<String, String>) -> Value {
    state.with("arns", Value::object(arns.clone())).with("arn", arns.values().next())
}

/// Plans the ARNs: they follow from name, path and account, and the account is known once there is one policy.
fn planned_arns(change: &PlannedChange, policy: Option<&str>) -> Value {
    let (Some(policy), Some(name)) = (policy, change.planned.get("name").as_str()) else { return Value::Unknown };
    let path = change.planned.get("path").as_str().unwrap_or("/");
    let partition = change.prior.get("arn").as_str().and_then(|arn| arn.split(':').nth(1));
    let home = partition.zip(part_of_arn(&change.prior, 4));
    let arn = |part: &String| match home {
        Some((partition, account)) => Value::from(format!("arn:{partition}:iam::{account}:policy{path}{part}")),
        None => Value::Unknown,
    };
    Value::Map(managed_policy::parts(name, policy).keys().map(|part| (part.clone(), arn(part))).collect())
}

/// Writes what was found into state.
fn render(session: &Session, state: Value, model: &Model, found: Kept) -> Value {
    let tags = session.owned_part(&found.tags, model.tags_all.as_ref());
    let (mut arns, mut texts) = (BTreeMap::new(), Vec::new());
    for (name, (arn, text)) in found.parts {
        arns.insert(name, arn);
        texts.push(text);
    }
    let policy = document::join(&texts);
    let state = with_arns(state.with("path", found.path).with("tags_all", tags), &arns);
    let state = session.recover(scope::with_policy(state, policy.as_deref()), &found.tags, model.tags_all.as_ref());
    scope::recover(state)
}
