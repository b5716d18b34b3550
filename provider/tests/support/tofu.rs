//! Runs of OpenTofu in a working folder, and what they came to.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use serde_json::Value;

/// How variables begin that would change what a test is about.
const FOREIGN: [&str; 7] = ["AWS_", "HTTP_PROXY", "HTTPS_PROXY", "KARP_CLUSTER", "KUBE_", "NO_PROXY", "TF_"];

/// Makes the command of a run in a folder, with nothing of the environment that would change it.
pub fn command(tofu: &Path, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(tofu);
    command.args(arguments).current_dir(folder);
    for (name, _) in std::env::vars() {
        if FOREIGN.iter().any(|prefix| name.to_ascii_uppercase().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.env("TF_CLI_CONFIG_FILE", folder.join("tofu.rc")).env("TF_IN_AUTOMATION", "1");
    command.env("HOME", folder).env("AWS_EC2_METADATA_DISABLED", "true");
    // what lives for less than a second need not look for garbage
    command.env("GOGC", "400");
    command
}

/// What a run came to.
pub struct Run {
    pub code: i32,
    pub text: String,
    pub events: Vec<Value>,
}

impl Run {
    /// Runs a command to its end, whatever it comes to.
    pub fn of(mut command: Command) -> Self {
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        Self::read(output.status.code(), text)
    }

    fn read(code: Option<i32>, text: String) -> Self {
        let events = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Self { code: code.unwrap_or(-1), text, events }
    }

    /// The errors that were shown.
    pub fn errors(&self) -> Vec<&Value> {
        self.shown("error")
    }

    /// The warnings that were shown, without the one about development overrides.
    pub fn warnings(&self) -> Vec<&Value> {
        let own = |found: &&Value| !found["summary"].as_str().unwrap_or_default().contains("development overrides");
        self.shown("warning").into_iter().filter(own).collect()
    }

    fn shown(&self, severity: &str) -> Vec<&Value> {
        let found = self.events.iter().map(|event| &event["diagnostic"]);
        found.filter(|diagnostic| diagnostic["severity"] == severity).collect()
    }

    /// The one error that was shown, as summary and detail.
    pub fn one_error(&self) -> String {
        let errors = self.errors();
        assert_eq!(errors.len(), 1, "{}", self.text);
        format!("{}\n{}", errors[0]["summary"].as_str().unwrap(), errors[0]["detail"].as_str().unwrap())
    }

    /// What would be done: `create`, `update`, `delete` … with the resource's address.
    pub fn changes(&self) -> Vec<(String, String)> {
        let planned =
            self.events.iter().filter(|event| event["type"] == "planned_change").map(|event| &event["change"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        planned.map(|change| (text(&change["action"]), text(&change["resource"]["addr"]))).collect()
    }

    /// Asserts that resources were imported and nothing else was done.
    pub fn assert_imports_alone(&self) {
        let acts = |(action, _): &(String, String)| action != "import" && action != "noop";
        assert!(!self.changes().iter().any(acts), "{:?}\n{}", self.changes(), self.text);
    }
}

/// A configuration without the attributes of these names, as an import finds it: what only a configuration says, nobody reads back.
pub fn without(config: &str, names: &[&str]) -> String {
    let is_attribute = |line: &str| line.starts_with("  ") && !line.starts_with("    ");
    let named = |line: &str| names.contains(&line.split_whitespace().next().unwrap_or_default());
    config.lines().filter(|line| !is_attribute(line) || !named(line)).map(|line| format!("{line}\n")).collect()
}

/// A run that goes on.
pub struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Begins a run in a process group of its own, as a shell does; its output goes to a file of the folder.
    pub fn begin(mut command: Command, folder: &Path) -> Self {
        let log = folder.join("run.log");
        let file = File::create(&log).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file).process_group(0);
        Self { child: command.spawn().unwrap(), log }
    }

    /// Says whether it has ended.
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Says whether it has begun to change something: before, its provider comes and goes. Its output is JSON.
    pub fn applies(&self) -> bool {
        std::fs::read_to_string(&self.log).unwrap().contains(r#""type":"apply_start""#)
    }

    /// How many resources it has begun or done with, each counted twice in the end. Its output is JSON.
    pub fn progress(&self) -> usize {
        let told = std::fs::read_to_string(&self.log).unwrap();
        told.matches(r#""type":"apply_start""#).count() + told.matches(r#""type":"apply_complete""#).count()
    }

    /// Presses Ctrl-C: the whole process group gets it, as from a terminal. Says whether there was one.
    pub fn interrupt(&self) -> bool {
        signal("INT", -i64::from(self.child.id()))
    }

    /// Interrupts OpenTofu alone, as a supervisor does. Says whether it still ran.
    pub fn interrupt_alone(&self) -> bool {
        signal("INT", self.child.id().into())
    }

    /// Kills the providers that it has started.
    pub fn kill_provider(&self) {
        for id in self.providers() {
            signal("KILL", id);
        }
    }

    /// The providers that it has started, its children.
    pub fn providers(&self) -> Vec<i64> {
        let is_ours = |folder: &Path| {
            let stat = std::fs::read_to_string(folder.join("stat")).unwrap_or_default();
            let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
            let command = std::fs::read_to_string(folder.join("cmdline")).unwrap_or_default();
            parent == Some(self.child.id()) && command.contains("terraform-provider-karp")
        };
        let folders = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
        let processes = folders.filter_map(|folder| {
            let id = folder.file_name()?.to_str()?.parse().ok()?;
            is_ours(&folder).then_some(id)
        });
        processes.collect()
    }

    /// Waits until it ends.
    pub fn end(mut self) -> Run {
        let status = self.child.wait().unwrap();
        Run::read(status.code(), std::fs::read_to_string(&self.log).unwrap())
    }
}

impl Drop for Running {
    /// A test that fails leaves no OpenTofu behind; the provider ends with it.
    fn drop(&mut self) {
        if !self.is_over() {
            let _ = self.child.kill().and_then(|()| self.child.wait());
        }
    }
}

/// Sends a signal to a process, or to the group of a negative id; says whether there was one.
fn signal(name: &str, id: i64) -> bool {
    Command::new("sh").args(["-c", &format!("kill -{name} {id}")]).output().unwrap().status.success()
}
