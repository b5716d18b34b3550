//! Launches that stand still between two of their steps, because the cluster does not take what is to be written before the next, when the
//! controller is killed. The one after it takes each on from there.

use karp_domain::api::{NodeClaim, labels};
use karp_domain::lifecycle::launch::{ATTEMPT, SOUGHT_SINCE};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::doubt;
use crate::scene::{Scene, Subnets};
use crate::support::refusal::{Refusal, annotated};
use crate::support::stand::{Stand, instance_of};
use crate::support::until;

const UNWRITTEN: &str = "unwritten";
const NOT_ADVANCED: &str = "not-advanced";
const NOT_SOUGHT: &str = "not-sought";
const HALF: &str = "half";

/// Puts in force what halts the scenes.
pub async fn halts(stand: &Stand) -> Vec<Refusal> {
    let next = format!("{} && object.metadata.annotations['{ATTEMPT}'] != '1'", annotated(ATTEMPT));
    let known = "has(object.status) && has(object.status.providerID)".to_owned();
    let all =
        [(UNWRITTEN, annotated(ATTEMPT)), (NOT_ADVANCED, next), (NOT_SOUGHT, annotated(SOUGHT_SINCE)), (HALF, known)];
    let mut halts = Vec::new();
    for (what, forbidden) in all {
        halts.push(Refusal::of(&stand.client, &Scene::new(stand, what).name, &forbidden).await);
    }
    halts
}

/// Its launch template is made, and the attempt cannot be written: EC2 is not asked for an instance.
pub async fn unwritten(stand: &Stand) {
    let scene = Scene::on_demand(stand, UNWRITTEN, &["m5zn.large"]).await;
    scene.pods(1).await;
    until("its template is made, and the record refused", async || templates(&scene) == 1 && is_refused(&scene)).await;
    assert!(scene.asked().is_empty() && scene.instances().is_empty(), "{:?}", scene.asked());
}

/// EC2 launches nothing, and that another attempt is made cannot be written.
pub async fn not_advanced(stand: &Stand) {
    let scene = Scene::new(stand, NOT_ADVANCED);
    stand.aws.door("silence", &json!([{ "where": scene.name }]));
    scene.pool(&scene.name, &stand.name, &["on-demand"], &["m5zn.large"], 1).await;
    scene.pods(1).await;
    until("the record is refused", async || scene.asked().len() == 1 && is_refused(&scene)).await;
    assert_eq!(noted(&scene, ATTEMPT).await.as_deref(), Some("1"));
    assert!(scene.instances().is_empty(), "{:?}", scene.instances());
}

/// The claim's token stands for an earlier request whose instance is not seen, and that it is looked for cannot be written.
pub async fn not_sought(stand: &Stand, subnets: &Subnets) {
    let scene = Scene::new(stand, NOT_SOUGHT);
    doubt::asked_otherwise(&scene, subnets, "seeker", ["m6id.large", "m6id.xlarge"]).await;
    until("the record is refused", async || doubt::mismatches(&scene) > 0 && is_refused(&scene)).await;
    assert_eq!(noted(&scene, SOUGHT_SINCE).await, None);
}

/// What the instance is stands in the claim's labels, and which one it is cannot be written.
pub async fn half_adopted(stand: &Stand) {
    let scene = Scene::on_demand(stand, HALF, &["m5zn.xlarge"]).await;
    scene.pods(1).await;
    until("the record is refused", async || scene.instances().len() == 1 && is_refused(&scene)).await;
    let claim = claim(&scene).await;
    assert!(claim.labels().contains_key(labels::ZONE) && instance_of(&claim).is_empty(), "{claim:?}");
}

/// Each claim comes to one instance, by no template and no request more than it takes.
pub async fn went_on(stand: &Stand) {
    let scene = |what| Scene::new(stand, what);
    let unwritten = scene(UNWRITTEN);
    unwritten.until_running(1).await;
    unwritten.only_instance().await;
    assert_eq!(templates(&unwritten), 1, "the template that was made is taken");
    assert_eq!(unwritten.asked().len(), 1, "{:?}", unwritten.asked());

    let half = scene(HALF);
    half.until_running(1).await;
    half.only_instance().await;
    assert_eq!(half.asked().len(), 1, "what was launched is found: {:?}", half.asked());

    // these rest for a minute after an answer without a reason, or wait until the instance is listed
    let sought = scene(NOT_SOUGHT);
    sought.until_running(1).await;
    sought.only_instance().await;

    let advanced = scene(NOT_ADVANCED);
    advanced.until_running(1).await;
    advanced.only_instance().await;
    let uid = claim(&advanced).await.uid().unwrap_or_default();
    let tokens: Vec<Value> = advanced.asked().iter().map(|(_, call)| call["params"]["ClientToken"].clone()).collect();
    let token = |attempt: u32| json!(format!("{uid}-{attempt}"));
    assert_eq!(tokens, [token(1), token(1), token(2)], "EC2's answer to the first is heard again, and heeded");
}

/// Counts the launch templates that were made for a scene's pool.
pub fn templates(scene: &Scene<'_>) -> usize {
    let calls = scene.stand.aws.calls("CreateLaunchTemplate");
    let ours = |call: &&Value| call["params"].to_string().contains(&scene.name) && call["params"]["DryRun"].is_null();
    calls.iter().filter(ours).filter(|call| call["error"].is_null()).count()
}

/// Says whether the controller was told that something of the scene is not taken.
fn is_refused(scene: &Scene<'_>) -> bool {
    let log = scene.stand.log();
    log.lines().any(|line| line.contains(Refusal::WORDS) && line.contains(&scene.name))
}

async fn claim(scene: &Scene<'_>) -> NodeClaim {
    scene.claims().await.pop().expect("a claim")
}

/// Returns what is written on the scene's claim under a key.
async fn noted(scene: &Scene<'_>, key: &str) -> Option<String> {
    claim(scene).await.annotations().get(key).cloned()
}
