//! An entry of `aws-auth` for a node role that the same apply makes: plan does not know its ARN.

use crate::life::unique;
use crate::stand::Sandbox;
use crate::teardown::{AwsAuth, Kubectl};

#[test]
fn an_entry_is_of_a_role_that_the_same_apply_makes() {
    let Some(sandbox) = Sandbox::with_cluster("entered") else { return };
    let Some(kubectl) = Kubectl::find() else {
        eprintln!("skipped: entered: KARP_TEST_KUBECONFIG is not set");
        return;
    };
    let before = sandbox.what_exists();
    let aws_auth = AwsAuth::new(&kubectl);
    let block = sandbox.provider(&format!("  kubernetes = {{ config_path = {:?} }}", kubectl.kubeconfig));
    let config = |name: &str| {
        format!(
            "{block}resource \"karp_node_role\" \"this\" {{\n  name = {name:?}\n}}\nresource \"karp_aws_auth_entry\" \"this\" {{\n  \
             role_arn = karp_node_role.this.arn\n}}\n"
        )
    };
    let names = ["one", "two"].map(|name| unique(&format!("entered-{name}")));
    let entered = || {
        let roles = aws_auth.roles();
        names.clone().map(|name| roles.contains(&format!("role/{name}")))
    };
    let stand = sandbox.stand(&config(&names[0]));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(entered(), [true, false]);

    // Another role gives another entry, and the old one's is not left.
    stand.write(&config(&names[1]));
    let plan = stand.apply();
    let mut changes = plan.changes();
    changes.sort();
    let wanted = ["karp_aws_auth_entry.this", "karp_node_role.this"];
    assert_eq!(changes, wanted.map(|address| ("replace".to_owned(), address.to_owned())), "{}", plan.text);
    stand.assert_empty_plan();
    assert_eq!(entered(), [false, true]);
    assert_eq!(stand.attribute("karp_aws_auth_entry.this", "role_arn"), stand.attribute("karp_node_role.this", "arn"));
    stand.destroy();
    assert_eq!(entered(), [false, false]);
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
