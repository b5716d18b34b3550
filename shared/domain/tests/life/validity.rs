//! Whether a command still holds on a fresh snapshot.

use karp_domain::api::labels;
use karp_domain::catalogue::CapacityType;
use karp_domain::disruption::{Cause, Command, Invalid, plan_disruption, validate, validate_each};
use serde_json::{Value, json};

use crate::disrupt::{dear, on_demand, plan, two};
use crate::world::{TYPES, catalogue, class, node, pool, running, snapshot, with};

/// While a command rests, somebody edits the pool: what was planned to replace the node would drift as soon as it is there.
#[test]
fn a_command_is_void_when_its_pool_has_another_template() {
    let mut objects = dear();
    let (_, plan) = plan(&objects);
    assert_eq!(plan.commands[0].replacements.len(), 1);
    objects[1] = with(objects[1].clone(), &[("spec.template.metadata.annotations.team", json!("a"))]);
    let now = validate(&plan.commands[0], &snapshot(&objects, catalogue(TYPES)));
    assert!(matches!(now, Err(Invalid::OtherReplacement { .. })), "{now:?}");
}

/// While a command rests, a pod comes to the node that must stay in its zone: what was planned may be launched in any other.
#[test]
fn a_command_is_void_when_its_replacement_might_be_where_its_pods_cannot() {
    let mut objects = dear();
    let (_, plan) = plan(&objects);
    assert_eq!(validate(&plan.commands[0], &snapshot(&objects, catalogue(TYPES))), Ok(()));
    let late = |name: &str, zone: &str| {
        with(running(name, "n1", "1m", "1Mi"), &[("spec.nodeSelector", json!({ (labels::ZONE): zone }))])
    };
    objects.push(late("late", "us-east-1a"));
    let now = validate(&plan.commands[0], &snapshot(&objects, catalogue(TYPES)));
    assert!(matches!(now, Err(Invalid::OtherReplacement { .. })), "{now:?}");
}

/// What goes by force is checked together, each by itself.
#[test]
fn commands_that_go_by_force_are_checked_with_one_look() {
    let mut objects = vec![class(), pool("default", on_demand())];
    for (name, age) in [("n1", "2h"), ("n2", "2h"), ("n3", "720h")] {
        let [node, claim] = node(name, "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand);
        objects.extend([node, with(claim, &[("spec.expireAfter", json!(age))])]);
        objects.push(running(&format!("p-{name}"), name, "1", "1Gi"));
    }
    let mut later = snapshot(&objects, catalogue(TYPES));
    later.now += jiff::SignedDuration::from_hours(24);
    let commands: Vec<Command> =
        plan_disruption(&later).commands.into_iter().filter(|command| command.cause == Cause::Expired).collect();
    assert_eq!(commands.len(), 2, "one each, so that none waits for another");
    later.claims.retain(|claim| &*claim.name != "default-n1");
    let answers: Vec<(&str, bool)> = validate_each(&commands, &later)
        .into_iter()
        .map(|(command, answer)| (&*command.candidates[0].claim, answer.is_ok()))
        .collect();
    assert_eq!(answers, [("default-n1", false), ("default-n2", true)]);
}

#[test]
fn a_command_is_void_when_the_world_has_changed() {
    let objects = two("m7i.2xlarge", &[("p", "1")]);
    let (_, before) = plan(&objects);
    let command = &before.commands[0];
    let mut fuller = objects.clone();
    fuller.push(running("late", "n2", "1", "1Gi"));
    assert!(validate(command, &snapshot(&fuller, catalogue(TYPES))).is_err());
    let protected = running("shield", "n1", "100m", "64Mi");
    let annotation = ("metadata.annotations", json!({"karpenter.sh/do-not-disrupt": "true"}));
    let mut shielded = objects.clone();
    shielded.push(with(protected, &[annotation]));
    assert!(validate(command, &snapshot(&shielded, catalogue(TYPES))).is_err());
    let gone: Vec<Value> = objects.into_iter().filter(|o| o["metadata"]["name"] != "default-n1").collect();
    assert!(validate(command, &snapshot(&gone, catalogue(TYPES))).is_err());
}
