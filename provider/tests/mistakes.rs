//! Mistakes that users make, one in each file of `mistakes/`: each is refused before anything is called, in words that say what is
//! expected, and at the attribute that holds it. A file begins with `# expect: PATH | WORDS`, or with `# warn: PATH | WORDS` where it is
//! warned of and not refused, as it could be meant. The path `resource` is the whole block, and one that begins with `provider.` is in the
//! provider block. A second line `# never: TEXT` says what may not be told of it. Skipped, with a line that says so, where the program is missing.

#[path = "support/rc.rs"]
mod rc;

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tempfile::TempDir;

/// Runs of OpenTofu at a time: each keeps about one processor busy.
const AT_ONCE: usize = 3;
/// What a diagnostic by the rules of the API is headed with.
const BY_THE_API: &str = "the API server would refuse this";

/// One file, and what it says of itself.
struct Mistake {
    name: String,
    text: String,
    /// As OpenTofu calls it.
    severity: &'static str,
    path: String,
    words: String,
    /// What no diagnostic may have, nor the lines of the file that OpenTofu shows with it.
    never: Option<String>,
}

impl Mistake {
    fn read(file: &Path) -> Self {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(file).unwrap();
        let first = text.lines().next().unwrap_or_default();
        let refused = first.strip_prefix("# expect: ").map(|rest| ("error", rest));
        let told = refused.or_else(|| Some(("warning", first.strip_prefix("# warn: ")?)));
        let Some((severity, (path, words))) = told.and_then(|(kind, rest)| Some((kind, rest.split_once(" | ")?)))
        else {
            panic!("{name} does not begin with `# expect: PATH | WORDS` or `# warn: PATH | WORDS`")
        };
        let (path, words) = (path.to_owned(), words.to_owned());
        let never = text.lines().nth(1).and_then(|line| line.strip_prefix("# never: ")).map(str::to_owned);
        Self { name, text, severity, path, words, never }
    }

    /// The attributes of the path, outermost first, without the places in lists.
    fn attributes(&self) -> Vec<&str> {
        let path = self.path.strip_prefix("provider.").unwrap_or(&self.path);
        let steps = path.split('.').filter(|step| *step != "resource");
        steps.map(|step| step.split('[').next().unwrap_or_default()).collect()
    }

    /// The lines, counted from 1, of the block and of each attribute of the path.
    fn lines(&self) -> Vec<u64> {
        let line = |at: usize| self.text[..at].matches('\n').count() as u64 + 1;
        let block = if self.path.starts_with("provider.") { "provider \"karp\"" } else { "resource \"karp_" };
        let mut at = self.text.find(block).unwrap();
        let mut lines = vec![line(at)];
        for name in self.attributes() {
            // The block's own attributes are indented by two.
            let before = if lines.len() == 1 { "\n  " } else { "" };
            at = written(&self.text, at, before, name).unwrap_or_else(|| panic!("{}: there is no {name}", self.name));
            lines.push(line(at));
        }
        lines
    }

    /// Says whether a diagnostic is shown where the mistake is. OpenTofu can point into a block's own attributes; for one that is nested
    /// deeper it may show the head of the block instead, and then the words must name the attribute.
    fn is_placed(&self, error: &Value, said: &str) -> bool {
        let line = |edge: &str| error["range"][edge]["line"].as_u64().unwrap_or_default();
        let (start, end, lines, names) = (line("start"), line("end"), self.lines(), self.attributes());
        let aim = lines.last().copied().unwrap_or_default();
        if error["range"]["filename"] != self.name.as_str() {
            return false;
        }
        let Some(leaf) = names.get(1..).and_then(<[&str]>::last) else { return start == aim };
        let inside = lines[1] <= start && start <= aim && aim <= end;
        inside || (start == lines[0] && [leaf, camel(leaf).as_str()].iter().any(|name| said.contains(name)))
    }

    /// Says what is wrong with how OpenTofu told of the mistake.
    fn judge(&self, errors: &[Value]) -> Result<(), String> {
        let text = |error: &Value, part: &str| error[part].as_str().unwrap_or_default().to_owned();
        let told: Vec<String> = errors.iter().map(|e| text(e, "summary") + "\n" + &text(e, "detail")).collect();
        // The schema and the rules of the API may both refuse one value, at one place.
        let by_both =
            |one: &Value, two: &Value| one["range"] == two["range"] && text(two, "summary").contains(BY_THE_API);
        let counted = match errors {
            [_] => true,
            [one, two] => by_both(one, two),
            _ => false,
        };
        let name = &self.name;
        if !counted || errors.iter().any(|error| error["severity"] != self.severity) {
            return Err(format!("{name}: {} diagnostics, not one {}: {told:#?}", errors.len(), self.severity));
        }
        if let Some((error, said)) = errors.iter().zip(&told).find(|(error, said)| !self.is_placed(error, said)) {
            return Err(format!("{name}: not at {} but at {}: {said}", self.path, error["range"]));
        }
        if let Some(never) = self.never.as_ref().filter(|never| errors.iter().any(|e| e.to_string().contains(*never))) {
            return Err(format!("{name}: {never:?} is told: {told:#?}"));
        }
        if !told.iter().any(|said| said.contains(&self.words)) {
            return Err(format!("{name}: not {:?} but {told:#?}", self.words));
        }
        Ok(())
    }
}

/// Finds where an attribute is given a value, right after `before`.
fn written(text: &str, from: usize, before: &str, name: &str) -> Option<usize> {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let found = text[from..].match_indices(name).map(|(at, _)| from + at);
    let mut given = found.filter(|at| {
        let after = text[at + name.len()..].trim_start_matches(' ');
        after.starts_with('=') && text[..*at].ends_with(before) && !text[..*at].ends_with(in_word)
    });
    given.next()
}

/// An attribute's name as the API spells it.
fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |all, word| all + &word[..1].to_uppercase() + &word[1..])
}

/// OpenTofu, the built provider, and an address at which somebody would notice a call.
struct Stand {
    tofu: PathBuf,
    dir: TempDir,
    nobody: TcpListener,
}

impl Stand {
    fn new() -> Option<Self> {
        let tofu = rc::program("mistakes")?;
        let dir = tempfile::tempdir().unwrap();
        rc::write(dir.path());
        let nobody = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        nobody.set_nonblocking(true).unwrap();
        Some(Self { tofu, dir, nobody })
    }

    /// The provider block of a file that has none.
    fn provider(&self) -> String {
        let address = self.nobody.local_addr().unwrap();
        let services = ["ec2", "eks", "events", "iam", "pricing", "sqs", "ssm", "sts"];
        let endpoints = services.map(|service| format!("    {service} = \"http://{address}\"\n")).concat();
        format!(
            "provider \"karp\" {{\n  region = \"eu-west-1\"\n  cluster_name = \"prod\"\n  access_key = \"none\"\n  secret_key = \"none\"\n  \
             endpoints = {{\n{endpoints}  }}\n  kubernetes = {{\n    host = \"https://{address}\"\n    token = \"none\"\n  }}\n}}\n"
        )
    }

    fn tofu(&self, folder: &Path, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.tofu);
        command.args(arguments).current_dir(folder);
        for (name, _) in std::env::vars() {
            if ["AWS_", "TF_", "KARP_CLUSTER"].iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.env("TF_CLI_CONFIG_FILE", self.dir.path().join("tofu.rc")).env("TF_IN_AUTOMATION", "1");
        command.env("HOME", folder).env("AWS_EC2_METADATA_DISABLED", "true");
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    }

    /// What OpenTofu shows for a file: all that validate says of one that is warned of; else the errors of validate, or of plan where
    /// validate finds none.
    fn told(&self, mistake: &Mistake) -> Vec<Value> {
        let folder = self.dir.path().join(mistake.name.trim_end_matches(".tf"));
        std::fs::create_dir(&folder).unwrap();
        let mut head =
            "terraform {\n  required_providers {\n    karp = { source = \"karp/karp\" }\n  }\n}\n".to_owned();
        if !mistake.text.contains("provider \"karp\"") {
            head += &self.provider();
        }
        std::fs::write(folder.join("versions.tf"), head).unwrap();
        std::fs::write(folder.join(&mistake.name), &mistake.text).unwrap();
        let of_error = |found: &Value| found["severity"] == "error";
        let validated: Value = serde_json::from_str(&self.tofu(&folder, &["validate", "-json"])).unwrap();
        let all = validated["diagnostics"].as_array().cloned().unwrap_or_default();
        if mistake.severity == "warning" {
            // OpenTofu's own word on how the test installs the provider
            let of_install = |found: &Value| found["summary"] == "Provider development overrides are in effect";
            return all.into_iter().filter(|found| !of_install(found)).collect();
        }
        let errors: Vec<Value> = all.into_iter().filter(of_error).collect();
        if !errors.is_empty() {
            return errors;
        }
        let planned = self.tofu(&folder, &["plan", "-json"]);
        let events = planned.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.map(|event| event["diagnostic"].clone()).filter(of_error).collect()
    }
}

/// What a folder beside the tests holds, in order.
fn within(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|one| one.unwrap().path()).collect();
    all.sort();
    all
}

fn mistakes() -> Vec<Mistake> {
    within("tests/mistakes").iter().map(|file| Mistake::read(file)).collect()
}

#[test]
fn each_resource_has_a_mistake() {
    let (mistakes, mut resources) = (mistakes(), within("../examples/resources"));
    resources.retain(|example| {
        let block = format!("resource \"{}\"", example.file_name().unwrap().to_string_lossy());
        !mistakes.iter().any(|mistake| mistake.text.contains(&block))
    });
    assert!(resources.is_empty(), "there is no mistake with {resources:?}");
}

#[test]
fn each_mistake_is_told_at_its_attribute_and_nobody_is_called() {
    let Some(stand) = Stand::new() else { return };
    let mistakes = mistakes();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(mistake) = mistakes.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = mistake.judge(&stand.told(mistake)) {
                        wrong.lock().unwrap().push(why);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), mistakes.len(), wrong.join("\n"));
    let called = stand.nobody.accept();
    assert!(matches!(&called, Err(error) if error.kind() == ErrorKind::WouldBlock), "somebody was called: {called:?}");
}
