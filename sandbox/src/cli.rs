//! The command line of `cargo demo`, `cargo verify`, `cargo release-artifacts` and `cargo sandbox`.

use std::{path::Path, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use launcher::prerequisites::{self, Work};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::{
    by_hand, cargo, demo, figures,
    group::Group,
    layout::Layout,
    lives, oracle, release,
    sandbox::{Options, Sandbox},
    second_opinion::SecondOpinion,
    tools::Tools,
    verify,
};

/// A loopback EKS for demo and tests: a real control plane, an EC2 emulator, nodes that join.
#[derive(Debug, Parser)]
#[command(name = "cargo sandbox", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Play the main job: apply, pods, nodes, consolidation, a spot interruption, destroy
    Demo,
    /// Check everything: formatting, lints, unit and property tests, edge tests on a sandbox, the demo
    Verify {
        /// Run everything at length, measure, and write target/deep/record.json
        #[arg(long)]
        deep: bool,
    },
    /// Play many lives of a cluster under faults, by the simulator in a release build
    Sim {
        /// How many
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
        seeds: u64,
        /// Seed of the first; taken from what is committed when left out
        #[arg(long)]
        from: Option<u64>,
    },
    /// Start a sandbox and leave it running
    Up {
        #[command(flatten)]
        which: Which,
        /// Seconds that a running instance takes to become a Node
        #[arg(long, default_value_t = 1.0)]
        node_delay: f64,
        /// AWS emulators: the first has the cluster, each further one is an AWS of its own (KARP_TEST_AWS_ENDPOINTS)
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=4))]
        emulators: u8,
    },
    /// List the sandboxes of this checkout and their processes
    Status,
    /// End a sandbox that `up` started
    Down {
        #[command(flatten)]
        which: Which,
        /// End all sandboxes of this checkout
        #[arg(long, conflicts_with = "name")]
        all: bool,
    },
    /// Print the exports for kubectl, tofu, the AWS CLI and the edge tests
    Env {
        #[command(flatten)]
        which: Which,
    },
    /// Print what Go's libraries answer into shared/domain/tests/vectors, for the domain's tests
    Oracle,
    /// Make what a release publishes: zips, checksums, the controller's image, bills of materials
    ReleaseArtifacts(release::Request),
    /// Measure what is promised, and print it as JSON
    #[command(hide = true)]
    Figures,
    /// Build the tools only
    #[command(hide = true)]
    Tools {
        /// With what only `cargo verify` uses
        #[arg(long)]
        for_verify: bool,
    },
    /// Hold a sandbox until a signal comes; `up` starts this
    #[command(hide = true)]
    Supervise {
        #[command(flatten)]
        which: Which,
        #[arg(long)]
        node_delay: f64,
        #[arg(long)]
        emulators: u8,
    },
}

/// How long the threads of the runtime may take to end.
const RUNTIME_GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, clap::Args)]
struct Which {
    /// Name of the sandbox
    #[arg(long, default_value = "default", value_parser = name)]
    name: String,
}

/// A name becomes a folder and part of AWS names.
fn name(text: &str) -> Result<String, String> {
    let letters = text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if letters && !text.is_empty() && text.len() <= 30 && !text.starts_with('-') && !text.ends_with('-') {
        return Ok(text.to_owned());
    }
    Err("a name has 1 to 30 lower-case letters, digits and inner hyphens".to_owned())
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,kube_client::client::builder=off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    let layout = Layout::here()?;
    match command {
        Command::Demo => {
            interruptible(async {
                let tools = set_up(&layout).await?;
                demo::run(&layout, &tools).await
            })?;
        }
        Command::Verify { deep } => {
            prerequisites::check(Work::Verify)?;
            return interruptible(verify::run(layout, deep));
        }
        Command::Sim { seeds, from } => return interruptible(lives::run(&layout, seeds, from)),
        Command::Up { which, node_delay, emulators } => {
            interruptible(set_up(&layout))?;
            by_hand::up(&layout, &which.name, node_delay, emulators.into())?;
        }
        Command::Status => by_hand::status(&layout)?,
        Command::Down { all: true, .. } => by_hand::down_all(&layout)?,
        Command::Down { which, .. } => by_hand::down(&layout, &which.name)?,
        Command::Env { which } => by_hand::env(&layout, &which.name)?,
        Command::Oracle => oracle::run(&layout)?,
        Command::ReleaseArtifacts(request) => interruptible(release::run(&layout, request))?,
        Command::Figures => {
            let figures = interruptible(async {
                let tools = Tools::built(&layout)?.context("the tools are not built")?;
                figures::measure(&layout, &tools).await
            })?;
            println!("{}", serde_json::to_string(&figures)?);
        }
        Command::Tools { for_verify } => {
            prerequisites::check(if for_verify { Work::Verify } else { Work::Sandbox })?;
            println!("{}", Tools::ensure(&layout)?.bin.display());
            if for_verify {
                SecondOpinion::ensure(&layout)?;
            }
        }
        Command::Supervise { which, node_delay, emulators } => {
            let tools = Tools::built(&layout)?.context("the tools are not built")?;
            let node_delay = Duration::try_from_secs_f64(node_delay).context("--node-delay")?;
            runtime()?.block_on(supervise(
                &layout,
                &tools,
                Options { name: which.name, node_delay, emulators: emulators.into() },
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Names what lacks, then builds the tools, the controller and the provider, each in a process group that an interrupt ends.
async fn set_up(layout: &Layout) -> Result<Tools> {
    prerequisites::check(Work::Sandbox)?;
    if Tools::built(layout)?.is_none() {
        let mut build = std::process::Command::new(std::env::current_exe()?);
        build.arg("tools").stdout(std::io::stderr());
        let status = Group::start(build)?.wait().await?;
        ensure!(status.success(), "the tools could not be built ({status})");
    }
    cargo::build_products(layout).await?;
    Tools::built(layout)?.context("the tools are built and yet missing from the cache")
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// Runs to the end or to a signal; what was started is ended as the future is dropped.
fn interruptible<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        tokio::select! {
            done = work => done,
            which = signalled() => Err(anyhow::anyhow!("interrupted by {}; everything that was started is ended", which?)),
        }
    });
    // A blocking call that still waits for something must not hold the exit up.
    runtime.shutdown_timeout(RUNTIME_GRACE);
    done
}

async fn signalled() -> Result<&'static str> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
        _ = hangup.recv() => "SIGHUP",
    })
}

async fn supervise(layout: &Layout, tools: &Tools, options: Options) -> Result<()> {
    // The terminal that `up` ran in may go away.
    let _hangup = signal(SignalKind::hangup())?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let ended = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    tokio::pin!(ended);
    let sandbox = tokio::select! {
        sandbox = Sandbox::start(layout, tools, options) => sandbox?,
        () = &mut ended => return Ok(()),
    };
    tokio::select! {
        () = &mut ended => sandbox.stop().await,
        error = sandbox.broken() => {
            let logs = sandbox.stop_keeping_logs().await;
            Err(error.context(format!("the sandbox broke; logs: {}", Path::new(&logs).display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        assert!(Cli::try_parse_from(["sandbox", "up", "--name", "two-1"]).is_ok());
        let binaries = "x86_64-unknown-linux-musl=dist";
        assert!(Cli::try_parse_from(["sandbox", "release-artifacts", "--out", "o", "--binaries", binaries]).is_ok());
        for bad in ["", "Upper", "-x", "a/b", "a_b", &"x".repeat(31)] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
