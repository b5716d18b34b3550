//! The table of validation cases, for the domain's test and the controller's edge test.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// The table as written.
#[derive(Deserialize)]
pub struct Table {
    bases: BTreeMap<String, Value>,
    pub cases: Vec<Case>,
}

/// One object, or one change of an object, and whether it is refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub kind: String,
    /// For an update: what the old object has besides the base.
    before: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    set: BTreeMap<String, Value>,
    /// The path at which it is refused; accepted without one.
    pub refused: Option<String>,
}

impl Case {
    /// Returns the name of the definition.
    pub fn definition(&self) -> &'static str {
        match self.kind.as_str() {
            "NodePool" => "nodepools.karpenter.sh",
            "NodeClaim" => "nodeclaims.karpenter.sh",
            "NodeOverlay" => "nodeoverlays.karpenter.sh",
            "EC2NodeClass" => "ec2nodeclasses.karpenter.k8s.aws",
            "CapacityBuffer" => "capacitybuffers.autoscaling.x-k8s.io",
            other => panic!("{other} is not of ours"),
        }
    }
}

impl Table {
    /// Reads the table.
    pub fn read() -> Self {
        serde_saphyr::from_str(include_str!("validation.yaml")).expect("the table is readable")
    }

    /// Returns the object of a case.
    pub fn object(&self, case: &Case) -> Value {
        with(self.bases[&case.kind].clone(), &case.set)
    }

    /// Returns the object before, where the case is an update.
    pub fn before(&self, case: &Case) -> Option<Value> {
        case.before.as_ref().map(|changes| with(self.bases[&case.kind].clone(), changes))
    }
}

/// Sets values at JSON pointers, making objects on the way; null takes a field away.
fn with(mut object: Value, changes: &BTreeMap<String, Value>) -> Value {
    for (pointer, value) in changes {
        let (parent, last) = pointer.rsplit_once('/').expect("a pointer begins with a slash");
        let mut target = &mut object;
        for step in parent.split('/').skip(1) {
            target = match target {
                Value::Array(list) => &mut list[step.parse::<usize>().expect("an index")],
                Value::Object(map) => map.entry(step).or_insert_with(|| Value::Object(Map::new())),
                other => panic!("{pointer} leads into {other}"),
            };
        }
        match target {
            Value::Array(list) => list[last.parse::<usize>().expect("an index")] = value.clone(),
            Value::Object(map) if value.is_null() => {
                map.remove(last);
            }
            Value::Object(map) => {
                map.insert(last.to_owned(), value.clone());
            }
            other => panic!("{pointer} leads into {other}"),
        }
    }
    object
}
