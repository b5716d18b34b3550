//! What a plan says of a class's nodes where AWS can be asked what its changed selectors find.

use serde_json::{Value, json};

use crate::life::unique;
use crate::stand::{Sandbox, Stand};
use crate::teardown::Kubectl;

/// A class by the ids of its subnets; `data` previews one by other subnets.
fn config(block: &str, name: &str, alias: &str, subnets: &[&str], data: Option<&[&str]>) -> String {
    let terms = |ids: &[&str]| ids.iter().map(|id| format!("{{ id = {id:?} }}")).collect::<Vec<_>>().join(", ");
    let class = |subnets: &[&str]| {
        format!(
            "role = \"nodes\"\n    ami_selector_terms = [{{ alias = {alias:?} }}]\n    subnet_selector_terms = [{}]\n    \
             security_group_selector_terms = [{{ tags = {{ \"karp.test/none\" = \"*\" }} }}]",
            terms(subnets)
        )
    };
    let data = data.map_or_else(String::new, |subnets| {
        format!(
            "data \"karp_disruption_preview\" \"it\" {{\n  name = {name:?}\n  node_class = {{\n    {}\n  }}\n}}\n",
            class(subnets)
        ) + "output \"preview\" {\n  value = data.karp_disruption_preview.it\n}\n"
    });
    format!(
        "{block}resource \"karp_crds\" \"this\" {{}}\nresource \"karp_node_class\" \"it\" {{\n    name = {name:?}\n    {}\n    \
         wait_for_ready = false\n    depends_on = [karp_crds.this]\n}}\n{data}",
        class(subnets)
    )
}

/// The one warning of a plan about the class.
fn told(stand: &Stand<'_>) -> String {
    let run = stand.plan();
    let text = |told: &&Value| format!("{}\n{}", told["summary"].as_str().unwrap(), told["detail"].as_str().unwrap());
    let told: Vec<String> = run.warnings().iter().map(text).filter(|text| text.starts_with("EC2NodeClass")).collect();
    assert_eq!(told.len(), 1, "{}", run.text);
    told.concat()
}

#[tokio::test]
async fn a_plan_looks_up_what_the_selectors_of_a_class_find() {
    let Some(sandbox) = Sandbox::with_cluster("class_preview") else { return };
    let Some(kubectl) = Kubectl::find() else {
        eprintln!("skipped: class_preview: KARP_TEST_KUBECONFIG is not set");
        return;
    };
    let name = unique("preview");
    let block = sandbox.provider(&format!("  kubernetes = {{ config_path = {:?} }}", kubectl.kubeconfig));
    let ec2 = sandbox.clients().await.ec2().clone();
    let answer = ec2.describe_subnets().set_subnet_ids(Some(sandbox.subnet_ids.clone())).send().await.unwrap();
    let mut subnets: Vec<(&str, &str)> = Vec::new();
    for subnet in answer.subnets() {
        let (id, zone) = (subnet.subnet_id().unwrap(), subnet.availability_zone().unwrap());
        if subnets.iter().all(|(_, known)| *known != zone) {
            subnets.push((id, zone));
        }
    }
    let (first, second) = (subnets[0], subnets[1]);
    let alias = "al2023@latest";
    let stand = sandbox.stand(&config(&block, &name, alias, &[first.0, second.0], None));
    stand.apply();
    stand.assert_empty_plan();

    // What a controller would have found and made: one node in each zone, of an image that AWS does not name any more.
    let found: Vec<Value> = [first, second].iter().map(|(id, zone)| json!({ "id": id, "zone": zone })).collect();
    let old = json!([{ "id": "ami-old", "requirements": [] }]);
    kubectl.patch_status("ec2nodeclass", &name, &json!({ "status": { "subnets": found, "amis": old } }));
    let class = json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": name });
    for (at, (_, zone)) in [first, second].iter().enumerate() {
        let (claim, labels) =
            (format!("{name}-{at}"), json!({ "topology.kubernetes.io/zone": zone, "kubernetes.io/arch": "amd64" }));
        kubectl.create(&json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": claim, "labels": labels },
            "spec": { "nodeClassRef": class, "requirements": [] } }));
        kubectl.patch_status("nodeclaim", &claim, &json!({ "status": { "imageID": "ami-old" } }));
    }

    // A refresh reads what the controller has found.
    stand.apply();
    let status = stand.attribute("karp_node_class.it", "status");
    assert_eq!(
        (&status["amis"][0]["id"], &status["subnets"][0]["zone"]),
        (&json!("ami-old"), &json!(first.1)),
        "{status}"
    );
    stand.assert_empty_plan();

    stand.write(&config(&block, &name, alias, &[first.0], None));
    let fewer = told(&stand);
    assert!(fewer.contains("Drifting: 1 by SubnetDrift (subnet_selector_terms)"), "{fewer}");
    assert!(fewer.contains(&format!("`subnet_selector_terms` find {}; before, ", first.0)), "{fewer}");
    assert!(!fewer.contains("Perhaps"), "AWS was asked: {fewer}");

    stand.write(&config(&block, &name, "bottlerocket@latest", &[first.0, second.0], None));
    let image = told(&stand);
    assert!(image.contains("by AMIDrift (ami_selector_terms)") || image.contains("NodeClassDrift"), "{image}");
    assert!(image.contains("`ami_selector_terms` find ami-") && image.contains("; before, ami-old."), "{image}");

    stand.write(&config(&block, &name, alias, &["subnet-00000000"], None));
    let nothing = stand.plan();
    assert!(!nothing.text.contains("\"severity\":\"error\""), "a preview that fails is no error: {}", nothing.text);
    let of_class = |told: &&Value| told["summary"].as_str().unwrap().starts_with("EC2NodeClass");
    assert!(nothing.warnings().iter().any(of_class), "what it came to is a warning: {}", nothing.text);

    // The same as data, for what is not applied.
    stand.write(&config(&block, &name, alias, &[first.0, second.0], Some(&[second.0])));
    stand.apply();
    stand.assert_empty_plan();
    let outputs: Value = serde_json::from_str(&stand.tofu(&["output", "-json"]).text).unwrap();
    let preview = &outputs["preview"]["value"];
    assert_eq!((&preview["nodes"], &preview["types_before"]), (&json!(2), &Value::Null), "{preview}");
    let drifting = preview["drifting"].as_array().unwrap();
    assert_eq!((drifting.len(), &drifting[0]["reason"]), (1, &json!("SubnetDrift")), "{preview}");
    assert_eq!(drifting[0]["blocked_by"], "it belongs to no NodePool", "{preview}");

    for at in 0..2 {
        kubectl.delete("nodeclaim", &format!("{name}-{at}"));
    }
    stand.destroy();
}
