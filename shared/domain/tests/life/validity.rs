//! Whether a command still holds on a fresh snapshot.

use karp_domain::api::labels;
use karp_domain::catalogue::CapacityType;
use karp_domain::disruption::{Cause, Command, Invalid, KeepReason, plan_disruption, uphold, validate, validate_each};
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

/// While empty nodes rest, a pod comes to one of them and another is lost: that keeps none of the others.
#[test]
fn of_empty_nodes_those_go_that_still_may() {
    let mut objects = vec![class(), pool("default", on_demand())];
    for name in ["n1", "n2", "n3", "n4"] {
        objects.extend(node(name, "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    }
    let (before, plan) = plan(&objects);
    let [command] = &plan.commands[..] else { panic!("{:?}", plan.commands) };
    assert_eq!((command.cause, command.candidates.len()), (Cause::Empty, 4));
    let whole = uphold(command.clone(), &before);
    assert_eq!((whole.command.as_ref(), whole.void.len()), (Some(command), 0));
    assert_eq!(command.clone().apart().len(), 4, "nor does one wait for another when they go");
    objects.push(running("late", "n2", "1", "1Gi"));
    objects.retain(|object| object["metadata"]["name"] != "default-n4");
    assert!(validate(command, &snapshot(&objects, catalogue(TYPES))).is_err());
    for (budget, left) in [("100%", vec!["default-n1", "default-n3"]), ("1", vec!["default-n1"]), ("0", vec![])] {
        objects[1] = with(objects[1].clone(), &[("spec.disruption.budgets", json!([{ "nodes": budget }]))]);
        let now = snapshot(&objects, catalogue(TYPES));
        let upheld = uphold(command.clone(), &now);
        let candidates = upheld.command.iter().flat_map(|command| &command.candidates);
        assert_eq!(candidates.map(|candidate| &*candidate.claim).collect::<Vec<_>>(), left, "{budget}");
        assert_eq!(upheld.void.len() + left.len(), 4, "{budget}");
        assert!(upheld.void.iter().all(|(command, _)| command.candidates.len() == 1), "each with its own reason");
        let why = |name: &str| {
            let of = |(command, _): &&(Command, Invalid)| &*command.candidates[0].claim == name;
            upheld.void.iter().find(of).map(|(_, invalid)| invalid.clone())
        };
        assert_eq!(why("default-n4"), Some(Invalid::Gone { claim: "default-n4".into() }));
        let busy = Invalid::Kept { claim: "default-n2".into(), reason: KeepReason::NotEmpty };
        assert_eq!(why("default-n2"), Some(busy));
        if let Some(command) = &upheld.command {
            assert_eq!(validate(command, &now), Ok(()));
        }
    }
}

/// What moves pods holds as a whole or not at all.
#[test]
fn of_a_command_that_moves_pods_nothing_is_left_out() {
    let (_, elsewhere) = plan(&two("m7i.2xlarge", &[("p", "500m")]));
    let objects = two("m7i.2xlarge", &[("p", "1")]);
    let (snapshot, plan) = plan(&objects);
    let command = &plan.commands[0];
    assert_eq!(command.cause, Cause::Underutilized);
    assert_eq!(uphold(command.clone(), &snapshot).command.as_ref(), Some(command));
    assert_eq!(command.clone().apart(), std::slice::from_ref(command));
    // it begins from what is there by now, wherever it was planned
    let planned = Command { origin: elsewhere.commands[0].origin.clone(), ..command.clone() };
    assert!(planned.origin.is_some() && planned.origin != command.origin);
    assert_eq!(uphold(planned, &snapshot).command.as_ref(), Some(command));
    let mut gone = snapshot;
    gone.claims.clear();
    let upheld = uphold(command.clone(), &gone);
    assert!(upheld.command.is_none() && upheld.void.len() == 1 && upheld.void[0].0 == *command, "{upheld:?}");
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
