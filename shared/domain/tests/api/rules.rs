//! The CEL rules, as karp asks them and as kube-cel's own validator does: the same verdicts, with the same words, on the cases of
//! `../cases/validation.yaml` and on many more.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use karp_domain::api::validate::{self, ViolationKind};
use kube_cel::{CompiledSchema, Validator};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::cases::Table;
use crate::deep;

/// Path and message of what was found. An error in a rule is told in different words.
type Verdicts = BTreeSet<(String, Option<String>)>;

/// The definitions, compiled by kube-cel.
struct Oracle(BTreeMap<String, CompiledSchema>);

static ORACLE: LazyLock<Oracle> = LazyLock::new(Oracle::new);

impl Oracle {
    fn new() -> Self {
        let compiled =
            |crd: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition| {
                let version = crd.spec.versions.into_iter().next().unwrap();
                let schema = serde_json::to_value(version.schema.unwrap().open_api_v3_schema.unwrap()).unwrap();
                (crd.metadata.name.unwrap(), kube_cel::compile_schema(&schema))
            };
        Self(karp_domain::api::crds().into_iter().map(compiled).collect())
    }

    fn verdicts(&self, definition: &str, object: &Value, old: Option<&Value>) -> Verdicts {
        let Err(errors) = Validator::new().validate_compiled(&self.0[definition], object, old) else {
            return Verdicts::new();
        };
        let verdict = |error: kube_cel::ValidationError| {
            let failed = error.kind == kube_cel::ErrorKind::ValidationFailure;
            (error.field_path, failed.then_some(error.message))
        };
        errors.into_iter().map(verdict).collect()
    }

    /// Compares; says how many rules did not hold, and nothing of an object whose structure is so wrong that rules are not asked.
    fn agrees(&self, definition: &str, object: &Value, old: Option<&Value>) -> Option<usize> {
        let found = validate::object(definition, object, old).expect("a definition of ours");
        let (rules, rest): (Vec<_>, Vec<_>) = found.into_iter().partition(|one| one.kind == ViolationKind::Rule);
        if rest.iter().any(|one| one.kind != ViolationKind::Unknown) {
            assert!(rules.is_empty(), "{rules:#?} were asked in spite of {rest:#?}");
            return None;
        }
        let verdict =
            |one: validate::Violation| (one.path, Some(one.message).filter(|told| !told.contains(" (rule: ")));
        let found: Verdicts = rules.into_iter().map(verdict).collect();
        assert_eq!(found, self.verdicts(definition, object, old), "{object:#}\nbefore: {old:?}");
        Some(found.len())
    }
}

#[test]
fn each_case_of_the_table_has_the_verdicts_of_kube_cel() {
    let (table, oracle) = (Table::read(), &*ORACLE);
    let (mut asked, mut refused) = (0, 0);
    for case in &table.cases {
        let broken = oracle.agrees(case.definition(), &table.object(case), table.before(case).as_ref());
        asked += usize::from(broken.is_some());
        refused += usize::from(broken.is_some_and(|broken| broken > 0));
    }
    assert!(
        asked >= 150 && refused >= 50,
        "of {} cases rules of {asked} were asked, {refused} broken",
        table.cases.len()
    );
}

/// As the API server has it: the spec of a claim may not change, and a time that is written in another way is no change.
#[test]
fn the_same_instant_is_the_same_however_it_is_written() {
    let oracle = &*ORACLE;
    let claim = |added: &str| {
        json!({ "metadata": { "name": "x" }, "spec": {
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
            "requirements": [],
            "taints": [{ "key": "a", "effect": "NoSchedule", "timeAdded": added }],
        } })
    };
    let old = claim("2026-01-01T00:00:00Z");
    for (written, broken) in
        [("2026-01-01T00:00:00Z", 0), ("2026-01-01T01:00:00+01:00", 0), ("2026-01-01T00:00:01Z", 1)]
    {
        assert_eq!(oracle.agrees("nodeclaims.karpenter.sh", &claim(written), Some(&old)), Some(broken), "{written}");
    }
}

fn key() -> impl Strategy<Value = String> {
    let domain =
        select(vec!["", "", "karpenter.sh/", "x.karpenter.sh/", "karpenter.k8s.aws/", "kubernetes.io/", "a.io/"]);
    let name = select(vec!["capacity-type", "nodepool", "hostname", "instance-family", "karpenter.sh", "team", "x"]);
    (domain, name).prop_map(|(domain, name)| format!("{domain}{name}"))
}

fn requirement() -> impl Strategy<Value = Value> {
    let operator = select(vec!["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"]);
    let value = select(vec!["0", "4", "-4", "spot", "9999999999999999999", "4.5"]);
    (key(), operator, prop::collection::vec(value, 0..3), prop::option::of(1..4)).prop_map(
        |(key, operator, values, least)| {
            let mut written = json!({ "key": key, "operator": operator, "values": values });
            least.into_iter().for_each(|least| written["minValues"] = json!(least));
            written
        },
    )
}

fn pool_spec() -> impl Strategy<Value = Value> {
    let labels = prop::collection::btree_map(key(), select(vec!["a", "b"]), 0..4);
    let budget = select(vec![json!({ "nodes": "1" }), json!({ "nodes": "1", "schedule": "@daily" })]);
    let limits =
        select(vec![json!({}), json!({ "nodes": "4" }), json!({ "cpu": "4" }), json!({ "nodes": 4, "cpu": "4" })]);
    let class = select(vec!["EC2NodeClass", "Other"]);
    let amounts = (prop::option::of(0..3), prop::option::of(1..3), limits);
    (labels, prop::collection::vec(requirement(), 0..4), budget, class, amounts).prop_map(
        |(labels, requirements, budget, class, (replicas, weight, limits))| {
            let template = json!({
                "metadata": { "labels": labels },
                "spec": {
                    "requirements": requirements,
                    "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": class, "name": "default" },
                },
            });
            let mut spec = json!({ "template": template, "disruption": { "budgets": [budget] }, "limits": limits });
            replicas.into_iter().for_each(|replicas| spec["replicas"] = json!(replicas));
            weight.into_iter().for_each(|weight| spec["weight"] = json!(weight));
            spec
        },
    )
}

fn class_spec() -> impl Strategy<Value = Value> {
    let family = select(vec!["al2", "al2023", "bottlerocket", "windows2022", "ubuntu", ""]);
    let version = select(vec!["@latest", "@v20240101", "@", "", "@a@b", "@latest\n"]);
    let alias = (family, version).prop_map(|(family, version)| json!({ "alias": format!("{family}{version}") }));
    let term =
        prop_oneof![4 => alias, 1 => Just(json!({ "id": "ami-1" })), 1 => Just(json!({ "id": "ami-1", "name": "x" }))];
    let tag = select(vec!["", "team", "karpenter.sh/nodepool", "kubernetes.io/cluster/x", "eks:eks-cluster-name"]);
    let signals = || prop::collection::btree_map(select(vec!["memory.available", "disk"]), Just("5%"), 0..3);
    (
        prop::collection::vec(term, 1..3),
        prop::option::of(select(vec!["AL2", "AL2023", "Bottlerocket", "Windows2022", "Custom"])),
        prop::collection::btree_map(tag, select(vec!["", "a"]), 0..3),
        (signals(), signals()),
        any::<(bool, bool)>(),
    )
        .prop_map(|(terms, family, tags, (hard, soft), (role, profile))| {
            let mut spec = json!({
                "amiSelectorTerms": terms,
                "subnetSelectorTerms": [{ "tags": tags }],
                "securityGroupSelectorTerms": [{ "id": "sg-1" }],
                "tags": tags,
                "kubelet": { "evictionHard": hard, "evictionSoft": soft },
            });
            family.into_iter().for_each(|family| spec["amiFamily"] = json!(family));
            for (wanted, field) in [(role, "role"), (profile, "instanceProfile")] {
                if wanted {
                    spec[field] = json!("node");
                }
            }
            spec
        })
}

proptest! {
    #![proptest_config(deep::cases(60))]

    #[test]
    fn random_objects_have_the_verdicts_of_kube_cel(
        pools in prop::collection::vec(pool_spec(), 4),
        classes in prop::collection::vec(class_spec(), 4),
    ) {
        let oracle = &*ORACLE;
        let object = |spec: &Value| json!({ "metadata": { "name": "x" }, "spec": spec });
        for pair in pools.windows(2) {
            let (old, new) = (object(&pair[0]), object(&pair[1]));
            oracle.agrees("nodepools.karpenter.sh", &new, None);
            oracle.agrees("nodepools.karpenter.sh", &new, Some(&old));
            let claim = |pool: &Value| object(&pool["spec"]["template"]["spec"]);
            oracle.agrees("nodeclaims.karpenter.sh", &claim(&new), Some(&claim(&old)));
        }
        for class in &classes {
            oracle.agrees("ec2nodeclasses.karpenter.k8s.aws", &object(class), None);
        }
    }
}

/// Validation is most of what the provider does for a pool that does not change. What one takes is printed, and held to kube-cel's way,
/// which compiles the regular expressions at each call: on a busy machine too, the least of some rounds is many times shorter.
#[test]
#[expect(clippy::disallowed_methods, reason = "it measures time")]
fn validating_a_pool_takes_a_fraction_of_compiling_its_patterns() {
    const ROUNDS: u32 = 20;
    let key =
        |name: &str| json!({ "key": format!("karpenter.k8s.aws/{name}"), "operator": "In", "values": ["c", "m", "r"] });
    let pool = json!({ "metadata": { "name": "x" }, "spec": { "template": {
        "metadata": { "labels": { "team": "a" } },
        "spec": {
            "requirements": [key("instance-category"), key("instance-family"), key("instance-size")],
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
        },
    } } });
    let oracle = &*ORACLE;
    let least = |judge: &dyn Fn() -> usize| -> Duration {
        let took = |_| {
            let begin = Instant::now();
            assert_eq!(black_box(judge()), 0);
            begin.elapsed()
        };
        (0..ROUNDS).map(took).min().unwrap()
    };
    let ours = least(&|| validate::node_pool(&pool).len());
    let theirs = least(&|| oracle.verdicts("nodepools.karpenter.sh", &pool, None).len());
    eprintln!("a pool is validated in {ours:.0?}; the rules alone by kube-cel in {theirs:.0?}");
    assert!(ours * 2 < theirs, "{ours:?}, kube-cel {theirs:?}");
}
