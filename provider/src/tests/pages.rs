//! What the pages for people name of the provider is there: kinds, functions, arguments and the module's inputs, in their blocks as in their
//! prose. Whole configurations are validated by `provider/tests/examples.rs`, the steps of articles looked up by `articles.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tfplugin::{Attribute, Provider as _};

use super::articles::has;
use crate::provider::Karp;

/// Every metric: the names of some begin as those of resources do.
const METRICS: &str =
    include_str!("../../../controller/src/ops/snapshots/karp__ops__metrics__tests__the_exposition_is_as_it_was.snap");

/// What a page may name.
struct There {
    kinds: BTreeMap<&'static str, BTreeMap<String, Attribute>>,
    functions: Vec<&'static str>,
    /// The files of the module `terraform/karp`.
    module: String,
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The files of a folder with this ending, by their paths.
fn files(folder: &str, ending: &str) -> Vec<(String, String)> {
    let names = fs::read_dir(root().join(folder)).expect("a folder").map(|entry| entry.expect("a file").file_name());
    let names = names.map(|name| name.into_string().expect("a name")).filter(|name| name.ends_with(ending));
    let mut paths: Vec<String> = names.map(|name| format!("{folder}/{name}")).collect();
    paths.sort();
    let read = |path: String| {
        let text = fs::read_to_string(root().join(&path)).expect("a text");
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

impl There {
    fn new() -> Self {
        let karp = Karp::default();
        let resources = karp.resources().into_iter().map(|one| (one.type_name(), one.schema().attributes));
        let sources = karp.data_sources().into_iter().map(|one| (one.type_name(), one.schema().attributes));
        let opened = karp.ephemeral_resources().into_iter().map(|one| (one.type_name(), one.schema().attributes));
        Self {
            kinds: resources.chain(sources).chain(opened).collect(),
            functions: karp.functions().iter().map(|one| one.name()).collect(),
            module: files("terraform/karp", ".tf").into_iter().map(|(_, text)| text).collect(),
        }
    }
}

fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The name with which a text begins.
fn name(text: &str) -> &str {
    text.find(|c: char| !is_of_a_name(c)).map_or(text, |end| &text[..end])
}

/// The path of the argument in the backticks with which a text ends, which may give it a value.
fn argument(before: &str) -> Option<&str> {
    let span = before.rsplit('`').next()?;
    let path = span.split([' ', '=']).next()?;
    let is_path = path.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '.'));
    (is_path && !path.is_empty()).then_some(path)
}

/// Says which names of a page are not there, each with its line.
fn faults(path: &str, page: &str, there: &There) -> Vec<String> {
    let mut found = Vec::new();
    let mut fault = |at: usize, what: String| {
        let line = page[..at].matches('\n').count() + 1;
        found.push(format!("{path}:{line}: {what}"));
    };
    for (at, mark) in page.match_indices("karp_") {
        let kind = name(&page[at..]);
        let is_kind = kind != mark && !page[..at].ends_with(is_of_a_name) && !kind.contains(char::is_uppercase);
        let is_there = || there.kinds.contains_key(kind) || METRICS.lines().any(|line| name(line) == kind);
        if is_kind && !is_there() {
            fault(at, format!("there is no {kind}"));
        }
    }
    for (at, mark) in page.match_indices("provider::karp::") {
        let function = name(&page[at + mark.len()..]);
        if !there.functions.contains(&function) {
            fault(at, format!("there is no function {function}"));
        }
    }
    // A sentence goes on over the end of a line.
    let sentences = page.replace('\n', " ");
    for joint in ["` of `", "` on `"] {
        for (at, _) in sentences.match_indices(joint) {
            let kind = name(&sentences[at + joint.len()..]);
            let (Some(attributes), Some(path)) = (there.kinds.get(kind), argument(&sentences[..at])) else { continue };
            if !has(attributes, path) {
                fault(at, format!("{kind} has no {path}"));
            }
        }
    }
    for (at, _) in sentences.match_indices("` of the module") {
        let Some(input) = argument(&sentences[..at]) else { continue };
        if !there.module.contains(&format!("variable \"{input}\" {{")) {
            fault(at, format!("the module has no input {input}"));
        }
    }
    found
}

#[test]
fn what_the_pages_name_is_there() {
    let there = There::new();
    let folders = [".", "controller", "docs", "docs/guides", "terraform/eks", "terraform/karp"];
    let pages: Vec<(String, String)> = folders.into_iter().flat_map(|folder| files(folder, ".md")).collect();
    // The history of changes names what is no more.
    let pages = pages.iter().filter(|(path, _)| path != "./CHANGELOG.md");
    let found: Vec<String> = pages.flat_map(|(path, page)| faults(path, page, &there)).collect();
    assert!(found.is_empty(), "mend the page, or karp:\n{}", found.join("\n"));
}

#[test]
fn what_is_not_there_is_told_with_its_line() {
    let page = "\
`karp_node_pol`, `karp_node_pool` and
`provider::karp::hash`, `provider::karp::quantity`,
the metrics `karp_nodes_kept` and `karp_nodes_left`,
`keep_on_destroy` on `karp_crds`, `keep = true` on
`karp_crds`, `timeouts.delete` and `timeouts.erase` of `karp_node_pool`,
the gate `CapacityBuffer` on `karp_controller`,
`node_pools = {}` of the module, `pools` of
the module; `terraform-provider-karp_VERSION_SHA256SUMS`, `of_karp_`
";
    assert_eq!(
        faults("p.md", page, &There::new()),
        [
            "p.md:1: there is no karp_node_pol",
            "p.md:3: there is no karp_nodes_left",
            "p.md:2: there is no function hash",
            "p.md:5: karp_node_pool has no timeouts.erase",
            "p.md:4: karp_crds has no keep",
            "p.md:7: the module has no input pools",
        ]
    );
}
