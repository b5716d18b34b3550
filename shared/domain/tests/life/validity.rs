//! Whether a command still holds on a fresh snapshot.

use karp_domain::api::labels;
use karp_domain::catalogue::CapacityType;
use karp_domain::disruption::{Cause, Command, Invalid, plan_disruption, validate, validate_each};
use karp_domain::scheduling::InFlightNode;
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

/// Of several replacements some are bound to a zone and one is not: each is found again, whichever is looked at first.
#[test]
fn a_command_whose_replacements_differ_in_what_binds_them_holds() {
    let mut only = on_demand();
    only.as_array_mut()
        .unwrap()
        .push(json!({"key": labels::INSTANCE_TYPE, "operator": "In", "values": ["m7i.xlarge"]}));
    let mut objects = vec![class(), pool("default", only)];
    objects.extend(node("n1", "default", "m7i.8xlarge", "us-east-1a", CapacityType::OnDemand));
    let bound = json!({ (labels::ZONE): "us-east-1a" });
    for name in ["data-0", "data-1"] {
        objects.push(with(running(name, "n1", "3", "1Gi"), &[("spec.nodeSelector", bound.clone())]));
    }
    objects.push(running("web", "n1", "3", "1Gi"));
    let drifted = json!({"type": "Drifted", "status": "True", "reason": "RequirementsDrifted", "lastTransitionTime": "2026-11-21T11:30:00Z"});
    let claim = objects.iter_mut().find(|object| object["kind"] == "NodeClaim").unwrap();
    claim["status"]["conditions"].as_array_mut().unwrap().push(drifted);
    let (_, plan) = plan(&objects);
    let command = &plan.commands[0];
    assert_eq!((command.cause, command.replacements.len()), (Cause::Drifted, 3));
    let zones = |node: &InFlightNode| node.requirements.get(labels::ZONE).and_then(|zone| zone.single().cloned());
    let bound = command.replacements.iter().filter(|node| zones(node).is_some()).count();
    assert_eq!(bound, 2, "{:?}", command.replacements);
    // whoever planned them put them in any order
    for turn in 0..3 {
        let mut turned = command.clone();
        turned.replacements.rotate_left(turn);
        assert_eq!(validate(&turned, &snapshot(&objects, catalogue(TYPES))), Ok(()), "{turn}");
    }
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
