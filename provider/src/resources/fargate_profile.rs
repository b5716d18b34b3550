//! `karp_fargate_profile`: where the controller runs while the cluster has no node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_eks::types::{FargateProfile as SdkProfile, FargateProfileSelector, FargateProfileStatus};
use serde::{Deserialize, Serialize};
use tfplugin::schema::validate::{self, Validator};
use tfplugin::{
    Attribute, Context, Diagnostic, Diagnostics, Interrupted, Moved, PlannedChange, Resource, Schema, Timeouts, Type,
    Value, async_trait,
};
use tokio::sync::{Mutex, MutexGuard};

use super::{identity, inherit, moved};
use crate::aws::Origin;
use crate::aws::marked::Marked;
use crate::aws::names::{LONGEST_FARGATE_PROFILE, longest_prefix};
use crate::aws::role::check_adoptable;
use crate::aws::tags::{Change, GivenTags, Tags, retag_eks};
use crate::aws::wait::{in_time, settle, settle_within, until};
use crate::marks::Mark;
use crate::provider::{Handle, Part};
use crate::report::{Failure, Kind};
use crate::session::{Aws, Session};

/// EKS says that making and deleting a profile takes minutes; some that another run changes before it fit in.
const LIMIT: Duration = Duration::from_secs(20 * 60);
const PREFIX: &str = "Karp-";
const COMPUTED: [&str; 2] = ["id", "arn"];

/// A Fargate profile.
pub struct FargateProfile {
    handle: Arc<Handle>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Model {
    id: Option<String>,
    arn: Option<String>,
    cluster_name: Option<String>,
    name: Option<String>,
    name_prefix: Option<String>,
    pod_execution_role_arn: Option<String>,
    subnet_ids: BTreeSet<String>,
    selectors: Vec<Selector>,
    adopt: Option<bool>,
    tags: Option<GivenTags>,
    tags_all: Option<Tags>,
    timeouts: Option<BTreeMap<String, Option<String>>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
struct Selector {
    namespace: String,
    labels: Option<BTreeMap<String, String>>,
}

impl FargateProfile {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }
}

#[async_trait]
impl Resource for FargateProfile {
    fn type_name(&self) -> &'static str {
        "karp_fargate_profile"
    }

    fn schema(&self) -> Schema {
        let selector = [
            (
                "namespace",
                Attribute::string()
                    .required()
                    .validate(namespaces())
                    .describe("The namespace of the pods; `*` and `?` may stand for parts of it."),
            ),
            ("labels", Attribute::map(Type::String).optional().describe("Labels that the pods must have.")),
        ];
        let schema = Schema::new(
            "A Fargate profile: pods that match run on Fargate, so that the controller has a place before there are nodes. EKS changes \
             one profile of a cluster at a time; karp queues them, and the limits in `timeouts` begin with a profile's own turn.",
        );
        let schema = inherit::with_prefix(schema, PREFIX, inherit::plain_name(longest_prefix(LONGEST_FARGATE_PROFILE)));
        inherit::id_and_arn(inherit::region(inherit::adopt(inherit::tags(schema))), "`cluster_name:name`.")
            .identity(identity::of_cluster("name", "The profile's name."))
            .attribute("cluster_name", inherit::cluster_name_attribute().requires_replace())
            .attribute("name", profile_name())
            .attribute(
                "pod_execution_role_arn",
                Attribute::string()
                    .required()
                    .requires_replace()
                    .validate(validate::role_arn())
                    .describe("The role by which Fargate starts the pods, as of `karp_fargate_pod_execution_role`."),
            )
            .attribute(
                "subnet_ids",
                Attribute::set(Type::String)
                    .required()
                    .requires_replace()
                    .validate(validate::count(1, usize::MAX))
                    .validate(validate::each(validate::starts_with("subnet-")))
                    .describe("Private subnets for the pods."),
            )
            .attribute(
                "selectors",
                // EKS takes at most five selectors in a profile.
                Attribute::nested_list(selector)
                    .required()
                    .requires_replace()
                    .validate(validate::count(1, 5))
                    .describe("Which pods run here: those that match any of these."),
            )
            .timeouts(Timeouts { create: LIMIT, delete: LIMIT, ..Timeouts::default() })
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let session = self.handle.session();
        inherit::plan_region(&session, change).await;
        let found = inherit::plan_cluster_member(&session, change, &COMPUTED);
        inherit::plan_name(change, PREFIX, LONGEST_FARGATE_PROFILE);
        inherit::reopen_on_replace(change, &COMPUTED);
        found
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let aws = &session.aws_of(&planned).await?;
        let model = resolve(&session, &planned)?;
        let lock = session.cluster_lock(aws.region(), model.cluster_name.as_deref().unwrap_or_default());
        let (_turn, own) = turn(ctx, &lock).await?;
        let adopt = model.adopt.unwrap_or(session.model().adopt_existing);
        let (arn, origin) = create(aws, &own, &model, adopt).await?;
        let mut answered = session.answered(aws);
        answered.made(origin, Marked::Eks(arn.clone()));
        let state = tfplugin::to_value(&Model { id: Some(id_of(&model)), arn: Some(arn), ..model.clone() })?;
        if origin == Origin::Made {
            ctx.save(state.clone());
        }
        wait_active(aws, &own, &model).await?;
        Ok(state)
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        let model: Model = tfplugin::from_value(&state)?;
        let look = async {
            let Some(found) = find(&session.aws_of(&state).await?, &model).await? else { return Ok(None) };
            if is_leaving(&found) {
                ctx.warn(Diagnostic::warning(
                    format!("Fargate profile {:?} is on its way out", id_of(&model)),
                    "EKS is deleting it, and it stays in the state until it is gone. Plan again then: it is created anew where it is still \
                     configured.",
                ));
            }
            let tags = tags_of(&found);
            let state = tfplugin::to_value(&render(&model, &found, session.owned_part(&tags, model.tags_all.as_ref())));
            let state = state.map_err(|e| Failure::new(Kind::Unexpected, "write the state", e.to_string()))?;
            Ok(Some(session.recover(state, &tags, model.tags_all.as_ref())))
        };
        session.refresh(ctx, &[Part::Aws], &state, look).await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let aws = &session.aws_of(&prior).await?;
        let before: Model = tfplugin::from_value(&prior)?;
        let model = resolve(&session, &planned)?;
        let arn = before.arn.unwrap_or_default();
        let actual = find(aws, &model).await?.map(|found| tags_of(&found)).unwrap_or_default();
        let wanted = model.tags_all.clone().unwrap_or_default();
        in_time(ctx, &format!("tag Fargate profile {}", id_of(&model)))?;
        retag_eks(aws, &arn, &Change::between(&wanted, &actual, &session.owned(&prior))).await?;
        Ok(tfplugin::to_value(&Model { id: Some(id_of(&model)), arn: Some(arn), ..model })?)
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let session = self.handle.session();
        let aws = &session.aws_of(&prior).await?;
        let model: Model = tfplugin::from_value(&prior)?;
        let lock = session.cluster_lock(aws.region(), model.cluster_name.as_deref().unwrap_or_default());
        let (_turn, own) = turn(ctx, &lock).await?;
        delete(aws, &own, &model).await?;
        Ok(())
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        let (id, region) = inherit::id_and_region(id);
        match id.split_once(':') {
            Some((cluster, name)) if !cluster.is_empty() && !name.is_empty() => {
                Ok(bare(cluster, name).with("region", region))
            }
            _ => {
                let detail = "Write `cluster_name:name`, or `cluster_name:name@REGION`.";
                Err(Diagnostic::error("The import id is malformed", detail).into())
            }
        }
    }

    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        moved::from_aws(source, "aws_eks_fargate_profile", |old| {
            let bare = bare(old.text("cluster_name")?, old.text("fargate_profile_name")?);
            Ok(old.tagged(bare.with("region", old.region())))
        })
    }
}

/// The namespaces of a selector: a name, or several by wildcards.
fn namespaces() -> Validator {
    validate::text("must be the name of a namespace, of which `*` and `?` may stand for parts", |text| {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '*' | '?');
        (1..=63).contains(&text.len()) && text.chars().all(fits)
    })
}

fn profile_name() -> Attribute {
    // EKS takes longer ones, which may exist
    let valid = validate::length(1, 100);
    Attribute::string().optional().computed().requires_replace().validate(valid).describe(format!(
        "The name; `{PREFIX}` and the cluster's name when left out, shortened with a digest to {LONGEST_FARGATE_PROFILE} characters, as many \
         as the label may have that pods of the profile carry."
    ))
}

/// Gives the state with which an import begins.
fn bare(cluster: &str, name: &str) -> Value {
    let id = format!("{cluster}:{name}");
    Value::object([("id", id.as_str()), ("cluster_name", cluster), ("name", name)])
}

fn id_of(model: &Model) -> String {
    format!("{}:{}", model.cluster_name.as_deref().unwrap_or_default(), model.name.as_deref().unwrap_or_default())
}

fn resolve(session: &Session, planned: &Value) -> Result<Model, Diagnostics> {
    let mut model: Model = tfplugin::from_value(planned)?;
    let tags = session.tags_all(planned.get("tags"), planned.get("cluster_name"));
    model.tags_all = Some(tfplugin::from_value(&tags)?);
    Ok(model)
}

fn tags_of(found: &SdkProfile) -> Tags {
    found.tags().map(|tags| tags.clone().into_iter().collect()).unwrap_or_default()
}

/// Puts what EKS describes into the state; the user's spelling of equal selectors stays.
fn render(model: &Model, found: &SdkProfile, tags: Tags) -> Model {
    let mut selectors: Vec<Selector> = found
        .selectors()
        .iter()
        .map(|selector| Selector {
            namespace: selector.namespace().unwrap_or_default().to_owned(),
            labels: selector
                .labels()
                .filter(|labels| !labels.is_empty())
                .map(|labels| labels.clone().into_iter().collect()),
        })
        .collect();
    let canonical = |selectors: &[Selector]| {
        let mut sorted = selectors.to_vec();
        for selector in &mut sorted {
            selector.labels = selector.labels.take().filter(|labels| !labels.is_empty());
        }
        sorted.sort();
        sorted
    };
    if canonical(&selectors) == canonical(&model.selectors) {
        selectors.clone_from(&model.selectors);
    }
    Model {
        id: Some(id_of(model)),
        arn: found.fargate_profile_arn().map(str::to_owned),
        pod_execution_role_arn: found.pod_execution_role_arn().map(str::to_owned),
        subnet_ids: found.subnets().iter().cloned().collect(),
        selectors,
        tags_all: Some(tags),
        ..model.clone()
    }
}

/// Waits for the turn at a cluster's profiles, and gives the surroundings of what is done in it: their time limit begins now. Whoever had a turn
/// before kept to a limit of its own.
async fn turn<'l>(ctx: &Context, lock: &'l Mutex<()>) -> Result<(MutexGuard<'l, ()>, Context), Interrupted> {
    let turn = ctx.stop().run_until_cancelled(lock.lock()).await.ok_or(Interrupted::Stopped)?;
    Ok((turn, Context::new(ctx.stop().clone(), ctx.limit())))
}

fn is_leaving(found: &SdkProfile) -> bool {
    found.status() == Some(&FargateProfileStatus::Deleting)
}

/// Takes over a profile that exists already, if it is what is wanted and serves no other cluster. EKS cannot change one but for its tags.
async fn take(aws: &Aws, model: &Model, found: &SdkProfile, tags: Tags, doing: &str) -> Result<String, Failure> {
    let there = render(model, found, tags.clone());
    let wanted = model.tags_all.clone().unwrap_or_default();
    check_adoptable(doing, &tags, &wanted).map_err(|f| f.at("name"))?;
    let differing: Vec<&'static str> = [
        ("pod_execution_role_arn", there.pod_execution_role_arn != model.pod_execution_role_arn),
        ("subnet_ids", there.subnet_ids != model.subnet_ids),
        ("selectors", there.selectors != model.selectors),
    ]
    .into_iter()
    .filter_map(|(name, differs)| differs.then_some(name))
    .collect();
    if let Some(first) = differing.first() {
        let what = format!("it exists with another value of {}", differing.join(", "));
        let fix = "Write what it has, choose another name, or delete it.";
        return Err(Failure::new(Kind::Exists, doing, what).at(first).with_fix(fix));
    }
    let arn = there.arn.unwrap_or_default();
    retag_eks(aws, &arn, &Change::between(&wanted, &tags, &Tags::new())).await?;
    Ok(arn)
}

async fn create(aws: &Aws, ctx: &Context, model: &Model, adopt: bool) -> Result<(String, Origin), Failure> {
    let (doing, mark) = (format!("create Fargate profile {}", id_of(model)), Mark::new());
    let wanted = model.tags_all.clone().unwrap_or_default();
    let selectors = model.selectors.iter().map(|selector| {
        let labels = selector.labels.clone().map(|labels| labels.into_iter().collect());
        FargateProfileSelector::builder().namespace(&selector.namespace).set_labels(labels).build()
    });
    let call = aws
        .eks()
        .create_fargate_profile()
        .set_cluster_name(model.cluster_name.clone())
        .set_fargate_profile_name(model.name.clone())
        .set_pod_execution_role_arn(model.pod_execution_role_arn.clone())
        .set_subnets(Some(model.subnet_ids.iter().cloned().collect()))
        .set_selectors(Some(selectors.collect()))
        .set_tags(Some(mark.on(&wanted).into_iter().collect()));
    let make = || async {
        let failure = match call.clone().send().await {
            Ok(answer) => {
                let arn = answer.fargate_profile().and_then(|profile| profile.fargate_profile_arn());
                return Ok((arn.unwrap_or_default().to_owned(), Origin::Made));
            }
            Err(e) => read_refusal(Failure::aws(&doing, e)),
        };
        match failure.kind {
            Kind::InUse => match find(aws, model).await.map_err(of_another_change)? {
                // one that goes makes room; none is another profile of the cluster that changes
                None => Err(failure),
                Some(found) if is_leaving(&found) => Err(failure),
                Some(found) => match (mark.resumed(&tags_of(&found), &wanted), adopt) {
                    (Some(tags), _) => {
                        let arn = take(aws, model, &found, tags, &doing).await.map_err(of_another_change)?;
                        Ok((arn, Origin::Made))
                    }
                    (None, true) => {
                        let arn = take(aws, model, &found, tags_of(&found), &doing).await.map_err(of_another_change)?;
                        Ok((arn, Origin::Adopted))
                    }
                    (None, false) => {
                        check_adoptable(&doing, &tags_of(&found), &wanted).map_err(|f| f.at("name"))?;
                        Err(failure.of_kind(Kind::Exists).at("name"))
                    }
                },
            },
            Kind::Missing => Err(failure.of_kind(Kind::NoCluster).at("cluster_name").with_fix(format!(
                "There is no such cluster in region {}: check `cluster_name` and `region`.",
                aws.region()
            ))),
            _ => Err(failure),
        }
    };
    // The role is waited for as long as one may be new, and the cluster's other profiles as long as this may take.
    settle_within(ctx, ctx.remaining(), &doing, || async {
        settle(ctx, &doing, &make).await.map_err(|failure| match failure.kind {
            Kind::InUse => failure.of_kind(Kind::Unsettled),
            Kind::Unsettled => failure.of_kind(Kind::Invalid).at("pod_execution_role_arn").with_fix(
                "EKS still answers so after a minute, which is too long for a role that is merely new: check that it exists, and that its trust \
                 policy lets eks-fargate-pods.amazonaws.com assume it for profiles of this cluster.",
            ),
            _ => failure,
        })
    })
    .await
}

async fn wait_active(aws: &Aws, ctx: &Context, model: &Model) -> Result<(), Failure> {
    let doing = format!("wait for Fargate profile {} to become ACTIVE", id_of(model));
    until(ctx.stop(), ctx.remaining(), &doing, || async {
        let Some(found) = find(aws, model).await? else {
            return Err(Failure::new(Kind::Missing, &doing, "it was deleted meanwhile"));
        };
        match found.status() {
            Some(FargateProfileStatus::Active) => Ok(Some(())),
            Some(FargateProfileStatus::CreateFailed) => Err(Failure::new(Kind::Unexpected, &doing, health(&found))),
            _ => Ok(None),
        }
    })
    .await
}

async fn delete(aws: &Aws, ctx: &Context, model: &Model) -> Result<(), Failure> {
    let doing = format!("delete Fargate profile {}", id_of(model));
    let call = aws
        .eks()
        .delete_fargate_profile()
        .set_cluster_name(model.cluster_name.clone())
        .set_fargate_profile_name(model.name.clone());
    let limit = ctx.remaining();
    let begun = settle_within(ctx, limit, &doing, || async {
        let answer = call.clone().send().await;
        answer.map(drop).map_err(|e| read_refusal(Failure::aws(&doing, e)).unsettled_if(|it| it.kind == Kind::InUse))
    });
    match begun.await {
        Err(failure) if failure.is_missing() => return Ok(()),
        begun => begun?,
    }
    let doing = format!("wait for Fargate profile {} to be gone", id_of(model));
    until(ctx.stop(), ctx.remaining(), &doing, || async {
        match find(aws, model).await? {
            None => Ok(Some(())),
            Some(found) if found.status() == Some(&FargateProfileStatus::DeleteFailed) => {
                Err(Failure::new(Kind::Unexpected, &doing, health(&found)))
            }
            Some(_) => Ok(None),
        }
    })
    .await
}

async fn find(aws: &Aws, model: &Model) -> Result<Option<SdkProfile>, Failure> {
    let call = aws
        .eks()
        .describe_fargate_profile()
        .set_cluster_name(model.cluster_name.clone())
        .set_fargate_profile_name(model.name.clone());
    match call.send().await {
        Ok(answer) => Ok(answer.fargate_profile),
        Err(e) => match Failure::aws(format!("read Fargate profile {}", id_of(model)), e) {
            failure if failure.is_missing() => Ok(None),
            failure => Err(failure),
        },
    }
}

/// Reads EKS's words for what passes by itself: another profile of the cluster is changing ([`Kind::InUse`]), or the role is too new
/// ([`Kind::Unsettled`]).
fn read_refusal(failure: Failure) -> Failure {
    let message = failure.message.to_ascii_lowercase();
    let tells = |words: [&str; 2]| words.iter().any(|word| message.contains(word));
    match failure.kind {
        Kind::Unsettled => failure.of_kind(Kind::InUse),
        Kind::Invalid if tells(["creating", "deleting"]) => failure.of_kind(Kind::InUse),
        Kind::Invalid if tells(["trust", "assume"]) => failure.of_kind(Kind::Unsettled),
        _ => failure,
    }
}

/// Reads what passes by itself in a step after EKS's refusal of a creation: it tells of another change, and nothing of the role.
fn of_another_change(failure: Failure) -> Failure {
    if failure.kind == Kind::Unsettled { failure.of_kind(Kind::InUse) } else { failure }
}

fn health(found: &SdkProfile) -> String {
    let issues = found.health().map(|health| health.issues()).unwrap_or_default();
    let texts: Vec<&str> = issues.iter().filter_map(|issue| issue.message()).collect();
    if texts.is_empty() { "EKS gives no reason".to_owned() } else { texts.join("; ") }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn a_limit_begins_with_the_turn_and_a_stop_ends_the_wait() {
        let ctx = Context::new(CancellationToken::new(), Duration::from_millis(300));
        let lock = Mutex::new(());
        let before = lock.lock().await;
        let others = async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            drop(before);
        };
        let (answer, ()) = tokio::join!(turn(&ctx, &lock), others);
        let (_turn, own) = answer.unwrap();
        assert!(ctx.remaining().is_zero() && !own.remaining().is_zero());
        let stop = async { ctx.stop().cancel() };
        let (answer, ()) = tokio::join!(turn(&ctx, &lock), stop);
        assert_eq!(answer.map(drop), Err(Interrupted::Stopped));
        assert!(own.stop().is_cancelled(), "the operation in its turn is stopped, too");
    }

    #[test]
    fn a_new_role_is_told_from_a_busy_cluster() {
        for (code, message, kind) in [
            ("InvalidParameterException", "Misconfigured PodExecutionRole Trust Policy", Kind::Unsettled),
            ("InvalidParameterException", "the role could not be assumed", Kind::Unsettled),
            ("InvalidRequestException", "another profile is in status CREATING", Kind::InUse),
            ("ResourceInUseException", "profile already exists", Kind::InUse),
            ("InvalidParameterException", "Subnet subnet-1 is not a private subnet", Kind::Invalid),
            ("ResourceNotFoundException", "no cluster found", Kind::Missing),
        ] {
            let failure = Failure::from_aws("x", karp_aws::Error::from_code("eks:Test", code, message.to_owned()));
            assert_eq!(read_refusal(failure).kind, kind, "{message}");
        }
        for (met, kind) in [(Kind::Unsettled, Kind::InUse), (Kind::Denied, Kind::Denied)] {
            assert_eq!(of_another_change(Failure::new(met, "take it over", "no")).kind, kind);
        }
    }
}
