//! Static drift hashes against the vectors that Go's hashstructure 2.0.2 gives for structs of Karpenter's shape (`cargo sandbox oracle`).

use karp_domain::api::hash::{self, NodeClassVersion};
use karp_domain::api::{Ec2NodeClassSpec, NodePoolSpec};
use serde_json::{Value, json};

fn vectors(text: &str) -> Vec<Value> {
    serde_json::from_str(text).expect("vectors are JSON")
}

#[test]
fn pools_hash_as_in_go() {
    let vectors = vectors(include_str!("../vectors/node-pool-hashes.json"));
    assert!(vectors.len() >= 100, "{}", vectors.len());
    for vector in &vectors {
        let spec: NodePoolSpec =
            serde_json::from_value(json!({ "template": vector["template"] })).expect("a vector is a pool");
        assert_eq!(hash::node_pool(&spec), vector["hash"], "{vector}");
    }
}

#[test]
fn classes_hash_as_in_go() {
    let vectors = vectors(include_str!("../vectors/node-class-hashes.json"));
    assert!(vectors.len() >= 100, "{}", vectors.len());
    for vector in &vectors {
        let spec: Ec2NodeClassSpec = serde_json::from_value(vector["spec"].clone()).expect("a vector is a class");
        let ca_bundle = vector["caBundle"].as_str().expect("a vector has a CA bundle");
        for version in [NodeClassVersion::V5, NodeClassVersion::V6] {
            if let Some(expected) = vector.get(version.as_str()) {
                assert_eq!(hash::node_class(&spec, version, ca_bundle), *expected, "{version:?} of {vector}");
            }
        }
    }
    assert!(vectors.iter().filter(|vector| vector.get("v5").is_some()).count() >= 100);
}
