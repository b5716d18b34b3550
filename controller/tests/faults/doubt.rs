//! What EC2 does not tell, or not yet: lists that miss an instance, instances that are invisible after their launch, answers that are lost or
//! say nothing.

use std::time::Duration;

use karp_domain::api::{NodeClaim, conditions};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::capacity;
use crate::scene::{Scene, Subnets, always, scale};
use crate::support::aws::is_ending;
use crate::support::stand::{Stand, instance_of, since};
use crate::support::{until, until_within};

/// A list misses an instance for so long: more than two passes of a young collector.
const MISSED: Duration = Duration::from_secs(25);
/// An instance is invisible for so long after its launch: half a minute longer than issue 6 asks for, so that a busy machine has time to ask again.
const INVISIBLE: Duration = Duration::from_secs(90);
/// The same, of one that is ended meanwhile.
const BRIEFLY: Duration = Duration::from_secs(15);
/// After an answer that says nothing a claim rests for a minute; it is watched for so long.
const QUIET: Duration = Duration::from_secs(20);
/// Seconds after which a launch that was refused is tried again at the earliest: half of what it rests.
const RESTED: f64 = 30.0;
/// An instance of which no claim tells is ended within this: seen twice, and for half a minute.
const COLLECTED: Duration = Duration::from_secs(90);

/// A listing lacks an instance that runs: nothing is ended and nothing collected.
pub async fn list(stand: &Stand) {
    let scene = Scene::on_demand(stand, "list", &["m5zn.large"]).await;
    scene.pods(1).await;
    scene.until_running(1).await;
    until("its node is initialized", async || {
        scene.claims().await.iter().all(|claim| since(claim, conditions::INITIALIZED).is_some())
    })
    .await;
    let (pod, claim) = (scene.running().await.remove(0), scene.claims().await.remove(0));
    let missed = json!([{ "ids": [instance_of(&claim)], "lists_only": true, "seconds": MISSED.as_secs() }]);
    stand.aws.door("hide", &missed);
    always(MISSED, "what is not listed lives on", async || {
        let claims = scene.claims().await;
        claims.len() == 1 && claims[0].uid() == claim.uid() && claims[0].metadata.deletion_timestamp.is_none()
    })
    .await;
    assert!(scene.running().await.iter().map(ResourceExt::uid).eq([pod.uid()]), "its pod was left alone");
    assert_eq!(scene.only_instance().await["state"], "running");
}

/// EC2 lists instances on many pages, and those after the first fail for a while: nothing is ended and nothing collected.
pub async fn pages(stand: &Stand) {
    stand.aws.door("settings", &json!({ "instance_page": 1 }));
    let scene = Scene::on_demand(stand, "pages", &["m5zn.large"]).await;
    scene.pods(2).await;
    scene.until_running(2).await;
    let claims: Vec<_> = scene.claims().await.iter().map(ResourceExt::uid).collect();
    let failing = json!({ "action": "DescribeInstances", "where": "listed-", "seconds": MISSED.as_secs() });
    stand.aws.door("fail", &json!([failing]));
    always(MISSED, "what is on a page that fails lives on", async || {
        let now = scene.claims().await;
        now.iter().all(|claim| claim.metadata.deletion_timestamp.is_none())
            && now.iter().map(ResourceExt::uid).eq(claims.iter().cloned())
    })
    .await;
    let followed = |failed: bool| {
        let calls = stand.aws.calls("DescribeInstances");
        let page =
            |call: &&Value| call["params"]["NextToken"].as_str().is_some_and(|token| token.starts_with("listed-"));
        calls
            .iter()
            .filter(page)
            .filter(|call| call["caller"] == stand.key() && call["error"].is_null() != failed)
            .count()
    };
    assert!(followed(true) > 0, "no page failed");
    let before = followed(false);
    until("lists are whole again", async || followed(false) > before).await;
    let states: Vec<Value> = scene.instances().into_iter().map(|one| one["state"].clone()).collect();
    assert_eq!(states, ["running", "running"]);
    assert_eq!(scene.claims().await.len(), 2);
    stand.aws.door("settings", &json!({ "instance_page": 0 }));
}

/// The answer of a launch is lost, its instance is invisible for a minute, and meanwhile the claim would be launched as something else: the
/// claim still ends up with that one instance.
pub async fn invisible(stand: &Stand, subnets: &Subnets) {
    let scene = Scene::new(stand, "unseen");
    let launched = asked_otherwise(&scene, subnets, "rival", ["m6a.large", "m6a.xlarge"]).await;
    scene.until_running(1).await;
    assert!(mismatches(&scene) > 0, "the claim was never launched as something else: {:?}", scene.asked());
    always(Duration::from_secs(5), "one instance stands for the claim", async || scene.instances().len() == 1).await;
    assert_eq!(scene.only_instance().await["id"], launched["id"]);
}

/// Has EC2 launch the claim of a scene, whose answer is lost and whose instance is invisible; then has the claim's next request name other types,
/// since a rival found that the first one is gone. Returns the instance.
pub async fn asked_otherwise(scene: &Scene<'_>, subnets: &Subnets, rival: &str, types: [&str; 2]) -> Value {
    let stand = scene.stand;
    stand.aws.door("hide", &json!([{ "where": scene.name, "young_seconds": INVISIBLE.as_secs() }]));
    stand.aws.door("cut", &json!([{ "action": "CreateFleet", "where": scene.name }]));
    // repetitions of the call fail for another reason, so that the launch is decided anew
    let odd = json!([{ "action": "CreateFleet", "where": scene.name, "after": 1, "times": 1000, "code": "SomethingOdd", "dry_runs": false }]);
    stand.aws.door("fail", &odd);
    scene.pool(&scene.name, &stand.name, &["on-demand"], &types, 1).await;
    scene.pods(1).await;
    until("EC2 has launched it", async || scene.instances().len() == 1).await;
    let launched = scene.instances().remove(0);
    assert_eq!(launched["instance_type"], types[0]);

    let mut rules = capacity::rules(stand, subnets);
    rules.as_array_mut().expect("rules").push(json!({ "instance_type": types[0] }));
    stand.aws.door("capacity", &rules);
    let rival = Scene::on_demand(stand, rival, &types[..1]).await;
    rival.pods(1).await;
    until("the type is known to be gone", async || !rival.events("InsufficientCapacityError").await.is_empty()).await;
    until("the launch is to be decided anew", async || {
        scene.asked().iter().any(|(_, call)| call["error"] == "SomethingOdd")
    })
    .await;
    stand.aws.door("fail", &json!([{ "action": "CreateFleet", "where": scene.name, "times": 0 }]));
    launched
}

/// Counts the scene's requests whose token stood for another one.
pub fn mismatches(scene: &Scene<'_>) -> usize {
    scene.asked().iter().filter(|(_, call)| call["error"] == "IdempotentParameterMismatch").count()
}

/// A claim is deleted while EC2 does not find its instance: it is ended all the same, once it is seen.
pub async fn ended_unseen(stand: &Stand) {
    let scene = Scene::on_demand(stand, "ended", &["m5zn.xlarge"]).await;
    stand.aws.door("hide", &json!([{ "where": scene.name, "young_seconds": BRIEFLY.as_secs() }]));
    scene.pods(1).await;
    until("it is launched", async || scene.claims().await.iter().any(|claim| !instance_of(claim).is_empty())).await;
    scale(stand, &scene.name, 0).await;
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    for claim in scene.claims().await {
        claims.delete(&claim.name_any(), &DeleteParams::default()).await.expect("it is asked to end");
    }
    until_within(BRIEFLY + COLLECTED, "the instance is ended", async || scene.instances().iter().all(is_ending)).await;
    until("the claim is gone", async || scene.claims().await.is_empty()).await;
    assert_eq!(scene.instances().len(), 1);
}

/// The answer of a launch is lost, and its repetition is refused for want of rights.
pub async fn refused_after_a_lost_answer(stand: &Stand) {
    let name = Scene::new(stand, "refused").name;
    stand.aws.door("hide", &json!([{ "where": name, "young_seconds": INVISIBLE.as_secs() }]));
    stand.aws.door("cut", &json!([{ "action": "CreateFleet", "where": name }]));
    let denied = json!({ "action": "CreateFleet", "where": name, "after": 1, "times": 1000, "code": "UnauthorizedOperation",
        "status": 403, "dry_runs": false });
    stand.aws.door("fail", &json!([denied]));
    let scene = Scene::on_demand(stand, "refused", &["m4.large"]).await;
    scene.pods(1).await;
    until("the claim says what is wrong", async || {
        let told = scene.claims().await.into_iter().find_map(|claim| claim.status);
        told.is_some_and(|status| status.conditions.iter().any(|condition| condition.reason == "Unauthorized"))
    })
    .await;
    assert_eq!(scene.instances().len(), 1, "EC2 has launched it");
    until("an event says so", async || !scene.events("LaunchFailed").await.is_empty()).await;
}

/// Gives the rights back.
pub fn allow(stand: &Stand) {
    let name = Scene::new(stand, "refused").name;
    stand.aws.door("fail", &json!([{ "action": "CreateFleet", "where": name, "times": 0 }]));
}

/// The refusal said nothing of the first call, whose instance is not seen for long: the claim stands for it in the end.
pub async fn found_after_a_refusal(stand: &Stand) {
    let scene = Scene::new(stand, "refused");
    scene.until_running(1).await;
    scene.only_instance().await;
    let refused = scene.asked().into_iter().filter(|(_, call)| call["error"] == "UnauthorizedOperation");
    let refused: Vec<f64> = refused.map(|(at, _)| at).collect();
    assert!(refused.windows(2).all(|pair| pair[1] - pair[0] >= RESTED), "it was asked for again at once: {refused:?}");
}

/// EC2 launches nothing and gives no reason: its claim stays, waits, and is launched under another token.
pub async fn silent(stand: &Stand) {
    let scene = Scene::new(stand, "silent");
    stand.aws.door("silence", &json!([{ "where": scene.name }]));
    scene.pool(&scene.name, &stand.name, &["on-demand"], &["m5ad.xlarge"], 1).await;
    scene.pods(1).await;
    until("the claim says that nothing came", async || {
        let told = scene.claims().await.into_iter().find_map(|claim| claim.status);
        let said = told.and_then(|status| conditions::get(&status.conditions, conditions::LAUNCHED).cloned());
        said.is_some_and(|said| said.reason == conditions::LAUNCH_FAILED && said.message.contains("gave no reason"))
    })
    .await;
    let claim = scene.claims().await.remove(0);
    always(QUIET, "it is not asked for at once, nor another claim made", async || {
        scene.claims().await.iter().map(ResourceExt::uid).eq([claim.uid()]) && scene.asked().len() == 1
    })
    .await;
    scene.until_running(1).await;
    scene.only_instance().await;
    assert_eq!(scene.claims().await[0].uid(), claim.uid(), "the same claim");
    let tokens: Vec<Value> = scene.asked().into_iter().map(|(_, call)| call["params"]["ClientToken"].clone()).collect();
    let token = |attempt: u32| json!(format!("{}-{attempt}", claim.uid().unwrap_or_default()));
    assert_eq!(tokens, [token(1), token(2)]);
}

/// The connection breaks before a launch reaches EC2, and again after it has: one instance comes of it.
pub async fn cut(stand: &Stand) {
    let scene = Scene::new(stand, "cut");
    let cut = |when: &str| json!({ "action": "CreateFleet", "where": scene.name, "when": when });
    stand.aws.door("cut", &json!([cut("before"), cut("after")]));
    scene.pool(&scene.name, &stand.name, &["on-demand"], &["c5a.large"], 1).await;
    scene.pods(1).await;
    scene.until_running(1).await;
    scene.only_instance().await;
    let answers: Vec<Value> = scene.asked().into_iter().map(|(_, call)| call["status"].clone()).collect();
    assert_eq!(
        answers,
        [json!(200), json!(200)],
        "the second attempt was lost after its effect, the third repeated it"
    );
}
