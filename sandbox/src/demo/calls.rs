//! What a demo asked of AWS: every call, and how many of each kind the controller made for a node.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;

/// The calls of a demo, as `target/demo/aws-calls.json` holds them.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(PartialEq))]
pub struct Calls {
    /// Instances that were asked for, each once however often its request was repeated.
    pub nodes_launched: usize,
    /// Instances that were asked to end, each once.
    pub nodes_removed: usize,
    /// What the controller called, by service and action.
    pub controller: BTreeMap<String, Action>,
    /// All calls, also those of the provider and of the play itself, as the emulator logged them.
    pub calls: Vec<Value>,
}

/// How often an action was called.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub struct Action {
    /// Calls.
    pub calls: usize,
    /// Those that were answered with an error code, answers to dry runs among them.
    pub errors: usize,
    /// Calls over nodes launched.
    pub per_node_launched: f64,
    /// Calls over nodes removed.
    pub per_node_removed: f64,
}

impl Calls {
    /// Reads the emulator's log, one JSON line a call.
    ///
    /// # Errors
    /// When the log cannot be read, or a line of it is no JSON.
    pub fn read(log: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(log).with_context(|| format!("reading {}", log.display()))?;
        let lines = text.lines().map(serde_json::from_str);
        let calls: Vec<Value> =
            lines.collect::<Result<_, _>>().with_context(|| format!("reading a line of {}", log.display()))?;
        Ok(Self::of(calls))
    }

    fn of(calls: Vec<Value>) -> Self {
        let is = |call: &Value, action: &str| call["action"] == action && call["error"].is_null();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let fleets: Vec<&Value> = calls.iter().filter(|call| is(call, "CreateFleet")).collect();
        let asked: BTreeMap<String, usize> = fleets.iter().map(|call| token_and_count(&call["params"])).collect();
        let ends = calls.iter().filter(|call| is(call, "TerminateInstances"));
        let ended: BTreeSet<String> = ends.flat_map(|call| instances(&call["params"])).collect();
        let (launched, removed) = (asked.values().sum(), ended.len());
        // nobody else launches fleets, so whoever did is the controller
        let callers: BTreeSet<String> = fleets.iter().map(|call| text(&call["caller"])).collect();
        let mut controller: BTreeMap<String, Action> = BTreeMap::new();
        for call in calls.iter().filter(|call| callers.contains(&text(&call["caller"]))) {
            let name = format!("{}:{}", text(&call["service"]), text(&call["action"]));
            let action = controller.entry(name).or_default();
            action.calls += 1;
            action.errors += usize::from(!call["error"].is_null());
        }
        for action in controller.values_mut() {
            action.per_node_launched = ratio(action.calls, launched);
            action.per_node_removed = ratio(action.calls, removed);
        }
        Self { nodes_launched: launched, nodes_removed: removed, controller, calls }
    }

    /// Tells in a line what a node cost in calls.
    pub fn told(&self) -> String {
        let of = |action: &str| self.controller.get(&format!("ec2:{action}")).cloned().unwrap_or_default();
        let all: usize = self.controller.values().map(|action| action.calls).sum();
        format!(
            "{all} of the controller; {} nodes launched by {} CreateFleet, {} removed by {} TerminateInstances, {} \
             DescribeInstances",
            self.nodes_launched,
            of("CreateFleet").calls,
            self.nodes_removed,
            of("TerminateInstances").calls,
            of("DescribeInstances").calls
        )
    }
}

/// Reads under which token a fleet was asked for, and how many instances it was to have.
fn token_and_count(params: &Value) -> (String, usize) {
    let text = |key: &str| params[key].as_str().unwrap_or_default();
    let count = text("TargetCapacitySpecification.TotalTargetCapacity").parse().unwrap_or(1);
    (text("ClientToken").to_owned(), count)
}

/// Reads the instances that a call names: `InstanceId.1` and so on.
fn instances(params: &Value) -> Vec<String> {
    let all = params.as_object().into_iter().flatten();
    let named = all.filter(|(key, _)| key.starts_with("InstanceId."));
    named.filter_map(|(_, id)| id.as_str().map(str::to_owned)).collect()
}

/// To a hundredth; 0 where there is nothing to divide by.
#[expect(clippy::cast_precision_loss, reason = "counts of a demo")]
fn ratio(calls: usize, nodes: usize) -> f64 {
    if nodes == 0 { 0.0 } else { (calls as f64 / nodes as f64 * 100.0).round() / 100.0 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(action: &str, caller: &str, error: Option<&str>, params: &Value) -> Value {
        json!({"service": "ec2", "action": action, "caller": caller, "error": error, "params": params})
    }

    #[test]
    fn repeated_requests_are_one_node_and_others_calls_are_not_the_controllers() {
        let fleet = |token: &str, count: &str| json!({"ClientToken": token, "TargetCapacitySpecification.TotalTargetCapacity": count});
        let calls = Calls::of(vec![
            call("CreateFleet", "provider", Some("DryRunOperation"), &fleet("t-0", "1")),
            call("CreateFleet", "karp", None, &fleet("t-1", "1")),
            call("CreateFleet", "karp", None, &fleet("t-1", "1")),
            call("CreateFleet", "karp", None, &fleet("t-2", "3")),
            call("CreateFleet", "karp", Some("RequestLimitExceeded"), &fleet("t-3", "1")),
            call("TerminateInstances", "karp", None, &json!({"InstanceId.1": "i-1", "InstanceId.2": "i-2"})),
            call("TerminateInstances", "karp", None, &json!({"InstanceId.1": "i-2"})),
            call("DescribeVpcs", "provider", None, &json!({})),
        ]);
        assert_eq!((calls.nodes_launched, calls.nodes_removed, calls.calls.len()), (4, 2, 8));
        let fleets = Action { calls: 4, errors: 1, per_node_launched: 1.0, per_node_removed: 2.0 };
        let ends = Action { calls: 2, errors: 0, per_node_launched: 0.5, per_node_removed: 1.0 };
        let expected = [("ec2:CreateFleet", fleets), ("ec2:TerminateInstances", ends)];
        assert_eq!(calls.controller, expected.map(|(name, action)| (name.to_owned(), action)).into());
        assert_eq!(
            calls.told(),
            "6 of the controller; 4 nodes launched by 4 CreateFleet, 2 removed by 2 TerminateInstances, 0 DescribeInstances"
        );
    }

    #[test]
    fn without_nodes_nothing_is_divided() {
        assert_eq!(Calls::of(Vec::new()).controller, BTreeMap::new());
        assert_eq!(ratio(3, 0).to_bits(), 0.0_f64.to_bits());
    }
}
