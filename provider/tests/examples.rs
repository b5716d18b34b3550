//! Every folder of `examples/`, and every configuration in the guides, is valid, as real OpenTofu sees it: found by walking, so that none is
//! forgotten. Skipped, with a line that says so, where the program is missing.
//!
//! The pages of the registry show resources one at a time, each with references to others: what a folder refers to and does not declare is
//! taken from the examples of those.

#[path = "support/rc.rs"]
mod rc;
#[allow(dead_code, reason = "each crate of tests uses its part")]
#[path = "support/tofu.rs"]
mod tofu;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tofu::Run;

/// What examples of the registry leave out, as a configuration has it once.
const HEAD: &str = "terraform {\n  required_providers {\n    karp = { source = \"karp/karp\" }\n  }\n}\n";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The files of a folder with this ending.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        all.filter(|path| path.is_file() && path.to_string_lossy().ends_with(ending)).collect();
    files.sort();
    files
}

/// The folders with configurations, at any depth.
fn folders(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if !files(root, ".tf").is_empty() {
        found.push(root.to_owned());
    }
    let mut inner: Vec<PathBuf> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    inner.sort();
    // What OpenTofu itself keeps in a folder begins with a dot.
    let is_ours = |path: &&PathBuf| path.is_dir() && !path.file_name().unwrap().to_string_lossy().starts_with('.');
    found.extend(inner.iter().filter(is_ours).flat_map(|path| folders(path)));
    found
}

/// The resources `karp_x.label` that a text names, where it does not name an attribute of something else.
fn named(text: &str) -> BTreeSet<(String, String)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("karp_") {
        let before = text[..at].chars().next_back().unwrap_or(' ');
        let rest = &text[at..];
        let kind: String = rest.chars().take_while(|c| is_word(*c)).collect();
        let Some(after) = rest[kind.len()..].strip_prefix('.') else { continue };
        let label: String = after.chars().take_while(|c| is_word(*c)).collect();
        if !is_word(before) && before != '.' && before != '"' && !label.is_empty() {
            found.insert((kind, label));
        }
    }
    found
}

fn declares(text: &str, (kind, label): &(String, String)) -> bool {
    text.contains(&format!("resource \"{kind}\" \"{label}\""))
}

/// The block of a resource, from what stands beside or from the example of its kind.
fn block(missing: &(String, String), beside: &str) -> String {
    let (kind, label) = missing;
    let path = repository().join("examples/resources").join(kind).join("resource.tf");
    let text = match declares(beside, missing) {
        true => beside.to_owned(),
        false => fs::read_to_string(&path).unwrap_or_default(),
    };
    let begin = text.find(&format!("resource \"{kind}\" \"{label}\""));
    let begin =
        begin.unwrap_or_else(|| panic!("{kind}.{label} is referred to, and {} does not declare it", path.display()));
    let rest = &text[begin..];
    let end = rest.find("\n}").map_or_else(|| rest.find('\n').unwrap_or(rest.len()), |end| end + 2);
    let line = rest.find('\n').unwrap_or(rest.len());
    // A block of one line closes on it.
    let end = if rest[..line].ends_with("{}") { line } else { end };
    format!("{}\n", &rest[..end])
}

/// Makes a folder whole: what it refers to, and a head.
fn complete(text: &str, beside: &str) -> String {
    let mut more = String::new();
    loop {
        let whole = format!("{text}\n{more}");
        let Some(missing) = named(&whole).into_iter().find(|named| !declares(&whole, named)) else { break };
        more += &block(&missing, beside);
    }
    if format!("{text}{more}").contains("module.vpc") && !text.contains("module \"vpc\"") {
        more += "module \"vpc\" {\n  source = \"./vpc\"\n}\n";
    }
    if !text.contains("required_providers") {
        more += HEAD;
    }
    more
}

/// A copy of the repository's configurations, in which modules are found as they are there.
struct Copy {
    tofu: PathBuf,
    dir: tempfile::TempDir,
}

impl Copy {
    fn new() -> Option<Self> {
        let tofu = rc::program("examples")?;
        let dir = tempfile::tempdir().unwrap();
        rc::write(dir.path());
        for part in ["examples", "terraform"] {
            copy(&repository().join(part), &dir.path().join(part));
        }
        Some(Self { tofu, dir })
    }

    /// Makes the copy of a folder whole, with the help of what stands beside; gives where it lies.
    fn prepared(&self, folder: &Path, beside: &str) -> PathBuf {
        let at = self.dir.path().join(folder.strip_prefix(repository()).unwrap());
        let mut text = String::new();
        for file in files(&at, ".tf") {
            // Others' providers cannot be had here; what they are given is looked at all the same.
            let one = fs::read_to_string(&file).unwrap().replace("provider \"kubernetes\" {", "locals {");
            fs::write(&file, &one).unwrap();
            text += &one;
        }
        let more = complete(&text, beside);
        if more.contains("\"./vpc\"") {
            fs::create_dir_all(at.join("vpc")).unwrap();
            fs::write(at.join("vpc/main.tf"), "").unwrap();
        }
        fs::write(at.join("more_of_the_test.tf"), more).unwrap();
        at
    }

    /// The errors and warnings of `tofu validate`.
    fn validate(&self, at: &Path) -> Vec<String> {
        let run = |arguments: &[&str]| {
            let mut command = tofu::command(&self.tofu, at, arguments);
            command.env("TF_CLI_CONFIG_FILE", self.dir.path().join("tofu.rc"));
            Run::of(command)
        };
        let modules = run(&["get", "-no-color"]);
        assert_eq!(modules.code, 0, "{}: {}", at.display(), modules.text);
        let told = run(&["validate", "-json"]);
        let found: Value = serde_json::from_str(told.text.trim()).unwrap_or_else(|e| panic!("{e}: {}", told.text));
        let all = found["diagnostics"].as_array().cloned().unwrap_or_default();
        let own = |one: &&Value| !one["summary"].as_str().unwrap_or_default().contains("development overrides");
        all.iter().filter(own).map(ToString::to_string).collect()
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if !entry.path().is_dir() {
            fs::copy(entry.path(), target).unwrap();
        } else if entry.file_name() != ".terraform" {
            copy(&entry.path(), &target);
        }
    }
}

#[test]
fn every_example_is_valid() {
    let Some(copy) = Copy::new() else { return };
    let all = folders(&repository().join("examples"));
    // Of every kind some: a walk that finds nothing proves nothing.
    for part in ["data-sources", "ephemeral-resources", "functions", "provider", "quickstart", "resources", "use-cases"]
    {
        assert!(all.iter().any(|folder| folder.components().any(|step| step.as_os_str() == part)), "{part}: {all:?}");
    }
    let mut wrong = Vec::new();
    for folder in &all {
        let told = copy.validate(&copy.prepared(folder, ""));
        wrong.extend(told.into_iter().map(|text| format!("{}: {text}", folder.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    eprintln!("{} folders are valid", all.len());
}

/// Stands before a block of a guide that is a part of a configuration, or has places to fill in.
const FRAGMENT: &str = "<!-- a fragment -->";

/// The configurations of a page, by the lines that they begin at; those that are marked as fragments are left out, and counted.
fn configurations(page: &str) -> (Vec<(usize, String)>, usize) {
    let (mut found, mut fragments, mut before) = (Vec::new(), 0, "");
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if matches!(line.trim(), "```terraform" | "```hcl") {
            let block = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
            let text = block.fold(String::new(), |text, line| text + line + "\n");
            if before.trim() == FRAGMENT { fragments += 1 } else { found.push((at + 2, text)) }
        }
        before = line;
    }
    (found, fragments)
}

#[test]
fn every_configuration_of_the_guides_is_valid() {
    let Some(copy) = Copy::new() else { return };
    let mut pages = files(&repository().join("docs/guides"), ".md");
    pages.extend([repository().join("README.md"), repository().join("docs/index.md")]);
    let (mut wrong, mut whole, mut parts) = (Vec::new(), 0, 0);
    for page in &pages {
        let (found, fragments) = configurations(&fs::read_to_string(page).unwrap());
        let all: String = found.iter().map(|(_, text)| text.as_str()).collect();
        (whole, parts) = (whole + found.len(), parts + fragments);
        for (line, text) in found {
            let name = page.file_stem().unwrap().to_string_lossy();
            let at = repository().join("examples/of-guides").join(format!("{name}-{line}"));
            let copied = copy.dir.path().join(at.strip_prefix(repository()).unwrap());
            fs::create_dir_all(&copied).unwrap();
            let text = text.replace("\"./terraform/karp\"", "\"../../../terraform/karp\"");
            fs::write(copied.join("main.tf"), text).unwrap();
            let told = copy.validate(&copy.prepared(&at, &all));
            wrong.extend(told.into_iter().map(|text| format!("{}:{line}: {text}", page.display())));
        }
    }
    assert!(wrong.is_empty(), "mend it, or write {FRAGMENT} before what is none:\n{}", wrong.join("\n"));
    assert!(whole > 2 * parts, "{whole} configurations, {parts} fragments");
    eprintln!("{whole} configurations of {} pages are valid; {parts} fragments are not looked at", pages.len());
}

#[test]
fn fragments_are_told_from_configurations() {
    let page = format!("a\n```terraform\none\n```\n{FRAGMENT}\n```hcl\ntwo\n```\n```console\nthree\n```\n");
    assert_eq!(configurations(&page), (vec![(3, "one\n".to_owned())], 1));
}

#[test]
fn a_misspelled_argument_of_an_example_is_told() {
    let Some(copy) = Copy::new() else { return };
    let at = copy.prepared(&repository().join("examples/resources/karp_node_pool"), "");
    let file = at.join("resource.tf");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("  limits =", "  limit =")).unwrap();
    let told = copy.validate(&at);
    assert!(told.len() == 1 && told[0].contains("\\\"limit\\\""), "{told:?}");
}

#[test]
fn what_is_missing_comes_from_the_other_examples() {
    let pool = fs::read_to_string(repository().join("examples/resources/karp_node_pool/resource.tf")).unwrap();
    let more = complete(&pool, "");
    for block in
        ["\"karp_node_class\" \"default\"", "\"karp_instance_profile\" \"this\"", "\"karp_crds\" \"this\" {}\n"]
    {
        assert!(more.contains(block), "{block}: {more}");
    }
    assert!(!more.contains("resource \"karp_node_pool\""), "{more}");
}
