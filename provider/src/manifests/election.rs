//! Which lease the controller's replicas lead by, as their container is told: by arguments before the environment, as the controller
//! itself reads both.

use karp_domain::flag;
use karp_kube::rbac::LEASE;
use serde_json::Value;

use super::controller::Settings;

/// The lease of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub namespace: String,
    pub name: String,
}

/// Gives the lease; none where nobody leads, as leader election is off.
pub fn lease(settings: &Settings) -> Option<Lease> {
    let objects = settings.objects();
    let deployment = objects.iter().find(|object| object.plural == "deployments")?;
    let containers = deployment.json["spec"]["template"]["spec"]["containers"].as_array()?;
    let container = containers.first()?;
    let off = told(container, "disable-leader-election", "DISABLE_LEADER_ELECTION");
    if off.is_some_and(|off| flag::parse(&off) == Some(true)) {
        return None;
    }
    let text = |argument: &str, variable: &str| told(container, argument, variable).filter(|text| !text.is_empty());
    Some(Lease {
        namespace: text("leader-election-namespace", "LEADER_ELECTION_NAMESPACE")
            .unwrap_or_else(|| settings.namespace().to_owned()),
        name: text("leader-election-name", "LEADER_ELECTION_NAME").unwrap_or_else(|| LEASE.to_owned()),
    })
}

/// Reads what a container is told by an argument, or else by a variable.
fn told(container: &Value, argument: &str, variable: &str) -> Option<String> {
    given(&container["args"], argument).or_else(|| {
        let mut all = container["env"].as_array()?.iter();
        let found = all.rfind(|entry| entry["name"] == variable)?;
        found["value"].as_str().map(str::to_owned)
    })
}

/// Reads an argument: `--name=value`, `--name value`, or `--name` alone, which is `true`.
fn given(arguments: &Value, name: &str) -> Option<String> {
    let all: Vec<&str> = arguments.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (at, rest) = all.iter().enumerate().find_map(|(at, argument)| {
        let rest = argument.strip_prefix("--")?.strip_prefix(name)?;
        (rest.is_empty() || rest.starts_with('=')).then_some((at, rest))
    })?;
    let next = || all.get(at + 1).filter(|next| !next.starts_with('-')).copied();
    let value = rest.strip_prefix('=').or_else(next).unwrap_or("true");
    Some(value.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The lease of a controller in the namespace `karp`, as `namespace/name`.
    fn of(attributes: Value) -> Option<String> {
        let mut settings: Settings = serde_json::from_value(attributes).expect("attributes");
        settings.namespace = Some("karp".to_owned());
        lease(&settings).map(|lease| format!("{}/{}", lease.namespace, lease.name))
    }

    #[test]
    fn the_lease_is_the_one_that_the_controller_is_told() {
        let own = Some("karp/karpenter-leader-election");
        for (attributes, expected) in [
            (json!({}), own),
            (json!({ "extra_env": { "LEADER_ELECTION_NAME": "a" } }), Some("karp/a")),
            (
                json!({ "extra_env": { "LEADER_ELECTION_NAME": "a" }, "extra_args": ["--leader-election-name=b"] }),
                Some("karp/b"),
            ),
            (
                json!({ "extra_args": ["--leader-election-namespace", "other", "--log-level", "debug"] }),
                Some("other/karpenter-leader-election"),
            ),
            (json!({ "extra_env": { "LEADER_ELECTION_NAMESPACE": "" } }), own),
            (
                json!({ "more_container_json": "{\"env\":[{\"name\":\"LEADER_ELECTION_NAMESPACE\",\"value\":\"other\"}]}" }),
                Some("other/karpenter-leader-election"),
            ),
        ] {
            assert_eq!(of(attributes.clone()).as_deref(), expected, "{attributes}");
        }
    }

    #[test]
    fn without_an_election_there_is_none() {
        for (attributes, off) in [
            (json!({ "extra_env": { "DISABLE_LEADER_ELECTION": "T" } }), true),
            (json!({ "extra_env": { "DISABLE_LEADER_ELECTION": "0" } }), false),
            (json!({ "extra_args": ["--disable-leader-election"] }), true),
            (json!({ "extra_args": ["--disable-leader-election", "--log-level=debug"] }), true),
            (json!({ "extra_args": ["--disable-leader-election", "false"] }), false),
            (
                json!({ "extra_args": ["--disable-leader-election=false"], "extra_env": { "DISABLE_LEADER_ELECTION": "true" } }),
                false,
            ),
            (json!({ "extra_args": ["--disable-leader-elections"] }), false),
        ] {
            assert_eq!(of(attributes.clone()).is_none(), off, "{attributes}");
        }
    }
}
