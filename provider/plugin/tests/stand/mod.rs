//! A folder with a configuration, and a mirror that holds the example providers, for tests under real OpenTofu.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The example providers, in the order of `required_providers`.
const PROVIDERS: [&str; 2] = ["minimal", "showcase"];

fn tofu() -> Option<PathBuf> {
    let given = std::env::var_os("KARP_TEST_TOOLS").map(|folder| PathBuf::from(folder).join("tofu"));
    let found = given.filter(|binary| binary.is_file()).or_else(newest_built);
    if found.is_none() {
        eprintln!("skipped: OpenTofu is not built (cargo sandbox up builds it)");
    }
    found
}

/// Finds the OpenTofu that the sandbox built last: its folder's name tells its sources, which this crate does not know.
fn newest_built() -> Option<PathBuf> {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let cache = std::env::var_os("KARP_CACHE").map_or_else(|| home.join(".cache/karp"), PathBuf::from);
    let folders = std::fs::read_dir(cache.join("tools")).ok()?.flatten();
    let linked = folders.filter(|folder| folder.file_name().to_string_lossy().starts_with("bin-"));
    let built = linked.map(|folder| folder.path().join("tofu")).filter(|binary| binary.is_file());
    built.max_by_key(|binary| binary.metadata().and_then(|facts| facts.modified()).ok())
}

/// The program of an example: beside the test's own, or in the target folder where cargo builds elsewhere.
pub fn binary(name: &str) -> PathBuf {
    let beside = std::env::current_exe().unwrap().parent().unwrap().join("../examples").join(name);
    match std::env::var("CARGO_TARGET_DIR") {
        Ok(target) if !beside.is_file() => PathBuf::from(target).join("debug/examples").join(name),
        _ => beside,
    }
}

/// The folder.
pub struct Stand {
    pub tofu: PathBuf,
    pub dir: TempDir,
}

impl Stand {
    pub fn new(config: &str) -> Option<Self> {
        let tofu = tofu()?;
        let dir = tempfile::tempdir().unwrap();
        let target = if cfg!(target_arch = "aarch64") { "linux_arm64" } else { "linux_amd64" };
        for name in PROVIDERS {
            let example = binary(name);
            assert!(example.is_file(), "build the examples first: cargo build -p tfplugin --examples");
            let mirror = dir.path().join(format!("mirror/registry.opentofu.org/{name}/{name}/0.1.0")).join(target);
            std::fs::create_dir_all(&mirror).unwrap();
            let link = mirror.join(format!("terraform-provider-{name}_v0.1.0"));
            std::os::unix::fs::symlink(example.canonicalize().unwrap(), link).unwrap();
        }
        let mirror = dir.path().join("mirror");
        let rc = format!("provider_installation {{\n  filesystem_mirror {{\n    path = {mirror:?}\n  }}\n}}\n");
        std::fs::write(dir.path().join("tofu.rc"), rc).unwrap();
        let stand = Self { tofu, dir };
        stand.write(config);
        stand.run(&["init"]);
        Some(stand)
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    pub fn write(&self, config: &str) {
        let source = |name: &str| format!("    {name} = {{\n      source = \"{name}/{name}\"\n    }}\n");
        let sources = PROVIDERS.map(source).concat();
        let head = format!("terraform {{\n  required_providers {{\n{sources}  }}\n}}\n");
        let config = config.replace("DIR", &self.dir.path().display().to_string());
        std::fs::write(self.dir.path().join("main.tf"), format!("{head}{config}")).unwrap();
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.tofu);
        command.args(args).current_dir(self.dir.path());
        command
            .env("TF_CLI_CONFIG_FILE", self.path("tofu.rc"))
            .env("TF_IN_AUTOMATION", "1")
            .env("TF_CLI_ARGS_plan", "-no-color");
        command.env("TMPDIR", self.dir.path()).env_remove("TF_REATTACH_PROVIDERS");
        command
    }

    pub fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed.
    pub fn run(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let text = text(&output);
        assert!(output.status.success(), "tofu {args:?}: {text}");
        text
    }

    pub fn assert_plan_is_empty(&self) {
        let output = self.output(&["plan", "-detailed-exitcode"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    }

    pub fn assert_no_sockets_left(&self) {
        let left: Vec<_> =
            std::fs::read_dir(self.dir.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("tfplugin-")), "{left:?}");
    }
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

pub fn wait_for(path: &Path) {
    let begin = Instant::now();
    while !path.exists() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{} did not appear", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}
