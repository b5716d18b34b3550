//! States of other versions of the provider: an older one's is taken as it is, a newer one's is left alone.

use crate::life::unique;
use crate::older::{assert_refused, by_a_newer_version, by_an_older_version};
use crate::stand::Sandbox;

#[test]
fn a_state_of_an_older_version_needs_no_change() {
    let Some(sandbox) = Sandbox::find("older") else { return };
    let before = sandbox.what_exists();
    let name = unique("older");
    let more = format!(
        "resource \"karp_pod_identity_association\" \"this\" {{\n  namespace = \"apps\"\n  service_account = {name:?}\n  \
         role_arn = karp_node_role.this.arn\n}}\nresource \"karp_spot_service_linked_role\" \"this\" {{\n  delete_on_destroy = true\n}}\n\
         resource \"karp_teardown\" \"this\" {{}}\nresource \"karp_controller_policy\" \"this\" {{\n  name = \"{name}-policy\"\n}}\n"
    );
    let stand = sandbox.stand(&(sandbox.provider("") + &sandbox.everything(&name, "one") + &more));
    stand.apply();
    let state = stand.state();

    let old = by_an_older_version(&state);
    assert!(old.len() < state.len() && old.contains("taken_away_since"), "{old}");
    stand.put_state(&old);
    stand.assert_empty_plan();

    stand.put_state(&by_a_newer_version(&old));
    assert_refused(&stand.plan());

    stand.put_state(&old);
    stand.apply();
    assert!(!stand.state().contains("taken_away_since"));
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
