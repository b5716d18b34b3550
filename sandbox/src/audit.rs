//! What a service account may do, by its roles, and what it did, by the API server's audit log.

use std::{collections::BTreeSet, fmt, path::Path};

use anyhow::{Context as _, Result};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::{Api, Client, api::ListParams};
use serde::Deserialize;

/// Every request of a service account, without bodies; nothing of anybody else.
const POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
  {"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}]}"#;

/// Writes the audit policy and returns its arguments for the API server, which then keeps its log in `log`.
///
/// # Errors
/// When the policy cannot be written.
pub fn arguments(policy: &Path, log: &Path) -> Result<[String; 2]> {
    std::fs::write(policy, POLICY).with_context(|| format!("writing {}", policy.display()))?;
    Ok([format!("--audit-policy-file={}", policy.display()), format!("--audit-log-path={}", log.display())])
}

/// A verb on a kind of object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    group: String,
    /// With the subresource, if any: `pods/eviction`.
    resource: String,
    verb: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(f, "{} {}{dot}{}", self.verb, self.resource, self.group)
    }
}

/// What a service account did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    /// What it was let do.
    pub used: BTreeSet<Right>,
    /// What it was forbidden, with the object's name.
    pub forbidden: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    verb: String,
    user: User,
    object_ref: Option<ObjectRef>,
    response_status: Option<Status>,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    code: u16,
}

impl Deeds {
    /// Reads what the user of a name did out of an audit log; requests that are for no object (discovery) are left out.
    ///
    /// # Errors
    /// When a line is no audit event.
    pub fn read(log: &str, username: &str) -> Result<Self> {
        let mut deeds = Deeds::default();
        // the last line may still be written
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        for line in whole.lines() {
            let entry: Entry = serde_json::from_str(line).with_context(|| format!("no audit event: {line}"))?;
            let Some(object) = entry.object_ref.filter(|_| entry.user.username == username) else { continue };
            let subresource = if object.subresource.is_empty() { "" } else { "/" };
            let resource = format!("{}{subresource}{}", object.resource, object.subresource);
            let right = Right { group: object.api_group, resource, verb: entry.verb };
            if entry.response_status.is_some_and(|status| status.code == 403) {
                deeds.forbidden.insert(format!("{right} {}/{}", object.namespace, object.name));
            } else {
                deeds.used.insert(right);
            }
        }
        Ok(deeds)
    }
}

/// What the roles of a service account grant.
#[derive(Debug, Default)]
pub struct Grants {
    /// `system:serviceaccount:NAMESPACE:NAME`.
    pub username: String,
    /// Each verb on each kind.
    pub rights: BTreeSet<Right>,
}

impl Grants {
    /// Reads the roles that are bound to service accounts of a name.
    ///
    /// # Errors
    /// When the API server cannot be read, or no role is bound to such an account.
    pub async fn of(client: &Client, account: &str) -> Result<Self> {
        let all = ListParams::default();
        let mut grants = Grants::default();
        for binding in Api::<ClusterRoleBinding>::all(client.clone()).list(&all).await? {
            if grants.binds(binding.subjects.as_deref(), account) {
                grants.add(client, None, &binding.role_ref).await?;
            }
        }
        for binding in Api::<RoleBinding>::all(client.clone()).list(&all).await? {
            if grants.binds(binding.subjects.as_deref(), account) {
                grants.add(client, binding.metadata.namespace.as_deref(), &binding.role_ref).await?;
            }
        }
        anyhow::ensure!(!grants.rights.is_empty(), "no role is bound to a service account {account}");
        Ok(grants)
    }

    fn binds(&mut self, subjects: Option<&[Subject]>, account: &str) -> bool {
        let found = subjects.into_iter().flatten().find(|one| one.kind == "ServiceAccount" && one.name == account);
        if let Some(namespace) = found.and_then(|one| one.namespace.as_deref()) {
            self.username = format!("system:serviceaccount:{namespace}:{account}");
        }
        found.is_some()
    }

    async fn add(&mut self, client: &Client, namespace: Option<&str>, role: &RoleRef) -> Result<()> {
        let rules = match namespace.filter(|_| role.kind == "Role") {
            Some(namespace) => Api::<Role>::namespaced(client.clone(), namespace).get(&role.name).await?.rules,
            None => Api::<ClusterRole>::all(client.clone()).get(&role.name).await?.rules,
        };
        self.rights.extend(rules.iter().flatten().flat_map(rights));
        Ok(())
    }
}

fn rights(rule: &PolicyRule) -> Vec<Right> {
    let (groups, resources) = (rule.api_groups.iter().flatten(), rule.resources.as_deref().unwrap_or_default());
    let of = |group: &String| {
        let each = resources.iter().flat_map(|resource| rule.verbs.iter().map(move |verb| (resource, verb)));
        let group = group.clone();
        each.map(move |(resource, verb)| Right { group: group.clone(), resource: resource.clone(), verb: verb.clone() })
            .collect::<Vec<_>>()
    };
    groups.flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn deeds_are_told_from_what_was_forbidden() {
        let line = |user: &str, verb: &str, object: serde_json::Value, code: u16| {
            json!({"kind": "Event", "stage": "ResponseComplete", "verb": verb, "user": {"username": user}, "objectRef": object,
                "responseStatus": {"code": code}})
            .to_string()
        };
        let eviction = json!({"resource": "pods", "subresource": "eviction", "namespace": "default", "name": "p"});
        let claims = json!({"resource": "nodeclaims", "apiGroup": "karpenter.sh"});
        let secret = json!({"resource": "secrets", "namespace": "kube-system", "name": "s"});
        let log = [
            line("system:serviceaccount:karp:karpenter", "create", eviction, 201),
            line("system:serviceaccount:karp:karpenter", "watch", claims.clone(), 200),
            line("system:serviceaccount:karp:karpenter", "get", secret, 403),
            line("system:serviceaccount:kube-system:other", "delete", claims, 200),
            json!({"verb": "get", "user": {"username": "system:serviceaccount:karp:karpenter"}, "requestURI": "/version"}).to_string(),
        ];
        let deeds =
            Deeds::read(&(log.join("\n") + "\n{\"verb\": "), "system:serviceaccount:karp:karpenter").expect("a log");
        let used: Vec<String> = deeds.used.iter().map(ToString::to_string).collect();
        assert_eq!(used, ["create pods/eviction", "watch nodeclaims.karpenter.sh"]);
        assert_eq!(deeds.forbidden, BTreeSet::from(["get secrets kube-system/s".to_owned()]));
    }

    #[test]
    fn a_rule_grants_each_verb_on_each_kind() {
        let rule = json!({"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]});
        let rule: PolicyRule = serde_json::from_value(rule).expect("a rule");
        let all: Vec<String> = rights(&rule).iter().map(ToString::to_string).collect();
        assert_eq!(all, ["create events", "patch events", "create events.events.k8s.io", "patch events.events.k8s.io"]);
    }
}
