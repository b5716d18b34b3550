//! Which pods belong to Fargate: the webhook that EKS runs, fed with the profiles that exist in the emulator.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::SCHEDULER;
use crate::{Context, http};

/// The label by which EKS marks a pod with its profile.
pub const PROFILE_LABEL: &str = "eks.amazonaws.com/fargate-profile";
/// How long the list of profiles is taken for true: a Deployment of 500 pods asks 500 times in a second.
const FRESH: Duration = Duration::from_millis(200);

/// A Fargate profile that is active.
#[derive(Debug, Clone, Deserialize)]
struct Profile {
    name: String,
    selectors: Vec<Selector>,
}

#[derive(Debug, Clone, Deserialize)]
struct Selector {
    namespace: String,
    labels: Option<BTreeMap<String, String>>,
}

/// The profiles as the emulator lists them, remembered for a moment.
pub struct Profiles {
    url: String,
    seen: Mutex<Option<(Instant, Vec<Profile>)>>,
}

impl Profiles {
    /// Asks the emulator at an endpoint.
    pub fn new(aws_endpoint: &str) -> Self {
        Self { url: format!("{aws_endpoint}/_karp/fargate-profiles"), seen: Mutex::default() }
    }

    /// Returns the first profile, by name, that selects such a pod.
    async fn matching(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Result<Option<String>> {
        let mut seen = self.seen.lock().await;
        if seen.as_ref().is_none_or(|(at, _)| at.elapsed() > FRESH) {
            let mut profiles: Vec<Profile> =
                serde_json::from_str(&http::get(&self.url).await?).context("reading the Fargate profiles")?;
            profiles.sort_by(|one, other| one.name.cmp(&other.name));
            *seen = Some((Instant::now(), profiles));
        }
        let profiles = seen.iter().flat_map(|(_, profiles)| profiles);
        let selects = |profile: &&Profile| profile.selectors.iter().any(|selector| selector.selects(namespace, labels));
        Ok(profiles.into_iter().find(selects).map(|profile| profile.name.clone()))
    }

    /// Answers an AdmissionReview of a pod.
    pub async fn review(&self, review: &Value) -> Value {
        let (request, pod) = (&review["request"], &review["request"]["object"]);
        let namespace = request["namespace"].as_str().unwrap_or_default();
        let labels = serde_json::from_value(pod["metadata"]["labels"].clone()).unwrap_or_default();
        let profile = match self.matching(namespace, &labels).await {
            Ok(profile) => profile.filter(|_| takes(pod)),
            Err(error) => {
                tracing::warn!("process kubelet: {error:#}");
                None
            }
        };
        let mut response = json!({ "uid": request["uid"], "allowed": true });
        if let Some(profile) = profile {
            let patch = patch(pod, &profile).to_string();
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(base64::engine::general_purpose::STANDARD.encode(patch));
        }
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
    }
}

impl Selector {
    fn selects(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        let mut wanted = self.labels.iter().flatten();
        like(&self.namespace, namespace)
            && wanted.all(|(key, value)| labels.get(key).is_some_and(|own| like(value, own)))
    }
}

/// Compares with a pattern in which `*` is any text and `?` any character, as Fargate selectors allow.
fn like(pattern: &str, text: &str) -> bool {
    match pattern.chars().next() {
        None => text.is_empty(),
        Some('*') => {
            text.char_indices().map(|(at, _)| at).chain([text.len()]).any(|at| like(&pattern[1..], &text[at..]))
        }
        Some(first) => {
            text.chars().next().is_some_and(|own| first == '?' || first == own)
                && like(&pattern[first.len_utf8()..], &text[text.chars().next().map_or(0, char::len_utf8)..])
        }
    }
}

/// Fargate leaves pods alone that have a scheduler or node of their own, and those of daemon sets.
fn takes(pod: &Value) -> bool {
    let scheduler = pod["spec"]["schedulerName"].as_str().unwrap_or("default-scheduler");
    let owners = pod["metadata"]["ownerReferences"].as_array();
    let daemon = owners.into_iter().flatten().any(|owner| owner["kind"] == "DaemonSet");
    scheduler == "default-scheduler" && pod["spec"]["nodeName"].as_str().is_none_or(str::is_empty) && !daemon
}

fn patch(pod: &Value, profile: &str) -> Value {
    let mut labels = pod["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.insert(PROFILE_LABEL.to_owned(), json!(profile));
    json!([
        { "op": "add", "path": "/metadata/labels", "value": labels },
        { "op": "add", "path": "/spec/schedulerName", "value": SCHEDULER },
    ])
}

/// Registers the webhook with the API server.
///
/// # Errors
/// When the CA cannot be read or the API server refuses.
pub async fn register(ctx: &Context, port: u16) -> Result<()> {
    let authority = std::fs::read(&ctx.ca_file).with_context(|| format!("reading {}", ctx.ca_file.display()))?;
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": "sandbox-fargate" },
        "webhooks": [{
            "name": "fargate.sandbox.karp.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "timeoutSeconds": 5,
            "clientConfig": {
                "url": format!("https://127.0.0.1:{port}/mutate"),
                "caBundle": base64::engine::general_purpose::STANDARD.encode(authority),
            },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] }],
        }],
    });
    let api: Api<MutatingWebhookConfiguration> = Api::all(ctx.client.clone());
    let params = PatchParams::apply("sandbox").force();
    api.patch("sandbox-fargate", &params, &Patch::Apply(&webhook)).await.context("registering the Fargate webhook")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn selectors_need_namespace_and_all_labels() {
        let selector = Selector { namespace: "karp*".to_owned(), labels: Some(labels(&[("app", "k?rp")])) };
        assert!(selector.selects("karpenter", &labels(&[("app", "karp"), ("other", "1")])));
        assert!(!selector.selects("default", &labels(&[("app", "karp")])));
        assert!(!selector.selects("karpenter", &labels(&[("app", "kaarp")])));
        assert!(!selector.selects("karpenter", &labels(&[])));
        assert!(Selector { namespace: "*".to_owned(), labels: None }.selects("ä", &labels(&[])));
    }

    #[test]
    fn pods_with_a_place_of_their_own_are_left_alone() {
        assert!(takes(&json!({ "spec": { "schedulerName": "default-scheduler" } })));
        for other in [
            json!({ "spec": { "schedulerName": "mine" } }),
            json!({ "spec": { "nodeName": "n" } }),
            json!({ "metadata": { "ownerReferences": [{ "kind": "DaemonSet" }] } }),
        ] {
            assert!(!takes(&other));
        }
    }

    #[test]
    fn the_patch_keeps_the_labels() {
        let patch = patch(&json!({ "metadata": { "labels": { "a": "b" } } }), "karpenter");
        assert_eq!(patch[0]["value"], json!({ "a": "b", PROFILE_LABEL: "karpenter" }));
        assert_eq!(patch[1]["value"], SCHEDULER);
    }
}
