//! Golden scenarios: each file in `scenarios/` goes in, a readable report comes out and is reviewed as text.

use std::fmt::Write as _;

use karp_domain::catalogue::CapacityType;
use karp_domain::disruption::{DisruptionPlan, Verdict, plan_disruption};
use karp_domain::scheduling::{InFlightNode, Solution, Target, solve};
use serde_json::Value;

use crate::world::{catalogue, judge, node, pending, running, snapshot, topology, with};

/// Reads a scenario; `Pods` and `Host` documents are short for what the API server would hold.
fn objects(documents: &[Value]) -> Vec<Value> {
    let mut all = Vec::new();
    for document in documents {
        let text = |key: &str| document[key].as_str().unwrap_or_default();
        match text("kind") {
            "Scenario" => {}
            "Host" => {
                let capacity_type: CapacityType = text("capacityType").parse().unwrap();
                all.extend(node(text("name"), text("pool"), text("type"), text("zone"), capacity_type));
            }
            "Pods" => all.extend((0..document["count"].as_u64().unwrap_or(1)).map(|copy| one_pod(document, copy))),
            _ => all.push(document.clone()),
        }
    }
    all
}

fn one_pod(document: &Value, copy: u64) -> Value {
    let template = &document["template"];
    let name = format!("{}-{copy}", template["metadata"]["name"].as_str().unwrap());
    let base = match document["node"].as_str() {
        Some(node) => running(&name, node, "0", "0"),
        None => pending(&name, "0", "0"),
    };
    let mut more: Vec<(String, Value)> = Vec::new();
    for (key, value) in template["metadata"].as_object().unwrap().iter().filter(|(key, _)| *key != "name") {
        more.push((format!("metadata.{key}"), value.clone()));
    }
    for (key, value) in template["spec"].as_object().unwrap() {
        more.push((format!("spec.{key}"), value.clone()));
    }
    let more: Vec<(&str, Value)> = more.iter().map(|(path, value)| (path.as_str(), value.clone())).collect();
    with(base, &more)
}

fn describe(out: &mut String, node: &InFlightNode) {
    let types: Vec<String> = node.instance_types().iter().map(ToString::to_string).collect();
    let first = &node.offerings[0];
    let pods: Vec<String> = node.pods.iter().map(ToString::to_string).collect();
    writeln!(
        out,
        "  pool {}: {} {} in {} at {}",
        node.pool, first.capacity_type, first.instance_type, first.zone.name, node.price
    )
    .unwrap();
    writeln!(out, "    {} types: {}", types.len(), types.join(" ")).unwrap();
    writeln!(out, "    requests {}", serde_json::to_string(&node.requests).unwrap()).unwrap();
    writeln!(out, "    pods {}", pods.join(" ")).unwrap();
}

fn report_solution(solution: &Solution) -> String {
    let mut out = String::new();
    for placement in &solution.placements {
        let target = match &placement.target {
            Target::Node(name) => format!("node {name}"),
            Target::Claim(name) => format!("claim {name}"),
        };
        writeln!(out, "place {} on {target}", placement.pod).unwrap();
    }
    for node in &solution.nodes {
        writeln!(out, "launch").unwrap();
        describe(&mut out, node);
    }
    for refused in &solution.unschedulable {
        writeln!(out, "refuse {}", refused.pod).unwrap();
        refused.reasons.iter().for_each(|reason| writeln!(out, "  {reason}").unwrap());
    }
    writeln!(out, "price of new nodes {}", solution.price()).unwrap();
    out
}

fn report_plan(plan: &DisruptionPlan) -> String {
    let mut out = String::new();
    for command in &plan.commands {
        let nodes: Vec<&str> = command.candidates.iter().map(|c| &*c.claim).collect();
        writeln!(out, "{} {} ({}), saving {}", command.decision(), nodes.join(" "), command.cause, command.saving())
            .unwrap();
        command.replacements.iter().for_each(|node| describe(&mut out, node));
    }
    for (candidate, verdict) in &plan.verdicts {
        if let Verdict::Keep(reason) = verdict {
            writeln!(out, "keep {}: {reason}", candidate.claim).unwrap();
        }
    }
    out
}

fn check(name: &str) {
    let path = format!("{}/../../scenarios/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let scenario = &documents[0];
    let types: Vec<&str> = scenario["types"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    let objects = objects(&documents);
    let snapshot = snapshot(&objects, catalogue(&types));
    let report = match scenario["ask"].as_str().unwrap() {
        "solve" => {
            let solution = solve(&snapshot);
            judge::judge(&snapshot, &solution);
            topology::judge(&objects, &snapshot, &solution);
            report_solution(&solution)
        }
        "disrupt" => report_plan(&plan_disruption(&snapshot)),
        other => panic!("{name}: cannot ask {other}"),
    };
    let about = scenario["about"].as_str().unwrap();
    insta::with_settings!({prepend_module_to_snapshot => false, description => about}, {
        insta::assert_snapshot!(name, report);
    });
}

#[test]
fn inflate() {
    check("inflate");
}

#[test]
fn refusals() {
    check("refusals");
}

#[test]
fn shrink() {
    check("shrink");
}

#[test]
fn weights() {
    check("weights");
}

#[test]
fn topology_of_pods() {
    check("topology");
}

#[test]
fn daemons() {
    check("daemons");
}
