//! Clusters that know their nodes by the ConfigMap `aws-auth` alone, or by access entries alone: what such a cluster does not read is refused, and the
//! error names what it reads.

use crate::life::unique;
use crate::stand::Sandbox;

#[test]
fn what_a_cluster_does_not_read_is_refused_with_what_it_reads() {
    let Some(sandbox) = Sandbox::find("modes") else { return };
    let (before, name) = (sandbox.what_exists(), unique("modes"));
    let stand = sandbox.stand(&format!(
        "PROVIDER\nresource \"karp_node_role\" \"this\" {{\n  name = {name:?}\n}}\nresource \"karp_access_entry\" \"this\" {{\n  \
         principal_arn = karp_node_role.this.arn\n}}\n"
    ));
    sandbox.knows_callers_by("CONFIG_MAP");
    let refused = stand.apply_failing().one_error();
    for told in ["authentication mode must be set to one of", "use `karp_aws_auth_entry` instead"] {
        assert!(refused.contains(told), "{told}: {refused}");
    }

    sandbox.knows_callers_by("API");
    stand.apply();
    stand.assert_empty_plan();
    let role = stand.attribute("karp_node_role.this", "arn");
    let entry = format!("resource \"karp_aws_auth_entry\" \"this\" {{\n  role_arn = {role}\n}}\n");
    // Whichever way the API server is reached: nothing is asked there, so that none need answer.
    for block in ["", "  kubernetes = { host = \"https://127.0.0.1:9\" }"] {
        let other = sandbox.stand(&(sandbox.provider(block) + &entry));
        let refused = other.apply_failing().one_error();
        for told in ["its authentication mode is API", "Use `karp_access_entry` instead"] {
            assert!(refused.contains(told), "{block}: {told}: {refused}");
        }
    }
    // The next to ask may be a test of the cluster, which finds it as it was left.
    sandbox.knows_callers_by("API_AND_CONFIG_MAP");
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
