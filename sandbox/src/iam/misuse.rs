//! Misuses of a right, built by rule from a use of it: each changes one thing that a statement asks for.

use super::condition::Condition;
use super::evaluate::Request;
use super::pattern::{is_open, matches_arn, parts};
use super::policy::Statement;

/// Stands for what is somebody else's: a cluster, a tag, a role, a queue.
const ANOTHER: &str = "another";
const ANOTHER_ACCOUNT: &str = "000000000000";
/// The place of the account in an ARN, and of the resource.
const ACCOUNT: usize = 4;
const RESOURCE: usize = 5;

/// What nobody needs to be able to do who starts and ends nodes, by service.
const BEYOND: [(&str, [&str; 3]); 6] = [
    ("ec2", ["ec2:StopInstances", "ec2:ModifyInstanceAttribute", "ec2:AuthorizeSecurityGroupIngress"]),
    ("iam", ["iam:CreateRole", "iam:AttachRolePolicy", "iam:PutRolePolicy"]),
    ("sqs", ["sqs:SendMessage", "sqs:PurgeQueue", "sqs:SetQueueAttributes"]),
    ("ssm", ["ssm:PutParameter", "ssm:GetParametersByPath", "ssm:SendCommand"]),
    ("eks", ["eks:DeleteCluster", "eks:UpdateClusterConfig", "eks:CreateAccessEntry"]),
    ("pricing", ["pricing:DescribeServices", "pricing:GetAttributeValues", "pricing:ListPriceLists"]),
];

/// A request that must be refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Misuse {
    /// What is wrong with it.
    pub rule: String,
    /// The request.
    pub request: Request,
}

/// Builds the misuses of a statement from a request that it allows.
#[must_use]
pub fn misuses(statement: &Statement, request: &Request) -> Vec<Misuse> {
    let mut all: Vec<Misuse> =
        statement.conditions.iter().flat_map(|condition| in_other_circumstances(condition, request)).collect();
    all.extend(on_other_resources(statement, request));
    all.extend(other_actions(request));
    all
}

/// The same without the key that a condition asks for, with another value, with a further one, with the key of another.
fn in_other_circumstances(condition: &Condition, request: &Request) -> Vec<Misuse> {
    let key = condition.key.to_lowercase();
    let bare = |changed: &mut Request| changed.context.retain(|name, _| name.to_lowercase() != key);
    let mut missing = request.clone();
    bare(&mut missing);
    let mut other = missing.clone();
    other.context.insert(condition.key.clone(), vec![ANOTHER.to_owned()]);
    let mut further = request.clone();
    let values = further.context.iter_mut().find(|(name, _)| name.to_lowercase() == key).map(|(_, values)| values);
    if let Some(values) = values.filter(|_| condition.is_of_many()) {
        values.push(ANOTHER.to_owned());
    }
    let mut renamed = missing.clone();
    let kept = request.context.iter().find(|(name, _)| name.to_lowercase() == key).map(|(_, values)| values.clone());
    renamed.context.insert(format!("{}-{ANOTHER}", condition.key), kept.unwrap_or_default());
    let named = |rule: &str, request| Misuse { rule: format!("{rule} {}", condition.key), request };
    let all = [
        named("without", missing),
        named("another value of", other),
        named("a further value of", further),
        named("the key of another instead of", renamed),
    ];
    let broken = |misuse: &Misuse| {
        let context = &misuse.request.context;
        let context = context.iter().map(|(name, values)| (name.to_lowercase(), values.clone())).collect();
        !condition.holds(&context)
    };
    all.into_iter().filter(broken).collect()
}

/// The same on resources of another place, account, kind or owner, wherever the statement says which.
fn on_other_resources(statement: &Statement, request: &Request) -> Vec<Misuse> {
    let Some(resources) = &statement.resources else { return Vec::new() };
    let matching = resources.patterns().iter().filter(|pattern| matches_arn(pattern, &request.resource));
    let (mut all, of) = (Vec::new(), parts(&request.resource));
    for pattern in matching.map(|pattern| parts(pattern)).filter(|pattern| pattern.len() == of.len()) {
        for place in 1..of.len() {
            let with = |part: String| {
                let mut changed: Vec<String> = of.iter().map(|part| (*part).to_owned()).collect();
                changed[place] = part;
                changed.join(":")
            };
            if place == RESOURCE {
                all.extend(others_of(pattern[place], of[place]).into_iter().map(with));
            } else if !is_open(pattern[place]) {
                all.push(with(if place == ACCOUNT { ANOTHER_ACCOUNT } else { ANOTHER }.to_owned()));
            }
        }
    }
    all.retain(|resource| !statement.covers(resource));
    let misuse =
        |resource: String| Misuse { rule: format!("on {resource}"), request: Request { resource, ..request.clone() } };
    all.into_iter().map(misuse).collect()
}

/// Replaces each step of a resource's path that its pattern spells out.
fn others_of(pattern: &str, resource: &str) -> Vec<String> {
    let steps: Vec<&str> = resource.split('/').collect();
    let spelt = pattern.split('/').take_while(|step| !is_open(step)).count();
    let other = |place: usize| {
        let mut changed = steps.clone();
        changed[place] = ANOTHER;
        changed.join("/")
    };
    (0..spelt.min(steps.len())).map(other).collect()
}

fn other_actions(request: &Request) -> Vec<Misuse> {
    let service = request.action.split(':').next().unwrap_or_default();
    let beyond = BEYOND.iter().filter(|(known, _)| *known == service).flat_map(|(_, actions)| actions);
    let misuse = |action: &&str| Misuse {
        rule: (*action).to_owned(),
        request: Request { action: (*action).to_owned(), ..request.clone() },
    };
    beyond.map(misuse).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::policy::Document;
    use super::*;

    fn statement(json: &serde_json::Value) -> Statement {
        Document::read(&json!({ "Statement": [json] })).expect("a policy").statements.remove(0)
    }

    fn rules(statement: &Statement, request: &Request) -> Vec<String> {
        misuses(statement, request).into_iter().map(|misuse| misuse.rule).collect()
    }

    #[test]
    fn each_thing_that_a_statement_asks_for_is_left_out_once() {
        let statement = statement(&json!({
            "Effect": "Allow", "Action": "ec2:TerminateInstances", "Resource": "arn:aws:ec2:eu-west-1:*:instance/*",
            "Condition": {
                "StringEquals": { "aws:ResourceTag/kubernetes.io/cluster/demo": "owned" },
                "StringLike": { "aws:ResourceTag/karpenter.sh/nodepool": "*" },
                "ForAllValues:StringEquals": { "aws:TagKeys": ["Name"] }
            }
        }));
        let request = Request {
            action: "ec2:TerminateInstances".to_owned(),
            resource: "arn:aws:ec2:eu-west-1:1:instance/i-1".to_owned(),
            context: [
                ("aws:ResourceTag/kubernetes.io/cluster/demo".to_owned(), vec!["owned".to_owned()]),
                ("aws:ResourceTag/karpenter.sh/nodepool".to_owned(), vec!["p".to_owned()]),
                ("aws:TagKeys".to_owned(), vec!["Name".to_owned()]),
            ]
            .into(),
            principal: None,
        };
        let wanted = [
            "another value of aws:TagKeys",
            "a further value of aws:TagKeys",
            "without aws:ResourceTag/kubernetes.io/cluster/demo",
            "another value of aws:ResourceTag/kubernetes.io/cluster/demo",
            "the key of another instead of aws:ResourceTag/kubernetes.io/cluster/demo",
            "without aws:ResourceTag/karpenter.sh/nodepool",
            "the key of another instead of aws:ResourceTag/karpenter.sh/nodepool",
            "on arn:another:ec2:eu-west-1:1:instance/i-1",
            "on arn:aws:another:eu-west-1:1:instance/i-1",
            "on arn:aws:ec2:another:1:instance/i-1",
            "on arn:aws:ec2:eu-west-1:1:another/i-1",
            "ec2:StopInstances",
            "ec2:ModifyInstanceAttribute",
            "ec2:AuthorizeSecurityGroupIngress",
        ];
        let mut found = rules(&statement, &request);
        let mut wanted: Vec<String> = wanted.map(str::to_owned).into();
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted);
    }

    #[test]
    fn resources_of_others_keep_what_the_statement_leaves_open() {
        let statement = statement(&json!({
            "Effect": "Allow", "Action": "iam:DeleteInstanceProfile",
            "Resource": ["arn:aws:iam::1:instance-profile/karpenter/r/demo/*", "arn:aws:iam::1:role/nodes"]
        }));
        let on = |resource: &str| {
            let action = "iam:DeleteInstanceProfile".to_owned();
            let request = Request { action, resource: resource.to_owned(), context: [].into(), principal: None };
            let mut found = rules(&statement, &request);
            found.retain(|rule| rule.starts_with("on arn:aws:iam:"));
            found
        };
        assert_eq!(
            on("arn:aws:iam::1:instance-profile/karpenter/r/demo/uid/p"),
            [
                "on arn:aws:iam:another:1:instance-profile/karpenter/r/demo/uid/p",
                "on arn:aws:iam::000000000000:instance-profile/karpenter/r/demo/uid/p",
                "on arn:aws:iam::1:another/karpenter/r/demo/uid/p",
                "on arn:aws:iam::1:instance-profile/another/r/demo/uid/p",
                "on arn:aws:iam::1:instance-profile/karpenter/another/demo/uid/p",
                "on arn:aws:iam::1:instance-profile/karpenter/r/another/uid/p",
            ]
        );
        assert!(on("arn:aws:iam::1:role/nodes").contains(&"on arn:aws:iam::1:role/another".to_owned()));
    }
}
