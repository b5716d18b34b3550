//! What the cluster refuses to take, so that a controller stands still between two of its steps.

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use karp_domain::api::{NodeClaim, labels};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::{create, until};

/// A policy of the cluster by which claims of a pool cannot be written as they should be.
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
        let (policies, bindings) = (Api::all(client.clone()), Api::all(client.clone()));
        let name = pool.to_owned();
        let probe = format!("{pool}-probe");
        let rule = json!({ "apiGroups": ["karpenter.sh"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
            "resources": ["nodeclaims", "nodeclaims/status"] });
        let labelled = format!("has(object.metadata.labels) && '{0}' in object.metadata.labels", labels::NODE_POOL);
        let ours = format!("{labelled} && object.metadata.labels['{}'] == '{pool}'", labels::NODE_POOL);
        let allowed = format!("object.metadata.name != '{probe}' && !({forbidden})");
        let spec = json!({ "matchConstraints": { "resourceRules": [rule] },
            "matchConditions": [{ "name": "ours", "expression": ours }],
            "validations": [{ "expression": allowed, "message": Self::WORDS }] });
        create::<ValidatingAdmissionPolicy>(&policies, json!({ "metadata": { "name": name }, "spec": spec })).await;
        let spec = json!({ "policyName": name, "validationActions": ["Deny"] });
        create::<ValidatingAdmissionPolicyBinding>(&bindings, json!({ "metadata": { "name": name }, "spec": spec }))
            .await;
        let claims: Api<NodeClaim> = Api::all(client.clone());
        let probe: NodeClaim = serde_json::from_value(json!({
            "metadata": { "name": probe, "labels": { (labels::NODE_POOL): pool } },
            "spec": {
                "nodeClassRef": { "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "none" },
                "requirements": [],
            },
        }))
        .expect("a claim");
        let tried = PostParams { dry_run: true, ..PostParams::default() };
        until("the policy is in force", async || {
            claims.create(&tried, &probe).await.is_err_and(|refused| refused.to_string().contains(Self::WORDS))
        })
        .await;
        Self { name, policies, bindings }
    }

    /// Takes it back.
    pub async fn lift(self) {
        self.bindings.delete(&self.name, &DeleteParams::default()).await.expect("the binding is deleted");
        self.policies.delete(&self.name, &DeleteParams::default()).await.expect("the policy is deleted");
    }
}

/// Says in CEL that a claim has an annotation.
pub fn annotated(key: &str) -> String {
    format!("has(object.metadata.annotations) && '{key}' in object.metadata.annotations")
}
