//! What one resource bears alone: an identity provider that vanishes, and a teardown that changes.

use crate::stand::Sandbox;

#[tokio::test]
async fn an_identity_provider_that_somebody_deleted_comes_back() {
    let Some(sandbox) = Sandbox::find("oidc_vanished") else { return };
    let before = sandbox.what_exists();
    let config = |tag: &str| {
        format!("PROVIDER\nresource \"karp_oidc_provider\" \"this\" {{\n  tags = {{ step = {tag:?} }}\n}}\n")
    };
    let stand = sandbox.stand(&config("one"));
    stand.apply();
    stand.assert_empty_plan();
    let arn = stand.attribute("karp_oidc_provider.this", "arn").as_str().unwrap().to_owned();
    let iam = sandbox.iam().await;
    iam.delete_open_id_connect_provider().open_id_connect_provider_arn(&arn).send().await.unwrap();
    assert_eq!(stand.apply().changes(), [("create".to_owned(), "karp_oidc_provider.this".to_owned())]);
    stand.assert_empty_plan();

    stand.write(&config("two"));
    assert_eq!(stand.apply().changes(), [("update".to_owned(), "karp_oidc_provider.this".to_owned())]);
    stand.assert_empty_plan();
    let found = iam.get_open_id_connect_provider().open_id_connect_provider_arn(&arn).send().await.unwrap();
    let step = found.tags().iter().find(|tag| tag.key() == "step").map(|tag| tag.value().to_owned());
    assert_eq!(step.as_deref(), Some("two"));
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[test]
fn a_teardown_changes_in_place_and_gives_way_for_another_cluster() {
    let Some(sandbox) = Sandbox::with_cluster("teardown_changes") else { return };
    let config = |cluster: &str, limit: &str| {
        format!(
            "{}resource \"karp_teardown\" \"this\" {{\n  cluster_name = {cluster:?}\n  drain_timeout = {limit:?}\n}}\n",
            sandbox.provider("  cluster_name = null")
        )
    };
    let stand = sandbox.stand(&config("one", "15m"));
    stand.apply();
    stand.assert_empty_plan();
    for (cluster, limit, action) in [("one", "5s", "update"), ("two", "5s", "replace")] {
        stand.write(&config(cluster, limit));
        assert_eq!(stand.plan().changes(), [(action.to_owned(), "karp_teardown.this".to_owned())]);
        if action == "update" {
            stand.apply();
            stand.assert_empty_plan();
        }
    }
}
