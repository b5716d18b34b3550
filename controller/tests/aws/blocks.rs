//! Capacity blocks from their launch to their end.

use jiff::{SignedDuration, Timestamp};
use karp_domain::api::{NodeClaim, ReservationState, labels};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::reserved::{labelled, select};
use crate::support::stand::Stand;
use crate::support::until;

/// How long before a block's end its nodes leave.
const LEAVES: SignedDuration = SignedDuration::from_mins(40);
/// How long that is ahead when EC2 lists the block for the last time: a few looks of the controller.
const AHEAD: SignedDuration = SignedDuration::from_secs(30);
/// The blocks: one for a node, and one that has room and is about to end.
const BLOCK: &str = "cr-block";
const ENDING: &str = "cr-ending";

/// Nodes are launched into a block that has room and time left, as its market wants it, and leave before it ends even while EC2 lists nothing.
pub async fn until_the_end(stand: Stand) {
    let tags = json!({ "karp-test": stand.name });
    let block = |id: &str, count: u32, end: Timestamp| {
        json!({ "id": id, "instance_type": "m5.large", "zone": "us-east-1b", "count": count, "type": "capacity-block",
            "end": end.to_string(), "tags": tags })
    };
    let from_now =
        |span: SignedDuration| Timestamp::from_second((Timestamp::now() + span).as_second()).expect("a time");
    let far = from_now(SignedDuration::from_hours(24));
    let late = block(ENDING, 5, from_now(LEAVES / 2));
    stand.aws.reserve(&stand.name, vec![block(BLOCK, 1, far), late.clone()]);
    let classes = select(&stand, &tags).await;
    stand.deployment(2, "1500m").await;
    stand.until_running(2).await;

    let status = classes.get(&stand.name).await.expect("the class").status.expect("a status");
    let told: Vec<_> = status.capacity_reservations.iter().map(|one| (&*one.id, one.state)).collect();
    assert_eq!(told, [(BLOCK, ReservationState::Active), (ENDING, ReservationState::Expiring)]);
    let claims = stand.mine::<NodeClaim>().await;
    let of = |key: &str| {
        let mut all: Vec<_> = claims.iter().filter_map(|claim| labelled(claim, key)).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(of(labels::CAPACITY_TYPE), ["on-demand", "reserved"], "one block is full, the other is about to end");
    assert_eq!(
        (of(labels::CAPACITY_RESERVATION_ID), of(labels::CAPACITY_RESERVATION_TYPE)),
        (vec![BLOCK], vec!["capacity-block"])
    );
    let mut markets = sent(&stand);
    // a claim that may be bought otherwise can take the place that another was planned for, which EC2 then refuses
    markets.sort_unstable();
    markets.dedup();
    assert_eq!(markets, ["capacity-block", "on-demand"], "each launch names its market");

    let held = claims.iter().find(|one| labelled(*one, labels::CAPACITY_TYPE) == Some("reserved")).expect("one");
    let all: Api<NodeClaim> = Api::all(stand.client.clone());
    until_told(&all, held, far).await;
    let end = from_now(LEAVES + AHEAD);
    stand.aws.reserve(&stand.name, vec![block(BLOCK, 1, end), late]);
    until_told(&all, held, end).await;
    let fail = |rule: Value| {
        let mut whole = json!({ "action": "DescribeCapacityReservations", "where": stand.name });
        whole.as_object_mut().expect("a rule").extend(rule.as_object().cloned().expect("a rule"));
        stand.aws.door("fail", &json!([whole]));
    };
    fail(json!({ "seconds": 600 }));
    let asked = stand.until_gone(held).await;
    assert!(asked.as_second() >= (end - LEAVES).as_second(), "it left at {asked}, the block ends at {end}");
    stand.until_running(2).await;
    let claims = stand.mine::<NodeClaim>().await;
    let bought: Vec<_> = claims.iter().map(|one| labelled(one, labels::CAPACITY_TYPE)).collect();
    assert_eq!(bought, [Some("on-demand"); 2], "nothing is launched into what is about to end");
    fail(json!({ "times": 0 }));
    stand.aws.reserve(&stand.name, Vec::new());
    stand.leave().await;
}

/// Waits until a claim says when its block ends.
async fn until_told(claims: &Api<NodeClaim>, claim: &NodeClaim, end: Timestamp) {
    until("the claim says when its block ends", async || {
        let claim = claims.get(&claim.name_any()).await.expect("the claim");
        claim.annotations().get(labels::CAPACITY_BLOCK_ENDS_AT) == Some(&end.to_string())
    })
    .await;
}

/// Returns the markets that EC2 was asked for instances of the pool, dry runs left out.
fn sent(stand: &Stand) -> Vec<String> {
    let calls = stand.aws.calls("CreateFleet");
    let params = calls.iter().map(|call| &call["params"]);
    let ours = params.filter(|params| params.to_string().contains(&stand.name) && params["DryRun"].is_null());
    let market =
        |params: &Value| params["TargetCapacitySpecification.DefaultTargetCapacityType"].as_str().map(str::to_owned);
    ours.filter_map(market).collect()
}
