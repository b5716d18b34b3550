//! The programs that a sandbox runs, built once from pinned sources into the cache.
//!
//! A tool's folder is named by a digest of everything that decides what is built, so a change of a pin builds beside the old
//! one. Folders appear whole, by rename, and a lock per folder lets several sandboxes ask at the same time.

use std::{
    env::consts::{ARCH, OS},
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::{layout::Layout, process, progress::Step};

/// Characters of a digest in a folder's name.
const KEY_LENGTH: usize = 12;
/// By how much a service's memory may grow, in percent of what it uses, before Go looks for garbage.
const GARBAGE_PERCENT: &str = "400";
/// From which size on Go looks for garbage sooner. An API server that came to 1 GiB after some thousands of pods spent half of its time on that.
const GARBAGE_LIMIT: &str = "3GiB";
/// How often a build is asked whether it has ended.
const POLL: Duration = Duration::from_millis(200);

/// A Go module with the programs that are built from it.
struct Module {
    name: &'static str,
    programs: &'static [Program],
}

struct Program {
    name: &'static str,
    package: &'static str,
    ldflags: &'static str,
}

/// Kubernetes reads its own version from these variables; without them it says v0.0.0-master.
const KUBERNETES: &str = "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 \
    -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36";
const PLAIN: &str = "-s -w";

const fn kubernetes(name: &'static str, package: &'static str) -> Program {
    Program { name, package, ldflags: KUBERNETES }
}

const MODULES: [Module; 3] = [
    Module {
        name: "control-plane",
        programs: &[
            kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
            kubernetes("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
            kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
            kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
            Program { name: "etcd", package: "go.etcd.io/etcd/server/v3", ldflags: PLAIN },
        ],
    },
    Module {
        name: "tofu",
        programs: &[Program {
            name: "tofu",
            package: "github.com/opentofu/opentofu/cmd/tofu",
            ldflags: "-s -w -X github.com/opentofu/opentofu/version.dev=no",
        }],
    },
    Module {
        name: "kwok",
        programs: &[Program { name: "kwok", package: "sigs.k8s.io/kwok/cmd/kwok", ldflags: PLAIN }],
    },
];

/// Where the built programs are.
#[derive(Debug, Clone)]
pub struct Tools {
    /// One folder with links to all programs, for `PATH`.
    pub bin: PathBuf,
    /// The Python that has the emulator's packages.
    pub python: PathBuf,
}

impl Tools {
    /// Returns the path of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// Returns the command of one of the cluster's programs, all of which are written in Go and share few processors: they may take more memory
    /// than by default before they look for what is garbage.
    pub(crate) fn service(&self, name: &str) -> Command {
        let mut command = Command::new(self.program(name));
        command.env("GOGC", GARBAGE_PERCENT).env("GOMEMLIMIT", GARBAGE_LIMIT);
        command
    }

    /// Returns the tools if all of them are in the cache already.
    ///
    /// # Errors
    /// When the pinned sources cannot be read.
    pub fn built(layout: &Layout) -> Result<Option<Self>> {
        let places = Places::of(layout)?;
        let modules = places.modules.iter().all(|place| place.is_dir());
        Ok((modules && has_packages(&places.venv) && places.bin.is_dir()).then(|| places.tools()))
    }

    /// Builds what is missing.
    ///
    /// # Errors
    /// When a build fails; the message has the end of its output.
    pub fn ensure(layout: &Layout) -> Result<Self> {
        let places = Places::of(layout)?;
        for (module, place) in MODULES.iter().zip(&places.modules) {
            whole(place, |fresh| build_module(module, &layout.tool_source(module.name), fresh))?;
        }
        let requirements = layout.moto_source().join("requirements.txt");
        whole_while(&places.venv, has_packages, |fresh| build_venv(&requirements, fresh))?;
        whole(&places.bin, |fresh| link_all(&places.modules, fresh))?;
        Ok(places.tools())
    }
}

/// The folders in the cache, named by what decides their content.
struct Places {
    modules: Vec<PathBuf>,
    venv: PathBuf,
    bin: PathBuf,
}

impl Places {
    fn of(layout: &Layout) -> Result<Self> {
        let tools = layout.cache.join("tools");
        let mut keys = Vec::new();
        for module in &MODULES {
            let source = layout.tool_source(module.name);
            let recipe = recipe(module, OS, ARCH);
            let (sums, pins) = (read(&source.join("go.sum"))?, read(&source.join("go.mod"))?);
            keys.push(format!("{}-{}", module.name, key(&[&pins, &sums, recipe.as_bytes()])));
        }
        let requirements = read(&layout.moto_source().join("requirements.txt"))?;
        Ok(Self {
            venv: tools.join(format!("moto-{}", key(&[&requirements]))),
            bin: tools.join(format!("bin-{}", key(&[keys.join("\n").as_bytes()]))),
            modules: keys.iter().map(|key| tools.join(key)).collect(),
        })
    }

    fn tools(&self) -> Tools {
        Tools { bin: self.bin.clone(), python: self.venv.join("bin").join("python") }
    }
}

/// Says what is built of a module, and for what: most caches are Linux's on x86-64, where their keys do not name it.
fn recipe(module: &Module, os: &str, arch: &str) -> String {
    let programs = module.programs.iter().map(|p| format!("{} {} {}", p.name, p.package, p.ldflags));
    let elsewhere = (os, arch) != ("linux", "x86_64");
    programs.chain(elsewhere.then(|| format!("for {os} {arch}"))).collect::<Vec<_>>().join("\n")
}

/// Digests the parts, each with its length, so that moving a byte from one to the next changes the key.
pub(crate) fn key(parts: &[&[u8]]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
        digest.update(part);
    }
    hex::encode(digest.finalize())[..KEY_LENGTH].to_owned()
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

/// Makes a folder if it is missing: under a lock, beside its place, moved there only when it is whole.
pub(crate) fn whole(place: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    whole_while(place, Path::is_dir, make)
}

/// The same of a folder that may have gone bad since it was made: one that is not `good` is made anew.
fn whole_while(place: &Path, good: impl Fn(&Path) -> bool, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if good(place) {
        return Ok(());
    }
    let parent = place.parent().context("a place in the cache has a parent")?;
    fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    let lock = File::create(place.with_extension("lock"))?;
    lock.lock().with_context(|| format!("locking {}", place.display()))?;
    if good(place) {
        return Ok(());
    }
    let fresh = place.with_extension("partial");
    for stale in [place, fresh.as_path()] {
        if stale.exists() {
            fs::remove_dir_all(stale).with_context(|| format!("removing {}", stale.display()))?;
        }
    }
    fs::create_dir_all(&fresh)?;
    make(&fresh)?;
    fs::rename(&fresh, place).with_context(|| format!("moving {} into place", place.display()))
}

fn build_module(module: &Module, source: &Path, fresh: &Path) -> Result<()> {
    let mut step = Step::begin(format!("build {} from pinned Go modules", module.name));
    for program in module.programs {
        let mut command = Command::new("go");
        command
            .current_dir(source)
            .args(["build", "-mod=readonly", "-trimpath", "-ldflags", program.ldflags, "-o"])
            .arg(fresh.join(program.name))
            .arg(program.package)
            .env("CGO_ENABLED", "0")
            .env("GOWORK", "off")
            .env("GOTOOLCHAIN", "auto");
        run(&mut step, program.name, &mut command, &fresh.with_extension("log"))?;
    }
    step.end();
    Ok(())
}

/// Whether an environment's Python runs and finds the emulator: it is the system's, and an update may leave a link to nowhere, or another
/// version that looks for packages elsewhere.
fn has_packages(venv: &Path) -> bool {
    const FOUND: &str = "import importlib.util, sys; sys.exit(importlib.util.find_spec('moto') is None)";
    let mut python = Command::new(venv.join("bin").join("python"));
    // nothing but what is installed counts, and the folder that this is started in is not that
    python.args(["-I", "-c", FOUND]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match python.status() {
        // one that was killed says nothing of the environment, which others may use
        Ok(status) => status.code().is_none_or(|code| code == 0),
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::OutOfMemory),
    }
}

fn build_venv(requirements: &Path, fresh: &Path) -> Result<()> {
    let mut step = Step::begin("install the AWS emulator's pinned packages");
    let log = fresh.with_extension("log");
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(fresh);
    run(&mut step, "python3 -m venv", &mut make, &log)?;
    // The environment is used only as `bin/python`, which finds its packages beside itself: it may be moved.
    let mut install = Command::new(fresh.join("bin").join("python"));
    install
        .args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--require-hashes", "-r"])
        .arg(requirements);
    run(&mut step, "pip install", &mut install, &log)?;
    step.end();
    Ok(())
}

fn link_all(modules: &[PathBuf], fresh: &Path) -> Result<()> {
    for (module, place) in MODULES.iter().zip(modules) {
        for program in module.programs {
            std::os::unix::fs::symlink(place.join(program.name), fresh.join(program.name))?;
        }
    }
    Ok(())
}

/// Runs a build to its end with its output in a log, telling the step what it does.
pub(crate) fn run(step: &mut Step, what: &str, command: &mut Command, log: &Path) -> Result<()> {
    let output = File::create(log).with_context(|| format!("making {}", log.display()))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .with_context(|| format!("starting {what}"))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        step.tell(what);
        std::thread::sleep(POLL);
    };
    if !status.success() {
        bail!("{what} failed ({status}); the end of {}:\n{}", log.display(), process::tail(log));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_changes_with_each_part_and_with_their_borders() {
        let one = key(&[b"ab", b"c"]);
        assert_eq!(one, key(&[b"ab", b"c"]));
        assert_eq!(one.len(), KEY_LENGTH);
        assert_ne!(one, key(&[b"a", b"bc"]));
        assert_ne!(one, key(&[b"ab", b"d"]));
    }

    #[test]
    fn a_recipe_names_another_platform_and_every_program() {
        let [module, ..] = &MODULES;
        let here = recipe(module, "linux", "x86_64");
        assert_eq!(here.lines().count(), module.programs.len(), "as the keys of caches that there are");
        assert_eq!(recipe(module, "linux", "aarch64"), format!("{here}\nfor linux aarch64"));
        assert_ne!(recipe(module, "macos", "aarch64"), recipe(module, "linux", "aarch64"));
    }

    #[test]
    fn a_folder_that_has_gone_bad_is_made_anew() {
        let cache = tempfile::tempdir().unwrap();
        let place = cache.path().join("moto-1");
        let good = |place: &Path| place.join("python").exists();
        let make = |fresh: &Path| -> Result<()> { Ok(fs::write(fresh.join("python"), "")?) };
        whole_while(&place, good, make).unwrap();
        whole_while(&place, good, |_| bail!("it is good")).unwrap();
        fs::rename(place.join("python"), place.join("gone")).unwrap();
        whole_while(&place, good, make).unwrap();
        assert!(good(&place) && !place.join("gone").exists());
        assert!(!has_packages(&place), "no Python runs there");
    }

    #[test]
    fn a_folder_appears_whole_or_not_at_all_and_is_made_once() {
        let cache = tempfile::tempdir().unwrap();
        let place = cache.path().join("thing-1");
        let failed = whole(&place, |fresh| {
            fs::write(fresh.join("half"), "")?;
            bail!("no network")
        });
        assert!(failed.is_err() && !place.exists());
        let made = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    whole(&place, |fresh| {
                        made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(50));
                        Ok(fs::write(fresh.join("all"), "")?)
                    })
                    .unwrap();
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
        assert!(place.join("all").exists() && !place.join("half").exists());
    }
}
