//! What the controller's policy is made for: the attributes that `karp_controller_role` and `karp_controller_policy` have in common, the
//! document that follows from them, and the way back from a document to the attributes.

use std::collections::BTreeSet;

use karp_domain::iam::InstanceProfiles;
use serde::Deserialize;
use serde_json::Value as Json;
use tfplugin::schema::validate;
use tfplugin::{Attribute, Diagnostics, PlannedChange, Schema, Type, Value};

use super::iam_role;
use super::statement::{self, Statement, texts};
use crate::aws::policies::{self, Scope};
use crate::session::Session;

/// Attributes from which the document follows.
const SOURCES: [&str; 6] = [
    "cluster_name",
    "node_role_arns",
    "interruption_queue_arn",
    "instance_profiles",
    "ami_ssm_parameter_arns",
    "extra_statements",
];

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Model {
    cluster_name: Option<String>,
    node_role_arns: Option<BTreeSet<String>>,
    interruption_queue_arn: Option<String>,
    instance_profiles: Option<String>,
    ami_ssm_parameter_arns: Option<BTreeSet<String>>,
    extra_statements: Option<Vec<Statement>>,
}

/// Adds the attributes that say what the policy is for, and the policy.
pub fn attributes(schema: Schema) -> Schema {
    let arns = |each, what: &str| {
        Attribute::set(Type::String).optional().validate(validate::each(each)).describe(what.to_owned())
    };
    schema
        .attribute("node_role_arns", arns(validate::role_arn(), "The roles that the controller may give to instances."))
        .attribute(
            "interruption_queue_arn",
            Attribute::string().optional().validate(validate::arn()).describe("The interruption queue that it reads."),
        )
        .attribute(
            "instance_profiles",
            Attribute::string()
                .default(InstanceProfiles::default().as_str())
                .validate(validate::one_of(InstanceProfiles::WORDS))
                .describe(
                    "Who makes the instance profiles of nodes: the `controller`, for node classes with a `role`, or `terraform`: every \
                     node class names an `instance_profile`, and the policy has nothing of IAM but the right to pass the nodes' roles.",
                ),
        )
        .attribute(
            "ami_ssm_parameter_arns",
            arns(
                validate::arn(),
                "SSM parameters of your own that node classes name images by (`ssm_parameter`); those of AWS may be read anyway. `*` is a \
                 wildcard.",
            ),
        )
        .attribute("extra_statements", statement::of_identity())
        .attribute(
            "policy_json",
            Attribute::string().computed().describe("The controller's policy that karp keeps, JSON in canonical form."),
        )
        .attribute(
            "policy_size",
            Attribute::number().computed().describe(
                "How many characters the policy has, as IAM counts them: 6144 fit into a managed policy, 10240 into a role.",
            ),
        )
}

/// Refuses statements that the policy would not have as they are written.
pub fn check(config: &Value) -> Diagnostics {
    statement::check(config, karps())
}

/// Refuses at apply what [`check`] could not know before.
///
/// # Errors
/// What [`check`] finds.
pub fn ensure(planned: &Value) -> Result<(), Diagnostics> {
    statement::ensure(planned, karps())
}

/// Gives the policy; `None` while something that it follows from is unknown.
pub async fn document(session: &Session, planned: &Value) -> Option<String> {
    if SOURCES.iter().any(|name| !planned.get(name).whole_known()) {
        return None;
    }
    let region = session.region().await?;
    let model: Model = tfplugin::from_value(planned).ok()?;
    Some(model.document(&region))
}

/// Plans the policy: unknown where it is not known yet.
pub fn plan(change: &mut PlannedChange, policy: Option<&str>) {
    let planned = change.planned.clone();
    change.planned = match policy {
        Some(_) => with_policy(planned, policy),
        None => planned.with("policy_json", Value::Unknown).with("policy_size", Value::Unknown),
    };
}

/// Writes a policy into state; none where IAM has none.
pub fn with_policy(state: Value, policy: Option<&str>) -> Value {
    let size = policy.map(|policy| i64::try_from(policy.len()).unwrap_or(i64::MAX));
    state.with("policy_json", policy).with("policy_size", size)
}

/// Completes the state of an import by its policy: the roles that may be passed, the queue, who makes instance profiles, parameters, and
/// the statements that are not karp's. Any other state comes back as it is.
pub fn recover(state: Value) -> Value {
    // It has a default, so that only an import has none.
    if !state.get("instance_profiles").is_null() {
        return state;
    }
    let policy: Json =
        state.get("policy_json").as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let Some(statements) = policy["Statement"].as_array() else { return state };
    let resources = |sid: &str| -> BTreeSet<String> {
        let ours = statements.iter().filter(|statement| statement["Sid"] == sid);
        ours.flat_map(|statement| texts(&statement["Resource"])).collect()
    };
    let mut state = state.with("instance_profiles", InstanceProfiles::of_policy(&policy).as_str());
    let roles = resources("AllowPassingInstanceRole");
    if !roles.is_empty() {
        state.set("node_role_arns", iam_role::text_set(&roles));
    }
    if let Some(queue) = resources("AllowInterruptionQueueActions").into_iter().next() {
        state.set("interruption_queue_arn", queue);
    }
    let parameters = resources("AllowSSMReadActions");
    let own: BTreeSet<String> =
        parameters.into_iter().filter(|arn| !arn.ends_with("::parameter/aws/service/*")).collect();
    if !own.is_empty() {
        state.set("ami_ssm_parameter_arns", iam_role::text_set(&own));
    }
    let others = statement::of_others(&policy, &karps());
    if !others.is_empty() {
        state.set("extra_statements", Value::List(others.into_iter().map(Statement::into_value).collect()));
    }
    state
}

/// What karp's own statements are called.
fn karps() -> BTreeSet<String> {
    let any = Model {
        node_role_arns: Some(BTreeSet::from([String::new()])),
        interruption_queue_arn: Some(String::new()),
        ..Model::default()
    };
    statement::sids(&serde_json::from_str(&any.document("")).unwrap_or_default())
}

impl Model {
    fn document(&self, region: &str) -> String {
        let set = |arns: &Option<BTreeSet<String>>| arns.iter().flatten().cloned().collect();
        policies::controller(
            region,
            Scope {
                cluster: self.cluster_name.as_deref().unwrap_or_default(),
                node_role_arns: set(&self.node_role_arns),
                queue_arn: self.interruption_queue_arn.as_deref(),
                instance_profiles: self
                    .instance_profiles
                    .as_deref()
                    .and_then(InstanceProfiles::parse)
                    .unwrap_or_default(),
                ami_ssm_parameter_arns: set(&self.ami_ssm_parameter_arns),
                extra_statements: self.extra_statements.iter().flatten().map(Statement::to_json).collect(),
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn model() -> Value {
        let mut state = Value::from(json!({
            "cluster_name": "prod", "instance_profiles": "controller",
            "node_role_arns": ["arn:aws:iam::111122223333:role/nodes"],
            "interruption_queue_arn": "arn:aws:sqs:eu-west-1:111122223333:q",
            "ami_ssm_parameter_arns": ["arn:aws:ssm:eu-west-1:111122223333:parameter/images/*"],
        }));
        let statements = json!([
            { "sid": "Tags", "effect": "Allow", "actions": ["ec2:DescribeTags"], "resources": ["*"], "conditions": null },
            { "sid": null, "effect": "Deny", "actions": ["ec2:CreateFleet", "ec2:RunInstances"], "resources": ["*"],
              "conditions": [{ "test": "StringEquals", "variable": "ec2:InstanceType", "values": ["t2.nano", "t3.nano"] }] },
        ]);
        state.set("extra_statements", Value::from(statements));
        state
    }

    fn document(state: &Value) -> String {
        tfplugin::from_value::<Model>(state).expect("a model").document("eu-west-1")
    }

    #[test]
    fn statements_and_parameters_of_the_user_reach_the_policy() {
        let policy: Json = serde_json::from_str(&document(&model())).expect("JSON");
        let statements = policy["Statement"].as_array().expect("statements");
        let [tags, denied] = &statements[statements.len() - 2..] else { panic!("{policy}") };
        assert_eq!(*tags, json!({ "Sid": "Tags", "Effect": "Allow", "Action": "ec2:DescribeTags", "Resource": "*" }));
        let nano = json!({ "StringEquals": { "ec2:InstanceType": ["t2.nano", "t3.nano"] } });
        assert_eq!((&denied["Effect"], &denied["Condition"]), (&json!("Deny"), &nano));
        assert!(policy.to_string().contains("parameter/images/*"), "{policy}");
    }

    #[test]
    fn an_import_finds_every_attribute_in_the_policy() {
        let known = model();
        let policy = document(&known);
        let state = with_policy(Value::object([("cluster_name", "prod")]), Some(&policy));
        let found = recover(state);
        for name in SOURCES {
            assert_eq!(found.get(name), known.get(name), "{name}");
        }
        assert_eq!(document(&found), policy);
        assert_eq!(found.get("policy_size").as_i64(), Some(policy.len() as i64));
    }

    #[test]
    fn no_two_statements_have_one_name() {
        let of = |sids: [&str; 2]| {
            let statements = sids.map(|sid| json!({ "sid": sid, "actions": ["a:b"], "resources": ["*"] }));
            check(&Value::from(json!({ "extra_statements": statements })))
        };
        assert!(of(["One", "Two"]).is_empty());
        for sids in [["One", "One"], ["One", "AllowPassingInstanceRole"]] {
            let paths: Vec<String> = of(sids).iter().map(|found| found.path.to_string()).collect();
            assert_eq!(paths, ["extra_statements[1].sid"], "{sids:?}");
        }
    }
}
