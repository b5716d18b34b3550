//! What goes wrong at AWS, on a real control plane and the emulated AWS: capacity, images, templates, subnets, profiles, the queue, lists and answers
//! that are missing, and throttles. Each scene says the outcome in the APIs. Scenes wait more than they work, so they are played side by side, by one
//! controller, each with a pool of its own.
//!
//! Runs when `KARP_TEST_KUBECONFIG`, `KARP_TEST_AWS_ENDPOINT` and `KARP_TEST_CLUSTER` name a sandbox; `cargo verify` starts one.

mod capacity;
mod classes;
mod doubt;
mod images;
mod lasting;
mod prices;
mod queue;
mod scene;
mod steps;
#[path = "../support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use karp_domain::api::NodeClaim;
use kube::ResourceExt;
use serde_json::json;
use support::play::{Named, play};
use support::stand::Stand;
use support::until_within;

use scene::{Scene, Subnets};

/// How long EC2 refuses all calls: the five minutes of a real incident.
const INCIDENT: Duration = Duration::from_secs(300);
/// The same scaled, without `KARP_DEEP`. It is longer than all attempts of one call.
const SCALED: Duration = Duration::from_secs(30);
/// How long after that a new node runs its pod.
const RECOVERED: Duration = Duration::from_secs(60);

#[tokio::test]
async fn faults_of_aws_end_well() {
    let Some(mut stand) = Stand::open("faults").await else { return };
    let subnets = Subnets::plant(&stand.aws);
    stand.aws.door("capacity", &capacity::rules(&stand, &subnets));
    images::publish(&stand);
    stand.start();
    let scenes: Vec<Named<'_>> = vec![
        ("one offering is short", Box::pin(capacity::one_offering(&stand))),
        ("a family is short", Box::pin(capacity::family(&stand))),
        ("everything is short", Box::pin(capacity::everything(&stand))),
        ("the spot role is missing", Box::pin(capacity::spot_role(&stand))),
        ("a subnet is full", Box::pin(capacity::subnet(&stand, &subnets))),
        ("a template is deleted", Box::pin(classes::template(&stand))),
        ("an image is deregistered", Box::pin(images::deregistered(&stand))),
        ("images are selected", Box::pin(images::selected(&stand))),
        ("a role is not known yet", Box::pin(classes::role(&stand))),
        ("user data is too long", Box::pin(classes::user_data(&stand))),
        ("a placement group comes late", Box::pin(classes::group(&stand))),
        ("a list misses an instance", Box::pin(doubt::list(&stand))),
        ("an instance is invisible", Box::pin(doubt::invisible(&stand, &subnets))),
        ("an instance ends before it is seen", Box::pin(doubt::ended_unseen(&stand))),
        ("connections are cut", Box::pin(doubt::cut(&stand))),
        ("nothing is launched and no reason given", Box::pin(doubt::silent(&stand))),
        ("a drain is blocked for long", Box::pin(lasting::blocked(&stand))),
        ("the queue cannot be read", Box::pin(queue::unread(&stand))),
    ];
    play(scenes).await;
    scene::clear(&stand).await;
    // so many at a time are enough for the machine: the others follow, around a crash, while an instance is waited for that is not seen yet
    let halts = steps::halts(&stand).await;
    play(vec![
        ("an answer is lost and the next is no", Box::pin(doubt::refused_after_a_lost_answer(&stand))),
        ("the attempt is not written", Box::pin(steps::unwritten(&stand))),
        ("the next attempt is not written", Box::pin(steps::not_advanced(&stand))),
        ("a taken token is not written", Box::pin(steps::not_sought(&stand, &subnets))),
        ("half of an instance is written", Box::pin(steps::half_adopted(&stand))),
    ])
    .await;
    stand.crash();
    doubt::allow(&stand);
    for halt in halts {
        halt.lift().await;
    }
    stand.start();
    play(vec![
        ("templates may not be deleted", Box::pin(classes::denied(&stand))),
        ("pages of lists fail", Box::pin(doubt::pages(&stand))),
        ("launches go on where they stood", Box::pin(steps::went_on(&stand))),
    ])
    .await;
    capacity::elsewhere(&stand).await;
    doubt::found_after_a_refusal(&stand).await;
    throttled(&stand).await;
    scene::clear(&stand).await;
    subnets.uproot(&stand.aws);
    stand.leave().await;
}

/// EC2 refuses everything for a long time: what runs goes on, and what was asked for comes once when it is over.
async fn throttled(stand: &Stand) {
    let span = if std::env::var_os("KARP_DEEP").is_some() { INCIDENT } else { SCALED };
    let scene = Scene::new(stand, "throttled");
    scene.pool(&stand.name, &stand.name, &["on-demand"], &["m5.xlarge", "m5d.xlarge"], 1).await;
    scene.pods(2).await;
    scene.until_running(2).await;
    let before: Vec<_> = scene.running().await.iter().map(ResourceExt::uid).collect();
    stand.aws.door("throttle", &json!({ "*": { "seconds": span.as_secs() } }));
    let begin = Instant::now();
    scene::scale(stand, &scene.name, 3).await;
    until_within(span + RECOVERED, "a third pod runs", async || {
        let running: Vec<_> = scene.running().await.iter().map(ResourceExt::uid).collect();
        assert!(before.iter().all(|uid| running.contains(uid)), "what ran before runs on");
        running.len() == 3
    })
    .await;
    assert!(begin.elapsed() >= span, "nothing was throttled");
    println!("figure: a pod ran {:.1?} after the end of a throttle of {span:?}", begin.elapsed().saturating_sub(span));
    let (instances, claims) = (stand.aws.instances(&stand.name), stand.mine::<NodeClaim>().await);
    assert_eq!((instances.len(), claims.len()), (2, 2), "{instances:?}");
}
