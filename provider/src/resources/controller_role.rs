//! `karp_controller_role`: the role of the controller, for its service account alone.

mod association;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karp_domain::iam::INLINE_POLICY_LIMIT;
use serde::Deserialize;
use tfplugin::schema::validate;
use tfplugin::{Attribute, Context, Diagnostics, Moved, PlannedChange, Resource, Schema, Value, async_trait};

use self::association::{associate, check_association, is_new_to, plan_association, release_left};
use super::controller_scope as scope;
use super::iam_role::{self, Purpose};
use crate::aws::managed_policy::{self, Part};
use crate::aws::marked::{Answered, Marked};
use crate::aws::tags::{IamObject, Tags, for_role};
use crate::aws::{Origin, pod_identity, policies, role};
use crate::provider::Handle;
use crate::report::{Failure, Kind};
use crate::session::{Aws, Session};

const PREFIX: &str = "KarpControllerRole-";
/// The name of the role's inline policy.
const POLICY: &str = "karp-controller";

/// The controller's role.
pub struct ControllerRole {
    handle: Arc<Handle>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Model {
    name: Option<String>,
    arn: Option<String>,
    path: Option<String>,
    cluster_name: Option<String>,
    auth: Option<String>,
    oidc_provider_arn: Option<String>,
    namespace: Option<String>,
    service_account: Option<String>,
    policy_mode: Option<String>,
    association_id: Option<String>,
    adopt: Option<bool>,
    policy_arns: Option<BTreeSet<String>>,
}

impl Model {
    fn uses_pod_identity(&self) -> bool {
        self.auth.as_deref() == Some("pod_identity")
    }

    /// Says whether policies of their own hold the document, as far as state tells.
    fn is_managed(&self) -> bool {
        match self.policy_mode.as_deref() {
            Some("managed") => true,
            Some("auto") => self.policy_arns.iter().flatten().any(|arn| managed_policy::is_part(self.name(), arn)),
            _ => false,
        }
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    fn arn(&self) -> &str {
        self.arn.as_deref().unwrap_or_default()
    }

    fn subject(&self) -> pod_identity::Subject<'_> {
        pod_identity::Subject {
            cluster: self.cluster_name.as_deref().unwrap_or_default(),
            namespace: self.namespace.as_deref().unwrap_or_default(),
            service_account: self.service_account.as_deref().unwrap_or_default(),
        }
    }
}

/// What the role trusts and may, apart from where its policy is kept.
struct Documents {
    trust: String,
    policy: String,
}

impl ControllerRole {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }
}

#[async_trait]
impl Resource for ControllerRole {
    fn type_name(&self) -> &'static str {
        "karp_controller_role"
    }

    fn schema(&self) -> Schema {
        let schema = iam_role::schema(
            "The IAM role of the controller: it launches, tags and ends only what carries its cluster's tags. Pods get it by IAM roles \
             for service accounts (the default, which also works on Fargate) or by EKS pod identity.",
            PREFIX,
            "Controller of karp",
        );
        scope::attributes(identity(schema))
            .attribute(
                "policy_mode",
                Attribute::string().default("inline").validate(validate::one_of(["auto", "inline", "managed"])).describe(
                    "Where the policy is kept: `inline` in the role (up to 10240 characters), or in `managed` policies of their own, split \
                     as their limit of 6144 characters demands; `auto` is inline as long as it fits.",
                ),
            )
            .attribute("association_id", Attribute::string().computed().describe("The pod identity association, with `pod_identity`."))
    }

    fn validate(&self, config: &Value) -> Diagnostics {
        let mut found = scope::check(config);
        let auth = config.get("auth");
        let irsa = auth.is_null() || auth.as_str() == Some("irsa");
        if irsa && config.get("oidc_provider_arn").is_null() {
            found.error(
                "oidc_provider_arn",
                "The OIDC provider is missing",
                "With `auth = \"irsa\"` (the default) the role must trust the cluster's OIDC provider: set it to \
                 `karp_oidc_provider.<name>.arn`; or set `auth = \"pod_identity\"`.",
            );
        }
        if auth.as_str() == Some("pod_identity") && config.get("oidc_provider_arn").as_str().is_some() {
            found.warning(
                "oidc_provider_arn",
                "The OIDC provider is not used",
                "`auth = \"pod_identity\"` needs none.",
            );
        }
        found
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let session = self.handle.session();
        let mut found = iam_role::plan(&session, change, PREFIX);
        if change.is_destroy() {
            return found;
        }
        let documents = documents(&session, &change.planned).await;
        if let Some(documents) = &documents {
            found.extend(check_size(&change.planned, &documents.policy));
        }
        plan_documents(change, documents.as_ref());
        plan_association(change);
        found
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let model: Model = tfplugin::from_value(&planned)?;
        let documents = known(&session, &planned).await?;
        let aws = session.aws().await?;
        check_association(&session, aws, &model).await?;
        let planned = scope::with_policy(planned, Some(&documents.policy)).with("association_id", Value::Null);
        // The role comes before its managed policies: with it in state, they are found again whatever happens next.
        let mut answered = session.answered(aws);
        let begun = iam_role::begin(&session, ctx, &planned, &documents.trust, &mut answered).await?;
        let origin = begun.origin;
        let purpose = purpose(&session, ctx, &Value::Null, &planned, &documents, &mut answered).await?;
        let state = iam_role::finish(&session, ctx, planned, begun, &purpose).await?;
        if origin == Origin::Made {
            ctx.save(state.clone());
        }
        associate(aws, ctx, &model, state, &Tags::new()).await
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        // With managed policies there is none in the role; an import does not know yet.
        let managed = tfplugin::from_value::<Model>(&state)?.is_managed();
        let inline = if managed { BTreeSet::new() } else { BTreeSet::from([POLICY.to_owned()]) };
        let read = iam_role::read(&session, ctx, &state, &inline, |state, found| {
            let inline = found.inline.get(POLICY);
            let apart = found.attached.iter().any(|arn| managed_policy::is_part(&found.name, arn));
            let state = complete(state, &found.trust, apart && inline.is_none());
            if managed || state.get("policy_mode").as_str() == Some("managed") {
                return state;
            }
            scope::with_policy(state, Some(inline.map_or("", String::as_str)))
        });
        let Some(state) = read.await? else { return Ok(None) };
        let prior = state.clone();
        let look = async {
            let aws = session.aws().await?;
            let mut now: Model = tfplugin::from_value(&state)
                .map_err(|e| Failure::new(Kind::Unexpected, "read the state", e.to_string()))?;
            let mut state = state;
            if now.is_managed() {
                let policy = managed_policy::read_joined(aws, &own_policies(&now)).await?;
                state = scope::with_policy(state, policy.as_deref());
            }
            if now.uses_pod_identity() {
                if now.service_account.is_none()
                    && let Some(found) = pod_identity::find_by_role(aws, &now.subject(), now.arn()).await?
                {
                    state = state.with("namespace", &found.0).with("service_account", &found.1);
                    now.namespace = Some(found.0);
                    now.service_account = Some(found.1);
                }
                let known = now.association_id.as_deref();
                let found = pod_identity::look(aws, &now.subject(), known).await?;
                // An association with another role is not this one's: planning makes it so again.
                state.set("association_id", found.filter(|found| found.role_arn == now.arn()).map(|found| found.id));
            }
            Ok(Some(scope::recover(state)))
        };
        session.refresh(ctx, &[crate::provider::Part::Aws], &prior, look).await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let before: Model = tfplugin::from_value(&prior)?;
        let model: Model = tfplugin::from_value(&planned)?;
        let documents = known(&session, &planned).await?;
        let aws = session.aws().await?;
        // The association of a service account that state says is this role's heals, as all that others edit does: the plan shows it as known after
        // apply. Only pods that were never this role's are asked for.
        if is_new_to(&before, &model) {
            check_association(&session, aws, &model).await?;
        }
        let mut answered = session.answered(aws);
        let purpose = purpose(&session, ctx, &prior, &planned, &documents, &mut answered).await?;
        let planned =
            scope::with_policy(planned, Some(&documents.policy)).with("association_id", before.association_id.clone());
        let owned = BTreeSet::from([POLICY.to_owned()]);
        // Whatever was made for the role may be attached to it, and has to come off before it goes.
        let left = left_of(aws, &session, &prior).await?;
        let attached: BTreeSet<&String> = before.policy_arns.iter().flatten().chain(&left).collect();
        let prior = prior.with("policy_arns", arns(attached));
        let state = iam_role::update(&session, ctx, &prior, planned, &purpose, owned).await?;
        // Should what comes now fail, the next plan shows the change again, with all that is there.
        let known = before.policy_arns.iter().flatten().chain(&left).chain(&purpose.attached).collect::<BTreeSet<_>>();
        ctx.save(prior.clone().with("policy_arns", arns(known)).with("tags_all", state.get("tags_all").clone()));
        let mut dropped = own_policies(&before);
        dropped.extend(left);
        dropped.retain(|arn| !purpose.attached.contains(arn));
        managed_policy::delete_all(aws.iam(), ctx, &dropped).await?;
        let moved = before.uses_pod_identity() && (!model.uses_pod_identity() || before.subject() != model.subject());
        if moved && let Some(id) = &before.association_id {
            pod_identity::release(aws, &before.subject(), id, before.arn()).await?;
        }
        release_left(aws, &session, &prior, Some(&model)).await?;
        associate(aws, ctx, &model, state, &session.owned(&prior)).await
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let session = self.handle.session();
        let model: Model = tfplugin::from_value(&prior)?;
        let aws = session.aws().await?;
        let mut policies = own_policies(&model);
        policies.extend(left_of(aws, &session, &prior).await?);
        if let Some(id) = &model.association_id {
            pod_identity::release(aws, &model.subject(), id, model.arn()).await?;
        }
        release_left(aws, &session, &prior, None).await?;
        // The role goes last: a refresh without it forgets the policies that a run which died before left.
        let name = model.name.as_deref().unwrap_or_default();
        role::strip(aws.iam(), ctx, name).await?;
        managed_policy::delete_all(aws.iam(), ctx, &policies).await?;
        Ok(role::remove(aws.iam(), ctx, name).await?)
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        Ok(iam_role::import(id))
    }

    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        iam_role::take_over(source)
    }
}

/// Adds the attributes that say whose role it is.
fn identity(schema: Schema) -> Schema {
    schema
        .attribute(
            "auth",
            Attribute::string().default("irsa").validate(validate::one_of(["irsa", "pod_identity"])).describe(
                "How pods get the role: `irsa` (IAM roles for service accounts) or `pod_identity` (an association is made too; not on \
                 Fargate).",
            ),
        )
        .attribute(
            "oidc_provider_arn",
            Attribute::string()
                .optional()
                .validate(validate::text("must be the ARN of an OIDC provider", |arn| arn.contains(":oidc-provider/")))
                .describe("The cluster's OIDC provider, for `irsa`."),
        )
        .attribute(
            "namespace",
            Attribute::string().default("karpenter").validate(validate::dns_label()).describe("The namespace of the service account."),
        )
        .attribute(
            "service_account",
            Attribute::string().default("karpenter").validate(validate::dns_subdomain()).describe("The controller's service account."),
        )
}

/// Gives trust and policy; `None` while something that they follow from is unknown.
async fn documents(session: &Session, planned: &Value) -> Option<Documents> {
    const SOURCES: [&str; 5] = ["cluster_name", "auth", "oidc_provider_arn", "namespace", "service_account"];
    if SOURCES.iter().any(|name| !planned.get(name).whole_known()) {
        return None;
    }
    let model: Model = tfplugin::from_value(planned).ok()?;
    let subject = model.subject();
    let trust = if model.uses_pod_identity() {
        policies::pod_identity_trust()
    } else {
        policies::irsa_trust(model.oidc_provider_arn.as_deref()?, subject.namespace, subject.service_account)
    };
    Some(Documents { trust, policy: scope::document(session, planned).await? })
}

/// Says whether a document is kept in policies of their own.
fn goes_apart(planned: &Value, policy: &str) -> bool {
    match planned.get("policy_mode").as_str() {
        Some("managed") => true,
        Some("auto") => policy.len() > INLINE_POLICY_LIMIT,
        _ => false,
    }
}

async fn known(session: &Session, planned: &Value) -> Result<Documents, Diagnostics> {
    scope::ensure(planned)?;
    session.aws().await?;
    documents(session, planned).await.ok_or_else(iam_role::unknown_at_apply)
}

/// Completes the state of an import by the trust policy: who gets the role, and where its policy is kept.
fn complete(state: Value, trust: &str, managed: bool) -> Value {
    if !state.get("auth").is_null() {
        return state;
    }
    let state = state.with("policy_mode", if managed { "managed" } else { "inline" });
    let trust: serde_json::Value = serde_json::from_str(trust).unwrap_or_default();
    let statement = &trust["Statement"][0];
    let Some(provider) = statement["Principal"]["Federated"].as_str() else {
        return state.with("auth", "pod_identity");
    };
    let state = state.with("auth", "irsa").with("oidc_provider_arn", provider);
    let conditions = statement["Condition"]["StringEquals"].as_object().into_iter().flatten();
    let mut subjects = conditions.filter(|(key, _)| key.ends_with(":sub")).filter_map(|(_, value)| value.as_str());
    let subject = subjects.find_map(|subject| subject.strip_prefix("system:serviceaccount:")?.split_once(':'));
    match subject {
        Some((namespace, account)) => state.with("namespace", namespace).with("service_account", account),
        None => state,
    }
}

fn check_size(planned: &Value, policy: &str) -> Diagnostics {
    let mut found = Diagnostics::new();
    if planned.get("policy_mode").as_str() == Some("inline") && policy.len() > INLINE_POLICY_LIMIT {
        found.error(
            "policy_mode",
            "The policy does not fit into the role",
            format!(
                "It has {} characters; inline policies may have {INLINE_POLICY_LIMIT}. Set `policy_mode = \"auto\"`.",
                policy.len()
            ),
        );
    }
    found
}

fn plan_documents(change: &mut PlannedChange, documents: Option<&Documents>) {
    change.planned.set("assume_role_policy", documents.map_or(Value::Unknown, |documents| (&documents.trust).into()));
    scope::plan(change, documents.map(|documents| documents.policy.as_str()));
    let arns = match (change.planned.get("policy_mode").as_str(), documents) {
        (Some("inline"), _) => iam_role::text_set(&BTreeSet::new()),
        (Some(_), Some(documents)) if goes_apart(&change.planned, &documents.policy) => {
            planned_arns(&change.planned, &documents.policy)
        }
        (Some(_), Some(_)) => iam_role::text_set(&BTreeSet::new()),
        _ => Value::Unknown,
    };
    change.planned.set("policy_arns", arns);
}

/// Gives the ARNs of the managed policies that will hold a document: they follow from the role's name, path and account, and the account
/// is known once the role has an ARN.
fn planned_arns(planned: &Value, policy: &str) -> Value {
    let text = |name: &str| planned.get(name).as_str();
    let (Some(arn), Some(name), Some(path)) = (text("arn"), text("name"), text("path")) else { return Value::Unknown };
    let parts: Vec<&str> = arn.split(':').collect();
    let [_, partition, _, _, account, ..] = parts[..] else { return Value::Unknown };
    let names = managed_policy::parts(name, policy).into_keys();
    Value::canonical_set(names.map(|name| Value::from(format!("arn:{partition}:iam::{account}:policy{path}{name}"))))
}

fn arns<'a>(arns: impl IntoIterator<Item = &'a String>) -> Value {
    Value::canonical_set(arns.into_iter().map(|arn| Value::from(arn.as_str())))
}

/// Finds the policies that were made for a role of karp's, also those that a run which failed wrote and did not attach, or took off the role and
/// did not delete. One of such a name may be somebody else's. Where the caller may not list policies, those are looked at that the policy in
/// state is split into.
async fn left_of(aws: &Aws, session: &Session, prior: &Value) -> Result<BTreeSet<String>, Failure> {
    let role = prior.get("name").as_str().unwrap_or_default();
    let named = match managed_policy::parts_of(aws.iam(), role).await {
        Err(failure) if failure.kind == Kind::Denied => {
            let planned = documents(session, prior).await.map(|documents| planned_arns(prior, &documents.policy));
            let planned = planned.unwrap_or(Value::Null);
            planned.as_list().iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        named => named?,
    };
    let tags = for_role(role, &session.owned(prior));
    let mut left = BTreeSet::new();
    for arn in named {
        match managed_policy::is_of_role(aws.iam(), &arn, &tags).await {
            Ok(false) => {}
            Ok(true) => drop(left.insert(arn)),
            // of what may not be seen nobody can say that it is the role's
            Err(failure) if failure.kind == Kind::Denied => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(left)
}

/// Gives those of the role's policies that are made by karp; a role that was imported or moved here may have others.
fn own_policies(model: &Model) -> BTreeSet<String> {
    let role = model.name.as_deref().unwrap_or_default();
    let kept = model.policy_arns.iter().flatten().filter(|_| model.is_managed());
    kept.filter(|arn| managed_policy::is_part(role, arn)).cloned().collect()
}

/// Says what the role is for; policies of their own are written first, with the tags of the role. Who has the role has what was made for it, also
/// where no state knows of it yet: so their marks may go whatever becomes of this.
async fn purpose(
    session: &Session,
    ctx: &Context,
    prior: &Value,
    planned: &Value,
    documents: &Documents,
    answered: &mut Answered<'_>,
) -> Result<Purpose, Diagnostics> {
    let trust = documents.trust.clone();
    if !goes_apart(planned, &documents.policy) {
        let inline = BTreeMap::from([(POLICY.to_owned(), documents.policy.clone())]);
        return Ok(Purpose { trust, inline, ..Purpose::default() });
    }
    let aws = session.aws().await?;
    let model: Model = tfplugin::from_value(planned)?;
    let before: Model = if prior.is_null() { Model::default() } else { tfplugin::from_value(prior)? };
    let role = model.name.as_deref().unwrap_or_default();
    let (known, owned) = (own_policies(&before), session.owned(prior));
    let tags = for_role(role, &iam_role::tags(session, planned)?);
    let adopt = model.adopt.unwrap_or(session.model().adopt_existing);
    let mut attached = BTreeSet::new();
    for (name, text) in managed_policy::parts(role, &documents.policy) {
        let path = model.path.as_deref().unwrap_or("/");
        let part = Part { path, name: &name, text: &text, tags: &tags, owned: &owned };
        let known = known.iter().find(|arn| arn.ends_with(&format!("/{name}"))).map(String::as_str);
        let (arn, origin) = managed_policy::converge(aws.iam(), ctx, &part, known, adopt).await?;
        answered.made(origin, Marked::Iam(IamObject::Policy(arn.clone())));
        attached.insert(arn);
    }
    Ok(Purpose { trust, attached, ..Purpose::default() })
}
