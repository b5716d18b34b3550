//! What the three roles have in common: schema, plan and life of an IAM role. Each role's own file says whom it trusts and what it may.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value as Json, json};
use tfplugin::schema::validate;
use tfplugin::{Attribute, Context, Diagnostics, Moved, PlannedChange, Schema, Timeouts, Type, Value};

use super::{identity, inherit, moved};
use crate::aws::Origin;
use crate::aws::marked::{Answered, Marked};
use crate::aws::names::LONGEST_ROLE;
use crate::aws::role::{self, Found, Owned, Wanted};
use crate::aws::tags::{IamObject, Tags};
use crate::provider::Part;
use crate::session::{Aws, Session};

const COMPUTED: [&str; 3] = ["id", "arn", "unique_id"];
const ADDITIONAL: &str = "additional_policy_arns";

/// The attributes that all roles have.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Model {
    name: Option<String>,
    path: Option<String>,
    description: Option<String>,
    permissions_boundary: Option<String>,
    assume_role_policy: Option<String>,
    policy_arns: Option<BTreeSet<String>>,
    adopt: Option<bool>,
    tags_all: Option<Tags>,
}

/// What a role is for.
#[derive(Debug, Clone, Default)]
pub struct Purpose {
    /// Trust policy, canonical.
    pub trust: String,
    /// ARNs of managed policies.
    pub attached: BTreeSet<String>,
    /// Inline policies: name to canonical document.
    pub inline: BTreeMap<String, String>,
}

/// Gives the schema that all roles share.
pub fn schema(description: &str, prefix: &str, role_description: &str) -> Schema {
    let schema = inherit::adopt(inherit::tags(inherit::cluster_name(Schema::new(description))));
    let schema = inherit::name(schema, prefix, LONGEST_ROLE);
    inherit::id_and_arn(schema, "The role's name.")
        .identity(identity::of_account())
        .attribute("path", inherit::path("The path of the role."))
        .attribute(
            "description",
            Attribute::string().default(role_description).validate(inherit::iam_description()).describe("The role's description."),
        )
        .attribute(
            "permissions_boundary",
            Attribute::string().optional().validate(validate::arn()).describe("The ARN of the policy that bounds the role."),
        )
        .attribute(
            "unique_id",
            Attribute::string().computed().use_state_for_unknown().describe("The id by which IAM tells roles of equal names apart."),
        )
        .attribute(
            "assume_role_policy",
            Attribute::string().computed().describe("The trust policy that karp keeps on the role, JSON in canonical form."),
        )
        .attribute(
            "policy_arns",
            Attribute::set(Type::String).computed().describe(
                "The managed policies that karp keeps attached. Policies that others attach are left alone until the role is deleted.",
            ),
        )
        .timeouts(Timeouts::default())
}

/// Declares further managed policies, under names of the user's own choice: with these a plan shows which is which, also of policies that
/// are made in the same apply.
pub fn additional_policies(schema: Schema, what: &str) -> Schema {
    let what = format!(
        "{what}, by names of your own choice: `{{ ebs = aws_iam_policy.ebs.arn }}`. The names are for you alone; another one \
         changes nothing."
    );
    let arns = Attribute::map(Type::String).optional().validate(validate::each(validate::arn()));
    schema.version(1).attribute(ADDITIONAL, arns.semantic_eq(same_values).describe(what))
}

/// Gives the further policies; `None` while one is unknown.
pub fn additional(planned: &Value) -> Option<BTreeSet<String>> {
    let all = planned.get(ADDITIONAL);
    all.whole_known().then(|| values(all))
}

/// Writes further policies into the state of an import, each under its own name.
pub fn with_additional(state: Value, arns: &BTreeSet<String>) -> Value {
    if arns.is_empty() {
        state
    } else {
        state.with(ADDITIONAL, Value::object(by_name(arns.iter().map(String::as_str))))
    }
}

/// Brings a state to today's shape: before version 1 the further policies were a set.
pub fn upgrade(version: i64, mut state: Json) -> Json {
    if let (0, Some(arns)) = (version, state[ADDITIONAL].as_array()) {
        state[ADDITIONAL] = json!(by_name(arns.iter().filter_map(Json::as_str)));
    }
    state
}

fn values(map: &Value) -> BTreeSet<String> {
    map.as_map().into_iter().flatten().filter_map(|(_, arn)| arn.as_str().map(str::to_owned)).collect()
}

fn same_values(prior: &Value, planned: &Value) -> bool {
    let known = |value: &Value| value.as_map().is_some() && value.whole_known();
    known(prior) && known(planned) && values(prior) == values(planned)
}

/// Names each policy as IAM does; by its ARN where two of several paths or accounts have one name.
fn by_name<'a>(arns: impl Iterator<Item = &'a str>) -> BTreeMap<String, String> {
    let mut named = BTreeMap::new();
    for arn in arns {
        let name = arn.rsplit('/').next().unwrap_or(arn);
        let name = if named.contains_key(name) { arn } else { name };
        named.insert(name.to_owned(), arn.to_owned());
    }
    named
}

/// Plans what all roles share, then what the role is for: `None` while that is not known.
pub fn plan(session: &Session, change: &mut PlannedChange, prefix: &str) -> Diagnostics {
    if change.is_destroy() {
        return Diagnostics::new();
    }
    let mut found = inherit::plan_cluster_name(session, change);
    inherit::plan_name(change, prefix, LONGEST_ROLE);
    found.extend(inherit::plan_tags(session, change));
    inherit::reopen_on_replace(change, &COMPUTED);
    found
}

/// Plans the role's trust and managed policies.
pub fn plan_purpose(change: &mut PlannedChange, purpose: Option<&Purpose>) {
    let (trust, attached) = match purpose {
        Some(purpose) => (Value::from(&purpose.trust), text_set(&purpose.attached)),
        None => (Value::Unknown, Value::Unknown),
    };
    change.planned.set("assume_role_policy", trust);
    change.planned.set("policy_arns", attached);
}

/// A role that exists, and has not got its policies yet.
pub struct Begun {
    found: Found,
    /// Whether it was made now.
    pub origin: Origin,
}

/// Creates the role with its policies.
pub async fn create(session: &Session, ctx: &Context, planned: Value, purpose: &Purpose) -> Result<Value, Diagnostics> {
    let mut answered = session.answered(session.aws().await?);
    let begun = begin(session, ctx, &planned, &purpose.trust, &mut answered).await?;
    finish(session, ctx, planned, begun, purpose).await
}

/// Creates the role without policies, or takes one over; from the moment that one was made, state has it.
pub async fn begin(
    session: &Session,
    ctx: &Context,
    planned: &Value,
    trust: &str,
    answered: &mut Answered<'_>,
) -> Result<Begun, Diagnostics> {
    let aws = session.aws().await?;
    let wanted = wanted(session, planned, &Purpose { trust: trust.to_owned(), ..Purpose::default() })?;
    let (found, origin) = role::create(aws.iam(), ctx, &wanted).await?;
    if origin == Origin::Made {
        let tags = session.owned_part(&found.tags, Some(&wanted.tags));
        ctx.save(render(planned, &found, &tags, &found.attached));
        answered.made(origin, Marked::Iam(IamObject::Role(found.name.clone())));
        role::shown(aws.iam(), ctx, &found.name).await?;
    }
    Ok(Begun { found, origin })
}

/// Gives the role its policies.
pub async fn finish(
    session: &Session,
    ctx: &Context,
    planned: Value,
    begun: Begun,
    purpose: &Purpose,
) -> Result<Value, Diagnostics> {
    let aws = session.aws().await?;
    let wanted = wanted(session, &planned, purpose)?;
    role::converge(aws.iam(), ctx, &begun.found, &wanted, &Owned::default()).await?;
    Ok(render(&planned, &converged(begun.found, &wanted), &wanted.tags, &wanted.attached))
}

/// Reads the role: its own facts, and of tags and attachments the part that karp keeps. `inline` are the policies to read along.
pub async fn read(
    session: &Session,
    ctx: &Context,
    state: &Value,
    inline: &BTreeSet<String>,
    finish: impl FnOnce(Value, &Found) -> Value + Send,
) -> Result<Option<Value>, Diagnostics> {
    let model: Model = tfplugin::from_value(state)?;
    let name = model.name.clone().unwrap_or_default();
    let look = async {
        let owned = model.policy_arns.as_ref();
        let Some(found) = role::look(session.aws().await?, &name, inline, owned).await? else { return Ok(None) };
        let tags = session.owned_part(&found.tags, model.tags_all.as_ref());
        let state =
            session.recover(render(state, &found, &tags, &found.attached), &found.tags, model.tags_all.as_ref());
        Ok(Some(finish(state, &found)))
    };
    session.refresh(ctx, &[Part::Aws], state, look).await
}

/// Updates the role in place.
pub async fn update(
    session: &Session,
    ctx: &Context,
    prior: &Value,
    planned: Value,
    purpose: &Purpose,
    owned_inline: BTreeSet<String>,
) -> Result<Value, Diagnostics> {
    let aws = session.aws().await?;
    let before: Model = tfplugin::from_value(prior)?;
    let wanted = wanted(session, &planned, purpose)?;
    let names = purpose.inline.keys().chain(&owned_inline).cloned().collect();
    let Some(found) = role::find(aws.iam(), &wanted.name, &names).await? else {
        return Err(gone(&wanted.name));
    };
    let owned =
        Owned { tags: session.owned(prior), attached: before.policy_arns.unwrap_or_default(), inline: owned_inline };
    // Should one of many policies be refused, those before it are attached and the tags are on the role: a refresh sees only
    // those that state knows.
    let known = owned.attached.union(&wanted.attached).cloned().collect();
    let tags: Tags = wanted.tags.iter().chain(&owned.tags).map(|(key, value)| (key.clone(), value.clone())).collect();
    ctx.save(prior.clone().with("policy_arns", text_set(&known)).with("tags_all", tags));
    role::converge(aws.iam(), ctx, &found, &wanted, &owned).await?;
    Ok(render(&planned, &converged(found, &wanted), &wanted.tags, &wanted.attached))
}

/// Deletes the role, with its policies.
pub async fn delete(aws: &Aws, ctx: &Context, prior: &Value) -> Result<(), Diagnostics> {
    let model: Model = tfplugin::from_value(prior)?;
    Ok(role::delete(aws.iam(), ctx, &model.name.unwrap_or_default()).await?)
}

/// Gives the state with which an import begins.
pub fn import(name: &str) -> Value {
    Value::object([("id", name), ("name", name)])
}

/// Takes over an `aws_iam_role`.
pub fn take_over(source: &Moved) -> Result<Option<Value>, Diagnostics> {
    moved::from_aws(source, "aws_iam_role", |old| Ok(old.tagged(import(old.text("name")?))))
}

/// Makes a set of strings.
pub fn text_set(texts: &BTreeSet<String>) -> Value {
    Value::canonical_set(texts.iter().map(Value::from))
}

fn gone(name: &str) -> Diagnostics {
    let mut found = Diagnostics::new();
    found.error(
        "name",
        format!("Role {name:?} is gone"),
        "It was deleted after this plan was made. Plan again: karp will then create it.",
    );
    found
}

fn wanted(session: &Session, planned: &Value, purpose: &Purpose) -> Result<Wanted, Diagnostics> {
    let model: Model = tfplugin::from_value(planned)?;
    Ok(Wanted {
        name: model.name.unwrap_or_default(),
        path: model.path.unwrap_or_else(|| "/".to_owned()),
        description: model.description.unwrap_or_default(),
        trust: purpose.trust.clone(),
        permissions_boundary: model.permissions_boundary,
        tags: tags(session, planned)?,
        attached: purpose.attached.clone(),
        inline: purpose.inline.clone(),
        adopt: model.adopt.unwrap_or(session.model().adopt_existing),
    })
}

/// Gives the tags that the role should have.
pub fn tags(session: &Session, planned: &Value) -> Result<Tags, Diagnostics> {
    match session.tags_all(planned.get("tags"), planned.get("cluster_name")) {
        Value::Unknown => Err(unknown_tags()),
        tags => Ok(tfplugin::from_value(&tags)?),
    }
}

/// Gives the role as it is once converged.
fn converged(found: Found, wanted: &Wanted) -> Found {
    Found {
        trust: wanted.trust.clone(),
        description: wanted.description.clone(),
        permissions_boundary: wanted.permissions_boundary.clone(),
        ..found
    }
}

fn unknown_tags() -> Diagnostics {
    let mut found = Diagnostics::new();
    found.error(
        "tags",
        "Tags are not known",
        "`tags` or the provider block's `default_tags` hold values that are unknown at apply.",
    );
    found
}

fn render(base: &Value, found: &Found, tags: &Tags, attached: &BTreeSet<String>) -> Value {
    let mut state = base.clone();
    state.set("id", &found.name);
    state.set("name", &found.name);
    state.set("arn", &found.arn);
    state.set("unique_id", &found.unique_id);
    state.set("path", &found.path);
    state.set("description", &found.description);
    state.set("permissions_boundary", found.permissions_boundary.clone());
    state.set("assume_role_policy", &found.trust);
    state.set("policy_arns", text_set(attached));
    state.set("tags_all", tags.clone());
    state
}

/// Says that something which must be known at apply is not: core never asks for that.
pub fn unknown_at_apply() -> Diagnostics {
    let mut found = Diagnostics::new();
    found.error("", "Values are not known", "An attribute from which the policies follow is still unknown at apply.");
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_an_older_state_get_names() {
        let (one, two, three) = ("arn:aws:iam::1:policy/a/x", "arn:aws:iam::1:policy/b/x", "arn:aws:iam::aws:policy/y");
        let old = json!({ "name": "n", ADDITIONAL: [one, two, three] });
        let new = upgrade(0, old);
        assert_eq!(new[ADDITIONAL], json!({ "x": one, two: two, "y": three }));
        assert_eq!((&new["name"], &upgrade(1, new.clone())), (&"n".into(), &new));
        let none = json!({ "name": "n", ADDITIONAL: null });
        assert_eq!(upgrade(0, none.clone()), none);
    }

    #[test]
    fn names_of_policies_say_nothing_and_policies_do() {
        let map = |pairs: &[(&str, &str)]| Value::object(pairs.iter().map(|(name, arn)| (*name, Value::from(*arn))));
        let (one, two) = ("arn:aws:iam::1:policy/x", "arn:aws:iam::1:policy/y");
        assert!(same_values(&map(&[("a", one)]), &map(&[("b", one)])));
        assert!(!same_values(&map(&[("a", one)]), &map(&[("a", two)])));
        assert!(!same_values(&map(&[("a", one)]), &map(&[("a", one), ("b", two)])));
        assert!(!same_values(&Value::Null, &map(&[])));
        let open = Value::object([(ADDITIONAL, Value::object([("a", Value::from(one)), ("b", Value::Unknown)]))]);
        assert_eq!(additional(&open), None);
        assert!(!same_values(&map(&[("a", one)]), open.get(ADDITIONAL)));
    }
}
