//! The verdict on one request: an explicit Deny wins, then any Allow, else nothing allows it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::condition::Context;
use super::policy::{Document, Effect, Statement};

/// Who asks, where a policy names principals.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Principal {
    /// In a policy: everybody.
    Anybody,
    /// A user, role or account, by ARN.
    Aws(String),
    /// A service of AWS, as `events.amazonaws.com`.
    Service(String),
    /// An identity provider, by ARN.
    Federated(String),
}

/// What AWS asks before it lets a call pass; one call may ask for several.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Request {
    /// What is done, as `ec2:RunInstances`.
    pub action: String,
    /// To what: an ARN, or `*` for actions that know no resources.
    pub resource: String,
    /// What is known of the circumstances, by condition key.
    #[serde(default)]
    pub context: Context,
    /// Who asks; nobody in particular when the policy is the caller's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Principal>,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.action, self.resource)
    }
}

/// What comes of a request, with the statements that decided it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// These let it pass.
    Allowed(Vec<String>),
    /// This forbids it.
    Denied(String),
    /// Nothing lets it pass; these would, were it not for a condition: statement, operator, key.
    Unallowed(Vec<(String, String, String)>),
}

impl Verdict {
    /// Tells whether the request passes.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed(by) => write!(f, "allowed by {}", by.join(", ")),
            Self::Denied(by) => write!(f, "denied by {by}"),
            Self::Unallowed(near) if near.is_empty() => write!(f, "no statement is about it"),
            Self::Unallowed(near) => {
                let each = near.iter().map(|(sid, operator, key)| format!("{sid} wants {operator} {key}"));
                write!(f, "{}", each.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Judges a request by the policies that bear on it, all of one kind: the caller's own, or those of one resource.
#[must_use]
pub fn evaluate(policies: &[Document], request: &Request) -> Verdict {
    let context: Context = request.context.iter().map(|(key, values)| (key.to_lowercase(), values.clone())).collect();
    let (mut allowed, mut near) = (Vec::new(), Vec::new());
    for statement in policies.iter().flat_map(|policy| &policy.statements) {
        if !about(statement, request) {
            continue;
        }
        let missed = statement.conditions.iter().find(|condition| !condition.holds(&context));
        match (statement.effect, missed) {
            (Effect::Deny, None) => return Verdict::Denied(statement.sid.clone()),
            (Effect::Deny, Some(_)) => {}
            (Effect::Allow, None) => allowed.push(statement.sid.clone()),
            (Effect::Allow, Some(missed)) => {
                near.push((statement.sid.clone(), missed.operator.clone(), missed.key.clone()));
            }
        }
    }
    if allowed.is_empty() { Verdict::Unallowed(near) } else { Verdict::Allowed(allowed) }
}

fn about(statement: &Statement, request: &Request) -> bool {
    let named = |one: &Principal| *one == Principal::Anybody || Some(one) == request.principal.as_ref();
    let principal = statement.principals.as_ref().is_none_or(|principals| principals.iter().any(named));
    principal && statement.names(&request.action) && statement.covers(&request.resource)
}

#[cfg(test)]
mod tests {
    use karp_domain::iam::{self, ControllerScope};
    use serde_json::{Value, json};

    use super::*;

    fn request(action: &str, resource: &str, context: &[(&str, &str)]) -> Request {
        let context = context.iter().map(|(key, value)| ((*key).to_owned(), vec![(*value).to_owned()])).collect();
        Request { action: action.to_owned(), resource: resource.to_owned(), context, principal: None }
    }

    fn read(document: &Value) -> Vec<Document> {
        vec![Document::read(document).expect("it can be judged")]
    }

    #[test]
    fn a_deny_wins_wherever_it_stands() {
        let policies = read(&json!({ "Statement": [
            { "Sid": "No", "Effect": "Deny", "Action": "*", "Resource": "*", "Condition": { "Bool": { "aws:SecureTransport": "false" } } },
            { "Sid": "Yes", "Effect": "Allow", "Action": "sqs:*", "Resource": "*" }
        ] }));
        let over = |tls: &str| {
            evaluate(&policies, &request("sqs:SendMessage", "arn:aws:sqs:r:1:q", &[("aws:securetransport", tls)]))
        };
        assert_eq!(over("false"), Verdict::Denied("No".to_owned()));
        assert_eq!(over("true"), Verdict::Allowed(vec!["Yes".to_owned()]));
        assert_eq!(evaluate(&policies, &request("sns:Publish", "*", &[])), Verdict::Unallowed(vec![]));
    }

    #[test]
    fn the_controller_ends_only_what_carries_its_clusters_tags() {
        let scope = ControllerScope {
            partition: "aws".into(),
            region: "eu-west-1".into(),
            account_id: "123456789012".into(),
            cluster_name: "demo".into(),
            ..ControllerScope::default()
        };
        let policies = read(&iam::controller_policy(&scope));
        let instance = "arn:aws:ec2:eu-west-1:123456789012:instance/i-1";
        let (mine, pool) = ("aws:ResourceTag/kubernetes.io/cluster/demo", "aws:ResourceTag/karpenter.sh/nodepool");
        let end = |tags: &[(&str, &str)]| evaluate(&policies, &request("ec2:TerminateInstances", instance, tags));
        assert_eq!(end(&[(mine, "owned"), (pool, "p")]), Verdict::Allowed(vec!["AllowScopedDeletion".to_owned()]));
        let unowned = end(&[("aws:ResourceTag/kubernetes.io/cluster/other", "owned"), (pool, "p")]);
        assert_eq!(unowned.to_string(), format!("AllowScopedDeletion wants StringEquals {mine}"));
        assert!(!end(&[(mine, "shared"), (pool, "p")]).is_allowed());
        assert!(!end(&[(mine, "owned")]).is_allowed(), "no pool");
        let elsewhere = "arn:aws:ec2:us-east-1:123456789012:instance/i-1";
        let there = evaluate(&policies, &request("ec2:TerminateInstances", elsewhere, &[(mine, "owned"), (pool, "p")]));
        assert_eq!(there.to_string(), "no statement is about it");
    }

    #[test]
    fn principals_are_told_apart_in_trusts_and_queues() {
        let by = |policies: &[Document], action: &str, principal: Principal, context: &[(&str, &str)]| {
            evaluate(policies, &Request { principal: Some(principal), ..request(action, "arn:aws:sqs:r:1:q", context) })
        };
        let node = read(&iam::node_trust("aws"));
        let service = |name: &str| Principal::Service(name.to_owned());
        assert!(by(&node, "sts:AssumeRole", service("ec2.amazonaws.com"), &[]).is_allowed());
        assert!(!by(&node, "sts:AssumeRole", service("lambda.amazonaws.com"), &[]).is_allowed());
        let provider = "arn:aws:iam::1:oidc-provider/issuer/id/A";
        let irsa = read(&iam::irsa_trust(provider, "karpenter", "karpenter"));
        let claims = |subject| [("issuer/id/A:aud", "sts.amazonaws.com"), ("issuer/id/A:sub", subject)];
        let assume = |subject| {
            by(&irsa, "sts:AssumeRoleWithWebIdentity", Principal::Federated(provider.to_owned()), &claims(subject))
        };
        assert!(assume("system:serviceaccount:karpenter:karpenter").is_allowed());
        assert!(!assume("system:serviceaccount:default:karpenter").is_allowed());
        let fargate = read(&iam::fargate_trust("aws", "r", "1", "c"));
        let runs = |source| {
            by(&fargate, "sts:AssumeRole", service("eks-fargate-pods.amazonaws.com"), &[("aws:SourceArn", source)])
        };
        assert!(runs("arn:aws:eks:r:1:fargateprofile/c/p/1").is_allowed());
        assert!(!runs("arn:aws:eks:r:1:fargateprofile/other/p/1").is_allowed());
        let queue = read(&iam::queue_policy("arn:aws:sqs:r:1:q"));
        let from = |who: Principal, tls, account, rule| {
            let context = [("aws:SecureTransport", tls), ("aws:SourceAccount", account), ("aws:SourceArn", rule)];
            by(&queue, "sqs:SendMessage", who, &context)
        };
        let send = |who: Principal, tls| from(who, tls, "1", "arn:aws:events:r:1:rule/karp");
        let events = || service("events.amazonaws.com");
        assert!(send(events(), "true").is_allowed());
        assert_eq!(send(events(), "false"), Verdict::Denied("DenyHTTP".to_owned()));
        // rules of other accounts and regions know the queue's name, too
        assert!(!from(events(), "true", "2", "arn:aws:events:r:2:rule/karp").is_allowed());
        assert!(!from(events(), "true", "1", "arn:aws:events:elsewhere:1:rule/karp").is_allowed());
        assert!(!by(&queue, "sqs:SendMessage", events(), &[("aws:SecureTransport", "true")]).is_allowed());
        assert!(!send(Principal::Aws("arn:aws:iam::2:root".to_owned()), "true").is_allowed());
    }
}
