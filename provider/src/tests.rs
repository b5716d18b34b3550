//! The provider through the in-process stand-in for core: functions, data sources, and a cluster that is gone.

mod acceptance;
mod adopted;
mod articles;
mod chart;
mod examples;
mod home;
mod left_behind;
mod moved;
mod names;
mod pages;
mod policies;
mod region;
mod taken_over;
mod teardown;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use tfplugin::testing::Core;
use tfplugin::{FunctionError, Value};

use crate::provider::Karp;

async fn call(name: &str, arguments: Vec<Value>) -> Result<Value, FunctionError> {
    Core::new(Karp::default()).call(name, &arguments).await
}

fn text(text: &str) -> Value {
    Value::from(text)
}

fn json_of(value: &Value) -> Json {
    serde_json::from_str(value.as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn policies_are_those_of_the_resources() {
    let scope = json!({ "cluster_name": "prod", "region": "eu-west-1", "account_id": "111122223333" });
    let policy = json_of(&call("controller_policy", vec![Value::from(scope.clone())]).await.unwrap());
    let endpoint = &policy["Statement"].as_array().unwrap().last().unwrap()["Resource"];
    assert_eq!(endpoint, "arn:aws:eks:eu-west-1:111122223333:cluster/prod");
    let may_make = |policy: &Json| policy.to_string().contains("iam:CreateInstanceProfile");
    assert!(may_make(&policy));
    let mut given = scope.clone();
    given["instance_profiles"] = json!("terraform");
    let policy = json_of(&call("controller_policy", vec![Value::from(given.clone())]).await.unwrap());
    assert!(!may_make(&policy));
    given["instance_profiles"] = json!("nobody");
    let error = call("controller_policy", vec![Value::from(given)]).await.unwrap_err();
    assert!(error.argument == Some(0) && error.text.contains("controller or terraform"), "{error}");
    let mut misspelt = scope;
    misspelt["regoin"] = json!("x");
    let error = call("controller_policy", vec![Value::from(misspelt)]).await.unwrap_err();
    assert!(error.argument == Some(0) && error.text.contains("regoin"), "{error}");

    let trust = json_of(&call("node_trust_policy", vec![text("aws-cn")]).await.unwrap());
    assert_eq!(trust["Statement"][0]["Principal"]["Service"], "ec2.amazonaws.com.cn");
    assert_eq!(call("node_trust_policy", vec![text("azure")]).await.unwrap_err().argument, Some(0));
}

#[tokio::test]
async fn names_and_tags_are_known_at_plan() {
    let tag = call("discovery_tag", vec![text("prod"), Value::Null]).await.unwrap();
    assert_eq!(tag, Value::object([("karpenter.sh/discovery", "prod")]));
    let tag = call("discovery_tag", vec![text("prod"), Value::from(true)]).await.unwrap();
    assert_eq!(tag, Value::object([("karpenter.sh/discovery/prod", "prod")]));
    let name = call("role_name", vec![text("KarpNodeRole-"), text(&"x".repeat(90))]).await.unwrap();
    assert_eq!(name.as_str().unwrap().len(), 64);
    assert_eq!(call("role_name", vec![text("R-"), text("")]).await.unwrap_err().argument, Some(1));
}

#[test]
fn every_resource_has_limits_that_the_user_may_set() {
    for resource in crate::resources::all(&Arc::default()) {
        assert!(resource.schema().attributes.contains_key("timeouts"), "{}", resource.type_name());
    }
}

#[tokio::test]
async fn quantities_are_exact_numbers() {
    for (quantity, number) in [
        ("1500m", Value::from(1.5)),
        ("4Gi", Value::from(4_i64 << 30)),
        ("-2", Value::from(-2)),
        ("100n", Value::from(1e-7)),
        ("0", Value::from(0)),
    ] {
        assert_eq!(call("quantity", vec![text(quantity)]).await.unwrap(), number, "{quantity}");
    }
    assert_eq!(call("quantity", vec![text("4 GB")]).await.unwrap_err().argument, Some(0));
}

#[tokio::test]
async fn pods_follow_interfaces_or_prefixes() {
    let pods = |name: &str, prefixes: bool, reserved: i64| {
        call("max_pods", vec![text(name), Value::from(prefixes), Value::from(reserved)])
    };
    // figures of Amazon's own list of pods for each type
    assert_eq!(pods("m5.large", false, 0).await.unwrap(), Value::from(29));
    assert_eq!(pods("m5.4xlarge", false, 0).await.unwrap(), Value::from(234));
    assert_eq!(pods("m5.large", false, 1).await.unwrap(), Value::from(20));
    assert_eq!(pods("m5.large", true, 0).await.unwrap(), Value::from(110));
    assert_eq!(pods("m5.24xlarge", true, 0).await.unwrap(), Value::from(250));
    assert_eq!(pods("m99.large", false, 0).await.unwrap_err().argument, Some(0));
    assert_eq!(pods("m5.large", false, -1).await.unwrap_err().argument, Some(2));
}

fn provisioner() -> Json {
    json!({
        "apiVersion": "karpenter.sh/v1alpha5",
        "kind": "Provisioner",
        "metadata": { "name": "default" },
        "spec": {
            "labels": { "team": "a" },
            "requirements": [{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }],
            "limits": { "resources": { "cpu": 1000 } },
            "kubeletConfiguration": { "maxPods": 40 },
            "provider": {
                "subnetSelector": { "karpenter.sh/discovery": "prod" },
                "securityGroupSelector": { "karpenter.sh/discovery": "prod" },
            },
            "ttlSecondsAfterEmpty": 30
        }
    })
}

#[tokio::test]
async fn older_manifests_become_arguments_that_the_resources_take() {
    let core = Core::new(Karp::default());
    let manifest = Value::from(provisioner());
    let pool = core.call("node_pool_from_provisioner", std::slice::from_ref(&manifest)).await.unwrap();
    assert_eq!(pool.get("template").get("labels").get("team").as_str(), Some("a"));
    assert_eq!(pool.get("disruption").get("consolidate_after").as_str(), Some("30s"));
    assert_eq!(pool.get("limits").get("cpu").as_str(), Some("1k"));
    let config = Value::object(
        ["name", "template", "disruption", "limits", "weight"].map(|name| (name, pool.get(name).clone())),
    );
    let found = core.validate("karp_node_pool", &config).await;
    assert!(found.is_empty(), "{found}");

    let inputs = Value::object([("instance_profile", "KarpenterNodeInstanceProfile-prod")]);
    let class = core.call("node_class_from_template", &[manifest.clone(), inputs]).await.unwrap();
    assert_eq!(class.get("kubelet").get("max_pods"), &Value::from(40));
    let mut arguments = class.as_map().unwrap().clone();
    arguments.remove("notes");
    let found = core.validate("karp_node_class", &Value::Map(arguments)).await;
    assert!(found.is_empty(), "{found}");

    let refused = core.call("node_class_from_template", &[manifest, Value::Null]).await.unwrap_err();
    assert!(refused.text.contains("spec.provider.instanceProfile"), "{refused}");
    let yaml = core.call("node_pool_from_provisioner", &[text("kind: Provisioner")]).await.unwrap_err();
    assert!(yaml.text.contains("yamldecode"), "{yaml}");
}

#[tokio::test]
async fn a_pools_hash_is_the_controllers() {
    let spec = json!({ "template": { "spec": {
        "requirements": [],
        "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" }
    } } });
    let expected = karp_domain::api::hash::node_pool(&serde_json::from_value(spec.clone()).unwrap());
    let hash = call("node_pool_hash", vec![Value::from(json!({ "kind": "NodePool", "spec": spec }))]).await.unwrap();
    assert_eq!(hash.as_str(), Some(expected.as_str()));
    let broken = call("node_pool_hash", vec![Value::from(json!({ "spec": { "template": 1 } }))]).await.unwrap_err();
    assert!(broken.text.starts_with("spec: "), "{broken}");
}

#[tokio::test]
async fn instance_types_are_found_offline() {
    let core = Core::new(Karp::default());
    let config = json!({ "requirements": [{ "key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["m7g"] }] });
    let found = core.data("karp_instance_types", &Value::from(config)).await.unwrap();
    let first = &found.get("instance_types").as_list()[0];
    assert_eq!(found.get("names").as_list()[0], *first.get("name"));
    assert_eq!(first.get("architecture").as_str(), Some("arm64"));
}

/// Answers every request as EKS does when there is no such cluster.
fn eks_without_clusters() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let body = r#"{"message":"No cluster found for name: prod."}"#;
            let _ = write!(
                stream,
                "HTTP/1.1 404 Not Found\r\nx-amzn-errortype: ResourceNotFoundException\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
        }
    });
    format!("http://{address}")
}

async fn refresh_a_pool(more: &[(&str, Value)]) -> tfplugin::testing::Outcome {
    let core = Core::new(Karp::default());
    let endpoints = Value::object([("eks", eks_without_clusters())]);
    let mut block = Value::object([
        ("region", text("eu-west-1")),
        ("access_key", text("test")),
        ("secret_key", text("test")),
        ("cluster_name", text("prod")),
        ("endpoints", endpoints),
    ]);
    for (name, value) in more {
        block.set(*name, value.clone());
    }
    let found = core.configure(&block).await;
    assert!(found.is_empty(), "{found}");
    let pool = json!({ "id": "default", "name": "default", "template": {
        "node_class_ref": { "name": "default" }, "requirements": []
    } });
    let state = core.config("karp_node_pool", &Value::from(pool));
    core.read("karp_node_pool", &state).await
}

#[tokio::test]
async fn objects_of_a_cluster_that_is_gone_are_forgotten_only_when_asked() {
    let kept = refresh_a_pool(&[]).await;
    let told = kept.diagnostics.to_string();
    assert!(kept.diagnostics.has_errors() && !kept.state.is_null(), "{told}");
    assert!(told.contains("No such cluster") && told.contains("missing_cluster = \"forget\""), "{told}");

    let forgotten = refresh_a_pool(&[("missing_cluster", text("forget"))]).await;
    let told = forgotten.diagnostics.to_string();
    assert!(!forgotten.diagnostics.has_errors() && forgotten.state.is_null(), "{told}");
    assert!(told.contains("warning: Forgotten with its cluster"), "{told}");

    // what does not answer is not gone
    let nobody = Value::object([("eks", "http://127.0.0.1:1")]);
    let silent = refresh_a_pool(&[("missing_cluster", text("forget")), ("endpoints", nobody)]).await;
    assert!(silent.diagnostics.has_errors() && !silent.state.is_null(), "{}", silent.diagnostics);
}
