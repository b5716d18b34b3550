//! What a service account may do, by its roles, and what it did, by the API server's audit log.

use std::{collections::BTreeSet, fmt, path::Path};

use anyhow::{Context as _, Result};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::{Api, Client, api::ListParams};
use serde::{Deserialize, Serialize};

use crate::control_plane::audit_log;

/// Every request of a service account, without bodies; nothing of anybody else.
const POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
  {"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}]}"#;

/// The service account that the controller runs under, in whichever namespace.
pub const CONTROLLER: &str = "karpenter";

/// What the controller needs and no log shows, of objects of whatever name.
const UNSEEN: [(&str, &str); 3] = [
    ("create configmaps", "a server-side apply that makes an object needs it, and is logged as a patch"),
    ("update nodeclaims/finalizers.karpenter.sh", "only the plugin OwnerReferencesPermissionEnforcement asks for it"),
    ("update nodepools/finalizers.karpenter.sh", "only the plugin OwnerReferencesPermissionEnforcement asks for it"),
];

/// How names begin that one test alone gives its lease, so that none waits for another's: one that ends early need not have renewed it. What
/// comes under the lease's real name is held to all that is granted.
const OF_ONE_TEST: &str = "karp-test-";

/// Writes the audit policy and returns its arguments for the API server, which then keeps its log in `log`, all in this one file.
///
/// # Errors
/// When the policy cannot be written.
pub fn arguments(policy: &Path, log: &Path) -> Result<[String; 3]> {
    std::fs::write(policy, POLICY).with_context(|| format!("writing {}", policy.display()))?;
    Ok([
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
        // otherwise what came before the last 100 MB would be in other files, and unread
        "--audit-log-maxsize=0".to_owned(),
    ])
}

/// A verb on a kind of object, or on the objects of a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Right {
    group: String,
    /// With the subresource, if any: `pods/eviction`.
    resource: String,
    verb: String,
    /// Empty for objects of whatever name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
}

impl Right {
    /// The same on objects of this name.
    fn on(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }

    /// Says whether no log needs to show it.
    fn is_unseen(&self) -> bool {
        let whatever_name = self.on("").to_string();
        self.name.starts_with(OF_ONE_TEST) || UNSEEN.iter().any(|(known, _)| *known == whatever_name)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        let named = if self.name.is_empty() { "" } else { " named " };
        write!(f, "{} {}{dot}{}{named}{}", self.verb, self.resource, self.group, self.name)
    }
}

/// What a service account was granted, and what it did.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// What its roles grant: where a rule has names, each of them by itself.
    pub granted: BTreeSet<Right>,
    /// What it was let do, each deed once for objects of whatever name and once for those of the name that it was done to: which of them is
    /// granted is not known yet, since roles may be gone where a deed was seen.
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
    details: Details,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Details {
    causes: Vec<Cause>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Cause {
    reason: String,
}

impl Status {
    /// Nobody may make anything in a namespace that goes, whatever their rights.
    fn is_forbidden(&self) -> bool {
        self.code == 403 && self.details.causes.iter().all(|cause| cause.reason != "NamespaceTerminating")
    }
}

impl Rights {
    /// Reads what the controllers of a sandbox are granted, and what they did so far.
    ///
    /// # Errors
    /// When the API server or the audit log cannot be read.
    pub async fn in_sandbox(client: &Client, run_dir: &Path) -> Result<Self> {
        let mut rights = Self::granted(client, CONTROLLER).await?;
        rights.add_deeds(&audit_log(run_dir), CONTROLLER)?;
        Ok(rights)
    }

    /// Reads what is granted to service accounts of a name, in all namespaces.
    ///
    /// # Errors
    /// When the API server cannot be read.
    pub async fn granted(client: &Client, account: &str) -> Result<Self> {
        let all = ListParams::default();
        let mut rights = Rights::default();
        for binding in Api::<ClusterRoleBinding>::all(client.clone()).list(&all).await? {
            if binds(binding.subjects.as_deref(), account) {
                rights.grant(client, None, &binding.role_ref).await?;
            }
        }
        for binding in Api::<RoleBinding>::all(client.clone()).list(&all).await? {
            if binds(binding.subjects.as_deref(), account) {
                rights.grant(client, binding.metadata.namespace.as_deref(), &binding.role_ref).await?;
            }
        }
        Ok(rights)
    }

    async fn grant(&mut self, client: &Client, namespace: Option<&str>, role: &RoleRef) -> Result<()> {
        // one that is gone goes with its namespace, as its binding will
        let rules = match namespace.filter(|_| role.kind == "Role") {
            Some(namespace) => Api::<Role>::namespaced(client.clone(), namespace)
                .get_opt(&role.name)
                .await?
                .and_then(|role| role.rules),
            None => Api::<ClusterRole>::all(client.clone()).get_opt(&role.name).await?.and_then(|role| role.rules),
        };
        self.granted.extend(rules.iter().flatten().flat_map(rights));
        Ok(())
    }

    /// Adds what service accounts of a name did, by an audit log; requests that are for no object (discovery) are left out.
    ///
    /// # Errors
    /// When the log cannot be read, or a line is no audit event.
    pub fn add_deeds(&mut self, log: &Path, account: &str) -> Result<()> {
        let log = std::fs::read_to_string(log).with_context(|| format!("reading {}", log.display()))?;
        self.read(&log, account)
    }

    fn read(&mut self, log: &str, account: &str) -> Result<()> {
        let account = format!(":{account}");
        // the last line may still be written
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        for line in whole.lines() {
            let entry: Entry = serde_json::from_str(line).with_context(|| format!("no audit event: {line}"))?;
            let object = entry.object_ref.filter(|_| entry.user.username.ends_with(&account));
            let Some(object) = object else { continue };
            let subresource = if object.subresource.is_empty() { "" } else { "/" };
            let resource = format!("{}{subresource}{}", object.resource, object.subresource);
            let right = Right { group: object.api_group, resource, verb: entry.verb, name: String::new() };
            if entry.response_status.is_some_and(|status| status.is_forbidden()) {
                self.forbidden.insert(format!("{right} {}/{}", object.namespace, object.name));
            } else {
                self.used.extend([right.on(&object.name), right]);
            }
        }
        Ok(())
    }

    /// Adds what was granted and done elsewhere.
    pub fn add(&mut self, other: Self) {
        self.granted.extend(other.granted);
        self.used.extend(other.used);
        self.forbidden.extend(other.forbidden);
    }

    /// Fails when something was forbidden, or nobody was seen at all.
    ///
    /// # Errors
    /// Lists what it was.
    pub fn judge_forbidden(&self) -> Result<()> {
        anyhow::ensure!(!self.used.is_empty(), "no audit log tells of a controller");
        let all: Vec<&str> = self.forbidden.iter().map(String::as_str).collect();
        anyhow::ensure!(all.is_empty(), "the controller was forbidden: {}", all.join(", "));
        Ok(())
    }

    /// Fails when something was granted that nothing used, but what no log can show, or nothing was granted.
    ///
    /// # Errors
    /// Lists what it was.
    pub fn judge_unused(&self) -> Result<()> {
        anyhow::ensure!(!self.granted.is_empty(), "no role is bound to a controller's account");
        let unused: Vec<String> = self.unused().filter(|right| !right.is_unseen()).map(ToString::to_string).collect();
        anyhow::ensure!(unused.is_empty(), "rights are granted that nothing used: {}", unused.join(", "));
        Ok(())
    }

    /// Lists what was granted and not used.
    pub fn unused(&self) -> impl Iterator<Item = &Right> {
        self.granted.difference(&self.used)
    }
}

fn binds(subjects: Option<&[Subject]>, account: &str) -> bool {
    subjects.into_iter().flatten().any(|one| one.kind == "ServiceAccount" && one.name == account)
}

fn rights(rule: &PolicyRule) -> Vec<Right> {
    let whatever = [String::new()];
    let names = rule.resource_names.as_deref().filter(|names| !names.is_empty()).unwrap_or(&whatever);
    let mut all = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            for verb in &rule.verbs {
                let (group, resource, verb) = (group.clone(), resource.clone(), verb.clone());
                let right = Right { group, resource, verb, name: String::new() };
                all.extend(names.iter().map(|name| right.on(name)));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn right(resource: &str, verb: &str, name: &str) -> Right {
        let of = |text: &str| text.to_owned();
        Right { group: String::new(), resource: of(resource), verb: of(verb), name: of(name) }
    }

    #[test]
    fn the_api_server_keeps_its_whole_log_in_one_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let told = arguments(&folder.path().join("policy.json"), Path::new("/run/audit.log")).expect("a policy");
        assert_eq!(told[1..], ["--audit-log-path=/run/audit.log", "--audit-log-maxsize=0"]);
    }

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
        let leaving = json!({"kind": "Event", "verb": "create", "user": {"username": "system:serviceaccount:karp:karpenter"},
            "objectRef": {"resource": "events", "namespace": "gone"},
            "responseStatus": {"code": 403, "details": {"causes": [{"reason": "NamespaceTerminating"}]}}});
        let log = [
            leaving.to_string(),
            line("system:serviceaccount:karp:karpenter", "create", eviction, 201),
            line("system:serviceaccount:karp:karpenter", "watch", claims.clone(), 200),
            line("system:serviceaccount:karp:karpenter", "get", secret, 403),
            line("system:serviceaccount:kube-system:other", "delete", claims, 200),
            json!({"verb": "get", "user": {"username": "system:serviceaccount:karp:karpenter"}, "requestURI": "/version"}).to_string(),
        ];
        let mut rights = Rights::default();
        rights.read(&(log.join("\n") + "\n{\"verb\": "), "karpenter").expect("a log");
        let used: Vec<String> = rights.used.iter().map(ToString::to_string).collect();
        let pod = "create pods/eviction named p";
        assert_eq!(used, ["create events", "create pods/eviction", pod, "watch nodeclaims.karpenter.sh"]);
        assert_eq!(rights.forbidden, BTreeSet::from(["get secrets kube-system/s".to_owned()]));
        let told = rights.judge_forbidden().expect_err("something was forbidden").to_string();
        assert_eq!(told, "the controller was forbidden: get secrets kube-system/s");
    }

    #[test]
    fn what_nothing_used_is_told_but_what_no_log_shows() {
        let right = |verb: &str| right("configmaps", verb, "");
        let granted = BTreeSet::from(["create", "get", "patch"].map(right));
        let mut rights = Rights { granted, ..Rights::default() };
        rights.add(Rights { used: BTreeSet::from([right("patch")]), ..Rights::default() });
        let told = rights.judge_unused().expect_err("one is left over").to_string();
        assert_eq!(told, "rights are granted that nothing used: get configmaps");
        rights.used.insert(right("get"));
        rights.judge_unused().expect("none is left over");
    }

    #[test]
    fn each_name_of_a_rule_is_used() {
        let names = ["karp-prices", "karp-memory"];
        let rule =
            json!({"apiGroups": [""], "resources": ["configmaps"], "resourceNames": names, "verbs": ["create", "get"]});
        let rule: PolicyRule = serde_json::from_value(rule).expect("a rule");
        let mut rights = Rights { granted: super::rights(&rule).into_iter().collect(), ..Rights::default() };
        assert_eq!(rights.granted.len(), 4);
        let get = |name: &str| right("configmaps", "get", name);
        rights.used.extend([get(""), get("karp-prices"), get("another")]);
        let told = rights.judge_unused().expect_err("one name is left over").to_string();
        assert_eq!(told, "rights are granted that nothing used: get configmaps named karp-memory");
        // by a controller whose role is gone
        rights.add(Rights { used: BTreeSet::from([get("karp-memory")]), ..Rights::default() });
        rights.judge_unused().expect("none is left over");
    }

    #[test]
    fn a_lease_of_one_test_need_not_be_used() {
        let granted = |lease: &str| {
            let granted = BTreeSet::from([right("leases", "update", lease)]);
            Rights { granted, ..Rights::default() }.judge_unused()
        };
        granted("karp-test-asleep-7").expect("tests come and go");
        granted("karpenter-leader-election").expect_err("the real one is always used");
    }

    #[test]
    fn a_rule_grants_each_verb_on_each_kind() {
        let rule = json!({"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]});
        let rule: PolicyRule = serde_json::from_value(rule).expect("a rule");
        let all: Vec<String> = rights(&rule).iter().map(ToString::to_string).collect();
        assert_eq!(all, ["create events", "patch events", "create events.events.k8s.io", "patch events.events.k8s.io"]);
    }
}
