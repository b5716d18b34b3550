//! OpenTofu with the built provider: a CLI configuration that installs it from a folder, and runs with captured output.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;

/// The provider's source address is short for one on the tool's own registry: OpenTofu's, and Terraform's.
const PROVIDER_HOSTS: [&str; 2] = ["registry.opentofu.org", "registry.terraform.io"];
/// Namespace and type in the source address.
const PROVIDER_SOURCE: &str = "karp/karp";
/// The version that the examples ask for; kept with the crate's.
const PROVIDER_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Writes a CLI configuration by which `init` finds the built provider, and nothing on a network.
///
/// # Errors
/// When the files cannot be written, or this platform has no name in Terraform's terms.
pub fn write_cli_config(folder: &Path, provider: &Path) -> Result<PathBuf> {
    let mirror = folder.join("mirror");
    for host in PROVIDER_HOSTS {
        let place = mirror.join(host).join(PROVIDER_SOURCE).join(PROVIDER_VERSION).join(platform()?);
        std::fs::create_dir_all(&place).with_context(|| format!("making {}", place.display()))?;
        let link = place.join(format!("terraform-provider-karp_v{PROVIDER_VERSION}"));
        if link.symlink_metadata().is_ok() {
            std::fs::remove_file(&link)?;
        }
        std::os::unix::fs::symlink(provider, &link).with_context(|| format!("linking {}", link.display()))?;
    }
    write_mirror_config(folder, &mirror)
}

/// Writes a CLI configuration by which `init` finds what a folder mirrors, and nothing on a network.
///
/// # Errors
/// When the file cannot be written.
pub fn write_mirror_config(folder: &Path, mirror: &Path) -> Result<PathBuf> {
    let config = folder.join("tofu.tfrc");
    let path = serde_json::to_string(mirror)?;
    let text = format!(
        "provider_installation {{\n  filesystem_mirror {{\n    path = {path}\n  }}\n}}\ndisable_checkpoint = true\n"
    );
    std::fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
    Ok(config)
}

/// Returns this machine's platform as Terraform names it, which is as Go does.
///
/// # Errors
/// When its architecture has no name there.
pub fn platform() -> Result<String> {
    let system = match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    };
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("karp's sandbox does not know how Terraform calls the architecture {other}"),
    };
    Ok(format!("{system}_{architecture}"))
}

/// A folder in which tofu runs.
#[derive(Debug, Clone)]
pub struct Workspace {
    program: PathBuf,
    folder: PathBuf,
    env: BTreeMap<String, String>,
}

/// How a run of tofu ended.
#[derive(Debug, Clone)]
pub struct Run {
    /// Exit code; -1 when a signal ended it.
    pub code: i32,
    /// What it printed, standard error after standard output.
    pub output: String,
    command: String,
}

impl Workspace {
    /// Copies a configuration's files into a folder of its own, so that state stays out of the checkout.
    ///
    /// # Errors
    /// When a file cannot be copied.
    pub fn copy(program: PathBuf, example: &Path, folder: PathBuf, env: BTreeMap<String, String>) -> Result<Self> {
        std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        for entry in std::fs::read_dir(example).with_context(|| format!("reading {}", example.display()))? {
            let path = entry?.path();
            if let (Some("tf" | "tfvars"), Some(name)) = (path.extension().and_then(|e| e.to_str()), path.file_name()) {
                std::fs::copy(&path, folder.join(name)).with_context(|| format!("copying {}", path.display()))?;
            }
        }
        Ok(Self { program, folder, env })
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sets an environment variable of the runs to come.
    #[must_use]
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Runs tofu to its end. It is killed when the future is dropped.
    ///
    /// # Errors
    /// When it cannot be started; that it fails is in the answer.
    pub async fn run(&self, arguments: &[&str]) -> Result<Run> {
        let command = format!("tofu {}", arguments.join(" "));
        let answer = Command::new(&self.program)
            .args(arguments)
            .current_dir(&self.folder)
            // Only what is given: a variable of the user's shell must not change what is installed or whom it calls.
            .env_clear()
            .envs(std::env::vars().filter(|(name, _)| passes(name)))
            .envs(&self.env)
            .env("TF_IN_AUTOMATION", "1")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("starting {command}"))?;
        let mut output = String::from_utf8_lossy(&answer.stdout).into_owned();
        output.push_str(&String::from_utf8_lossy(&answer.stderr));
        Ok(Run { code: answer.status.code().unwrap_or(-1), output, command })
    }
}

fn passes(name: &str) -> bool {
    let foreign = ["AWS_", "TF_", "TOFU_", "KUBE", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"];
    matches!(name, "TF_LOG" | "TF_LOG_PROVIDER") || !foreign.iter().any(|prefix| name.starts_with(prefix))
}

impl Run {
    /// Returns the output of a run that ended with code 0.
    ///
    /// # Errors
    /// With the whole output, when it ended otherwise.
    pub fn success(self) -> Result<String> {
        if self.code == 0 {
            return Ok(self.output);
        }
        bail!("`{}` ended with code {}:\n{}", self.command, self.code, self.output.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shells_credentials_stay_outside() {
        assert!(passes("PATH") && passes("HOME") && passes("TF_LOG") && passes("RUST_LOG"));
        for name in [
            "AWS_PROFILE",
            "AWS_SECRET_ACCESS_KEY",
            "KUBECONFIG",
            "TF_CLI_ARGS",
            "TF_REATTACH_PROVIDERS",
            "HTTPS_PROXY",
        ] {
            assert!(!passes(name), "{name}");
        }
    }

    #[test]
    fn the_mirror_is_laid_out_as_tofu_looks_it_up() {
        let folder = tempfile::tempdir().unwrap();
        let provider = folder.path().join("terraform-provider-karp");
        std::fs::write(&provider, "built").unwrap();
        for _ in 0..2 {
            let config = write_cli_config(folder.path(), &provider).unwrap();
            assert!(std::fs::read_to_string(config).unwrap().contains("filesystem_mirror"));
        }
        let place = folder.path().join("mirror").join(PROVIDER_HOSTS[0]).join("karp/karp").join(PROVIDER_VERSION);
        let program = place.join(platform().unwrap()).join(format!("terraform-provider-karp_v{PROVIDER_VERSION}"));
        assert_eq!(std::fs::read_to_string(program).unwrap(), "built");
    }
}
