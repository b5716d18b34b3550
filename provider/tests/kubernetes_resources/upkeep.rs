//! How the controller's pods are replaced and kept: each comes, changes to its other form, heals and goes.

use serde_json::{Value, json};

use crate::stand::Cluster;
use crate::{PROVIDER_OF_DEMO, controllers};

#[test]
fn what_is_beside_the_pods_comes_changes_heals_and_goes() {
    let Some(cluster) = Cluster::find("what_is_beside_the_pods_comes_changes_heals_and_goes") else { return };
    let _turn = controllers();
    let name = cluster.unique("upkeep");
    let _namespace = cluster.namespace(&name);
    let config = |more: &str| {
        format!(
            "{PROVIDER_OF_DEMO}resource \"karp_controller\" \"it\" {{\n  namespace = {name:?}\n  image = \"karp:edge\"\n  replicas = 0\n  \
             force_conflicts = true\n{more}}}\n"
        )
    };
    let live = || {
        let get = |kind: &str| cluster.get(&["-n", &name, kind, "karpenter"]);
        let (deployment, budget) = (get("deployment")["spec"].clone(), get("poddisruptionbudget")["spec"].clone());
        let amounts = [budget["maxUnavailable"].clone(), budget["minAvailable"].clone()];
        let label = deployment["template"]["metadata"]["labels"]["a.b/c"].clone();
        let annotation = get("service")["metadata"]["annotations"]["a.b/d"].clone();
        (deployment["strategy"].clone(), amounts, deployment["revisionHistoryLimit"].clone(), label, annotation)
    };
    let rolling = |most: Value, surge: &Value| json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": most, "maxSurge": surge } });
    let usual = (rolling(json!(1), &json!("25%")), [json!(1), Value::Null], json!(10), Value::Null, Value::Null);
    let stand = cluster.stand(&config(""));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(live(), usual);

    let beside = "  pod_labels = { \"a.b/c\" = \"x\" }\n  service_annotations = { \"a.b/d\" = \"y\" }\n  revision_history_limit = 2\n";
    // The amount is known after the apply.
    let amount = |amount: &str| format!("resource \"terraform_data\" \"amount\" {{\n  input = {amount:?}\n}}\n");
    let forms = [
        ("min_available", "50%", "{ max_unavailable = \"100%\", max_surge = \"0\" }"),
        ("max_unavailable", "2", "{ max_unavailable = \"0\", max_surge = \"1\" }"),
    ];
    let wanted = [
        (rolling(json!("100%"), &json!(0)), [Value::Null, json!("50%")]),
        (rolling(json!(0), &json!(1)), [json!(2), Value::Null]),
    ];
    for ((field, share, strategy), (live_strategy, amounts)) in forms.into_iter().zip(wanted) {
        let budget = format!("{{ {field} = terraform_data.amount.output }}");
        let more = format!("{beside}  pod_disruption_budget = {budget}\n  update_strategy = {strategy}\n");
        stand.write(&(config(&more) + &amount(share)));
        let changes = stand.apply().changes();
        assert!(changes.contains(&("update".to_owned(), "karp_controller.it".to_owned())), "{changes:?}");
        stand.assert_empty_plan();
        assert_eq!(live(), (live_strategy, amounts, json!(2), json!("x"), json!("y")));
    }
    let changes = [("update".to_owned(), "karp_controller.it".to_owned())];
    for (kind, patch) in [
        (
            "deployment",
            json!({ "spec": { "strategy": { "rollingUpdate": { "maxSurge": 3 } }, "revisionHistoryLimit": 7 } }),
        ),
        ("poddisruptionbudget", json!({ "spec": { "maxUnavailable": 5 } })),
        ("service", json!({ "metadata": { "annotations": { "a.b/d": null } } })),
    ] {
        cluster.kubectl(&["-n", &name, "patch", kind, "karpenter", "--type=merge", "-p", &patch.to_string()]);
        assert_eq!(stand.apply().changes(), changes, "{kind}");
        stand.assert_empty_plan();
    }
    // Both of them, which only the apply can see.
    let both = "  pod_disruption_budget = { max_unavailable = terraform_data.amount.output, min_available = terraform_data.amount.output }\n";
    stand.write(&(config(both) + &amount("1")));
    let refused = stand.apply_failing().one_error();
    assert!(refused.contains("min_available beside max_unavailable"), "{refused}");
    stand.write(&config(""));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(live(), usual);
    stand.destroy();
}
