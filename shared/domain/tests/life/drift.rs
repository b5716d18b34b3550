//! Drift: a new node is what its pool and class say, whatever these and its pods are.

use std::collections::BTreeMap;
use std::sync::Arc;

use karp_domain::api::hash::{self, NodeClassVersion};
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool, labels, requirements};
use karp_domain::catalogue::{Catalogue, InstanceType, RankedOffering};
use karp_domain::cluster::Pool;
use karp_domain::lifecycle::{Drift, drift};
use karp_domain::scheduling::{InFlightNode, solve};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::deep;
use crate::world::universe::a_cluster;
use crate::world::{NOW, TYPES, at, catalogue, snapshot, with};

type Stamp = BTreeMap<String, String>;

fn of_pool(pool: &NodePool) -> Stamp {
    BTreeMap::from([
        (labels::NODE_POOL_HASH.to_owned(), hash::node_pool(&pool.spec)),
        (labels::NODE_POOL_HASH_VERSION.to_owned(), hash::NODE_POOL_VERSION.to_owned()),
    ])
}

fn of_class(class: &Ec2NodeClass, version: NodeClassVersion) -> Stamp {
    BTreeMap::from([
        (labels::EC2_NODE_CLASS_HASH.to_owned(), hash::node_class(&class.spec, version, "")),
        (labels::EC2_NODE_CLASS_HASH_VERSION.to_owned(), version.as_str().to_owned()),
    ])
}

/// The claim of a planned node, made long ago, with the labels that its instance settled: as the controller makes and labels it.
fn launched(node: &InFlightNode, offering: &RankedOffering, kind: &InstanceType, class: &Stamp) -> NodeClaim {
    let mut claim = NodeClaim::new("n", node.claim_spec());
    let mut all = node.claim_labels();
    all.extend(requirements(&claim.spec.requirements).unwrap().settled_labels());
    let single = |(key, values): (&Arc<str>, &Vec<Arc<str>>)| match values.as_slice() {
        [value] => Some((key.to_string(), value.to_string())),
        _ => None,
    };
    all.extend(kind.labels.iter().filter_map(single));
    all.insert(labels::ZONE.to_owned(), offering.zone.name.to_string());
    all.insert(labels::ZONE_ID.to_owned(), offering.zone.id.to_string());
    all.insert(labels::CAPACITY_TYPE.to_owned(), offering.capacity_type.to_string());
    claim.metadata.labels = Some(all);
    claim.metadata.annotations = Some(node.annotations.clone().into_iter().chain(class.clone()).collect());
    claim.metadata.creation_timestamp = serde_json::from_value(json!("2026-11-20T12:00:00Z")).unwrap();
    claim
}

fn named<'o>(objects: &'o [Value], kind: &str, name: &str) -> &'o Value {
    objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name).unwrap()
}

/// What a pool that is written so makes of a claim.
fn judge(claim: &NodeClaim, pool: &Value, class: &Stamp, known: &Catalogue) -> Option<Drift> {
    let pool: NodePool = serde_json::from_value(pool.clone()).unwrap();
    drift(claim, &Pool::from_kube(&pool).unwrap(), &of_pool(&pool), class, Some(known), at(NOW))
}

proptest! {
    #![proptest_config(deep::cases(100))]

    #[test]
    fn a_new_node_is_not_drifted_from_what_it_was_made_from(objects in a_cluster(), old in any::<bool>()) {
        let known = catalogue(TYPES);
        let version = if old { NodeClassVersion::V5 } else { NodeClassVersion::V6 };
        // what is no part of the template, and what is
        let (other, never) = (json!({"cpu": "9k"}), json!({"consolidateAfter": "Never"}));
        let beside = [("spec.weight", json!(9)), ("spec.limits", other), ("spec.disruption", never)];
        let template = [("spec.template.metadata.annotations", json!({"changed": "yes"}))];
        for node in solve(&snapshot(&objects, known.clone())).nodes {
            let pool = named(&objects, "NodePool", &node.pool);
            let class = named(&objects, "EC2NodeClass", &node.class.name);
            let class = of_class(&serde_json::from_value(class.clone()).unwrap(), version);
            for offering in node.offerings.iter() {
                let claim = launched(&node, offering, known.get(&offering.instance_type).unwrap(), &class);
                prop_assert_eq!(judge(&claim, pool, &class, &known), None);
                prop_assert_eq!(judge(&claim, &with(pool.clone(), &beside), &class, &known), None);
                let changed = with(pool.clone(), &template);
                prop_assert_eq!(judge(&claim, &changed, &class, &known), Some(Drift::NodePool));
            }
        }
    }
}
