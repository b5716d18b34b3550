//! What a plan says of a pool's nodes before they are replaced.

use serde_json::{Value, json};

use crate::stand::Cluster;
use crate::tofu::Run;
use crate::{CRDS, PROVIDER};

fn config(name: &str, families: &str, team: &str, more: &str) -> String {
    let template = format!(
        "{{\n    node_class_ref = {{ name = \"none\" }}\n    labels = {{ team = {team:?} }}\n    requirements = [{{ key = \
         \"karpenter.k8s.aws/instance-family\", operator = \"In\", values = {families} }}]\n  }}"
    );
    let preview =
        format!("data \"karp_disruption_preview\" \"it\" {{\n  name = {name:?}\n  template = {template}\n}}\n");
    let output = "output \"preview\" {\n  value = data.karp_disruption_preview.it\n}\ndata \"karp_nodes\" \"it\" {\n  node_pool = \
                  karp_node_pool.it.name\n}\noutput \"nodes\" {\n  value = data.karp_nodes.it\n}\n";
    let preview = if more.contains("preview") { preview + output } else { String::new() };
    format!(
        "{PROVIDER}{CRDS}resource \"karp_node_pool\" \"it\" {{\n  name = \
         {name:?}\n  template = {template}\n  wait_for_ready = false\n  depends_on = [karp_crds.this]\n}}\n{preview}"
    )
}

/// Makes a NodeClaim of the pool as a controller stamps it.
fn claim(cluster: &Cluster, pool: &str, at: usize, family: &str, hash: &str) -> String {
    let name = format!("{pool}-{at}");
    let labels = json!({ "karpenter.sh/nodepool": pool, "karpenter.k8s.aws/instance-family": family, "team": "a",
        "node.kubernetes.io/instance-type": format!("{family}.large"), "karpenter.sh/capacity-type": "on-demand" });
    cluster.create(&json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": { "name": name, "labels": labels,
            "annotations": { "karpenter.sh/nodepool-hash": hash, "karpenter.sh/nodepool-hash-version": "v3" } },
        "spec": { "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "none" }, "requirements": [] }
    }));
    name
}

/// What a run says of pools.
fn told(run: &Run) -> Vec<String> {
    let text =
        |warning: &&Value| format!("{}\n{}", warning["summary"].as_str().unwrap(), warning["detail"].as_str().unwrap());
    run.warnings().iter().map(text).filter(|text| text.starts_with("NodePool")).collect()
}

#[test]
fn a_plan_tells_which_nodes_it_will_replace() {
    let Some(cluster) = Cluster::find("a_plan_tells_which_nodes_it_will_replace") else { return };
    let _turn = crate::claims();
    let pool = cluster.unique("preview");
    let both = "[\"m7i\", \"c7i\"]";
    let stand = cluster.stand(&config(&pool, both, "a", ""));
    // A new pool: from the table alone.
    let new = told(&stand.plan());
    assert!(new.len() == 1 && new[0].contains("types") && new[0].contains("per hour"), "{new:?}");
    stand.apply();
    assert!(told(&stand.plan()).is_empty(), "nothing changes");
    // What a controller would count.
    let counts = json!({ "status": { "nodes": 3, "resources": { "cpu": "6", "nodes": "3" } } });
    cluster.kubectl(&["patch", "nodepool", &pool, "--subresource=status", "--type=merge", "-p", &counts.to_string()]);
    stand.apply();
    let state = stand.state();
    let resources = state["resources"].as_array().unwrap();
    let own = resources.iter().find(|one| one["type"] == "karp_node_pool").unwrap();
    let own = &own["instances"][0]["attributes"];
    assert_eq!((&own["node_count"], &own["resources_in_use"]["cpu"]), (&json!(3), &json!("6")), "{own}");
    assert!(own["hash"].as_str().is_some_and(|hash| !hash.is_empty()), "{own}");
    stand.assert_empty_plan();
    let claims: Vec<String> =
        (0..3).map(|at| claim(&cluster, &pool, at, if at == 0 { "c7i" } else { "m7i" }, "1234")).collect();

    stand.write(&config(&pool, "[\"m7i\"]", "a", ""));
    let narrower = told(&stand.plan());
    assert!(narrower.len() == 1 && narrower[0].contains("1 of 3 nodes will be replaced"), "{narrower:?}");
    assert!(narrower[0].contains("RequirementsDrifted") && narrower[0].contains(": 1 wave."), "{narrower:?}");
    assert!(narrower[0].contains("karpenter.k8s.aws/instance-family=c7i"), "{narrower:?}");
    assert!(narrower[0].contains("it has no Node yet"), "{narrower:?}");
    stand.write(&config(&pool, both, "b", ""));
    let label = told(&stand.plan());
    assert!(label.len() == 1 && label[0].contains("3 of 3 nodes") && label[0].contains("3 waves"), "{label:?}");

    // What is not changed in place takes another pool, and the nodes go with the one before.
    let with_count = config(&pool, both, "a", "").replace("  wait_for_ready", "  replicas = 2\n  wait_for_ready");
    for (field, text) in [("name", config(&format!("{pool}-other"), both, "a", "")), ("replicas", with_count)] {
        stand.write(&text);
        let replaced = told(&stand.plan());
        let words = [
            format!("in place of NodePool \"{pool}\" and its 3 nodes"),
            format!("A change of {field} takes"),
            "At most 1 at a time under the budgets that hold now: 3 waves.".to_owned(),
        ];
        assert!(replaced.len() == 1 && words.iter().all(|word| replaced[0].contains(word)), "{replaced:?}");
    }
    // What nobody knows before the apply is said to be unknown.
    let later = "resource \"terraform_data\" \"team\" {\n  input = \"b\"\n}\n";
    stand.write(&(config(&pool, both, "a", "").replace("team = \"a\"", "team = terraform_data.team.output") + later));
    let open = told(&stand.plan());
    assert!(open.len() == 1 && open[0].contains("not known yet\ntemplate will be known"), "{open:?}");

    // Nothing is said where that is asked for.
    let offline = PROVIDER.replace("{\n  kube", "{\n  offline_plan = true\n  kube");
    stand.write(&config(&pool, both, "b", "").replace(PROVIDER, &offline));
    let quiet = stand.plan();
    assert_eq!((quiet.changes().len(), told(&quiet)), (1, vec![]), "{}", quiet.text);

    // Nor is anything of nodes in a cluster that only the apply will know.
    let later = PROVIDER.replace("= KUBECONFIG", "= terraform_data.path.output");
    let path = "resource \"terraform_data\" \"path\" {\n  input = KUBECONFIG\n}\n";
    stand.write(&(config(&pool, both, "b", "").replace(PROVIDER, &later) + path));
    let blind = stand.plan();
    let said = told(&blind);
    assert!(blind.errors().is_empty() && said.len() == 1, "{}", blind.text);
    assert!(["could not be looked at", "replaced"].iter().all(|words| !said[0].contains(words)), "{said:?}");

    // What goes has no preview, whatever else a destroy is told, and whatever the configuration would change.
    stand.write(&config(&pool, both, "b", ""));
    let going = stand.tofu(&["plan", "-destroy", "-json"]);
    assert_eq!((going.code, told(&going)), (0, vec![]), "{}", going.text);

    // As data, for what is not applied.
    stand.write(&config(&pool, both, "a", "preview"));
    stand.apply();
    stand.assert_empty_plan();
    let run = stand.tofu(&["output", "-json"]);
    let outputs: Value = serde_json::from_str(&run.text).unwrap();
    let (preview, nodes) = (&outputs["preview"]["value"], &outputs["nodes"]["value"]);
    assert_eq!((&preview["nodes"], &preview["drifting"]), (&json!(3), &json!([])), "{preview}");
    assert!(
        preview["types_before"] == preview["types_after"] && preview["typical_price"].as_f64() > Some(0.0),
        "{preview}"
    );
    assert_eq!(nodes["nodes"].as_array().map(Vec::len), Some(3), "{nodes}");
    assert!(nodes["price"].as_f64() > Some(0.2), "{nodes}");
    for claim in claims {
        cluster.kubectl(&["delete", "nodeclaim", &claim]);
    }
    stand.destroy();
}

/// The pool is another's, with a taint that no configuration here says.
#[test]
fn a_plan_that_takes_a_pool_over_tells_which_nodes_it_will_replace() {
    let Some(cluster) = Cluster::find("a_plan_that_takes_a_pool_over_tells_which_nodes") else { return };
    let _turn = crate::claims();
    let pool = cluster.unique("taken");
    cluster.stand(&format!("{PROVIDER}{CRDS}")).apply();
    cluster.create(&json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": pool },
        "spec": { "template": { "metadata": { "labels": { "team": "a" } }, "spec": {
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "none" },
            "requirements": [{ "key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["m7i"] }],
            "taints": [{ "key": "theirs", "effect": "NoSchedule" }],
        } } },
    }));
    let node = claim(&cluster, &pool, 0, "m7i", "1234");
    let taking = |team: &str| {
        let config = config(&pool, "[\"m7i\"]", team, "").replace(CRDS, "");
        config.replace("  depends_on = [karp_crds.this]\n", "  adopt = true\n")
    };
    let stand = cluster.stand(&taking("b"));
    let plan = stand.plan();
    let label = told(&plan);
    assert!(label.len() == 1 && label[0].contains("1 of 1 nodes will be replaced"), "{}", plan.text);
    assert!(label[0].contains(&format!("1 by NodePoolDrifted (template.labels): {node}.")), "{label:?}");
    // The taint stays with it, so that nothing drifts where all else is as it is there.
    stand.write(&taking("a"));
    let same = stand.plan();
    assert_eq!((same.changes().len(), told(&same)), (1, vec![]), "{}", same.text);
    cluster.kubectl(&["delete", "nodeclaim", &node]);
    cluster.kubectl(&["delete", "nodepool", &pool]);
}
