//! What classes need is gone, not there yet, or too long.

use std::time::Duration;

use karp_domain::api::{NodePool, conditions};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::scene::{Scene, scale};
use crate::steps;
use crate::support::stand::Stand;
use crate::support::{until, until_within};

/// Seconds after which EC2 knows a new instance profile.
const PROPAGATION: u32 = 12;
/// How long a class takes to go when its last node must go first.
const GOES: Duration = Duration::from_secs(120);
/// Calls that IAM throttles: more than the attempts of one pass.
const THROTTLED: u32 = 6;
/// Bytes of user data, more than EC2 takes.
const TOO_LONG: usize = 17 * 1024;

/// Somebody deletes the launch templates that the controller believes to be there.
pub async fn template(stand: &Stand) {
    let scene = Scene::with_class(stand, "template", &["m5d.large"], json!({})).await;
    scene.pods(1).await;
    scene.until_running(1).await;
    assert!(stand.aws.delete_templates(&scene.name).await > 0, "there was one");
    scale(stand, &scene.name, 2).await;
    scene.until_running(2).await;
    assert_eq!((scene.instances().len(), scene.claims().await.len()), (2, 2), "one more of each");
    assert_eq!(steps::templates(&scene), 2, "it was made once more");
}

/// EC2 learns of the profile that is made for a role a while after IAM: the class waits for it, and nothing is launched in vain.
pub async fn role(stand: &Stand) {
    stand.aws.door("settings", &json!({ "profile_seconds": PROPAGATION }));
    let fields = json!({ "role": stand.aws.profile, "instanceProfile": Value::Null });
    let scene = Scene::with_class(stand, "role", &["m5dn.large"], fields).await;
    scene.pods(1).await;
    scene.until_said(conditions::VALIDATION_SUCCEEDED, "False", "InstanceProfileNotFound").await;
    scene.until_running(1).await;
    scene.only_instance().await;
    assert_eq!(scene.asked().len(), 1, "nothing was asked for before the profile was known");
    let status = scene.classes().get(&scene.name).await.expect("the class").status.expect("a status");
    assert!(status.instance_profile.is_some() && conditions::is_true(&status.conditions, conditions::READY));
}

/// Somebody takes away the right to delete launch templates, and IAM throttles: a class goes all the same, and its instance profile with it.
pub async fn denied(stand: &Stand) {
    let fields = json!({ "role": stand.aws.profile, "instanceProfile": Value::Null });
    let scene = Scene::with_class(stand, "denied", &["m5dn.xlarge"], fields).await;
    scene.pods(1).await;
    scene.until_running(1).await;
    let status = scene.classes().get(&scene.name).await.expect("the class").status.expect("a status");
    let profile = status.instance_profile.expect("it has a profile");
    let is_there =
        || stand.aws.look("inventory")["instance_profiles"].as_array().expect("names").contains(&json!(profile));
    assert!(is_there(), "{profile} was made");
    let denied =
        json!({ "action": "DeleteLaunchTemplate", "code": "UnauthorizedOperation", "status": 403, "times": 1000 });
    let throttled = json!({ "action": "DeleteInstanceProfile", "where": profile, "code": "Throttling", "status": 400, "times": THROTTLED });
    stand.aws.door("fail", &json!([denied, throttled]));
    scale(stand, &scene.name, 0).await;
    let pools: Api<NodePool> = Api::all(stand.client.clone());
    pools.delete(&scene.name, &DeleteParams::default()).await.expect("the pool is deleted");
    scene.classes().delete(&scene.name, &DeleteParams::default()).await.expect("the class is asked to go");
    until_within(GOES, "the class is gone", async || {
        scene.classes().get_opt(&scene.name).await.is_ok_and(|class| class.is_none())
    })
    .await;
    assert!(!is_there(), "{profile} outlived its class");
    stand.aws.door("fail", &json!([{ "action": "DeleteLaunchTemplate", "times": 0 }]));
    assert!(stand.aws.delete_templates(&scene.name).await > 0, "it was not deleted");
}

/// The class says so itself before anything is launched, and heals.
pub async fn user_data(stand: &Stand) {
    let scene = Scene::new(stand, "long");
    scene.class(&scene.name, json!({ "userData": format!("#!/bin/sh\n# {}\n", "x".repeat(TOO_LONG)) })).await;
    scene.until_said(conditions::VALIDATION_SUCCEEDED, "False", "UserDataSizeLimitExceeded").await;
    scene.until_said(conditions::READY, "False", "").await;
    let short = Patch::Merge(json!({ "spec": { "userData": "#!/bin/sh\necho short\n" } }));
    scene.classes().patch(&scene.name, &PatchParams::default(), &short).await.expect("it is shortened");
    scene.until_said(conditions::READY, "True", "").await;
}

/// The class waits for its placement group; its instances go there.
pub async fn group(stand: &Stand) {
    let name = format!("{}-near", stand.name);
    let fields = json!({ "placementGroupSelector": { "name": name } });
    let scene = Scene::with_class(stand, "group", &["c5d.large"], fields).await;
    scene.pods(1).await;
    scene.until_said(conditions::PLACEMENT_GROUP_READY, "False", "PlacementGroupNotFound").await;
    let group = json!([{ "id": "pg-0123456789abcdef0", "name": name, "strategy": "spread" }]);
    stand.aws.door("placement-groups", &group);
    scene.until_said(conditions::PLACEMENT_GROUP_READY, "True", "").await;
    scene.until_running(1).await;
    let one = scene.only_instance().await;
    let asked = format!("Action=DescribeInstances&InstanceId.1={}", one["id"].as_str().expect("an id"));
    until("EC2 tells the group", async || stand.aws.ec2(&asked).contains("pg-0123456789abcdef0")).await;
}
