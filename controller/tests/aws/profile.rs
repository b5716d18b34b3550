//! The instance profile of a class that names a role.

use karp_domain::api::{Ec2NodeClass, conditions};
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;

use crate::support::stand::Stand;
use crate::support::{create, until};

/// A class with a role gets a profile that goes with it.
pub async fn made(stand: Stand) {
    stand.pool(&["spot"]).await;
    let classes: Api<Ec2NodeClass> = Api::all(stand.client.clone());
    let own = classes.get(&stand.name).await.expect("the stand's class");
    let (name, mut spec) = (format!("{}-made", stand.name), serde_json::to_value(own.spec).expect("plain data"));
    spec.as_object_mut().expect("fields").remove("instanceProfile");
    spec["role"] = json!(stand.aws.profile);
    create::<Ec2NodeClass>(&classes, json!({ "metadata": { "name": name }, "spec": spec })).await;
    let made = async || {
        let status = classes.get(&name).await.expect("the class").status?;
        status.instance_profile.filter(|_| conditions::is_true(&status.conditions, conditions::READY))
    };
    until("the class is ready", async || made().await.is_some()).await;
    let profile = made().await.expect("it has a profile");
    let exists = || {
        let profiles = stand.aws.look("inventory")["instance_profiles"].clone();
        profiles.as_array().expect("names").contains(&json!(profile))
    };
    assert!(exists(), "{profile} was made");

    classes.delete(&name, &DeleteParams::default()).await.expect("the class is asked to go");
    until("the class is gone", async || classes.get_opt(&name).await.is_ok_and(|class| class.is_none())).await;
    assert!(!exists(), "{profile} outlived its class");
    stand.leave().await;
}
