//! Names of AWS objects: the user's own, or made of a prefix and the cluster's name, known at plan and never too long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value as Json, json};
use tfplugin::schema::Mode;
use tfplugin::testing::{Core, Plan};
use tfplugin::{Attribute, Value};

use super::moved::configured;

const ROLE: &str = "arn:aws:iam::111122223333:role/r";

/// The resources whose object has a name of the user's choice: what it begins with otherwise, the most characters that AWS takes, and what
/// else must be written.
fn named() -> Vec<(&'static str, &'static str, usize, Json)> {
    let profile =
        json!({ "pod_execution_role_arn": ROLE, "subnet_ids": ["subnet-1"], "selectors": [{ "namespace": "n" }] });
    vec![
        // A number comes behind it, and 128 are allowed.
        ("karp_controller_policy", "KarpController-", 125, json!({})),
        ("karp_controller_role", "KarpControllerRole-", 64, json!({ "auth": "pod_identity" })),
        ("karp_fargate_pod_execution_role", "KarpFargateRole-", 64, json!({})),
        // It is the value of a label.
        ("karp_fargate_profile", "Karp-", 63, profile),
        ("karp_instance_profile", "KarpNodeInstanceProfile-", 128, json!({ "role_name": "r" })),
        ("karp_interruption_queue", "Karp-", 80, json!({})),
        ("karp_node_role", "KarpNodeRole-", 64, json!({})),
    ]
}

async fn plan(core: &Core, kind: &str, prior: &Value, config: &Value) -> Plan {
    let plan = core.plan(kind, prior, config).await;
    assert!(!plan.diagnostics.has_errors(), "{kind}: {}", plan.diagnostics);
    plan
}

fn name_of(plan: &Plan) -> String {
    plan.planned.get("name").as_str().expect("the name is known at plan").to_owned()
}

#[test]
fn whatever_aws_calls_by_a_name_is_in_the_table() {
    let is_named = |attributes: &BTreeMap<String, Attribute>| {
        attributes.contains_key("tags_all") && attributes.get("name").is_some_and(|name| name.mode != Mode::Computed)
    };
    let all = crate::resources::all(&Arc::default());
    let all = all.iter().filter(|resource| is_named(&resource.schema().attributes));
    let all: BTreeSet<&str> = all.map(|resource| resource.type_name()).collect();
    assert_eq!(all, named().into_iter().map(|(kind, ..)| kind).collect());
}

#[tokio::test]
async fn a_name_follows_from_the_clusters_or_from_a_prefix() {
    let core = configured(json!({})).await;
    for (kind, prefix, longest, more) in named() {
        let config = Value::from(more);
        let made = plan(&core, kind, &Value::Null, &config).await;
        assert_eq!(name_of(&made), format!("{prefix}prod"), "{kind}");
        let made = plan(&core, kind, &Value::Null, &config.clone().with("name_prefix", "team-")).await;
        assert_eq!(name_of(&made), "team-prod", "{kind}");
        let made = plan(&core, kind, &Value::Null, &config.clone().with("name", "own")).await;
        assert_eq!(name_of(&made), "own", "{kind}");
        let made = plan(&core, kind, &Value::Null, &config.clone().with("cluster_name", Value::Unknown)).await;
        assert!(!made.planned.get("name").is_known(), "{kind}: the cluster's name is not known");

        // Two clusters whose names begin alike, as long as names of clusters get; and the longest prefix that is taken.
        let begin = "c".repeat(99);
        for prefix in [None, Some("p".repeat(longest - 9))] {
            let config = config.clone().with("name_prefix", prefix);
            let found = core.validate(kind, &config).await;
            assert!(!found.to_string().contains("name_prefix"), "{kind}: {found}");
            let mut names = BTreeSet::new();
            for end in ["1", "2"] {
                let config = config.clone().with("cluster_name", format!("{begin}{end}"));
                names.insert(name_of(&plan(&core, kind, &Value::Null, &config).await));
            }
            assert!(names.len() == 2 && names.iter().all(|name| name.len() <= longest), "{kind}: {names:?}");
        }
        let longer = config.clone().with("name_prefix", "p".repeat(longest - 8));
        let refused = core.validate(kind, &longer).await;
        assert!(refused.has_errors() && refused.to_string().contains("name_prefix"), "{kind}: {refused}");
        let both = core.validate(kind, &config.clone().with("name", "a").with("name_prefix", "b")).await;
        assert!(both.has_errors(), "{kind}: it has a name or a prefix");
        // EKS takes longer ones than the label of the profile's pods
        let most = if kind == "karp_fargate_profile" { 100 } else { longest };
        for (count, refused) in [(most, false), (most + 1, true)] {
            let found = core.validate(kind, &config.clone().with("name", "n".repeat(count))).await;
            assert_eq!(found.has_errors(), refused, "{kind}: AWS takes {most} characters, not {count}: {found}");
        }
    }
}

#[tokio::test]
async fn a_fargate_profile_keeps_its_name_and_gives_way_to_one_of_another() {
    let core = configured(json!({})).await;
    let kind = "karp_fargate_profile";
    let (.., more) = named().into_iter().find(|(of, ..)| *of == kind).unwrap();
    let state = |name: &str| {
        let arn = format!("arn:aws:eks:eu-west-1:111122223333:fargateprofile/prod/{name}/1");
        let own = json!({ "id": format!("prod:{name}"), "arn": arn, "cluster_name": "prod", "name": name,
            "tags_all": { "karp.sh/cluster": "prod" } });
        let mut state = Value::from(more.clone());
        for (name, value) in Value::from(own).as_map().unwrap() {
            state.set(name, value.clone());
        }
        core.config(kind, &state)
    };
    let config = Value::from(more.clone());
    for (has, config, replaces) in [
        ("Karp-prod", config.clone(), None),
        ("karpenter", config.clone().with("name", "karpenter"), None),
        ("karpenter", config.clone(), Some("Karp-prod")),
        ("Karp-prod", config.clone().with("name_prefix", "team-"), Some("team-prod")),
        ("Karp-prod", config.clone().with("name", "other"), Some("other")),
    ] {
        let found = plan(&core, kind, &state(has), &config).await;
        let replaced: Vec<String> = found.requires_replace.iter().map(ToString::to_string).collect();
        assert_eq!(replaced, replaces.map(|_| "name".to_owned()).into_iter().collect::<Vec<_>>(), "{has}: {config:?}");
        assert_eq!(name_of(&found), replaces.unwrap_or(has));
        // The ARN of a profile that will be gone tells nothing of the next one's.
        assert_eq!(found.planned.get("arn").is_known(), replaces.is_none(), "{has}: {config:?}");
    }
}
