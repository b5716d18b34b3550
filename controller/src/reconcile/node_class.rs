//! EC2NodeClass: what it selects goes to its status; it stays until no claim uses it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karp_domain::api::conditions::{self, ConditionStatus};
use karp_domain::api::hash::{self, NodeClassVersion};
use karp_domain::api::{Ec2NodeClass, Ec2NodeClassStatus, labels};
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::driver::{AT_ONCE, Driver};
use super::{Context, Error};
use crate::cloud::{CloudError, Resolved};
use crate::effect;
use crate::observe::Change;
use crate::ops::events::Reason;

/// A class that waits for its claims is looked at again after this long.
const WAITING: Duration = Duration::from_secs(5);
/// Reason of a class that cannot be read.
pub const INVALID: &str = "NodeClassValidationFailed";

/// Runs the controller until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let pick = |context: &Context, change: &Change| match change {
        Change::Class(name) => vec![ObjectRef::new(name)],
        // A claim that went may have been the last that a leaving class waits for.
        Change::Claim(_) => {
            let leaving = context.stores.classes.state_filter(|class| class.metadata.deletion_timestamp.is_some());
            leaving.iter().map(|class| ObjectRef::new(&class.name_any())).collect()
        }
        _ => Vec::new(),
    };
    let driver = Driver { name: "nodeclass", store: context.stores.classes.clone(), pick, at_once: AT_ONCE };
    driver.run(context, stop, reconcile).await;
}

async fn reconcile(class: Arc<Ec2NodeClass>, context: Arc<Context>) -> Result<Action, Error> {
    if class.metadata.deletion_timestamp.is_some() {
        return finalize(&class, &context).await;
    }
    let mut class = effect::add_finalizer(&context.client, &*class, labels::AWS_TERMINATION_FINALIZER).await?;
    let mut annotations = hash_annotations(&class, &context.ca_bundle);
    annotations.extend(context.cloud.marks(&class));
    if annotations.iter().any(|(key, value)| class.annotations().get(key) != Some(value)) {
        class = effect::write_metadata(&context.client, &class, json!({ "annotations": annotations })).await?;
    }
    let resolved = context.cloud.resolve(&class).await?;
    let outdated = without(&class, &resolved.outdated);
    if !outdated.is_empty() {
        class = effect::write_metadata(&context.client, &class, json!({ "annotations": outdated })).await?;
    }
    let interval = context.options.subnet_refresh_interval;
    let again = resolved.look_again.map_or(interval, |soon| soon.min(interval));
    let status = status(&class, resolved, Timestamp::now());
    if class.status.as_ref() != Some(&status) {
        let ready = |status: Option<&Ec2NodeClassStatus>| {
            status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
        };
        if ready(Some(&status)) != ready(class.status.as_ref()) {
            context.provision.notify_one();
        }
        let patch = effect::replacing(class.status.as_ref(), &status);
        effect::write_status(&context.client, &class, &patch).await?;
    }
    Ok(Action::requeue(again))
}

/// Returns the patch that takes annotations away, of those that a class has.
fn without(class: &Ec2NodeClass, outdated: &[&'static str]) -> BTreeMap<&'static str, Value> {
    let known = outdated.iter().filter(|key| class.annotations().contains_key(**key));
    known.map(|key| (*key, Value::Null)).collect()
}

/// Makes the status from what was found; a condition that no problem names holds.
fn status(class: &Ec2NodeClass, resolved: Resolved, now: Timestamp) -> Ec2NodeClassStatus {
    let mut conditions = class.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let mut parts = conditions::NODE_CLASS_READY_PARTS.to_vec();
    for (used, part) in [
        (class.spec.placement_group_selector.is_some(), conditions::PLACEMENT_GROUP_READY),
        (resolved.capacity_reservations.is_some(), conditions::CAPACITY_RESERVATIONS_READY),
    ] {
        if used {
            parts.push(part);
        } else {
            conditions::clear(&mut conditions, part);
        }
    }
    for part in &parts {
        match resolved.problems.iter().find(|problem| problem.condition == *part) {
            Some(problem) => {
                conditions::set(&mut conditions, part, ConditionStatus::False, &problem.reason, &problem.message, now)
            }
            None => {
                let remark = resolved.remark.as_ref().filter(|remark| remark.condition == *part);
                let (reason, message) =
                    remark.map_or(("", ""), |remark| (remark.reason.as_str(), remark.message.as_str()));
                conditions::set(&mut conditions, part, ConditionStatus::True, reason, message, now)
            }
        };
    }
    conditions::set_ready(&mut conditions, &parts, now);
    // nothing is launched by what an earlier spec resolved to
    conditions::observe(&mut conditions, class.metadata.generation);
    Ec2NodeClassStatus {
        subnets: resolved.subnets,
        security_groups: resolved.security_groups,
        capacity_reservations: resolved.capacity_reservations.unwrap_or_default(),
        amis: resolved.amis,
        instance_profile: resolved.instance_profile,
        conditions,
    }
}

/// Lets a class go once no claim uses it and what was made for it is gone.
async fn finalize(class: &Ec2NodeClass, context: &Context) -> Result<Action, Error> {
    let name = class.name_any();
    let claims = context
        .stores
        .claims
        .state_filter(|claim| claim.spec.node_class_ref.is_ours() && claim.spec.node_class_ref.name == name);
    if !claims.is_empty() {
        let names = super::provisioning::listing(claims.iter().map(|claim| claim.name_any()));
        context.events.publish(
            &effect::reference(class),
            Reason::WaitingOnNodeClaimTermination,
            format!("Waiting on NodeClaim termination for {names}"),
        );
        return Ok(Action::requeue(WAITING));
    }
    match context.cloud.release(class).await {
        Ok(()) => {}
        Err(error @ CloudError::Retry { .. }) => return Err(error.into()),
        // Rights that the class's normal life did not need must not keep it for ever.
        Err(error) => tracing::warn!(%error, "could not take away what was made for the node class"),
    }
    effect::remove_finalizer(&context.client, class, labels::AWS_TERMINATION_FINALIZER).await?;
    Ok(Action::await_change())
}

/// Returns the annotations by which a claim knows the class that it was made from.
pub fn hash_annotations(class: &Ec2NodeClass, ca_bundle: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (labels::EC2_NODE_CLASS_HASH.to_owned(), hash::node_class(&class.spec, NodeClassVersion::V6, ca_bundle)),
        (labels::EC2_NODE_CLASS_HASH_VERSION.to_owned(), hash::NODE_CLASS_VERSION.to_owned()),
    ])
}

#[cfg(test)]
mod tests {
    use karp_domain::api::{Ec2NodeClassSpec, SubnetSelectorTerm};

    use super::super::testing::{self, Server};
    use super::*;
    use crate::cloud::Problem;

    fn class() -> Ec2NodeClass {
        Ec2NodeClass::new("default", Ec2NodeClassSpec::default())
    }

    #[test]
    fn the_hash_follows_what_makes_an_instance_and_not_what_chooses_among_subnets() {
        let before = hash_annotations(&class(), "");
        let mut other = class();
        other.spec.subnet_selector_terms.push(SubnetSelectorTerm { id: Some("subnet-1".into()), ..Default::default() });
        assert_eq!(hash_annotations(&other, ""), before);
        other.spec.user_data = Some("#!/bin/sh".into());
        assert_ne!(hash_annotations(&other, ""), before);
    }

    #[test]
    fn only_annotations_that_are_there_are_taken_away() {
        let mut class = class();
        assert!(without(&class, &["a"]).is_empty(), "nothing is written");
        class.metadata.annotations = Some([("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())].into());
        assert_eq!(json!(without(&class, &["a", "c"])), json!({ "a": null }));
    }

    #[test]
    fn a_problem_makes_the_class_not_ready_and_names_itself() {
        let problem = Problem {
            condition: conditions::SUBNETS_READY,
            reason: "SubnetsNotFound".into(),
            message: "no subnet has the tags".into(),
        };
        let found = Resolved { problems: vec![problem], ..Resolved::default() };
        let status = status(&class(), found, Timestamp::UNIX_EPOCH);
        assert!(conditions::is_false(&status.conditions, conditions::SUBNETS_READY));
        assert!(conditions::is_false(&status.conditions, conditions::READY));
        assert!(conditions::is_true(&status.conditions, conditions::AMIS_READY));
        let remark = Problem {
            condition: conditions::VALIDATION_SUCCEEDED,
            reason: "DryRunDisabled".into(),
            message: "it was switched off".into(),
        };
        let told =
            super::status(&class(), Resolved { remark: Some(remark), ..Resolved::default() }, Timestamp::UNIX_EPOCH);
        let said = conditions::get(&told.conditions, conditions::VALIDATION_SUCCEEDED).expect("the condition");
        assert_eq!((said.status, said.reason.as_str()), (ConditionStatus::True, "DryRunDisabled"));
        assert!(conditions::is_true(&told.conditions, conditions::READY), "and holds");
        let mut healed = class();
        healed.status = Some(status);
        let status = super::status(&healed, Resolved::default(), Timestamp::UNIX_EPOCH);
        assert!(conditions::is_true(&status.conditions, conditions::READY));
    }

    #[tokio::test]
    async fn a_class_that_is_used_tells_what_it_waits_for() {
        let server = Server::of([testing::claim("a")]);
        let context = server.context().await;
        assert_eq!(finalize(&class(), &context).await.expect("answers"), Action::requeue(WAITING));
        let note = server.told("WaitingOnNodeClaimTermination", "default").await;
        assert_eq!(note, "Waiting on NodeClaim termination for a");
    }
}
