//! What the API server takes and nobody can have meant.

use karp_domain::api::lint::{self, Weight};
use karp_domain::api::{NodePool, validate};
use karp_domain::cluster::Pool;
use serde_json::{Value, json};

const FUTILE: Weight = Weight::Futile;
const DOUBTFUL: Weight = Weight::Doubtful;

fn pool(template: &Value) -> Value {
    let mut pool = json!({ "spec": { "template": { "spec": {
        "requirements": [],
        "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" }
    } } } });
    for (name, value) in template.as_object().expect("fields") {
        pool["spec"]["template"]["spec"][name] = value.clone();
    }
    pool
}

fn requirement(key: &str, operator: &str, values: &[&str]) -> Value {
    pool(&json!({ "requirements": [{ "key": key, "operator": operator, "values": values }] }))
}

fn found(object: &Value, lint: fn(&Value) -> Vec<lint::Finding>) -> Vec<(String, Weight)> {
    lint(object).into_iter().map(|finding| (finding.path, finding.weight)).collect()
}

/// The API server's verdict stays what it is: what is found here it takes.
fn of_pool(pool: &Value) -> Vec<(String, Weight)> {
    assert_eq!(validate::node_pool(pool), []);
    found(pool, lint::node_pool)
}

#[test]
fn a_taint_is_given_once() {
    let taint = |effect: &str| json!({ "key": "gpu", "value": "a", "effect": effect });
    let twice = pool(&json!({ "taints": [taint("NoSchedule"), taint("NoExecute"), taint("NoSchedule")] }));
    assert_eq!(of_pool(&twice), [("spec.template.spec.taints[2]".to_owned(), FUTILE)]);
    let again = pool(&json!({ "taints": [taint("NoSchedule")], "startupTaints": [taint("NoSchedule")] }));
    assert_eq!(of_pool(&again), [("spec.template.spec.startupTaints[0]".to_owned(), FUTILE)]);
    let differ = pool(&json!({ "taints": [taint("NoSchedule")], "startupTaints": [taint("NoExecute")] }));
    assert_eq!(of_pool(&differ), []);
}

#[test]
fn settings_are_such_as_a_kubelet_knows() {
    let told = |kubelet: Value| found(&json!({ "spec": { "kubelet": kubelet } }), lint::node_class);
    assert_eq!(told(json!({ "maxPods": 5, "topologyManagerPolicy": "restricted" })), []);
    assert_eq!(told(json!({ "maxPod": 5 })), [("spec.kubelet.maxPod".to_owned(), FUTILE)]);
    assert_eq!(told(json!({ "aSettingOfTomorrow": 5 })), [("spec.kubelet.aSettingOfTomorrow".to_owned(), DOUBTFUL)]);
}

/// The field that keeps the controller from using a pool which the API server took.
fn refused(pool: &Value) -> Option<String> {
    let mut object = pool.clone();
    object["metadata"] = json!({ "name": "pool" });
    let object: NodePool = serde_json::from_value(object).expect("a pool");
    Pool::from_kube(&object).err().map(|why| why.field)
}

/// Claims or nodes of such pools are refused, again and again: nothing is launched for them.
#[test]
fn no_pool_is_used_whose_nodes_the_api_server_would_refuse() {
    let taint = |effect: &str| json!({ "key": "gpu", "value": "a", "effect": effect });
    let mut labelled = pool(&json!({}));
    labelled["spec"]["template"]["metadata"]["labels"] = json!({ "not a key!": "b" });
    let cases = [
        labelled,
        requirement("team", "In", &["any value"]),
        requirement("team", "NotIn", &["any value"]),
        pool(&json!({ "taints": [taint("NoSchedule"), taint("NoSchedule")] })),
        pool(&json!({ "taints": [taint("NoSchedule")], "startupTaints": [taint("NoSchedule")] })),
    ];
    for case in cases {
        let [(path, FUTILE)] = &*of_pool(&case) else { panic!("{case}") };
        assert_eq!(refused(&case).as_ref(), Some(path), "{case}");
    }
    for sound in [
        pool(&json!({ "taints": [taint("NoSchedule"), taint("NoExecute")] })),
        requirement("team", "In", &["any_value.9"]),
        requirement("karpenter.k8s.aws/instance-cpu", "Gt", &["4"]),
    ] {
        assert_eq!(refused(&sound), None, "{sound}");
    }
}

#[test]
fn labels_are_such_as_a_node_can_have() {
    let mut labelled = pool(&json!({}));
    labelled["spec"]["template"]["metadata"]["labels"] = json!({ "team": "a", "not a key!": "b" });
    assert_eq!(of_pool(&labelled), [("spec.template.metadata.labels[not a key!]".to_owned(), FUTILE)]);
    let values = ("spec.template.spec.requirements[0].values".to_owned(), FUTILE);
    for operator in ["In", "NotIn"] {
        assert_eq!(
            of_pool(&requirement("team", operator, &["any value", "b"])),
            std::slice::from_ref(&values),
            "{operator}"
        );
    }
    assert_eq!(of_pool(&requirement("team", "In", &["any_value.9", "b"])), []);
}

#[test]
fn values_are_such_as_the_label_can_have() {
    let cases = [
        ("karpenter.sh/capacity-type", "In", &["ondemand"][..], Some(FUTILE)),
        ("karpenter.sh/capacity-type", "In", &["ondemand", "spot"], Some(DOUBTFUL)),
        ("karpenter.sh/capacity-type", "NotIn", &["Spot"], Some(DOUBTFUL)),
        ("karpenter.sh/capacity-type", "In", &["on-demand", "spot", "reserved"], None),
        ("kubernetes.io/arch", "In", &["x86_64"], Some(FUTILE)),
        ("beta.kubernetes.io/arch", "In", &["x86_64"], Some(FUTILE)),
        ("kubernetes.io/os", "In", &["lniux"], Some(FUTILE)),
        ("karpenter.k8s.aws/instance-tenancy", "In", &["host"], Some(FUTILE)),
        ("karpenter.k8s.aws/instance-capability-flex", "In", &["False"], Some(FUTILE)),
        ("karpenter.k8s.aws/instance-family", "In", &["m99"], None),
        ("team", "In", &["x86_64"], None),
        ("karpenter.k8s.aws/instance-family", "Exists", &["m7i"], Some(DOUBTFUL)),
        ("karpenter.k8s.aws/instance-family", "DoesNotExist", &["m7i"], Some(DOUBTFUL)),
        ("karpenter.k8s.aws/instance-family", "Exists", &[], None),
    ];
    for (key, operator, values, weight) in cases {
        let expected: Vec<_> =
            weight.into_iter().map(|weight| ("spec.template.spec.requirements[0].values".to_owned(), weight)).collect();
        assert_eq!(of_pool(&requirement(key, operator, values)), expected, "{key} {operator} {values:?}");
    }
    let said = &lint::node_pool(&requirement("karpenter.sh/capacity-type", "In", &["ondemand"]))[0].message;
    assert_eq!(
        said,
        "karpenter.sh/capacity-type is never \"ondemand\", only one of on-demand, spot, reserved; did you mean on-demand?"
    );
}

#[test]
fn what_is_left_must_be_enough_for_min_values() {
    let mut short = requirement("karpenter.sh/capacity-type", "In", &["spot", "ondemand"]);
    short["spec"]["template"]["spec"]["requirements"][0]["minValues"] = json!(2);
    assert_eq!(of_pool(&short), [("spec.template.spec.requirements[0].values".to_owned(), FUTILE)]);
}

#[test]
fn nodes_of_other_clouds_may_be_anything() {
    let mut foreign = requirement("kubernetes.io/arch", "In", &["s390x"]);
    foreign["spec"]["template"]["spec"]["nodeClassRef"]["group"] = json!("karpenter.example.com");
    assert_eq!(of_pool(&foreign), []);
}

#[test]
fn labels_of_nodes_are_such_as_there_are() {
    let mut labelled = pool(&json!({}));
    labelled["spec"]["template"]["metadata"] = json!({ "labels": { "kubernetes.io/arch": "x86_64", "team": "a" } });
    assert_eq!(of_pool(&labelled), [("spec.template.metadata.labels[kubernetes.io/arch]".to_owned(), FUTILE)]);
}

#[test]
fn a_limit_is_not_below_zero() {
    let mut limited = pool(&json!({}));
    limited["spec"]["limits"] = json!({ "cpu": "-1", "memory": "0", "nodes": 5, "example.com/gpu": -2 });
    let paths = [("spec.limits[cpu]".to_owned(), FUTILE), ("spec.limits[example.com/gpu]".to_owned(), FUTILE)];
    assert_eq!(of_pool(&limited), paths);
}

#[test]
fn roles_and_profiles_go_by_their_names() {
    let role = |role: &str| found(&json!({ "spec": { "role": role } }), lint::node_class);
    let at = |path: &str, weight| vec![(path.to_owned(), weight)];
    assert_eq!(role("KarpNodeRole-prod"), []);
    assert_eq!(role("some/path/KarpNodeRole-prod"), []);
    assert_eq!(role("arn:aws:iam::111122223333:role/some/path/nodes"), at("spec.role", DOUBTFUL));
    assert_eq!(role("arn:aws:iam::111122223333:nodes"), at("spec.role", FUTILE));
    let profile = |profile: &str| found(&json!({ "spec": { "instanceProfile": profile } }), lint::node_class);
    assert_eq!(profile("nodes"), []);
    assert_eq!(profile("some/path/nodes"), at("spec.instanceProfile", FUTILE));
    assert_eq!(profile("arn:aws:iam::111122223333:instance-profile/nodes"), at("spec.instanceProfile", FUTILE));
}

/// As articles print manifests, for a shell or the reader to fill in.
#[test]
fn placeholders_are_filled_in() {
    let discovery = |value: &str| json!([{ "tags": { "karpenter.sh/discovery": value } }]);
    let class = json!({ "spec": {
        "role": "KarpenterNodeRole-${CLUSTER_NAME}",
        "tags": { "team": "<TEAM>", "cost": "a < b > c", "mail": "<me@example.com>", "price": "$5" },
        "subnetSelectorTerms": discovery("<CLUSTER_NAME>"),
        "securityGroupSelectorTerms": [{ "name": "<YOUR GROUP>" }],
        "amiSelectorTerms": discovery("<cluster-name>"),
    } });
    let expected = [
        ("spec.role", FUTILE),
        ("spec.tags[team]", DOUBTFUL),
        ("spec.subnetSelectorTerms[0].tags[karpenter.sh/discovery]", DOUBTFUL),
        ("spec.securityGroupSelectorTerms[0].name", DOUBTFUL),
    ];
    assert_eq!(found(&class, lint::node_class), expected.map(|(path, weight)| (path.to_owned(), weight)));
    assert_eq!(
        lint::node_class(&class)[0].sentence(),
        "spec.role: ${CLUSTER_NAME} is a placeholder that was not filled in: write what it stands for."
    );
    let profile = json!({ "spec": { "instanceProfile": "KarpenterNodeInstanceProfile-<CLUSTER_NAME>" } });
    assert_eq!(found(&profile, lint::node_class), [("spec.instanceProfile".to_owned(), FUTILE)]);

    let mut named = pool(&json!({}));
    named["spec"]["template"]["spec"]["nodeClassRef"]["name"] = json!("${CLUSTER_NAME}");
    assert_eq!(of_pool(&named), [("spec.template.spec.nodeClassRef.name".to_owned(), FUTILE)]);
    let name = |name: &str| lint::name(&json!({ "metadata": { "name": name } })).map(|one| (one.path, one.weight));
    assert_eq!(name("${CLUSTER_NAME}-np"), Some(("metadata.name".to_owned(), FUTILE)));
    assert_eq!(name("default"), None);
}

#[test]
fn overlays_speak_of_what_there_is() {
    let overlay = json!({ "spec": { "requirements": [
        { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on_demand"] }
    ] } });
    assert_eq!(found(&overlay, lint::node_overlay), [("spec.requirements[0].values".to_owned(), FUTILE)]);
}

/// What is not there yet, or has the wrong shape, is for the API's rules, or for later.
#[test]
fn a_part_of_an_object_will_do() {
    for object in [
        json!({}),
        json!(null),
        json!({ "spec": [] }),
        json!({ "spec": { "template": { "spec": { "taints": 1, "requirements": [{}, 2] } } } }),
    ] {
        for lint in [lint::node_pool, lint::node_class, lint::node_overlay] {
            assert_eq!(lint(&object), []);
        }
    }
}
