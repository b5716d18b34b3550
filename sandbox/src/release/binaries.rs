//! The controller and the provider, linked statically, built here or elsewhere.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

use super::{CONTROLLER, PROVIDER, elf};
use crate::{cargo, group::Group, layout::Layout};

/// Cargo's profile for what is published, and the folder that it builds into.
const PROFILE: &str = "dist";
/// Tells the build from which commit it is; `karp version` repeats it.
const COMMIT: &str = "KARP_COMMIT";
/// What the provider may weigh, stripped: each machine of a team, and each run of its pipelines, fetches it (issue 7).
const MOST_BYTES: u64 = 40_000_000;

/// An architecture as Rust, Go and ELF call it.
struct Architecture {
    rust: &'static str,
    go: &'static str,
    elf: u16,
}

static ARCHITECTURES: [Architecture; 2] =
    [Architecture { rust: "x86_64", go: "amd64", elf: 62 }, Architecture { rust: "aarch64", go: "arm64", elf: 183 }];

/// Both binaries for one target.
pub struct Binaries {
    /// The target that they were built for.
    pub target: String,
    /// Its architecture in Terraform's and OCI's words.
    pub architecture: &'static str,
    /// The provider.
    pub provider: Vec<u8>,
    /// The controller.
    pub controller: Vec<u8>,
}

impl Binaries {
    /// Reads `karp` and `terraform-provider-karp` from a folder.
    ///
    /// # Errors
    /// When one is missing, is for something else than the target, or is linked dynamically, or when the provider is too large.
    pub fn read(folder: &Path, target: &str) -> Result<Self> {
        let architecture = architecture(target)?;
        let read = |name: &str| -> Result<Vec<u8>> {
            let path = folder.join(name);
            let program = std::fs::read(&path).with_context(|| {
                format!("reading {}: both {CONTROLLER} and {PROVIDER} are released", path.display())
            })?;
            elf::statically_linked(&program, architecture.elf)
                .with_context(|| format!("{} cannot be released", path.display()))?;
            Ok(program)
        };
        let (provider, controller) = (read(PROVIDER)?, read(CONTROLLER)?);
        let size = provider.len() as u64;
        ensure!(
            size <= MOST_BYTES,
            "{} cannot be released: it has {size} bytes, {MOST_BYTES} are allowed: build it with --profile {PROFILE}",
            folder.join(PROVIDER).display()
        );
        Ok(Self { target: target.to_owned(), architecture: architecture.go, provider, controller })
    }
}

fn architecture(target: &str) -> Result<&'static Architecture> {
    ensure!(
        target.contains("-linux-"),
        "{target} is no Linux: give binaries of a Linux target by --binaries TRIPLE=FOLDER"
    );
    let known = ARCHITECTURES.iter().find(|one| target.split('-').next() == Some(one.rust));
    known.with_context(|| format!("{target}: no name in Terraform is known for this architecture"))
}

/// Chooses a target of this machine's architecture that is linked statically, and says why: musl, or else its own C library.
///
/// # Errors
/// When this is no Linux, or rustc does not answer.
pub fn own_target(layout: &Layout) -> Result<String> {
    let about = rustc(layout, &["-vV"])?;
    let own = about.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc does not name its host")?;
    let architecture = architecture(own)?.rust;
    let musl = format!("{architecture}-unknown-linux-musl");
    if own == musl {
        return Ok(musl);
    }
    let compiler = format!("{architecture}-linux-musl-gcc");
    let own_compiler = format!("CC_{}", musl.replace('-', "_"));
    let library = rustc(layout, &["--print", "target-libdir", "--target", &musl])?;
    let lack = if !Path::new(library.trim()).is_dir() {
        format!("`rustup target add {musl}` was not run")
    } else if std::env::var_os(&own_compiler).is_none() && !runs(&compiler) {
        format!("there is no {compiler} (Debian and Ubuntu: `apt-get install musl-tools`), nor is {own_compiler} set")
    } else {
        return Ok(musl);
    };
    eprintln!("not for {musl}: {lack}; the C library of {own} is linked statically instead");
    Ok(own.to_owned())
}

fn rustc(layout: &Layout, arguments: &[&str]) -> Result<String> {
    let program = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let answer = Command::new(program).current_dir(&layout.root).args(arguments).output().context("starting rustc")?;
    let line = arguments.join(" ");
    ensure!(answer.status.success(), "`rustc {line}` failed: {}", String::from_utf8_lossy(&answer.stderr));
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}

fn runs(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Builds both binaries for a target with a static C library; cargo shows its own progress. They tell the commit, where it is known.
///
/// # Errors
/// When they do not compile, or come out linked dynamically.
pub async fn build(layout: &Layout, target: &str, commit: Option<&str>) -> Result<Binaries> {
    architecture(target)?;
    eprintln!("building {CONTROLLER} and {PROVIDER} for {target}");
    let folder = target_folder(layout)?;
    let arguments = ["build", "--profile", PROFILE, "--locked", "-p", CONTROLLER, "-p", PROVIDER, "--target", target];
    let mut build = cargo::command(layout, &arguments);
    build.arg("--target-dir").arg(&folder).env("CARGO_ENCODED_RUSTFLAGS", flags(layout, &folder).join("\u{1f}"));
    build.envs(commit.map(|commit| (COMMIT, commit)));
    let status = Group::start(build)?.wait().await?;
    ensure!(status.success(), "`cargo {}` failed ({status})", arguments.join(" "));
    Binaries::read(&folder.join(target).join(PROFILE), target)
}

fn target_folder(layout: &Layout) -> Result<PathBuf> {
    match std::env::var_os("CARGO_TARGET_DIR").filter(|value| !value.is_empty()) {
        Some(given) => Ok(std::path::absolute(given)?),
        None => Ok(layout.root.join("target")),
    }
}

/// The flags of the environment, a static C library, and names for folders that are the same on every machine: messages of panics name
/// source files.
fn flags(layout: &Layout, target_folder: &Path) -> Vec<String> {
    let mut flags: Vec<String> = match std::env::var("CARGO_ENCODED_RUSTFLAGS") {
        Ok(encoded) => encoded.split('\u{1f}').filter(|flag| !flag.is_empty()).map(str::to_owned).collect(),
        Err(_) => std::env::var("RUSTFLAGS").unwrap_or_default().split_whitespace().map(str::to_owned).collect(),
    };
    flags.extend(["-C".to_owned(), "target-feature=+crt-static".to_owned()]);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home);
    // The last that fits is taken.
    let folders =
        [(Some(layout.root.clone()), "/karp"), (Some(target_folder.to_path_buf()), "/target"), (cargo_home, "/cargo")];
    for (folder, name) in folders {
        flags.extend(folder.map(|folder| format!("--remap-path-prefix={}={name}", folder.display())));
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_controller_is_refused_with_its_path_and_the_fix() {
        let folder = tempfile::tempdir().unwrap();
        let error = |target| format!("{:#}", Binaries::read(folder.path(), target).err().unwrap());
        let target = "x86_64-unknown-linux-gnu";
        assert!(error(target).contains("both karp and terraform-provider-karp are released"));
        std::fs::write(folder.path().join(PROVIDER), elf::fixture(62, &[1])).unwrap();
        std::fs::write(folder.path().join(CONTROLLER), elf::fixture(62, &[1, 3])).unwrap();
        let told = error(target);
        assert!(told.contains("/karp cannot be released") && told.contains("+crt-static"), "{told}");
        assert!(error("aarch64-unknown-linux-musl").contains("machine 62"));
        assert!(error("x86_64-apple-darwin").contains("no Linux"));
        assert!(error("riscv64gc-unknown-linux-gnu").contains("no name in Terraform"));
    }

    #[test]
    fn a_provider_that_is_too_large_is_refused_with_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let read = |bytes: u64| {
            for name in [PROVIDER, CONTROLLER] {
                std::fs::write(folder.path().join(name), elf::fixture(62, &[1])).unwrap();
            }
            std::fs::File::options().write(true).open(folder.path().join(PROVIDER)).unwrap().set_len(bytes).unwrap();
            Binaries::read(folder.path(), "x86_64-unknown-linux-gnu")
        };
        assert_eq!(read(MOST_BYTES).unwrap().provider.len() as u64, MOST_BYTES);
        let told = format!("{:#}", read(MOST_BYTES + 1).err().unwrap());
        assert!(told.contains("terraform-provider-karp cannot be released: it has 40000001 bytes"), "{told}");
    }

    #[test]
    fn flags_link_statically_and_hide_folders() {
        let root = Path::new("/home/somebody/karp");
        let layout = Layout { root: root.to_path_buf(), cache: PathBuf::new(), binaries: PathBuf::new() };
        let flags = flags(&layout, &root.join("target"));
        assert!(flags.contains(&"target-feature=+crt-static".to_owned()));
        assert!(flags.contains(&"--remap-path-prefix=/home/somebody/karp=/karp".to_owned()));
        assert!(flags.contains(&"--remap-path-prefix=/home/somebody/karp/target=/target".to_owned()));
    }
}
