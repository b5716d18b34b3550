//! Resources that come from other providers, and the identities by which they are found again.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tfplugin::testing::{Core, Outcome};
use tfplugin::{Context, Moved, Resource, Value};
use tokio_util::sync::CancellationToken;

use crate::provider::Karp;
use crate::session::is_bare;

const ROLE_ARN: &str = "arn:aws:iam::111122223333:role/nodes";
const OIDC_ARN: &str = "arn:aws:iam::111122223333:oidc-provider/oidc.eks.eu-west-1.amazonaws.com/id/EXAMPLE";
const QUEUE_URL: &str = "https://sqs.eu-west-1.amazonaws.com/111122223333/karp-prod";

fn moved(provider: &str, type_name: &str, state: Json) -> Moved {
    let provider_address = format!("registry.opentofu.org/{provider}");
    Moved { provider_address, type_name: type_name.to_owned(), schema_version: 0, state }
}

fn aws(type_name: &str, state: Json) -> Moved {
    moved("hashicorp/aws", type_name, state)
}

fn manifest(api_version: &str, kind: &str, name: &str) -> Moved {
    moved("alekc/kubectl", "kubectl_manifest", json!({ "api_version": api_version, "kind": kind, "name": name }))
}

fn object(api_version: &str, kind: &str, name: &str) -> Moved {
    let object = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": name } });
    let dynamic = json!({ "value": object, "type": ["object", { "apiVersion": "string" }] });
    moved("hashicorp/kubernetes", "kubernetes_manifest", json!({ "object": null, "manifest": dynamic }))
}

/// Each source with the resource that it becomes, and the id by which that is imported.
pub(super) fn sources() -> Vec<(Moved, &'static str, String)> {
    let role = || aws("aws_iam_role", json!({ "id": "nodes", "name": "nodes", "arn": ROLE_ARN }));
    let text = str::to_owned;
    vec![
        (role(), "karp_controller_role", text("nodes")),
        (role(), "karp_node_role", text("nodes")),
        (role(), "karp_fargate_pod_execution_role", text("nodes")),
        (aws("aws_iam_instance_profile", json!({ "name": "nodes" })), "karp_instance_profile", text("nodes")),
        (
            aws("aws_sqs_queue", json!({ "url": QUEUE_URL, "name": "karp-prod" })),
            "karp_interruption_queue",
            text(QUEUE_URL),
        ),
        (
            aws("aws_eks_fargate_profile", json!({ "cluster_name": "prod", "fargate_profile_name": "karpenter" })),
            "karp_fargate_profile",
            text("prod:karpenter"),
        ),
        (
            aws("aws_eks_access_entry", json!({ "cluster_name": "prod", "principal_arn": ROLE_ARN })),
            "karp_access_entry",
            format!("prod:{ROLE_ARN}"),
        ),
        (
            aws("aws_eks_pod_identity_association", json!({ "cluster_name": "prod", "association_id": "a-0123" })),
            "karp_pod_identity_association",
            text("prod,a-0123"),
        ),
        (aws("aws_iam_openid_connect_provider", json!({ "arn": OIDC_ARN })), "karp_oidc_provider", text(OIDC_ARN)),
        (
            aws("aws_ec2_tag", json!({ "resource_id": "subnet-1", "key": "karpenter.sh/discovery", "value": "prod" })),
            "karp_discovery_tags",
            text("karpenter.sh/discovery,prod,subnet-1"),
        ),
        (manifest("karpenter.sh/v1", "NodePool", "default"), "karp_node_pool", text("default")),
        (object("karpenter.sh/v1beta1", "NodePool", "default"), "karp_node_pool", text("default")),
        (manifest("karpenter.k8s.aws/v1", "EC2NodeClass", "default"), "karp_node_class", text("default")),
        (object("karpenter.sh/v1alpha1", "NodeOverlay", "default"), "karp_node_overlay", text("default")),
    ]
}

pub(super) async fn imported(type_name: &str, id: &str) -> Value {
    let kinds: Vec<Box<dyn Resource>> = crate::resources::all(&Arc::default());
    let kind = kinds.into_iter().find(|kind| kind.type_name() == type_name).unwrap();
    let ctx = Context::new(CancellationToken::new(), Duration::from_secs(1));
    kind.import(&ctx, id).await.unwrap()
}

#[tokio::test]
async fn what_is_taken_over_is_what_an_import_begins_with() {
    let core = Core::new(Karp::default());
    for (source, target, id) in sources() {
        let taken = core.take_over(target, &source).await;
        assert!(!taken.diagnostics.has_errors(), "{target}: {}", taken.diagnostics);
        assert_eq!(taken.state, core.config(target, &imported(target, &id).await), "{target}");
        assert_eq!(is_bare(&taken.state), target != "karp_discovery_tags", "{target}");
        if let Some(identity) = &core.schema(target).identity {
            let meant = imported(target, &identity.import_id(&taken.identity).unwrap()).await;
            assert_eq!(meant, imported(target, &id).await, "{target}: the identity means the import id");
        }
    }
    let role = json!({ "aws_service_name": "spot.amazonaws.com" });
    let taken = core.take_over("karp_spot_service_linked_role", &aws("aws_iam_service_linked_role", role)).await;
    let spot = imported("karp_spot_service_linked_role", "spot.amazonaws.com").await.with("adopted", false);
    assert_eq!(taken.expect_state(), core.config("karp_spot_service_linked_role", &spot));
}

#[tokio::test]
async fn the_region_that_hashicorp_aws_kept_comes_along() {
    let core = Core::new(Karp::default());
    let entry = json!({ "cluster_name": "prod", "principal_arn": ROLE_ARN, "region": "us-west-2" });
    let taken = core.take_over("karp_access_entry", &aws("aws_eks_access_entry", entry)).await.expect_state();
    assert_eq!(taken.get("region").as_str(), Some("us-west-2"));
    let own = configured(json!({})).await;
    for (region, kept) in [("eu-west-1", None), ("us-west-2", Some("us-west-2"))] {
        let tag = json!({ "resource_id": "subnet-1", "key": "k", "value": "prod", "region": region });
        let taken = own.take_over("karp_discovery_tags", &aws("aws_ec2_tag", tag)).await.expect_state();
        assert_eq!(taken.get("region").as_str(), kept, "the provider's own region is left out");
    }
}

#[tokio::test]
async fn another_providers_type_is_not_supported() {
    let core = Core::new(Karp::default());
    for (mut source, target, _) in sources() {
        let (_, name) = source.provider_address.rsplit_once('/').unwrap();
        source.provider_address = format!("registry.opentofu.org/another/{name}");
        let refused = core.take_over(target, &source).await.diagnostics.to_string();
        assert!(refused.contains("Moving from this type is not supported"), "{target}: {refused}");
    }
    let group = aws("aws_iam_group", json!({ "name": "nodes" }));
    let refused = core.take_over("karp_node_role", &group).await.diagnostics.to_string();
    assert!(refused.contains("aws_iam_group") && refused.contains("not supported"), "{refused}");
}

#[tokio::test]
async fn a_wrong_object_is_named_with_what_to_do() {
    let core = Core::new(Karp::default());
    let service = json!({ "aws_service_name": "elasticache.amazonaws.com" });
    for (source, target, told) in [
        (manifest("karpenter.sh/v1alpha5", "Provisioner", "old"), "karp_node_pool", "node_pool_from_provisioner"),
        (object("karpenter.sh/v1alpha5", "Provisioner", "old"), "karp_node_pool", "the Provisioner \"old\""),
        (
            manifest("karpenter.k8s.aws/v1alpha1", "AWSNodeTemplate", "old"),
            "karp_node_class",
            "node_class_from_template",
        ),
        (manifest("karpenter.sh/v1", "NodePool", "a"), "karp_node_class", "lead to a karp_node_pool"),
        (object("karpenter.k8s.aws/v1", "EC2NodeClass", "a"), "karp_node_overlay", "lead to a karp_node_class"),
        (manifest("eks.amazonaws.com/v1", "NodeClass", "a"), "karp_node_class", "karp has no resource for it"),
        (manifest("v1", "ConfigMap", "a"), "karp_node_pool", "karp has no resource for it"),
        (manifest("karpenter.sh/v1", "NodePool", ""), "karp_node_pool", "metadata.name"),
        (aws("aws_iam_role", json!({ "name": null })), "karp_node_role", "does not tell name"),
        (aws("aws_iam_service_linked_role", service), "karp_spot_service_linked_role", "elasticache.amazonaws.com"),
    ] {
        let refused = core.take_over(target, &source).await;
        let text = refused.diagnostics.to_string();
        assert!(refused.diagnostics.has_errors() && text.contains(told), "{target}: {text}");
    }
}

/// How the cluster is asked which one it is.
pub(super) const OF_THE_CLUSTER: &str = "GET /api/v1/namespaces/kube-system ";

/// Answers which cluster it is.
pub(super) fn cluster(uid: &str) -> String {
    json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": { "name": "kube-system", "uid": uid } })
        .to_string()
}

/// Answers requests, given as their whole text, until the test ends, but for the question which cluster it is.
pub(super) fn serve(answer: impl Fn(&str) -> String + Send + 'static) -> String {
    serve_all(move |request| if request.starts_with(OF_THE_CLUSTER) { cluster("1") } else { answer(request) })
}

/// Answers requests, given as their whole text, until the test ends. A `Status` is a refusal.
pub(super) fn serve_all(answer: impl Fn(&str) -> String + Send + 'static) -> String {
    fn read(stream: &mut TcpStream) -> String {
        let (mut text, mut part) = (String::new(), [0; 4096]);
        loop {
            let count = stream.read(&mut part).unwrap_or_default();
            text.push_str(&String::from_utf8_lossy(&part[..count]));
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length =
                head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if count == 0 || body.len() >= length.unwrap_or(0) {
                return text;
            }
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let body = answer(&read(&mut stream));
            let kind = if body.starts_with('<') { "text/xml" } else { "application/json" };
            let length = body.len();
            let status = match &body {
                body if body.starts_with("<ErrorResponse") => "404 Not Found",
                body if body.contains("\"kind\":\"Status\"") => "403 Forbidden",
                _ => "200 OK",
            };
            let head =
                format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close");
            let _ = write!(stream, "{head}\r\n\r\n{body}");
        }
    });
    format!("http://{address}")
}

pub(super) async fn configured(more: Json) -> Core {
    let core = Core::new(Karp::default());
    let mut block =
        json!({ "region": "eu-west-1", "access_key": "test", "secret_key": "test", "cluster_name": "prod" });
    for (name, value) in more.as_object().unwrap() {
        block[name] = value.clone();
    }
    let found = core.configure(&Value::from(block)).await;
    assert!(found.is_empty(), "{found}");
    core
}

fn api_server(request: &str) -> String {
    assert!(request.starts_with("GET /apis/karpenter.sh/v1/nodepools/default"), "{request}");
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default", "resourceVersion": "7", "labels": {
            "team": "platform", "app.kubernetes.io/managed-by": "Helm", "kustomize.toolkit.fluxcd.io/name": "pools",
        }, "annotations": {
            "kubernetes.io/description": "general", "karp.sh/consolidation-floor": "30%", "karpenter.sh/nodepool-hash": "1",
            "kubectl.kubernetes.io/last-applied-configuration": "{}", "meta.helm.sh/release-name": "pools",
        } },
        "spec": { "weight": 5, "disruption": {
            "budgets": [{ "nodes": "10%" }], "consolidateAfter": "0s", "consolidationPolicy": "WhenEmptyOrUnderutilized",
        }, "template": { "spec": {
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
            "requirements": [{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }],
            "expireAfter": "720h",
        } } },
    })
    .to_string()
}

#[tokio::test]
async fn a_pool_comes_in_the_same_by_id_by_identity_and_by_move() {
    let core = configured(json!({ "kubernetes": { "host": serve(api_server) } })).await;
    let found = |outcome: Outcome| {
        assert!(!outcome.diagnostics.has_errors(), "{}", outcome.diagnostics);
        (outcome.state, outcome.identity)
    };
    let by_id = found(core.import("karp_node_pool", "default").await);
    let name = Value::object([("name", "default")]);
    assert_eq!(by_id.1, name);
    assert_eq!(found(core.import_by_identity("karp_node_pool", &name).await), by_id);
    let taken = core.take_over("karp_node_pool", &object("karpenter.sh/v1", "NodePool", "default")).await;
    assert_eq!(found(core.read("karp_node_pool", &taken.expect_state()).await), by_id);
    core.assert_settled("karp_node_pool", &by_id.0, &Value::from(plain_pool())).await;
}

fn plain_pool() -> Json {
    json!({
        "name": "default", "weight": 5,
        "annotations": { "kubernetes.io/description": "general", "karp.sh/consolidation-floor": "30%" },
        "labels": { "team": "platform" },
        "template": {
            "node_class_ref": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
            "requirements": [{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }]
        }
    })
}

/// Core shows values that the state has not, and nothing comes of it: neither another hash nor a word on nodes (decision 0018).
#[tokio::test]
async fn a_default_that_is_written_out_after_an_import_changes_nothing_else() {
    let core = configured(json!({ "kubernetes": { "host": serve(api_server) } })).await;
    let state = core.import("karp_node_pool", "default").await.expect_state();
    let mut config = plain_pool();
    config["template"]["expire_after"] = json!("720h");
    config["disruption"] = json!({
        "budgets": [{ "nodes": "10%" }], "consolidate_after": "0s", "consolidation_policy": "WhenEmptyOrUnderutilized",
    });
    let plan = core.plan("karp_node_pool", &state, &Value::from(config.clone())).await;
    assert!(plan.diagnostics.is_empty() && plan.requires_replace.is_empty(), "{plan:?}");
    let mut others = core.config("karp_node_pool", &Value::from(config)).as_map().unwrap().clone();
    for (name, value) in state.as_map().unwrap() {
        if !["template", "disruption"].contains(&name.as_str()) {
            others.insert(name.clone(), value.clone());
        }
    }
    assert_eq!(plan.planned, Value::Map(others));
}

#[tokio::test]
async fn what_was_imported_and_the_configuration_leaves_out_is_planned_away() {
    let core = configured(json!({ "kubernetes": { "host": serve(api_server) } })).await;
    let state = core.import("karp_node_pool", "default").await.expect_state();
    let mut config = plain_pool();
    config["annotations"] = json!({ "kubernetes.io/description": "general" });
    config.as_object_mut().unwrap().remove("labels");
    let plan = core.plan("karp_node_pool", &state, &Value::from(config.clone())).await;
    assert!(plan.diagnostics.is_empty(), "{}", plan.diagnostics);
    assert_eq!(
        plan.planned,
        state.with("annotations", Value::from(config["annotations"].clone())).with("labels", Value::Null)
    );
}

fn iam(request: &str) -> String {
    if request.contains("Action=ListAttachedRolePolicies") {
        return "<ListAttachedRolePoliciesResponse><ListAttachedRolePoliciesResult><IsTruncated>false</IsTruncated><AttachedPolicies/>\
                </ListAttachedRolePoliciesResult></ListAttachedRolePoliciesResponse>"
            .to_owned();
    }
    // An import looks whether the role is one of an IPv6 cluster.
    if request.contains("Action=GetRolePolicy&") {
        return "<ErrorResponse><Error><Code>NoSuchEntity</Code><Message>none</Message></Error></ErrorResponse>"
            .to_owned();
    }
    assert!(request.contains("Action=GetRole&"), "{request}");
    let tag = |key: &str| format!("<member><Key>{key}</Key><Value>1</Value></member>");
    format!(
        "<GetRoleResponse><GetRoleResult><Role><Path>/karpenter/</Path><RoleName>nodes</RoleName><RoleId>AROA1</RoleId>\
         <Arn>{ROLE_ARN}</Arn><CreateDate>2024-01-01T00:00:00Z</CreateDate><Description>old</Description>\
         <AssumeRolePolicyDocument>%7B%7D</AssumeRolePolicyDocument><Tags>{}{}</Tags></Role></GetRoleResult></GetRoleResponse>",
        tag("own"),
        tag("foreign")
    )
}

#[tokio::test]
async fn a_moved_role_keeps_the_tags_of_others() {
    let core = configured(json!({ "endpoints": { "iam": serve(iam) } })).await;
    let source = json!({ "name": "nodes", "tags": { "own": "1" }, "tags_all": { "own": "1", "team": "x" } });
    let taken = core.take_over("karp_node_role", &aws("aws_iam_role", source)).await.expect_state();
    let read = core.read("karp_node_role", &taken).await;
    assert_eq!(read.identity, Value::object([("name", "nodes"), ("account_id", "111122223333")]));
    let state = read.expect_state();
    let own = Value::object([("own", "1")]);
    assert_eq!((state.get("tags"), state.get("tags_all")), (&own, &own));
    assert_eq!(state.get("cluster_name").as_str(), Some("prod"));

    let config = json!({ "name": "nodes", "path": "/karpenter/", "tags": { "own": "1" } });
    let plan = core.plan("karp_node_role", &state, &Value::from(config)).await;
    assert!(plan.diagnostics.is_empty() && plan.requires_replace.is_empty(), "{plan:?}");
    assert_eq!(plan.planned.get("tags_all"), &own.clone().with("karp.sh/cluster", "prod"));

    // an import cannot tell whose tags they are
    let imported = core.import("karp_node_role", "nodes").await.expect_state();
    assert_eq!(imported.get("tags"), &own.with("foreign", "1"));
}

#[tokio::test]
async fn ignored_tags_are_neither_taken_in_nor_planned() {
    let ignore = json!({ "keys": ["foreign"], "key_prefixes": ["cost/"] });
    let core = configured(json!({ "endpoints": { "iam": serve(iam) }, "ignore_tags": ignore })).await;
    let state = core.import("karp_node_role", "nodes").await.expect_state();
    let own = Value::object([("own", "1")]);
    assert_eq!((state.get("tags"), state.get("tags_all")), (&own, &own));

    let config = json!({ "name": "nodes", "path": "/karpenter/", "tags": { "own": "1", "cost/centre": "7" } });
    let plan = core.plan("karp_node_role", &state, &Value::from(config)).await;
    let told = plan.diagnostics.to_string();
    assert!(
        !plan.diagnostics.has_errors() && told.contains("Tags are ignored") && told.contains("cost/centre"),
        "{told}"
    );
    assert_eq!(plan.planned.get("tags_all"), &own.with("karp.sh/cluster", "prod"));
}

#[tokio::test]
async fn what_was_never_looked_at_is_not_planned_from() {
    let core = configured(json!({ "offline_plan": true })).await;
    for (source, target, _) in sources() {
        let bare = core.take_over(target, &source).await.expect_state();
        let told = core.read(target, &bare).await.diagnostics.to_string();
        assert_eq!(told.contains("cannot be read offline"), target != "karp_discovery_tags", "{target}: {told}");
    }
    // a plan without refresh reads nothing either
    let bare = core.take_over("karp_node_role", &aws("aws_iam_role", json!({ "name": "nodes" }))).await.expect_state();
    let plan = core.plan("karp_node_role", &bare, &Value::object([("name", "nodes")])).await;
    assert!(plan.diagnostics.to_string().contains("\"nodes\" was not looked at yet"), "{}", plan.diagnostics);
    let destroy = core.plan("karp_node_role", &bare, &Value::Null).await;
    assert!(destroy.diagnostics.is_empty(), "{}", destroy.diagnostics);
    let whole = bare.with("arn", ROLE_ARN).with("cluster_name", "prod");
    assert_eq!(core.read("karp_node_role", &whole).await.expect_state(), whole);
}

#[tokio::test]
async fn an_oidc_provider_of_an_unknown_cluster_is_not_replaced() {
    let core = configured(json!({})).await;
    let source = aws("aws_iam_openid_connect_provider", json!({ "arn": OIDC_ARN }));
    let bare = core.take_over("karp_oidc_provider", &source).await.expect_state();
    let state = bare.with("url", "https://issuer").with("adopt", true);
    let plan = core.plan("karp_oidc_provider", &state, &Value::Null.with("cluster_name", "prod")).await;
    assert!(plan.diagnostics.is_empty() && plan.requires_replace.is_empty(), "{plan:?}");
    let known = state.with("cluster_name", "stage");
    let plan = core.plan("karp_oidc_provider", &known, &Value::Null.with("cluster_name", "prod")).await;
    assert_eq!(plan.requires_replace.len(), 1, "{plan:?}");
}

#[tokio::test]
async fn identities_of_the_other_providers_are_brought_to_karps_shape() {
    let core = Core::new(Karp::default());
    let of_aws = json!({ "account_id": "111122223333", "name": "nodes" });
    let role = core.upgrade_identity("karp_node_role", 0, &of_aws).await;
    assert_eq!(role.identity, Value::from(of_aws));
    let of_kubernetes = json!({ "api_version": "karpenter.sh/v1", "kind": "NodePool", "name": "a", "namespace": null });
    let pool = core.upgrade_identity("karp_node_pool", 1, &of_kubernetes).await;
    assert_eq!(pool.identity, Value::object([("name", "a")]));
}
