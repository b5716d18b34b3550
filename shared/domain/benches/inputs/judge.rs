//! Has the independent judge beside the inputs check an answer: every pod placed once or refused, every constraint kept, the price right.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use karp_domain::scheduling::Solution;
use serde_json::{Value, json};

use super::Kind;

/// A packing in the form in which the judge reads it.
pub struct Answer {
    /// Nodes to launch.
    pub claims: Vec<PlannedClaim>,
    /// Pods without a place, and why.
    pub refused: Vec<(String, String)>,
    /// Dollars per hour of all nodes.
    pub price: f64,
}

/// One node to launch.
pub struct PlannedClaim {
    /// `namespace/name` of its pods.
    pub pods: Vec<String>,
    /// Types that would do.
    pub types: Vec<Arc<str>>,
    /// The one zone that it may be in; none while it is open.
    pub zone: Option<Arc<str>>,
    /// The one way to buy it; none while it is open.
    pub capacity_type: Option<String>,
}

impl From<&Solution> for Answer {
    fn from(solution: &Solution) -> Self {
        let claims = solution.nodes.iter().map(|node| {
            // the judge takes a claim without a zone for one that may land anywhere: name the expected zone where pods narrow it
            let narrowed = node.requirements.contains("topology.kubernetes.io/zone");
            PlannedClaim {
                pods: node.pods.iter().map(ToString::to_string).collect(),
                types: node.instance_types(),
                zone: narrowed.then(|| node.offerings[0].zone.name.clone()),
                capacity_type: node.requirements.single("karpenter.sh/capacity-type").map(ToString::to_string),
            }
        });
        Answer {
            claims: claims.collect(),
            refused: solution.unschedulable.iter().map(|u| (u.pod.to_string(), u.to_string())).collect(),
            price: solution.price().dollars(),
        }
    }
}

/// Answers the judge's figures, or the faults that it found.
pub fn judge(folder: &Path, kind: Kind, answer: &Answer) -> Result<Value, String> {
    let claims = answer.claims.iter().map(|claim| {
        json!({
            "pods": claim.pods,
            "instanceTypes": claim.types,
            "zone": claim.zone.as_deref(),
            "capacityType": claim.capacity_type,
        })
    });
    let refused = answer.refused.iter().map(|(pod, reason)| json!({"pod": pod, "reason": reason}));
    let text = json!({
        "nodeClaims": claims.collect::<Vec<_>>(),
        "unschedulable": refused.collect::<Vec<_>>(),
        "pricePerHour": answer.price,
    });
    let file = std::env::temp_dir().join(format!("karp-bench-{kind}-{}.json", std::process::id()));
    std::fs::write(&file, text.to_string()).expect("a temporary file");
    let types = if kind.is_ec2() { "ec2-types.json.gz" } else { "instance-types.json.gz" };
    let mut judge = Command::new("python3");
    judge.arg(folder.join("check_solution.py")).arg(folder.join(format!("{kind}.json.gz")));
    judge.arg(folder.join(types)).arg(&file);
    if kind.is_ec2() {
        judge.env("CT", "on-demand").env("CATS", "c,m,r").env("ARCH", "amd64");
    }
    let output = judge.output().expect("python3");
    std::fs::remove_file(&file).expect("the temporary file");
    if !output.status.success() {
        let said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        return Err(said.concat());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}
