//! What the API server would refuse, found offline: the table of `../cases/validation.yaml`, one case or more for each rule. The
//! controller's edge test `validation` holds the real API server to the same table.

use std::collections::BTreeMap;

use karp_domain::api::validate;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cases::Table;

#[test]
fn each_case_is_accepted_or_refused_at_its_path() {
    let table = Table::read();
    assert!(table.cases.len() >= 200, "{}", table.cases.len());
    let mut wrong = Vec::new();
    for case in &table.cases {
        let (definition, old, new) = (case.definition(), table.before(case), table.object(case));
        let found = validate::object(definition, &new, old.as_ref()).expect("a definition of ours");
        let mut paths: Vec<&str> = found.iter().map(|violation| violation.path.as_str()).collect();
        paths.dedup();
        let expected: Vec<&str> = case.refused.as_deref().into_iter().collect();
        if paths != expected {
            wrong.push(format!("{case:?}\n  expected {expected:?}, found {found:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), table.cases.len(), wrong.join("\n"));
}

/// Each base of the table must be an object that karp itself can read.
#[test]
fn accepted_objects_are_read_and_written_back() {
    fn again<K: for<'a> Deserialize<'a> + serde::Serialize>(object: &Value) -> Value {
        let read: K = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error} in {object}"));
        serde_json::to_value(read).expect("plain data")
    }
    let table = Table::read();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for case in table.cases.iter().filter(|case| case.refused.is_none()) {
        let object = table.object(case);
        let written = match case.kind.as_str() {
            "NodePool" => again::<karp_domain::api::NodePool>(&object),
            "NodeClaim" => again::<karp_domain::api::NodeClaim>(&object),
            "NodeOverlay" => again::<karp_domain::api::NodeOverlay>(&object),
            "EC2NodeClass" => again::<karp_domain::api::Ec2NodeClass>(&object),
            "CapacityBuffer" => again::<karp_domain::api::CapacityBuffer>(&object),
            other => panic!("{other} is not of ours"),
        };
        let found = validate::object(case.definition(), &written, None).expect("a definition of ours");
        assert_eq!(found, [], "{case:?}");
        *kinds.entry(&case.kind).or_default() += 1;
    }
    assert!(kinds.len() == 5 && kinds.values().all(|accepted| *accepted >= 3), "{kinds:?}");
}

#[test]
fn whole_objects_and_specs_alone_are_taken() {
    let spec = json!({ "spec": { "template": { "spec": {
        "requirements": [],
        "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" }
    } } } });
    assert_eq!(validate::node_pool(&spec), []);
    let mut changed = spec.clone();
    changed["spec"]["replicas"] = json!(1);
    assert_eq!(validate::node_pool(&changed), []);
    let paths: Vec<_> = validate::node_pool_change(&spec, &changed).into_iter().map(|found| found.path).collect();
    assert_eq!(paths, ["spec"]);
}

/// What the API server prunes keeps nobody from learning of a rule that the rest breaks.
#[test]
fn unknown_fields_say_what_was_meant_and_hide_no_rule() {
    let template = json!({"spec": {"requirements": [{"key": "kubernetes.io/arch", "operator": "In", "value": ["amd64"]}],
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}}});
    let budget = json!({"nodes": "1", "schedule": "@daily"});
    let found = validate::node_pool(&json!({"spec": {"limit": {"cpu": "1"}, "expireAfter": "1h", "colour": "red",
        "disruption": {"budgets": [budget]}, "template": template}}));
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    let unknown = "is not a field of this API";
    for wanted in [
        format!("spec.limit: {unknown}; did you mean spec.limits?"),
        format!("spec.expireAfter: {unknown}; did you mean spec.template.spec.expireAfter?"),
        format!("spec.colour: {unknown}"),
        format!(
            "spec.template.spec.requirements[0].value: {unknown}; did you mean spec.template.spec.requirements[0].values?"
        ),
    ] {
        assert!(found.contains(&wanted), "{wanted}: {found:#?}");
    }
    assert!(found.iter().any(|one| one.starts_with("spec.disruption")), "{found:#?}");
}
