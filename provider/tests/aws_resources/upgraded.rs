//! States of other versions of the provider: an older one's is taken as it is, a newer one's is left alone.

use serde_json::json;

use crate::life::unique;
use crate::older::{assert_refused, by_a_newer_version, by_an_older_version, changed};
use crate::stand::Sandbox;

const ALL: &str = "arn:aws:iam::aws:policy/ReadOnlyAccess";
const S3: &str = "arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess";

/// A role with further policies.
fn further(kind: &str, name: &str) -> String {
    format!(
        "resource \"karp_{kind}\" \"further\" {{\n  name = {name:?}\n  additional_policy_arns = {{ all = {ALL:?}, s3 = {S3:?} }}\n}}\n"
    )
}

/// A state as version 0 of the roles' schema wrote it: their further policies were a set, and a set is a list in state.
fn by_version_0(state: &str) -> String {
    changed(state, |instance| {
        let Some(further) = instance.pointer_mut("/attributes/additional_policy_arns") else { return };
        let Some(arns) = further.as_object() else { return };
        *further = arns.values().cloned().collect();
        instance["schema_version"] = json!(0);
    })
}

#[test]
fn a_state_of_an_older_version_needs_no_change() {
    let Some(sandbox) = Sandbox::find("older") else { return };
    let before = sandbox.what_exists();
    let name = unique("older");
    let more = format!(
        "resource \"karp_pod_identity_association\" \"this\" {{\n  namespace = \"apps\"\n  service_account = {name:?}\n  \
         role_arn = karp_node_role.this.arn\n}}\n{}{}resource \"karp_controller_policy\" \"this\" {{\n  name = \"{name}-policy\"\n}}\n",
        further("node_role", &format!("{name}-n")),
        further("fargate_pod_execution_role", &format!("{name}-f")),
    );
    let stand = sandbox.stand(&(sandbox.provider("") + &sandbox.everything(&name, "one") + &more));
    stand.apply();
    let state = stand.state();

    // what came later, and is not null, is read
    let old = changed(&by_an_older_version(&state), |instance| {
        instance["attributes"].as_object_mut().unwrap().remove("sqs_managed_sse_enabled");
    });
    assert!(state.contains("sqs_managed_sse_enabled") && !old.contains("sqs_managed_sse_enabled"), "{old}");
    assert!(old.len() < state.len() && old.contains("taken_away_since"), "{old}");
    stand.put_state(&old);
    stand.assert_empty_plan();

    // The one change of a shape: read and upgraded as well as upgraded alone.
    let oldest = by_version_0(&state);
    assert_eq!(oldest.matches("\"schema_version\":0").count(), state.matches("\"schema_version\": 0").count() + 2);
    stand.put_state(&oldest);
    stand.assert_empty_plan();
    let unread = stand.tofu(&["plan", "-json", "-detailed-exitcode", "-refresh=false"]);
    assert_eq!((unread.code, unread.changes()), (0, vec![]), "{}", unread.text);
    stand.apply();
    for kind in ["node_role", "fargate_pod_execution_role"] {
        let further = stand.attribute(&format!("karp_{kind}.further"), "additional_policy_arns");
        assert_eq!(further, json!({ "AmazonS3ReadOnlyAccess": S3, "ReadOnlyAccess": ALL }), "{}", stand.state());
    }

    stand.put_state(&by_a_newer_version(&old));
    assert_refused(&stand.plan());

    stand.put_state(&old);
    stand.apply();
    assert!(!stand.state().contains("taken_away_since"));
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
