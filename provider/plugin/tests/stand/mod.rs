//! A folder with a configuration, and a mirror that holds the example providers, for tests under real OpenTofu and Terraform.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The example providers, in the order of `required_providers`.
const PROVIDERS: [&str; 3] = ["minimal", "tested", "showcase"];

fn tofu() -> Option<PathBuf> {
    let given = std::env::var_os("KARP_TEST_TOOLS").map(|folder| PathBuf::from(folder).join("tofu"));
    let found = given.filter(|binary| binary.is_file()).or_else(newest_built);
    if found.is_none() {
        eprintln!("skipped: OpenTofu is not built (cargo sandbox up builds it)");
    }
    found
}

/// Finds Terraform: the program that `KARP_TERRAFORM` names, else the first one on the `PATH`.
fn terraform() -> Option<PathBuf> {
    let found = std::env::var_os("KARP_TERRAFORM").map(PathBuf::from).or_else(|| {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|folder| folder.join("terraform")).find(|program| program.is_file())
    });
    if found.is_none() {
        eprintln!("not run with Terraform: there is none on the PATH, and KARP_TERRAFORM names none");
    }
    found
}

/// Says whether a Terraform has at least this version.
fn is_from(program: &Path, least: (u32, u32)) -> bool {
    let said = Command::new(program).args(["version", "-json"]).env("CHECKPOINT_DISABLE", "1").output().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    let version = said["terraform_version"].as_str().unwrap();
    let mut parts = version.split('.').map(|part| part.parse::<u32>());
    let able = matches!((parts.next(), parts.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= least);
    if !able {
        eprintln!("not run with Terraform {version}: it needs {}.{}", least.0, least.1);
    }
    able
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
    program: PathBuf,
    pub dir: TempDir,
}

impl Stand {
    /// Makes one for OpenTofu and one for Terraform, as far as they are there.
    pub fn of_each(config: &str) -> impl Iterator<Item = Self> {
        [tofu(), terraform()].into_iter().flatten().map(move |program| Self::of(program, config))
    }

    /// The same, for Terraform only where it has at least this version.
    pub fn of_each_from(least: (u32, u32), config: &str) -> impl Iterator<Item = Self> {
        let terraform = terraform().filter(|program| is_from(program, least));
        [tofu(), terraform].into_iter().flatten().map(move |program| Self::of(program, config))
    }

    fn of(program: PathBuf, config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let target = if cfg!(target_arch = "aarch64") { "linux_arm64" } else { "linux_amd64" };
        let hosts = ["registry.opentofu.org", "registry.terraform.io"];
        for (name, host) in PROVIDERS.into_iter().flat_map(|name| hosts.map(|host| (name, host))) {
            let example = binary(name);
            assert!(example.is_file(), "build the examples first: cargo build -p tfplugin --examples");
            let mirror = dir.path().join(format!("mirror/{host}/{name}/{name}/0.1.0")).join(target);
            std::fs::create_dir_all(&mirror).unwrap();
            let link = mirror.join(format!("terraform-provider-{name}_v0.1.0"));
            std::os::unix::fs::symlink(example.canonicalize().unwrap(), link).unwrap();
        }
        let mirror = dir.path().join("mirror");
        let rc = format!("provider_installation {{\n  filesystem_mirror {{\n    path = {mirror:?}\n  }}\n}}\n");
        std::fs::write(dir.path().join("tofu.rc"), rc).unwrap();
        let stand = Self { program, dir };
        stand.write(config);
        stand.run(&["init"]);
        stand
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
        let mut command = Command::new(&self.program);
        command.args(args).current_dir(self.dir.path());
        command
            .env("TF_CLI_CONFIG_FILE", self.path("tofu.rc"))
            .env("TF_IN_AUTOMATION", "1")
            .env("CHECKPOINT_DISABLE", "1")
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
        assert!(output.status.success(), "{} {args:?}: {text}", self.program.display());
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
