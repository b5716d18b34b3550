//! The whole of the HCL: settings, provider, resources, and what is imported.

use std::collections::{BTreeMap, BTreeSet};

use super::attributes::Kind;
use super::hcl::{Block, Value};
use super::objects::Item;

/// The first Terraform that has import blocks.
const TERRAFORM: &str = ">= 1.5";

/// Writes everything. `teardown` is what pools and classes name as theirs, where it is written beside them.
pub fn write(items: &[Item], cluster: Option<&str>, teardown: Option<&str>) -> String {
    let names = addresses(items);
    let class = |name: &str| names.get(&(Kind::Class, name)).map(|address| format!("{address}.name"));
    let mut blocks = vec![settings(), provider(cluster)];
    blocks.extend(cluster.is_none().then(placeholder));
    for item in items {
        let address = &names[&(item.kind, item.name.as_str())];
        let label = address.rsplit_once('.').map_or(address.as_str(), |(_, label)| label);
        let mut resource = Block::new("resource", &[item.kind.resource(), label]);
        resource.comments.clone_from(&item.notes);
        resource.attributes = item.kind.attributes(&item.name, &item.spec, class);
        // behind the name
        for (name, texts) in item.metadata.iter().rev().filter(|(_, texts)| !texts.is_empty()) {
            let texts = texts.iter().map(|(key, value)| (key.clone(), Value::text(value)));
            resource.attributes.insert(1, ((*name).to_owned(), Value::Object(texts.collect())));
        }
        if let Some(teardown) = teardown.filter(|_| ends_with_a_controller(item)) {
            resource.attributes.insert(1, ("teardown".to_owned(), Value::Bare(teardown.to_owned())));
        }
        blocks.push(resource);
        if item.exists {
            let import = Block::new("import", &[]).set("to", Value::Bare(address.clone()));
            blocks.push(import.set("id", Value::text(&item.name)));
        }
    }
    let mut out = header(items, teardown.is_some());
    for block in blocks {
        out.push('\n');
        block.write(&mut out);
    }
    out
}

/// Says whether only a controller ends what an object stands for.
fn ends_with_a_controller(item: &Item) -> bool {
    item.kind != Kind::Overlay
}

fn header(items: &[Item], beside: bool) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let imported = items.iter().filter(|item| item.exists).count();
    let added = items.len() - imported;
    if !beside {
        return format!(
            "# Written by `karp migrate` {version}. The plan of it is: {imported} to import, {added} to add, 0 to change, 0 to destroy.\n"
        );
    }
    let changed = items.iter().filter(|item| item.exists && ends_with_a_controller(item)).count();
    format!(
        "# Written by `karp migrate` {version}, for one folder with karp in the place of Karpenter's controller.\n\
         # Its share of the plan is: {imported} to import, {added} to add, {changed} to change, 0 to destroy. What the state has already is not\n\
         # imported again; to change is `teardown` alone, by which a destroy ends the nodes before their controller.\n"
    )
}

fn settings() -> Block {
    let version = env!("CARGO_PKG_VERSION").rsplit_once('.').map_or("0", |(minor, _)| minor);
    let karp = vec![
        ("source".to_owned(), Value::text("karp/karp")),
        ("version".to_owned(), Value::text(format!("~> {version}"))),
    ];
    Block::new("terraform", &[])
        .set("required_version", Value::text(TERRAFORM))
        .with(Block::new("required_providers", &[]).set("karp", Value::Object(karp)))
}

fn provider(cluster: Option<&str>) -> Block {
    let name = cluster.map_or_else(|| Value::Bare("var.cluster_name".to_owned()), Value::text);
    Block::new("provider", &["karp"]).set("cluster_name", name)
}

fn placeholder() -> Block {
    let mut variable = Block::new("variable", &["cluster_name"])
        .set("type", Value::Bare("string".to_owned()))
        .set("description", Value::text("The EKS cluster."));
    variable.comments = vec!["PLACEHOLDER: give it a value, or write the file anew with --cluster-name.".to_owned()];
    variable
}

/// Gives every item its address, by kind and name.
fn addresses(items: &[Item]) -> BTreeMap<(Kind, &str), String> {
    let mut taken = BTreeSet::new();
    let mut all = BTreeMap::new();
    for item in items {
        let label = label(&item.name);
        let mut address = format!("{}.{label}", item.kind.resource());
        let mut number = 2;
        while !taken.insert(address.clone()) {
            address = format!("{}.{label}_{number}", item.kind.resource());
            number += 1;
        }
        all.insert((item.kind, item.name.as_str()), address);
    }
    all
}

/// Makes a name of Terraform's of an object's: letters, digits and underscores, no digit first.
fn label(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let label: String = name.chars().map(plain).collect();
    if label.starts_with(|c: char| c.is_ascii_alphabetic()) { label } else { format!("_{label}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(kind: Kind, name: &str) -> Item {
        let spec = json!({ "template": { "spec": { "requirements": [], "nodeClassRef": { "name": "a.b" } } } });
        let (name, was, metadata) = (name.to_owned(), String::new(), BTreeMap::new());
        Item { kind, name, was, spec, metadata, exists: true, notes: Vec::new() }
    }

    #[test]
    fn names_are_valid_and_each_is_given_once() {
        let names = ["a-b", "a.b", "a-b-2", "1a"];
        let items: Vec<Item> = names.iter().map(|name| item(Kind::Pool, name)).collect();
        let addresses = addresses(&items);
        let labels: Vec<&str> =
            names.iter().map(|name| addresses[&(Kind::Pool, *name)].trim_start_matches("karp_node_pool.")).collect();
        assert_eq!(labels, ["a_b", "a_b_2", "a_b_2_2", "_1a"]);
    }

    #[test]
    fn a_pool_refers_to_a_class_that_is_written_too() {
        let alone = write(&[item(Kind::Pool, "p")], Some("prod"), None);
        assert!(alone.contains("node_class_ref = { name = \"a.b\" }"), "{alone}");
        let both = write(&[item(Kind::Class, "a.b"), item(Kind::Pool, "p")], Some("prod"), None);
        assert!(both.contains("node_class_ref = { name = karp_node_class.a_b.name }"), "{both}");
    }

    #[test]
    fn pools_and_classes_name_what_ends_their_nodes() {
        let mut items =
            [item(Kind::Class, "a.b"), item(Kind::Pool, "p"), item(Kind::Pool, "q"), item(Kind::Overlay, "o")];
        items[2].exists = false;
        let written = write(&items, Some("prod"), Some("t.id"));
        for resource in [r#""karp_node_class" "a_b""#, r#""karp_node_pool" "p""#, r#""karp_node_pool" "q""#] {
            let block = written.split_once(resource).and_then(|(_, rest)| rest.split_once("\n}\n"));
            let (block, _) = block.unwrap_or_else(|| panic!("{resource}: {written}"));
            assert!(block.contains("\n  teardown = t.id"), "{resource}: {written}");
        }
        assert_eq!(written.matches("t.id").count(), 3, "{written}");
        assert!(written.contains("plan is: 3 to import, 1 to add, 2 to change, 0 to destroy."), "{written}");
        assert!(!write(&items, Some("prod"), None).contains("teardown"));
    }
}
