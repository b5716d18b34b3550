//! What the cluster refuses to take, so that a controller stands still between two of its steps.

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::Pod;
use karp_domain::api::{NodeClaim, labels};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{create, until};

/// A policy of the cluster by which something cannot be done as it should be.
pub struct Refusal {
    name: String,
    policies: Api<ValidatingAdmissionPolicy>,
    bindings: Api<ValidatingAdmissionPolicyBinding>,
}

impl Refusal {
    /// What the API server says of what is refused.
    pub const WORDS: &str = "refused by a test";

    /// Refuses each write of a pool's claims after which this holds of `object`, in CEL; returns once it is in force.
    pub async fn of(client: &Client, pool: &str, forbidden: &str) -> Self {
        let probe = format!("{pool}-probe");
        let rule = json!({ "apiGroups": ["karpenter.sh"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
            "resources": ["nodeclaims", "nodeclaims/status"] });
        let labelled = format!("has(object.metadata.labels) && '{0}' in object.metadata.labels", labels::NODE_POOL);
        let ours = format!("{labelled} && object.metadata.labels['{}'] == '{pool}'", labels::NODE_POOL);
        let allowed = format!("object.metadata.name != '{probe}' && !({forbidden})");
        let refusal = Self::made(client, pool, &[rule], &ours, &allowed).await;
        let claims: Api<NodeClaim> = Api::all(client.clone());
        let probe: NodeClaim = serde_json::from_value(json!({
            "metadata": { "name": probe, "labels": { (labels::NODE_POOL): pool } },
            "spec": {
                "nodeClassRef": { "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "none" },
                "requirements": [],
            },
        }))
        .expect("a claim");
        until("the policy is in force", async || {
            claims.create(&dry_run(), &probe).await.is_err_and(|refused| refused.to_string().contains(Self::WORDS))
        })
        .await;
        refusal
    }

    /// Refuses each eviction and deletion of a pod; returns once it is in force.
    pub async fn of_going(client: &Client, namespace: &str, pod: &str) -> Self {
        let rules = [("CREATE", "pods/eviction"), ("DELETE", "pods")].map(|(operation, resource)| {
            json!({ "apiGroups": [""], "apiVersions": ["*"], "operations": [operation], "resources": [resource] })
        });
        let ours = format!("request.namespace == '{namespace}'");
        let allowed = format!("request.name != '{pod}'");
        let refusal = Self::made(client, namespace, &rules, &ours, &allowed).await;
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let asked = json!({ "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": pod, "namespace": namespace } });
        until("the policy is in force", async || {
            let answer = pods.create_subresource::<Value, Value>("eviction", pod, &dry_run(), &asked).await;
            answer.is_err_and(|refused| refused.to_string().contains(Self::WORDS))
        })
        .await;
        refusal
    }

    /// Makes the policy: what is `allowed` of what is `ours`, both in CEL.
    async fn made(client: &Client, name: &str, rules: &[Value], ours: &str, allowed: &str) -> Self {
        let (policies, bindings) = (Api::all(client.clone()), Api::all(client.clone()));
        let spec = json!({ "matchConstraints": { "resourceRules": rules },
            "matchConditions": [{ "name": "ours", "expression": ours }],
            "validations": [{ "expression": allowed, "message": Self::WORDS }] });
        create::<ValidatingAdmissionPolicy>(&policies, json!({ "metadata": { "name": name }, "spec": spec })).await;
        let spec = json!({ "policyName": name, "validationActions": ["Deny"] });
        create::<ValidatingAdmissionPolicyBinding>(&bindings, json!({ "metadata": { "name": name }, "spec": spec }))
            .await;
        Self { name: name.to_owned(), policies, bindings }
    }

    /// Takes it back.
    pub async fn lift(self) {
        self.bindings.delete(&self.name, &DeleteParams::default()).await.expect("the binding is deleted");
        self.policies.delete(&self.name, &DeleteParams::default()).await.expect("the policy is deleted");
    }
}

fn dry_run() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

/// Says in CEL that a claim has an annotation.
pub fn annotated(key: &str) -> String {
    format!("has(object.metadata.annotations) && '{key}' in object.metadata.annotations")
}
