//! Karpenter's controller as it is installed: for which cluster, and what of AWS it uses.

use serde_json::{Value as Json, json};

use crate::files::Manifest;

/// By which Karpenter's chart names what is its own.
const NAME_LABEL: &str = "app.kubernetes.io/name";
const KARPENTER: &str = "karpenter";
/// Who made a Deployment; karp's own has the same name.
const MADE_BY_LABEL: &str = "app.kubernetes.io/managed-by";
const KARP: &str = "karp";
/// Its settings as the chart writes them since 0.32.
const CLUSTER: &str = "CLUSTER_NAME";
const QUEUE: &str = "INTERRUPTION_QUEUE";
/// By which a service account gets its role.
const ROLE: &str = "eks.amazonaws.com/role-arn";

/// Says how Karpenter is installed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// Its Deployment, as `namespace/name`.
    pub deployment: String,
    /// The EKS cluster that it is for.
    pub cluster: Option<String>,
    /// The queue that it reads.
    pub queue: Option<String>,
    /// The role of its service account; none with Pod Identity.
    pub role: Option<String>,
}

/// Finds Karpenter's controller; nothing where there is none, or several.
pub fn find(manifests: &[Manifest]) -> Option<Installed> {
    let mut found = manifests.iter().filter(|one| one.kind == "Deployment" && is_karpenters(&one.object));
    let (deployment, None) = (found.next()?, found.next()) else { return None };
    let object = &deployment.object;
    let metadata = &object["metadata"];
    let (namespace, account) = account(object);
    let role = manifests.iter().filter(|one| one.kind == "ServiceAccount").find_map(|one| {
        let own = &one.object["metadata"];
        let same = own["name"].as_str() == Some(account) && own["namespace"].as_str().unwrap_or("default") == namespace;
        own["annotations"][ROLE].as_str().filter(|_| same).map(str::to_owned)
    });
    Some(Installed {
        deployment: format!("{namespace}/{}", metadata["name"].as_str().unwrap_or(KARPENTER)),
        cluster: setting(object, CLUSTER),
        queue: setting(object, QUEUE),
        role,
    })
}

/// Says whether a Deployment is Karpenter's controller.
pub fn is_karpenters(deployment: &Json) -> bool {
    let labels = &deployment["metadata"]["labels"];
    labels[NAME_LABEL] == KARPENTER && labels[MADE_BY_LABEL] != KARP
}

/// The service account of a Deployment, by namespace and name.
pub fn account(deployment: &Json) -> (&str, &str) {
    let namespace = deployment["metadata"]["namespace"].as_str().unwrap_or("default");
    (namespace, deployment["spec"]["template"]["spec"]["serviceAccountName"].as_str().unwrap_or("default"))
}

/// What is kept of a service account.
pub fn slim_account(account: &Json) -> Json {
    let metadata = &account["metadata"];
    json!({ "metadata": { "name": metadata["name"], "namespace": metadata["namespace"],
        "annotations": { ROLE: metadata["annotations"][ROLE] } } })
}

/// Puts into what is kept of Karpenter's Deployment how it is installed; none of its environment but the two names.
pub fn keep(deployment: &Json, kept: &mut Json) {
    if !is_karpenters(deployment) {
        return;
    }
    let value = |name: &str| setting(deployment, name).map(|value| json!({ "name": name, "value": value }));
    let env: Vec<Json> = [CLUSTER, QUEUE].into_iter().filter_map(value).collect();
    kept["metadata"]["labels"] = json!({ NAME_LABEL: KARPENTER });
    kept["spec"]["template"]["spec"]["serviceAccountName"] = json!(account(deployment).1);
    kept["spec"]["template"]["spec"]["containers"] = json!([{ "env": env }]);
}

fn setting(deployment: &Json, name: &str) -> Option<String> {
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array()?;
    let env = containers.iter().filter_map(|container| container["env"].as_array()).flatten();
    let mut values = env.filter(|one| one["name"] == name).filter_map(|one| one["value"].as_str());
    values.find(|value| !value.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::migrate::objects::of_cluster;

    fn manifest(kind: &str, object: Json) -> Manifest {
        Manifest { origin: of_cluster(), version: "v1".to_owned(), kind: kind.to_owned(), object }
    }

    fn deployment(name: &str) -> Json {
        json!({ "metadata": { "name": name, "namespace": "kube-system", "labels": { NAME_LABEL: KARPENTER } },
            "spec": { "template": { "spec": { "serviceAccountName": "karpenter", "containers": [{ "name": "controller",
                "env": [{ "name": CLUSTER, "value": "prod" }, { "name": QUEUE, "value": "" },
                    { "name": "TOKEN", "value": "hunter2" },
                    { "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }] }] } } } })
    }

    #[test]
    fn what_is_kept_says_how_it_is_installed_and_nothing_more() {
        let mut kept = json!({ "metadata": { "name": "karpenter", "namespace": "kube-system" } });
        keep(&deployment("karpenter"), &mut kept);
        assert!(!kept.to_string().contains("hunter2"), "{kept}");
        let account = json!({ "metadata": { "name": "karpenter", "namespace": "kube-system", "annotations":
            { ROLE: "arn:aws:iam::111122223333:role/Karpenter-prod", "other": "x" } }, "secrets": [] });
        let all = [manifest("Deployment", kept), manifest("ServiceAccount", slim_account(&account))];
        let wanted = Installed {
            deployment: "kube-system/karpenter".to_owned(),
            cluster: Some("prod".to_owned()),
            queue: None,
            role: Some("arn:aws:iam::111122223333:role/Karpenter-prod".to_owned()),
        };
        assert_eq!(find(&all), Some(wanted));
    }

    #[test]
    fn nobody_guesses_between_two() {
        let all = [manifest("Deployment", deployment("a")), manifest("Deployment", deployment("b"))];
        assert_eq!(find(&all), None);
        let other = json!({ "metadata": { "name": "karpenter", "namespace": "default" } });
        assert_eq!(find(&[manifest("Deployment", other)]), None, "a name alone says nothing");
        let mut own = deployment("karpenter");
        own["metadata"]["labels"][MADE_BY_LABEL] = json!(KARP);
        assert_eq!(find(&[manifest("Deployment", own)]), None, "that is karp's");
    }
}
