//! What the cluster still holds of a pool or of all pools: NodeClaims, their Nodes, and a controller that works on them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use karp_aws::instances::instance_id;
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool, labels};
use karp_domain::lease::{Onlooker, Sight};
use karp_kube::Error;
use karp_kube::rbac::LEASE;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

/// Nobody has renewed the lease for this long: no controller runs. One that is started again is at work within this time.
pub const LEASE_PATIENCE: Duration = Duration::from_secs(90);
/// Whether a controller is at work is looked at for no longer than this.
const GLANCE: Duration = Duration::from_secs(10);
/// Others may write an object at any time; one that they write more often than this is told of.
const ATTEMPTS: usize = 8;
/// Where a NodeClaim names its class.
const CLASS_OF_CLAIM: &str = "/spec/nodeClassRef";
/// Where a NodePool names its class.
const CLASS_OF_POOL: &str = "/spec/template/spec/nodeClassRef";
/// So many names are shown; more would hide the point.
const SHOWN: usize = 5;

/// How many NodeClaims are asked to end.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// It is only looked.
    Nobody,
    /// So many are on their way at a time.
    AtOnce(usize),
    /// All.
    All,
}

/// NodeClaims and Nodes that are still there.
pub struct Left {
    claims: Vec<String>,
    nodes: Vec<String>,
    staying: usize,
    overdue: Vec<String>,
}

impl Left {
    /// Tells whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.nodes.is_empty()
    }

    /// Names the NodeClaims.
    pub fn claims(&self) -> &[String] {
        &self.claims
    }

    /// Counts the NodeClaims that nobody has asked to end yet.
    pub fn staying(&self) -> usize {
        self.staying
    }

    /// Names the NodeClaims whose grace period is over: their pods are deleted, and not waited for.
    pub fn overdue(&self) -> &[String] {
        &self.overdue
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", counted("NodeClaim", &self.claims), counted("Node", &self.nodes))
    }
}

/// Counts objects and names some of them: `2 Nodes (a, b)`.
pub fn counted(kind: &str, names: &[String]) -> String {
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    let plural = if names.len() == 1 { "" } else { "s" };
    let shown = match names.len() {
        0 => String::new(),
        count if count > SHOWN => format!(" ({shown}, …)"),
        _ => format!(" ({shown})"),
    };
    format!("{} {kind}{plural}{shown}", names.len())
}

/// Lists what is left under a label selector, and asks NodeClaims to end that nobody has asked yet.
pub async fn left(client: &Client, selector: &str, ask: Ask) -> Result<Left, Error> {
    let params = ListParams::default().labels(selector);
    let claims = listed_raw::<NodeClaim>(client, &params).await?;
    left_with(client, &claims, &params, ask).await
}

/// Lists what is left in the whole cluster of what controllers on EC2 made, and asks NodeClaims to end that nobody has asked yet.
/// Nodes are told by their class: those of EKS Auto Mode have a pool too, and are none of ours.
pub async fn left_of_all(client: &Client, ask: Ask) -> Result<Left, Error> {
    let mut claims = listed_raw::<NodeClaim>(client, &ListParams::default()).await?;
    claims.retain(|claim| is_ours(claim, CLASS_OF_CLAIM));
    left_with(client, &claims, &ListParams::default().labels(labels::EC2_NODE_CLASS), ask).await
}

async fn left_with(client: &Client, claims: &[DynamicObject], nodes: &ListParams, ask: Ask) -> Result<Left, Error> {
    let api = raw::<NodeClaim>(client);
    let (leaving, staying): (Vec<_>, Vec<_>) =
        claims.iter().partition(|claim| claim.metadata.deletion_timestamp.is_some());
    let asked = match ask {
        Ask::Nobody => 0,
        Ask::AtOnce(most) => most.saturating_sub(leaving.len()).min(staying.len()),
        Ask::All => staying.len(),
    };
    for claim in &staying[..asked] {
        match api.delete(&claim.name_any(), &DeleteParams::default()).await.map_err(Error::from) {
            Ok(_) | Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let now = Timestamp::now();
    let is_overdue = |claim: &&DynamicObject| {
        let end = claim.annotations().get(labels::TERMINATION_TIMESTAMP);
        end.and_then(|end| end.parse::<Timestamp>().ok()).is_some_and(|end| end <= now)
    };
    let nodes = Api::<Node>::all(client.clone()).list(nodes).await?.items;
    Ok(Left {
        claims: names(claims.iter()),
        nodes: names(nodes.iter()),
        staying: staying.len() - asked,
        overdue: names(leaving.into_iter().filter(is_overdue)),
    })
}

/// Pools and classes that are deleted and wait for a controller to take them away.
pub struct Leaving {
    pools: Vec<String>,
    classes: Vec<String>,
}

impl Leaving {
    /// Tells whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty() && self.classes.is_empty()
    }
}

impl fmt::Display for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [("NodePool", &self.pools), ("EC2NodeClass", &self.classes)];
        let told = kinds.into_iter().filter(|(_, names)| !names.is_empty()).map(|(kind, names)| counted(kind, names));
        f.write_str(&told.collect::<Vec<_>>().join(", "))
    }
}

/// Lists the pools and classes of controllers on EC2 that are deleted and not gone.
pub async fn leaving(client: &Client) -> Result<Leaving, Error> {
    let pools = our_pools(client).await?;
    let classes = listed_raw::<Ec2NodeClass>(client, &ListParams::default()).await?;
    let is_deleted = |metadata: &kube::core::ObjectMeta| metadata.deletion_timestamp.is_some();
    Ok(Leaving {
        pools: names(pools.iter().filter(|pool| is_deleted(&pool.metadata))),
        classes: names(classes.iter().filter(|class| is_deleted(&class.metadata))),
    })
}

/// Lets go of what no controller will end any more: NodeClaims and Nodes, whose instances must have ended, are deleted without karp's
/// finalizers; pools and classes that wait for their deletion lose theirs. Says what it was; nothing where nothing was left.
pub async fn release(client: &Client) -> Result<Option<String>, Error> {
    let left = left_of_all(client, Ask::Nobody).await?;
    for name in &left.claims {
        let_go(&raw::<NodeClaim>(client), name).await?;
    }
    for name in &left.nodes {
        let_go(&raw::<Node>(client), name).await?;
    }
    let mut told = if left.is_empty() { Vec::new() } else { vec![left.to_string()] };
    let leaving = leaving(client).await?;
    for name in &leaving.pools {
        let_go(&raw::<NodePool>(client), name).await?;
    }
    for name in &leaving.classes {
        let_go(&raw::<Ec2NodeClass>(client), name).await?;
    }
    told.extend((!leaving.is_empty()).then(|| leaving.to_string()));
    Ok((!told.is_empty()).then(|| told.join(", ")))
}

/// An instance that an object of the cluster stands for.
pub struct Held {
    /// The object's kind and name.
    pub by: String,
    /// The instance's id, `i-…`.
    pub id: String,
    /// The instance's zone.
    pub zone: String,
}

impl Held {
    fn of(kind: &str, object: &DynamicObject, path: &str) -> Option<Self> {
        let provider_id = object.data.pointer(path)?.as_str()?;
        let id = instance_id(provider_id)?.to_owned();
        let zone = provider_id.rsplit('/').nth(1).unwrap_or_default().to_owned();
        Some(Self { by: format!("{kind} {}", object.name_any()), id, zone })
    }
}

/// Lists the instances that NodeClaims and Nodes stand for in the whole cluster, of what controllers on EC2 made.
pub async fn instances(client: &Client) -> Result<Vec<Held>, Error> {
    let mut claims = listed_raw::<NodeClaim>(client, &ListParams::default()).await?;
    claims.retain(|claim| is_ours(claim, CLASS_OF_CLAIM));
    let nodes = listed_raw::<Node>(client, &ListParams::default().labels(labels::EC2_NODE_CLASS)).await?;
    let by_claims = claims.iter().filter_map(|claim| Held::of("NodeClaim", claim, "/status/providerID"));
    let by_nodes = nodes.iter().filter_map(|node| Held::of("Node", node, "/spec/providerID"));
    Ok(by_claims.chain(by_nodes).collect())
}

fn names<'a, K: kube::Resource + 'a>(objects: impl Iterator<Item = &'a K>) -> Vec<String> {
    objects.map(ResourceExt::name_any).collect()
}

/// Lists objects of a kind; none where its CRD is gone.
pub async fn listed<K>(client: &Client, params: &ListParams) -> Result<Vec<K>, Error>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug,
{
    every(&Api::<K>::all(client.clone()), params).await
}

/// Lists objects of a kind as they are, so that one which the API server admits and which cannot be read does not fail the list; none where its
/// CRD is gone.
pub async fn listed_raw<K>(client: &Client, params: &ListParams) -> Result<Vec<DynamicObject>, Error>
where
    K: kube::Resource<DynamicType = ()>,
{
    every(&raw::<K>(client), params).await
}

async fn every<K>(api: &Api<K>, params: &ListParams) -> Result<Vec<K>, Error>
where
    K: Clone + DeserializeOwned + fmt::Debug,
{
    match api.list(params).await.map_err(Error::from) {
        Ok(list) => Ok(list.items),
        Err(Error::UnknownKind { .. } | Error::NotFound { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns the API of a kind whose objects are taken as they are: also the answer to a deletion has one that may not be read.
pub fn raw<K: kube::Resource<DynamicType = ()>>(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<K>(&()))
}

/// Says whether an object's node class, at this path, is one of controllers on EC2.
fn is_ours(object: &DynamicObject, class: &str) -> bool {
    let group = object.data.pointer(class).and_then(|class| class["group"].as_str());
    group.is_some_and(labels::is_ours)
}

/// Deletes an object and takes the controller's finalizers off it; those of others stay.
async fn let_go(api: &Api<DynamicObject>, name: &str) -> Result<(), Error> {
    let told = |answer: Result<(), kube::Error>| match answer.map_err(Error::from) {
        Err(Error::NotFound { .. }) => Ok(()),
        answer => answer,
    };
    told(api.delete(name, &DeleteParams::default()).await.map(drop))?;
    let theirs = |finalizer: &&String| {
        ![labels::TERMINATION_FINALIZER, labels::AWS_TERMINATION_FINALIZER].contains(&finalizer.as_str())
    };
    let mut answer = Ok(());
    for _ in 0..ATTEMPTS {
        let Some(live) = api.get_opt(name).await? else { return Ok(()) };
        let kept: Vec<&String> = live.finalizers().iter().filter(theirs).collect();
        let metadata = json!({ "finalizers": kept, "resourceVersion": live.resource_version() });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        answer = told(api.patch(name, &PatchParams::default(), &patch).await.map(drop));
        // A kubelet writes its Node's status at any time.
        if !matches!(answer, Err(Error::Stale { .. })) {
            break;
        }
    }
    answer
}

/// Names the NodePools that the controller acts on and that nobody has deleted yet.
pub async fn pools(client: &Client) -> Result<Vec<String>, Error> {
    let pools = our_pools(client).await?;
    Ok(names(pools.iter().filter(|pool| pool.metadata.deletion_timestamp.is_none())))
}

async fn our_pools(client: &Client) -> Result<Vec<DynamicObject>, Error> {
    let mut pools = listed_raw::<NodePool>(client, &ListParams::default()).await?;
    pools.retain(|pool| is_ours(pool, CLASS_OF_POOL));
    Ok(pools)
}

/// Names the NodeClaims that the controller is responsible for.
pub async fn live(client: &Client) -> Result<Vec<String>, Error> {
    let claims = listed_raw::<NodeClaim>(client, &ListParams::default()).await?;
    Ok(names(claims.iter().filter(|claim| is_ours(claim, CLASS_OF_CLAIM))))
}

/// The leases by which controllers lead, in any namespace, as one wait sees them.
#[derive(Default)]
pub struct Leaders(BTreeMap<String, Onlooker>);

impl Leaders {
    /// Looks, `now` after the first look, and tells whether a controller is at work: one renewed its lease since an earlier look, whatever
    /// its clock says, or lately by the clock. In doubt it is.
    pub async fn at_work(&mut self, client: &Client, now: Duration) -> bool {
        let params = ListParams::default().fields(&format!("metadata.name={LEASE}"));
        let leases = Api::<Lease>::all(client.clone());
        let Ok(Ok(leases)) = tokio::time::timeout(GLANCE, leases.list(&params)).await else { return true };
        self.look(&leases.items, now, Timestamp::now())
    }

    fn look(&mut self, leases: &[Lease], now: Duration, clock: Timestamp) -> bool {
        let mut at_work = false;
        for lease in leases {
            let onlooker = self.0.entry(lease.namespace().unwrap_or_default()).or_default();
            let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
            let lately = renewed.is_some_and(|renewed| clock.duration_since(renewed.0).unsigned_abs() < LEASE_PATIENCE);
            at_work |= matches!(onlooker.look(lease.spec.as_ref(), now), Sight::Renewed(_)) || lately;
        }
        at_work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_told_by_its_class() {
        let claim = |group: &str| {
            json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": "odd" },
                "spec": { "nodeClassRef": { "group": group, "kind": "EC2NodeClass", "name": "default" },
                    "requirements": [], "resources": { "requests": { "cpu": "1e60" } } } })
        };
        let ours = |group: &str| is_ours(&serde_json::from_value(claim(group)).expect("an object"), CLASS_OF_CLAIM);
        assert!(serde_json::from_value::<NodeClaim>(claim("karpenter.k8s.aws")).is_err(), "it is too much");
        assert!(ours("karpenter.k8s.aws") && !ours("eks.amazonaws.com"));
        let pool = json!({ "metadata": { "name": "odd" }, "spec": { "template": { "spec": {
            "nodeClassRef": { "group": "karpenter.k8s.aws" } } } } });
        assert!(is_ours(&serde_json::from_value(pool).expect("an object"), CLASS_OF_POOL));
    }

    #[test]
    fn an_instance_is_told_by_its_provider_id() {
        let held = |id: &str| {
            let claim = json!({ "metadata": { "name": "a" }, "status": { "providerID": id } });
            let claim: DynamicObject = serde_json::from_value(claim).expect("an object");
            Held::of("NodeClaim", &claim, "/status/providerID").map(|held| (held.by, held.zone, held.id))
        };
        let told = ["NodeClaim a", "eu-west-1a", "i-1"].map(str::to_owned);
        assert_eq!(held("aws:///eu-west-1a/i-1"), Some(told.into()));
        assert_eq!(held("simulated:///eu-west-1a/i-1"), None);
        assert_eq!(held("aws:///eu-west-1a/fargate-1"), None);
        assert_eq!(held(""), None);
    }

    #[test]
    fn a_controller_with_another_clock_is_at_work_when_it_renews() {
        let lease = |by: &str, renewal: i64| -> Lease {
            let renewed = Timestamp::from_second(renewal).expect("a time").to_string();
            serde_json::from_value(json!({ "metadata": { "namespace": "karp" },
                "spec": { "holderIdentity": by, "renewTime": renewed.replace('Z', ".000000Z") } }))
            .expect("a lease")
        };
        let (clock, at) = (Timestamp::from_second(100_000).expect("a time"), Duration::from_secs);
        let mut leaders = Leaders::default();
        assert!(!leaders.look(&[], at(0), clock));
        // An hour behind: nothing is known at the first look, and all at the second.
        assert!(!leaders.look(&[lease("a", 96_400)], at(0), clock));
        assert!(leaders.look(&[lease("a", 96_410)], at(10), clock));
        assert!(!leaders.look(&[lease("a", 96_410)], at(30), clock), "it renews no more");
        // One that starts again is at work by its clock, before it has done anything.
        assert!(leaders.look(&[lease("", 99_950)], at(40), clock));
    }
}
