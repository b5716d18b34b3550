//! In which order OpenTofu makes the resources of a configuration, by its own graph. It destroys them in the opposite one: its state notes of each
//! resource all that it waited for.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use sandbox::tofu::Workspace;

/// What waits for what at once: resources by their addresses, and what lies between them.
pub struct Order(BTreeMap<String, BTreeSet<String>>);

impl Order {
    /// Reads it of a configuration that is initialised.
    pub async fn of(workspace: &Workspace) -> Result<Self> {
        Ok(Self::read(&workspace.run(&["graph", "-type=plan", "-no-color"]).await?.success()?))
    }

    fn read(graph: &str) -> Self {
        let mut waits: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (later, earlier) in graph.lines().filter_map(edge) {
            waits.entry(later.to_owned()).or_default().insert(earlier.to_owned());
        }
        Self(waits)
    }

    /// Names the resources whose addresses begin so.
    pub fn resources(&self, begin: &str) -> Vec<&str> {
        self.0.keys().map(String::as_str).filter(|name| name.starts_with(begin)).collect()
    }

    /// Names all that a resource waits for, whatever lies between.
    fn before(&self, resource: &str) -> BTreeSet<&str> {
        let (mut found, mut open) = (BTreeSet::new(), vec![resource]);
        while let Some(next) = open.pop() {
            for earlier in self.0.get(next).into_iter().flatten() {
                if found.insert(earlier.as_str()) {
                    open.push(earlier);
                }
            }
        }
        found
    }

    /// Holds that each of some resources waits for all of others.
    pub fn hold(&self, later: &[&str], earlier: &[&str]) -> Result<()> {
        ensure!(!later.is_empty() && !earlier.is_empty(), "nothing waits, or for nothing: {later:?}, {earlier:?}");
        for resource in later {
            let before = self.before(resource);
            let missing: Vec<_> = earlier.iter().filter(|other| !before.contains(**other)).collect();
            ensure!(missing.is_empty(), "{resource} does not wait for {missing:?}: destroy might end those before it");
        }
        Ok(())
    }
}

/// Reads a line such as `"[root] a.b (expand)" -> "[root] c.d (expand)"`: the first waits for the second.
fn edge(line: &str) -> Option<(&str, &str)> {
    let (later, earlier) = line.trim().strip_prefix("\"[root] ")?.split_once("\" -> \"[root] ")?;
    Some((resource(later), resource(earlier.strip_suffix('"')?)))
}

/// The address of what a node stands for before it is known how many there are.
fn resource(node: &str) -> &str {
    node.strip_suffix(" (expand)").unwrap_or(node)
}

/// Holds how `terraform/karp` is destroyed: pools, their classes, what clears up after them, the controller, and only then what it needs.
pub fn hold_of_karp(order: &Order) -> Result<()> {
    let steps = ["karp_node_pool.this", "karp_node_class.this", "karp_teardown.this", "karp_controller.this"];
    for at in 1..steps.len() {
        order.hold(&steps[..at], &steps[at..=at])?;
    }
    let mut needed = order.resources("karp_");
    needed.retain(|name| !steps.contains(name));
    ensure!(needed.contains(&"karp_node_role.this"), "the controller's surroundings are not in the graph: {needed:?}");
    order.hold(&steps[3..], &needed)
}

/// Holds how `terraform/eks` is destroyed: nothing of the cluster or its network goes while anything of karp is there.
pub fn hold_of_eks(order: &Order) -> Result<()> {
    let karp = order.resources("module.karp.karp_");
    for module in ["module.vpc.terraform_data.", "module.eks.terraform_data."] {
        order.hold(&karp, &order.resources(module))?;
    }
    Ok(())
}

#[test]
fn what_waits_for_what_is_read_across_all_that_lies_between() {
    let graph = r#"digraph {
	compound = "true"
	newrank = "true"
	subgraph "root" {
		"[root] karp_a.this (expand)" [label = "karp_a.this", shape = "box"]
		"[root] karp_a.this (expand)" -> "[root] local.b (expand)"
		"[root] karp_c.this (expand)" -> "[root] provider[\"registry.opentofu.org/karp/karp\"]"
		"[root] local.b (expand)" -> "[root] karp_c.this (expand)"
		"[root] provider[\"registry.opentofu.org/karp/karp\"]" -> "[root] var.d"
	}
}
"#;
    let order = Order::read(graph);
    assert_eq!(order.resources("karp_"), ["karp_a.this", "karp_c.this"]);
    assert!(order.hold(&["karp_a.this"], &["local.b", "karp_c.this", "var.d"]).is_ok());
    let refused = order.hold(&["karp_c.this"], &["karp_a.this"]).unwrap_err().to_string();
    assert!(refused.contains("karp_c.this does not wait for [\"karp_a.this\"]"), "{refused}");
    assert!(order.hold(&[], &["karp_a.this"]).is_err() && order.hold(&["karp_a.this"], &[]).is_err());
}
