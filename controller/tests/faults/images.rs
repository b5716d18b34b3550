//! Images: which ones a class selects, by each kind of term, and one that is deregistered under it.

use karp_domain::api::conditions;
use serde_json::{Value, json};

use crate::scene::Scene;
use crate::support::stand::Stand;
use crate::support::until;

/// Another account, whose images nobody means by a name alone.
const STRANGER: &str = "111122223333";

/// Image ids of this run.
fn id(stand: &Stand, number: u32) -> String {
    format!(
        "ami-{:08x}{number:09x}",
        stand.name.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
    )
}

/// A parameter that names an image, among AWS's own: the controller's role reads no others unless it is told of them.
fn parameter(stand: &Stand) -> String {
    format!("/aws/service/{}/golden", stand.name)
}

/// Publishes the images of all scenes. Of the first five, two are retired by their owner, and one is shared by another account: its tags are those that
/// this account gave it, for nobody sees another's.
pub fn publish(stand: &Stand) {
    let name = |what: &str| format!("{}-{what}", stand.name);
    let retired = "2026-01-01T00:00:00.000Z";
    let tags = |scene: &str| json!({ "karp-test": name(scene) });
    stand.aws.door(
        "images",
        &json!([
            { "id": id(stand, 1), "name": name("golden-1"), "day": "20260601", "tags": tags("golden") },
            { "id": id(stand, 2), "name": name("golden-2"), "day": "20260701", "tags": tags("golden") },
            { "id": id(stand, 3), "name": name("golden-3"), "day": "20260801", "deprecated_at": retired, "tags": tags("golden") },
            { "id": id(stand, 4), "name": name("golden-4"), "day": "20260101", "deprecated_at": retired, "architecture": "arm64",
              "tags": tags("golden") },
            { "id": id(stand, 5), "name": name("golden-5"), "day": "20260901", "owner": STRANGER, "tags": tags("golden") },
            { "id": id(stand, 6), "name": name("gone-1"), "day": "20260601", "tags": tags("gone") },
            { "id": id(stand, 7), "name": name("gone-2"), "day": "20260701", "tags": tags("gone") },
        ]),
    );
    stand.aws.door("parameters", &json!({ parameter(stand): id(stand, 1) }));
}

/// Each kind of term selects the newest image for each architecture; what is retired comes last. Strangers' images are not meant by a name, and shared
/// ones are by tags.
pub async fn selected(stand: &Stand) {
    let (golden, own) = (format!("{}-golden-*", stand.name), [("amd64", 2, false), ("arm64", 4, true)]);
    let tags = json!({ "karp-test": format!("{}-golden", stand.name) });
    for (what, term, expected) in [
        ("by-name", json!({ "name": golden }), &own[..]),
        ("by-owner", json!({ "name": golden, "owner": STRANGER }), &[("amd64", 5, false)]),
        ("by-self", json!({ "name": golden, "owner": "self" }), &own),
        ("by-tags", json!({ "tags": tags }), &[("amd64", 5, false), ("arm64", 4, true)]),
        ("by-parameter", json!({ "ssmParameter": parameter(stand) }), &[("amd64", 1, false)]),
        ("by-id", json!({ "id": id(stand, 3) }), &[("amd64", 3, true)]),
    ] {
        let scene = Scene::new(stand, what);
        scene.class(&scene.name, json!({ "amiFamily": "AL2023", "amiSelectorTerms": [term] })).await;
        let expected: Vec<(String, String, bool)> =
            expected.iter().map(|(arch, number, retired)| (id(stand, *number), (*arch).to_owned(), *retired)).collect();
        let mut found = Vec::new();
        until(&format!("{what} finds {expected:?}"), async || {
            found = chosen(&scene).await;
            found == expected
        })
        .await;
        scene.until_said(conditions::AMIS_READY, "True", "").await;
    }
}

/// Returns the images of a class: id, architecture, whether it is retired.
async fn chosen(scene: &Scene<'_>) -> Vec<(String, String, bool)> {
    let status = scene.classes().get(&scene.name).await.expect("the class").status.unwrap_or_default();
    let arch = |image: &karp_domain::api::Ami| {
        let wanted = image.requirements.iter().find(|wanted| wanted.key == "kubernetes.io/arch");
        wanted.and_then(|wanted| wanted.values.first().cloned()).unwrap_or_default()
    };
    status.amis.iter().map(|image| (image.id.clone(), arch(image), image.deprecated == Some(true))).collect()
}

/// The newest image is deregistered after the class was resolved: the launch fails, says why, and goes on with what is left.
pub async fn deregistered(stand: &Stand) {
    let terms = json!([{ "tags": { "karp-test": format!("{}-gone", stand.name) } }]);
    let fields = json!({ "amiFamily": "AL2023", "amiSelectorTerms": terms });
    let scene = Scene::with_class(stand, "gone", &["m5ad.large"], fields).await;
    scene.until_said(conditions::READY, "True", "").await;
    assert_eq!(chosen(&scene).await, [(id(stand, 7), "amd64".to_owned(), false)], "the newest");
    stand.aws.ec2(&format!("Action=DeregisterImage&ImageId={}", id(stand, 7)));
    scene.pods(1).await;
    until("the claim says what is wrong", async || {
        let claims = scene.claims().await;
        let all: Vec<Value> = claims.iter().map(|claim| json!(claim.status)).collect();
        all.iter().any(|status| status.to_string().contains("AMINotFound"))
    })
    .await;
    scene.until_running(1).await;
    let asked = scene.asked().len();
    assert!(asked <= 3, "a refusal that stays was asked for {asked} times in a minute");
    assert_eq!(scene.only_instance().await["image_id"], json!(id(stand, 6)));
}
