//! What controllers asked of AWS, by the emulator's log, held against the policies that they had.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::evaluate::{Request, Verdict, evaluate};
use super::misuse::misuses;
use super::policy::{Chosen, Document, Effect, Statement};

/// How the roles of controllers are called, by the provider's default and in tests.
pub const ROLE_PREFIX: &str = "KarpControllerRole-";
/// Misuses of each statement that must be refused, at least.
const MISUSES: usize = 3;
/// Failures that are told one by one.
const TOLD: usize = 12;

/// What was asked, under which policies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// The documents that a role had, by their digest.
    policies: BTreeMap<String, Vec<Value>>,
    /// What was asked under them, by the same.
    asked: BTreeMap<String, BTreeSet<Request>>,
}

/// A line of the log.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Policy { policy: String, documents: Vec<Value> },
    Call { policy: String, role: String, requests: Vec<Request> },
    Broken { broken: String },
}

/// What was proved.
#[derive(Debug, Default, Serialize)]
pub struct Proof {
    /// The policies, by digest.
    pub policies: BTreeMap<String, Vec<Value>>,
    /// Requests that are allowed.
    pub allowed: usize,
    /// Statements without which something is refused.
    pub needed: usize,
    /// Misuses that are refused.
    pub misuses: usize,
    /// Verdicts for another evaluator to agree with, none of them twice.
    pub cases: BTreeSet<Case>,
}

/// One verdict.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Case {
    /// The policy's digest.
    pub policy: String,
    /// The statement that is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without: Option<String>,
    /// What is asked.
    pub request: Request,
    /// Whether it is allowed.
    pub allowed: bool,
    /// What the case is about.
    pub about: String,
}

impl Proof {
    /// Says in a line how much was judged.
    #[must_use]
    pub fn summary(&self) -> String {
        let Self { policies, allowed, needed, misuses, .. } = self;
        let policies = policies.len();
        format!(
            "{allowed} requests allowed under {policies} policies, {needed} statements needed, {misuses} misuses refused"
        )
    }
}

impl Rights {
    /// Reads the emulator's log of what its callers with a role asked for; only controllers count.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn read(log: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(log).with_context(|| format!("reading {}", log.display()))?;
        Self::parse(&text).with_context(|| format!("reading {}", log.display()))
    }

    fn parse(log: &str) -> Result<Self> {
        let mut rights = Self::default();
        // the last line may still be written
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        for line in whole.lines() {
            match serde_json::from_str(line).with_context(|| format!("not understood: {line}"))? {
                Line::Policy { policy, documents } => {
                    rights.policies.insert(policy, documents);
                }
                Line::Call { policy, role, requests } if role.starts_with(ROLE_PREFIX) => {
                    rights.asked.entry(policy).or_default().extend(requests);
                }
                Line::Call { .. } => {}
                Line::Broken { broken } => bail!("the emulator could not tell what {broken}"),
            }
        }
        rights.policies.retain(|digest, _| rights.asked.contains_key(digest));
        Ok(rights)
    }

    /// Adds what was asked elsewhere.
    pub fn add(&mut self, other: Self) {
        self.policies.extend(other.policies);
        for (policy, requests) in other.asked {
            self.asked.entry(policy).or_default().extend(requests);
        }
    }

    /// Counts what was asked.
    #[must_use]
    pub fn count(&self) -> usize {
        self.asked.values().map(BTreeSet::len).sum()
    }

    /// Judges what was asked under each policy: all of it is allowed.
    ///
    /// # Errors
    /// Lists what is not, and why.
    pub fn judge_allowed(&self) -> Result<()> {
        let mut refused = Vec::new();
        for (documents, requests) in self.each()? {
            for request in requests {
                let verdict = evaluate(&documents, request);
                if !verdict.is_allowed() {
                    refused.push(format!("{request}: {verdict}"));
                }
            }
        }
        ensure!(refused.is_empty(), "the controller's policy does not allow what it does: {}", told(&refused));
        Ok(())
    }

    /// Proves that the policies are enough and the least: all that was asked is allowed; without any one statement something is not;
    /// each action that is named was asked for; and misuses of each statement are refused.
    ///
    /// # Errors
    /// Lists what is otherwise.
    pub fn prove(&self) -> Result<Proof> {
        ensure!(self.count() > 0, "the emulator's log tells nothing of a role {ROLE_PREFIX}…");
        self.judge_allowed()?;
        let mut proof = Proof { policies: self.policies.clone(), allowed: self.count(), ..Proof::default() };
        let mut found = Found::default();
        for (digest, requests) in &self.asked {
            let documents = self.documents(digest)?;
            let statements = documents.iter().flat_map(|document| &document.statements);
            for statement in statements.filter(|statement| statement.effect == Effect::Allow) {
                found.statements.insert(statement.sid.clone());
                found.actions.extend(actions(statement));
            }
            for request in requests {
                judge(digest, &documents, request, &mut proof, &mut found);
            }
        }
        found.judge()?;
        proof.needed = found.needed.len();
        Ok(proof)
    }

    fn each(&self) -> Result<Vec<(Vec<Document>, &BTreeSet<Request>)>> {
        self.asked.iter().map(|(digest, requests)| Ok((self.documents(digest)?, requests))).collect()
    }

    fn documents(&self, digest: &str) -> Result<Vec<Document>> {
        let documents = self.policies.get(digest).with_context(|| format!("the log holds no policy {digest}"))?;
        Ok(documents.iter().map(Document::read).collect::<Result<_, _>>()?)
    }
}

/// What the verdicts come to.
#[derive(Default)]
struct Found {
    statements: BTreeSet<String>,
    /// Without these something is refused.
    needed: BTreeSet<String>,
    /// What each statement names, and what of it was asked for.
    actions: BTreeSet<(String, String)>,
    used: BTreeSet<(String, String)>,
    /// Misuses that were refused, by statement: what was wrong with them.
    refused: BTreeMap<String, BTreeSet<String>>,
    /// Misuses that were allowed.
    passed: Vec<String>,
    /// What was judged already: requests that differ in ids only are alike.
    judged: BTreeSet<(String, Shape)>,
}

/// A request without what is its own alone: the action, the kind of the resource, and the keys of the context.
type Shape = (String, String, Vec<String>);

fn shape(request: &Request) -> Shape {
    let kind = request.resource.split('/').next().unwrap_or_default();
    (request.action.clone(), kind.to_owned(), request.context.keys().cloned().collect())
}

impl Found {
    fn judge(&self) -> Result<()> {
        let list = |all: Vec<String>| all.join(", ");
        ensure!(self.passed.is_empty(), "misuses are allowed: {}", told(&self.passed));
        let spare: Vec<String> = self.statements.difference(&self.needed).cloned().collect();
        ensure!(spare.is_empty(), "statements are granted that nothing needs: {}", list(spare));
        let unused = self.actions.difference(&self.used).map(|(sid, action)| format!("{action} of {sid}"));
        let unused: Vec<String> = unused.collect();
        ensure!(unused.is_empty(), "actions are granted that nothing used: {}", list(unused));
        let few = |sid: &&String| self.refused.get(*sid).is_none_or(|rules| rules.len() < MISUSES);
        let few: Vec<String> = self.statements.iter().filter(few).cloned().collect();
        ensure!(few.is_empty(), "fewer than {MISUSES} misuses were tried of: {}", list(few));
        Ok(())
    }
}

/// Judges a request with each statement that allows it left out, and misused.
fn judge(digest: &str, documents: &[Document], request: &Request, proof: &mut Proof, found: &mut Found) {
    let Verdict::Allowed(by) = evaluate(documents, request) else { return };
    proof.cases.insert(case(digest, None, request, format!("allowed by {}", by.join(", "))));
    if !found.judged.insert((digest.to_owned(), shape(request))) {
        return;
    }
    for statement in documents.iter().flat_map(|document| &document.statements).filter(|one| by.contains(&one.sid)) {
        let sid = &statement.sid;
        found.used.extend(actions(statement).into_iter().filter(|(_, action)| *action == request.action));
        let rest: Vec<Document> = documents.iter().map(|document| document.without(sid)).collect();
        if !evaluate(&rest, request).is_allowed() {
            found.needed.insert(sid.clone());
            proof.cases.insert(case(digest, Some(sid), request, format!("needs {sid}")));
        }
        for misuse in misuses(statement, request) {
            let about = format!("misuse of {sid}: {}", misuse.rule);
            match evaluate(documents, &misuse.request) {
                Verdict::Allowed(by) => {
                    found.passed.push(format!("{} ({about}) by {}", misuse.request, by.join(", ")));
                }
                _ => {
                    proof.misuses += 1;
                    found.refused.entry(sid.clone()).or_default().insert(misuse.rule);
                    proof.cases.insert(Case { allowed: false, ..case(digest, None, &misuse.request, about) });
                }
            }
        }
    }
}

/// The verdict on a request: it passes, unless the statement is left out that it needs.
fn case(digest: &str, without: Option<&String>, request: &Request, about: String) -> Case {
    Case {
        policy: digest.to_owned(),
        without: without.cloned(),
        request: request.clone(),
        allowed: without.is_none(),
        about,
    }
}

fn actions(statement: &Statement) -> Vec<(String, String)> {
    match &statement.actions {
        Chosen::Only(actions) => actions.iter().map(|action| (statement.sid.clone(), action.clone())).collect(),
        Chosen::Except(_) => Vec::new(),
    }
}

fn told(all: &[String]) -> String {
    let more = all.len().saturating_sub(TOLD);
    let first = all.iter().take(TOLD).cloned().collect::<Vec<_>>().join("; ");
    if more == 0 { first } else { format!("{first}; and {more} more") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy() -> Value {
        json!({ "Statement": [
            { "Sid": "Read", "Effect": "Allow", "Action": "sqs:ReceiveMessage", "Resource": "arn:aws:sqs:r:1:mine" },
            { "Sid": "Delete", "Effect": "Allow", "Action": ["sqs:DeleteMessage"], "Resource": "arn:aws:sqs:r:1:mine" }
        ] })
    }

    fn call(role: &str, action: &str, resource: &str) -> Value {
        json!({ "policy": "p", "role": role, "number": 1, "requests": [{ "action": action, "resource": resource, "context": {} }] })
    }

    fn log(policy: &Value, calls: &[Value]) -> Rights {
        let lines = std::iter::once(json!({ "policy": "p", "documents": [policy] })).chain(calls.iter().cloned());
        let text: Vec<String> = lines.map(|line| line.to_string()).collect();
        Rights::parse(&(text.join("\n") + "\n{\"policy\":")).expect("a log")
    }

    fn mine(action: &str) -> Value {
        call("KarpControllerRole-a", action, "arn:aws:sqs:r:1:mine")
    }

    #[test]
    fn what_is_enough_and_the_least_is_proved() {
        let rights = log(
            &policy(),
            &[
                mine("sqs:ReceiveMessage"),
                mine("sqs:DeleteMessage"),
                call("other", "sqs:PurgeQueue", "arn:aws:sqs:r:1:x"),
            ],
        );
        assert_eq!(rights.count(), 2, "roles of others do not count");
        let proof = rights.prove().expect("it holds");
        let needs: Vec<&str> = proof.cases.iter().filter_map(|case| case.without.as_deref()).collect();
        assert_eq!(needs, ["Delete", "Read"]);
        let summary = "2 requests allowed under 1 policies, 2 statements needed, ";
        assert!(proof.summary().starts_with(summary), "{}", proof.summary());
        assert_eq!(proof.cases.iter().filter(|case| case.about.starts_with("misuse")).count(), proof.misuses);
    }

    #[test]
    fn what_is_not_allowed_is_told_with_its_reason() {
        let purge = call("KarpControllerRole-a", "sqs:ReceiveMessage", "arn:aws:sqs:r:1:other");
        let told =
            log(&policy(), &[mine("sqs:DeleteMessage"), purge]).prove().expect_err("another's queue").to_string();
        assert_eq!(
            told,
            "the controller's policy does not allow what it does: sqs:ReceiveMessage on arn:aws:sqs:r:1:other: no statement is about it"
        );
    }

    #[test]
    fn what_nothing_needs_is_told() {
        let told = log(&policy(), &[mine("sqs:DeleteMessage")]).prove().expect_err("one is spare").to_string();
        assert_eq!(told, "statements are granted that nothing needs: Read");
        let mut wide = policy();
        wide["Statement"][0]["Action"] = json!(["sqs:ReceiveMessage", "sqs:GetQueueUrl"]);
        let all = [mine("sqs:ReceiveMessage"), mine("sqs:DeleteMessage")];
        let told = log(&wide, &all).prove().expect_err("an action is spare").to_string();
        assert_eq!(told, "actions are granted that nothing used: sqs:GetQueueUrl of Read");
        let mut twice = policy();
        twice["Statement"][0]["Action"] = json!(["sqs:ReceiveMessage", "sqs:DeleteMessage"]);
        let told = log(&twice, &all).prove().expect_err("one does the other's work").to_string();
        assert_eq!(told, "statements are granted that nothing needs: Delete");
    }

    #[test]
    fn a_policy_that_lets_misuses_pass_is_refused() {
        let mut open = policy();
        open["Statement"][0]["Resource"] = json!("*");
        open["Statement"][0]["Action"] = json!("sqs:*");
        let all = [mine("sqs:ReceiveMessage"), mine("sqs:DeleteMessage")];
        let told = log(&open, &all).prove().expect_err("all is allowed").to_string();
        assert!(told.starts_with("misuses are allowed: "), "{told}");
        let queue =
            "sqs:DeleteMessage on arn:aws:sqs:r:1:another (misuse of Delete: on arn:aws:sqs:r:1:another) by Read";
        assert!(told.contains(queue), "{told}");
        assert!(Rights::default().prove().is_err(), "no log proves nothing");
    }
}
