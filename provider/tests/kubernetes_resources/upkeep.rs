//! How the controller's pods are replaced and kept: each comes, changes to its other form, heals and goes.

use serde_json::{Value, json};

use crate::stand::Cluster;
use crate::{PROVIDER_OF_DEMO, claims};

#[test]
fn what_is_beside_the_pods_comes_changes_heals_and_goes() {
    let Some(cluster) = Cluster::find("what_is_beside_the_pods_comes_changes_heals_and_goes") else { return };
    let _turn = claims();
    let name = cluster.unique("upkeep");
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
    let forms = [
        ("{ min_available = \"50%\" }", "{ max_unavailable = \"100%\", max_surge = \"0\" }"),
        ("{ max_unavailable = \"2\" }", "{ max_unavailable = \"0\", max_surge = \"1\" }"),
    ];
    let wanted = [
        (rolling(json!("100%"), &json!(0)), [Value::Null, json!("50%")]),
        (rolling(json!(0), &json!(1)), [json!(2), Value::Null]),
    ];
    let changes = [("update".to_owned(), "karp_controller.it".to_owned())];
    for ((budget, strategy), (live_strategy, amounts)) in forms.into_iter().zip(wanted) {
        stand.write(&config(&format!("{beside}  pod_disruption_budget = {budget}\n  update_strategy = {strategy}\n")));
        assert_eq!(stand.plan().changes(), changes);
        stand.apply();
        stand.assert_empty_plan();
        assert_eq!(live(), (live_strategy, amounts, json!(2), json!("x"), json!("y")));
    }
    for (kind, patch) in [
        (
            "deployment",
            json!({ "spec": { "strategy": { "rollingUpdate": { "maxSurge": 3 } }, "revisionHistoryLimit": 7 } }),
        ),
        ("poddisruptionbudget", json!({ "spec": { "maxUnavailable": 5 } })),
        ("service", json!({ "metadata": { "annotations": { "a.b/d": null } } })),
    ] {
        cluster.kubectl(&["-n", &name, "patch", kind, "karpenter", "--type=merge", "-p", &patch.to_string()]);
        assert_eq!(stand.plan().changes(), changes, "{kind}");
        stand.apply();
        stand.assert_empty_plan();
    }
    stand.write(&config(""));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(live(), usual);
    stand.destroy();
}
