//! An API server that answers 429: somebody else keeps it busy, or a burst of the controller's own does.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use karp_domain::api::{NodeClaim, labels};
use kube::api::DeleteParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::support::{create, until, until_within};
use super::{lease, stand};

/// Longer than a lease lives.
const SPAN: Duration = Duration::from_secs(20);
/// How soon after it all pods run.
const HEALED: Duration = Duration::from_secs(60);
/// Each needs a node of its own.
const PODS: u32 = 40;
const A_NODE: &str = "15";
/// The API server's metric of what it turned away.
const REFUSED: &str = "apiserver_flowcontrol_rejected_requests_total";

/// A priority level without a seat, which one request at a time may use all the same: all that a service account asks goes there but its lease, as
/// on EKS, where leases of `kube-system` have a level of their own.
struct Starvation {
    name: String,
    levels: Api<PriorityLevelConfiguration>,
    schemas: Api<FlowSchema>,
}

impl Starvation {
    async fn of(client: &Client, namespace: &str) -> Self {
        let (levels, schemas) = (Api::all(client.clone()), Api::all(client.clone()));
        let name = namespace.to_owned();
        let none = json!({ "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
            "limitResponse": { "type": "Reject" } });
        let level = json!({ "metadata": { "name": name }, "spec": { "type": "Limited", "limited": none } });
        create::<PriorityLevelConfiguration>(&levels, level).await;
        let schema = |of: &str, precedence: u32, level: &str, group: &str, resource: &str| {
            let rule = json!({ "verbs": ["*"], "apiGroups": [group], "resources": [resource], "namespaces": ["*"],
                "clusterScope": true });
            let account =
                json!({ "kind": "ServiceAccount", "serviceAccount": { "namespace": namespace, "name": "*" } });
            json!({ "metadata": { "name": format!("{namespace}-{of}") }, "spec": {
                "matchingPrecedence": precedence,
                "priorityLevelConfiguration": { "name": level },
                "rules": [{ "subjects": [account], "resourceRules": [rule] }],
            } })
        };
        let lease = schema("lease", 90, "leader-election", "coordination.k8s.io", "leases");
        let rest = schema("rest", 91, namespace, "*", "*");
        for all in [lease, rest] {
            create::<FlowSchema>(&schemas, all).await;
        }
        Self { name, levels, schemas }
    }

    async fn end(self) {
        for of in ["lease", "rest"] {
            let name = format!("{}-{of}", self.name);
            self.schemas.delete(&name, &DeleteParams::default()).await.expect("the schema is deleted");
        }
        self.levels.delete(&self.name, &DeleteParams::default()).await.expect("the level is deleted");
    }
}

/// Returns how many requests the API server has turned away from a priority level.
async fn refused(client: &Client, level: &str) -> u64 {
    let asked = http::Request::get("/metrics").body(Vec::new()).expect("a request");
    let metrics = client.request_text(asked).await.expect("metrics");
    let ours = format!("priority_level=\"{level}\"");
    let of = metrics.lines().filter(|line| line.starts_with(REFUSED) && line.contains(&ours));
    of.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
}

#[tokio::test]
async fn a_controller_that_is_turned_away_keeps_its_lease_and_goes_on() {
    let Some(mut stand) = stand("starved").await else { return };
    stand.pool_of(json!({ "template": stand.template(labels::INSTANCE_CPU, &["16"]) })).await;
    stand.deployment(1, A_NODE).await;
    until("a pod runs", async || stand.running().await == 1).await;
    let leases: Api<Lease> = Api::namespaced(stand.client.clone(), &stand.name);
    let led = async || -> Value {
        let lease = leases.get(&lease(&stand.name)).await.expect("the lease").spec.expect("a holder");
        json!([lease.holder_identity, lease.lease_transitions])
    };
    let before = led().await;

    let starvation = Starvation::of(&stand.client, &stand.name).await;
    let begin = Instant::now();
    stand.scale(PODS).await;
    while begin.elapsed() < SPAN {
        assert_eq!(led().await, before, "the lease is kept");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let (turned, running) = (refused(&stand.client, &stand.name).await, stand.running().await);
    assert!(turned >= u64::from(PODS), "{turned} requests were turned away");
    starvation.end().await;
    let healed = Instant::now();
    until_within(HEALED, "all pods run", async || stand.running().await == PODS as usize).await;
    println!(
        "figure: {turned} requests were turned away in {SPAN:?}, when {running} of {PODS} pods ran; all did {:.1?} later",
        healed.elapsed()
    );

    let code = stand.controller.as_mut().expect("it was started").try_wait().expect("it is a child");
    assert_eq!((code, led().await), (None, before), "it runs on, and leads");
    let log = stand.log();
    let created = log.lines().filter(|line| line.contains("\"created nodeclaim\"")).count();
    let claims = stand.mine::<NodeClaim>().await.len();
    assert_eq!((created, claims), (PODS as usize, PODS as usize), "one for each pod, none in vain");
    stand.scale(0).await;
    stand.leave().await;
}
