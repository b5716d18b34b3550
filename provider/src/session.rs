//! What all resources of one provider block share: the configuration, and clients that are built once, when first needed.
//!
//! Building a session contacts nothing. Whatever of the provider block is unknown at plan stays so: asking for a client then answers
//! [`Kind::NotYetKnown`], and a refresh keeps the prior state with one warning.
//!
//! What is asked here is asked on the way to nearly all that the provider does, through dozens of layers of a client. It is boxed, since rustc
//! refuses futures of more than 128 layers.

mod home;
mod place;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use karp_aws::config::{CallerIdentity, Clients};
use tfplugin::{Context, Diagnostic, Diagnostics, Value};
use tokio::sync::OnceCell;

use self::home::Home;
pub use self::home::borne;
pub use self::place::{same_account, same_region};
pub use crate::aws::clients::Aws;
use crate::aws::tags::{self, CLUSTER_KEY, Tags};
use crate::cluster;
use crate::marks::Finishing;
use crate::provider::{MissingCluster, Model, Part};
use crate::report::{Failure, Kind};

/// An EKS token is good for 15 minutes; a client with one is replaced well before.
const KUBE_CLIENT_AGE: Duration = Duration::from_secs(10 * 60);
/// A plan looks no longer for what it need not know.
const FORESIGHT: Duration = Duration::from_secs(5);
/// What each object has of these, it has as soon as it was looked at.
const TOLD: [&str; 6] = ["arn", "requirements", "role_arn", "subnet_selector_terms", "template", "url"];

/// A client, and which cluster it leads to.
struct Connected {
    client: kube::Client,
    made: Instant,
    home: Arc<Home>,
}

/// One configured provider block.
#[derive(Default)]
pub struct Session {
    model: Model,
    aws: OnceCell<Aws>,
    /// The clients of other regions than the provider block's, by region.
    elsewhere: Mutex<BTreeMap<String, Aws>>,
    identity: OnceCell<CallerIdentity>,
    /// What EKS says, by region and name.
    clusters: Mutex<BTreeMap<String, Arc<OnceCell<Arc<karp_aws::eks::Cluster>>>>>,
    kube: tokio::sync::Mutex<Option<Connected>>,
    /// The instance profiles that a role was taken out of when it was deleted, by its name.
    emptied: Mutex<BTreeMap<String, BTreeSet<String>>>,
    cluster_locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// The failure that concerns all resources, once it was shown.
    down: OnceLock<Failure>,
    warned: AtomicBool,
    controller_missed: AtomicBool,
    /// What this process has begun and must still finish, whichever session began it.
    finishing: Arc<Finishing>,
}

impl Session {
    /// Starts a session with a provider block. Contacts nothing.
    pub fn new(model: Model) -> Self {
        Self { model, ..Self::default() }
    }

    /// Goes on with what the session before has left to finish.
    pub fn after(self, before: &Self) -> Self {
        Self { finishing: Arc::clone(&before.finishing), ..self }
    }

    /// Returns what takes marks off when creations were answered.
    pub fn finishing(&self) -> &Finishing {
        &self.finishing
    }

    /// Returns the provider block.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the cluster's name from the provider block; `None` when it is not set or not known yet.
    pub fn cluster_name(&self) -> Option<&str> {
        self.model.cluster_name.as_deref()
    }

    /// Gives the cluster's name that a resource left out, for its plan: the provider's, unknown, or null.
    pub fn planned_cluster_name(&self) -> Value {
        match &self.model.cluster_name {
            Some(name) => Value::from(name),
            None if self.model.unknown(Part::ClusterName).is_some() => Value::Unknown,
            None => Value::Null,
        }
    }

    /// Gives the region that AWS is called in, without contacting anything; `None` when it is not known yet.
    pub async fn region(&self) -> Option<String> {
        if let Some(region) = &self.model.aws.region {
            return Some(region.clone());
        }
        match self.built().await {
            Ok(aws) => Some(aws.region().to_owned()),
            Err(_) => None,
        }
    }

    /// Returns the AWS clients, built when first asked for. Contacts nothing, unless the provider block names accounts: then STS is asked
    /// once whose the credentials are.
    pub async fn aws(&self) -> Result<&Aws, Failure> {
        let aws = self.built().await?;
        if self.model.accounts.is_open() {
            return Ok(aws);
        }
        let account = &self.identity().await?.account_id;
        match self.model.accounts.refuse(account) {
            None => Ok(aws),
            Some(argument) => {
                let what = format!("the credentials are those of account {account}, which `{argument}` rules out");
                let failure = Failure::new(Kind::Elsewhere, "work in this account", what);
                Err(failure.with_fix(format!(
                    "Check `profile`, `assume_role` and the environment's credentials; or `{argument}` in the provider block, where this \
                     account is meant. Nothing was read or changed."
                )))
            }
        }
    }

    async fn built(&self) -> Result<&Aws, Failure> {
        self.require(Part::Aws)?;
        let build = || async {
            let clients = Clients::load(&self.model.aws).await;
            clients.map(Aws::new).map_err(|e| Failure::from_aws("set up the AWS clients", e))
        };
        Box::pin(self.aws.get_or_try_init(build)).await
    }

    /// Returns the AWS clients of the region that an object lives in: its own `region`, else that of its ARN, else the provider block's.
    pub async fn aws_of(&self, object: &Value) -> Result<Aws, Failure> {
        let home = self.aws().await?;
        let region = region_of(object).unwrap_or(home.region());
        if region == home.region() {
            return Ok(home.clone());
        }
        let mut elsewhere = lock(&self.elsewhere);
        let there = elsewhere.entry(region.to_owned()).or_insert_with(|| Aws::new(home.clients().in_region(region)));
        Ok(there.clone())
    }

    /// Returns who calls AWS: asked once.
    pub async fn identity(&self) -> Result<&CallerIdentity, Failure> {
        let aws = self.built().await?;
        let ask = || async {
            let answer = aws.clients().caller_identity().await;
            answer.map_err(|e| Failure::from_aws("ask AWS whose credentials these are", e))
        };
        Box::pin(self.identity.get_or_try_init(ask)).await
    }

    /// Describes an EKS cluster of the provider block's region: asked once for each name.
    pub async fn cluster(&self, name: &str) -> Result<Arc<karp_aws::eks::Cluster>, Failure> {
        self.described(self.aws().await?, name).await
    }

    /// Describes an EKS cluster of the region that an object names, or of the provider block's.
    pub async fn cluster_of(&self, object: &Value, name: &str) -> Result<Arc<karp_aws::eks::Cluster>, Failure> {
        self.described(&self.aws_of(object).await?, name).await
    }

    async fn described(&self, aws: &Aws, name: &str) -> Result<Arc<karp_aws::eks::Cluster>, Failure> {
        let key = format!("{}/{name}", aws.region());
        let cell = Arc::clone(lock(&self.clusters).entry(key).or_default());
        let ask = || async {
            let answer = karp_aws::eks::describe(aws.clients(), name).await;
            answer.map(Arc::new).map_err(|e| {
                let failure = Failure::from_aws(format!("find EKS cluster {name:?}"), e);
                if failure.is_missing() {
                    return failure.of_kind(Kind::NoCluster).with_fix(format!(
                        "There is no cluster {name:?} in region {}: check `cluster_name` and `region`. If it was deleted outside Terraform, \
                         set `missing_cluster = \"forget\"` in the provider block for one run: what lived in it then leaves the state.",
                        aws.region()
                    ));
                }
                failure
            })
        };
        Box::pin(cell.get_or_try_init(ask)).await.cloned()
    }

    /// Returns a client of the cluster's API server: as `kubernetes` says, else by the EKS cluster `cluster_name` with a token of the
    /// AWS credentials. Ask again before each long wait: tokens live 15 minutes.
    pub async fn kube(&self) -> Result<kube::Client, Failure> {
        Ok(self.connected().await?.0)
    }

    async fn connected(&self) -> Result<(kube::Client, Arc<Home>), Failure> {
        self.require(Part::Kubernetes)?;
        let mut kept = self.kube.lock().await;
        if let Some(Connected { client, home, .. }) = kept.as_ref().filter(|kept| kept.made.elapsed() < KUBE_CLIENT_AGE)
        {
            return Ok((client.clone(), Arc::clone(home)));
        }
        let client = Box::pin(self.connect()).await?;
        // a new client may lead elsewhere
        let home = Arc::<Home>::default();
        *kept = Some(Connected { client: client.clone(), made: Instant::now(), home: Arc::clone(&home) });
        Ok((client, home))
    }

    /// Notes which instance profiles a role was taken out of, since it goes.
    pub fn emptied(&self, role: &str, profiles: BTreeSet<String>) {
        lock(&self.emptied).insert(role.to_owned(), profiles);
    }

    /// Gives the instance profiles that a role of this name was taken out of in this run: another of the name has taken its place.
    pub fn take_emptied(&self, role: &str) -> BTreeSet<String> {
        lock(&self.emptied).remove(role).unwrap_or_default()
    }

    /// Gives the lock under which a cluster's Fargate profiles are changed: EKS allows one such operation at a time.
    pub fn cluster_lock(&self, region: &str, cluster: &str) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(lock(&self.cluster_locks).entry(format!("{region}/{cluster}")).or_default())
    }

    /// Gives all tags of an object: the provider's defaults, then its own without what is ignored, then the one that names its cluster.
    /// Unknown when any part is.
    pub fn tags_all(&self, own: &Value, cluster_name: &Value) -> Value {
        if !own.whole_known() || !cluster_name.is_known() || self.model.unknown(Part::Tags).is_some() {
            return Value::Unknown;
        }
        let mut all: Tags = self.model.default_tags.clone();
        let own = own.as_map().into_iter().flatten();
        all.extend(own.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))));
        all.retain(|key, _| !self.model.ignore_tags.covers(key));
        if let Some(name) = cluster_name.as_str() {
            all.insert(CLUSTER_KEY.to_owned(), name.to_owned());
        }
        Value::object(all)
    }

    /// Gives the part of an object's tags that karp keeps, where the state says that these are karp's; an import says nothing yet.
    pub fn owned_part(&self, actual: &Tags, owned: Option<&Tags>) -> Tags {
        tags::owned_part(actual, owned, &self.model.ignore_tags)
    }

    /// Gives the tags that a state says are karp's to take away: what the provider block ignores by now is not.
    pub fn owned(&self, prior: &Value) -> Tags {
        let all = tfplugin::from_value::<Option<Tags>>(prior.get("tags_all")).ok().flatten().unwrap_or_default();
        self.owned_part(&all, Some(&all))
    }

    /// Completes the state of an import or a move by what the object's tags tell: its cluster (else the provider's) and, where no
    /// `tags_all` says which are its own yet, its tags. Any other state comes back as it is.
    pub fn recover(&self, state: Value, actual: &Tags, tags_all: Option<&Tags>) -> Value {
        let mut state = state;
        if state.get("cluster_name").is_null() {
            let cluster = actual.get(CLUSTER_KEY).map(String::as_str).or(self.cluster_name());
            state.set("cluster_name", cluster);
        }
        if tags_all.is_some() {
            return state;
        }
        let own = |(key, value): &(&String, &String)| {
            *key != CLUSTER_KEY && self.model.default_tags.get(*key) != Some(*value)
        };
        let kept = self.owned_part(actual, None);
        let own: Tags = kept.iter().filter(own).map(|(key, value)| (key.clone(), value.clone())).collect();
        if !own.is_empty() {
            state.set("tags", own);
        }
        state
    }

    /// Refreshes a resource by `look`, under the rules for a plan: unknown configuration keeps the prior state with one warning, an
    /// unreachable AWS or API server is one error, `offline_plan` looks at nothing, and so cannot take in what was never looked at.
    pub async fn refresh<F>(
        &self,
        ctx: &Context,
        needs: &[Part],
        prior: &Value,
        look: F,
    ) -> Result<Option<Value>, Diagnostics>
    where
        F: Future<Output = Result<Option<Value>, Failure>>,
    {
        if self.model.offline_plan && is_bare(prior) {
            return Err(unread(prior).into());
        }
        if self.model.offline_plan || self.down.get().is_some() {
            return Ok(Some(prior.clone()));
        }
        if let Some(argument) = needs.iter().find_map(|part| self.model.unknown(*part)) {
            self.warn_unknown(ctx, argument);
            return Ok(Some(prior.clone()));
        }
        let looked = async {
            self.check_region(prior).await?;
            match look.await? {
                Some(state) => self.without_own_region(prior, state).await.map(Some),
                None => self.check_account(prior).await.map(|()| None),
            }
        };
        match ctx.run(looked).await? {
            Ok(state) => Ok(state),
            Err(failure) if failure.kind == Kind::NotYetKnown => {
                self.warn_unknown(ctx, &failure.message);
                Ok(Some(prior.clone()))
            }
            Err(failure) if self.may_forget(needs, failure.kind) => {
                ctx.warn(Diagnostic::warning(
                    "Forgotten with its cluster",
                    format!(
                        "{}\n\nIt is taken out of the state, because `missing_cluster` is \"forget\".",
                        failure.message
                    ),
                ));
                Ok(None)
            }
            // Every other resource would say the same: the first one speaks, and the plan fails with it.
            Err(failure) if failure.concerns_all() && self.down.set(failure.clone()).is_err() => {
                Ok(Some(prior.clone()))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Looks at plan for what the apply finds out as well; nothing with `offline_plan`, or where it cannot be seen soon.
    pub async fn foresee<T>(&self, ctx: &Context, look: impl Future<Output = Option<T>>) -> Option<T> {
        if self.model.offline_plan {
            return None;
        }
        tokio::time::timeout(FORESIGHT, ctx.run(look)).await.ok()?.ok()?
    }

    /// Notes that a controller was waited for in vain.
    pub fn miss_controller(&self) {
        self.controller_missed.store(true, Ordering::Relaxed);
    }

    /// Says whether a controller was waited for in vain: the next one that needs it looks, and waits no longer.
    pub fn misses_controller(&self) -> bool {
        self.controller_missed.load(Ordering::Relaxed)
    }

    /// Says whether what lived in a cluster that is gone leaves the state in this run.
    pub fn forgets(&self) -> bool {
        self.model.missing_cluster == MissingCluster::Forget
    }

    /// Says whether an object that lives in the cluster may be taken for gone: when EKS has no such cluster, or when the one that answers is another.
    fn may_forget(&self, needs: &[Part], kind: Kind) -> bool {
        let is_gone = match kind {
            Kind::NoCluster => needs.contains(&Part::ClusterName),
            kind => kind == Kind::OtherCluster,
        };
        self.forgets() && is_gone
    }

    /// Takes the provider's own region out of what was imported or moved here: identities and states of hashicorp/aws always name one, and
    /// few configurations do.
    async fn without_own_region(&self, prior: &Value, state: Value) -> Result<Value, Failure> {
        match prior.get("region").as_str().filter(|_| is_bare(prior)) {
            Some(region) if region == self.aws().await?.region() => Ok(state.with("region", Value::Null)),
            _ => Ok(state),
        }
    }

    /// Refuses to believe in a provider block of another region than that of an object which names none of its own.
    async fn check_region(&self, prior: &Value) -> Result<(), Failure> {
        let Some(region) = part_of_arn(prior, 3) else { return Ok(()) };
        if !prior.get("region").is_null() {
            return Ok(());
        }
        same_region(region, self.aws().await?.region(), &reading(prior))
    }

    /// Refuses to believe that an object is gone when it belongs to another account.
    async fn check_account(&self, prior: &Value) -> Result<(), Failure> {
        match part_of_arn(prior, 4) {
            Some(account) => same_account(account, &self.identity().await?.account_id, &reading(prior)),
            None => Ok(()),
        }
    }

    fn warn_unknown(&self, ctx: &Context, argument: &str) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            ctx.warn(Diagnostic::warning(
                "State was not refreshed",
                format!(
                    "`{argument}` of the provider block will be known only after apply, so karp's resources keep their last state in \
                     this plan."
                ),
            ));
        }
    }

    fn require(&self, part: Part) -> Result<(), Failure> {
        match self.model.unknown(part) {
            None => Ok(()),
            Some(argument) => {
                let doing = format!("use `{argument}` of the provider block");
                Err(Failure::new(Kind::NotYetKnown, doing, argument))
            }
        }
    }

    async fn connect(&self) -> Result<kube::Client, Failure> {
        if let Some(given) = &self.model.kubernetes {
            return cluster::connect(&cluster::of_block(given)).await;
        }
        self.require(Part::ClusterName)?;
        let Some(name) = self.cluster_name() else {
            let doing = "find the cluster's API server";
            return Err(Failure::new(Kind::Unconfigured, doing, "neither `cluster_name` nor `kubernetes` is set").with_fix(
                "Set `cluster_name` in the provider block (EKS then gives the address), or `kubernetes` with the API server's address.",
            ));
        };
        self.connect_eks(name).await
    }

    async fn connect_eks(&self, name: &str) -> Result<kube::Client, Failure> {
        let aws = self.aws().await?;
        let described = self.cluster(name).await?;
        let token = karp_aws::token::bearer(aws.clients(), name).await;
        let token = token.map_err(|e| Failure::from_aws(format!("make a token for EKS cluster {name:?}"), e))?;
        cluster::connect(&cluster::of_eks(&described, &token)).await
    }
}

/// Says whether a state holds no more than where to find the object, as an import or a `moved` block begins with.
pub fn is_bare(state: &Value) -> bool {
    let untold = |name| state.as_map().is_some_and(|map| map.get(name).is_some_and(Value::is_null));
    TOLD.into_iter().any(untold)
}

fn unread(prior: &Value) -> Diagnostic {
    let id = prior.get("id").as_str().unwrap_or_default();
    Diagnostic::error(
        format!("{id:?} cannot be read offline"),
        "It was imported or moved here, and nothing is known of it to plan from. Plan and apply once without `offline_plan` in the \
         provider block; then it can be planned offline too.",
    )
}

/// Says what is done to an object of which a state tells.
fn reading(prior: &Value) -> String {
    format!("read {}", prior.get("arn").as_str().unwrap_or_default())
}

/// Gives the part of the ARN in state at a position, where it is not empty: 3 is the region, 4 the account.
pub fn part_of_arn(prior: &Value, position: usize) -> Option<&str> {
    prior.get("arn").as_str()?.split(':').nth(position).filter(|part| !part.is_empty())
}

/// Gives the region that an object names as its own, or that its ARN tells.
pub fn region_of(object: &Value) -> Option<&str> {
    object.get("region").as_str().or_else(|| part_of_arn(object, 3))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing panics while holding it; a poisoned map is as good as before.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
