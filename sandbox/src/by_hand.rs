//! `cargo sandbox up | status | down | env`: a sandbox that outlives the command which started it.

use std::{
    fs::File,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use comfy_table::Table;
use nix::sys::signal::Signal;

use crate::{
    layout::Layout,
    process,
    progress::Step,
    sandbox::{all, test_variables},
    state::{Phase, State},
    tools::Tools,
};

/// How long a sandbox may take to start before `up` gives up: its own limits add up to less.
const START_LIMIT: Duration = Duration::from_secs(180);
/// How long its supervisor may take to end everything.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// How often they are looked at.
const POLL: Duration = Duration::from_millis(100);

/// Starts a supervisor in the background and waits until its sandbox can be used.
///
/// # Errors
/// When one of the same name runs, or it does not start.
pub fn up(layout: &Layout, name: &str, node_delay: f64, emulators: usize) -> Result<()> {
    let run_dir = layout.run_dir(name);
    if let Some(state) = State::read(&run_dir)?
        && state.owner.alive()
    {
        bail!(
            "a sandbox named {name} runs already (pid {}); `cargo sandbox down --name {name}` ends it",
            state.owner.pid
        );
    }
    let step = Step::begin(format!("start the sandbox {name}"));
    std::fs::create_dir_all(layout.runs())?;
    let log = layout.runs().join(format!("{name}.log"));
    let output = File::create(&log).with_context(|| format!("making {}", log.display()))?;
    let mut supervisor = Command::new(std::env::current_exe()?)
        .args(["supervise", "--name", name, "--node-delay", &node_delay.to_string()])
        .args(["--emulators", &emulators.to_string()])
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0)
        .spawn()
        .context("starting the supervisor")?;
    let begin = Instant::now();
    let own = i32::try_from(supervisor.id())?;
    loop {
        if let Some(status) = supervisor.try_wait()? {
            bail!("the sandbox could not be started ({status}):\n{}", process::tail(&log));
        }
        match State::read(&run_dir)? {
            Some(state) if state.owner.pid == own && state.phase == Phase::Ready => break,
            _ if begin.elapsed() > START_LIMIT => {
                bail!(
                    "the sandbox is not ready after {} s; logs: {}",
                    START_LIMIT.as_secs(),
                    run_dir.join("log").display()
                )
            }
            _ => std::thread::sleep(POLL),
        }
    }
    step.end();
    let flag = if name == "default" { String::new() } else { format!(" --name {name}") };
    println!("sandbox {name} is up: eval \"$(cargo sandbox env{flag})\"; end it with `cargo sandbox down{flag}`");
    Ok(())
}

/// Prints the sandboxes of this checkout.
///
/// # Errors
/// When a state cannot be read.
pub fn status(layout: &Layout) -> Result<()> {
    let found = all(layout)?;
    if found.is_empty() {
        println!("no sandbox runs; `cargo sandbox up` starts one");
        return Ok(());
    }
    for (run_dir, state) in found {
        let phase = match (&state.phase, state.owner.alive()) {
            (_, false) => "its supervisor is gone: `cargo sandbox down` ends what it left".to_owned(),
            (Phase::Failed(why), true) => format!("failed: {why}"),
            (Phase::Starting, true) => "starting".to_owned(),
            (Phase::Ready, true) => "ready".to_owned(),
        };
        println!("{}: {phase} (pid {}, {})", state.name, state.owner.pid, run_dir.display());
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING).set_header(["process", "pid", "state", "log"]);
        for one in &state.processes {
            let alive = if one.identity.alive() { "runs" } else { "ended" };
            table.add_row([&one.name, &one.identity.pid.to_string(), alive, &one.log.display().to_string()]);
        }
        println!("{table}");
    }
    Ok(())
}

/// Ends one sandbox, whoever owns it.
///
/// # Errors
/// When there is none of this name.
pub fn down(layout: &Layout, name: &str) -> Result<()> {
    let run_dir = layout.run_dir(name);
    let Some(state) = State::read(&run_dir)? else {
        bail!("no sandbox named {name}; `cargo sandbox status` lists them");
    };
    let step = Step::begin(format!("end the sandbox {name}"));
    state.owner.signal(Signal::SIGTERM);
    let begin = Instant::now();
    while state.owner.alive() && begin.elapsed() < STOP_LIMIT {
        std::thread::sleep(POLL);
    }
    state.owner.signal(Signal::SIGKILL);
    // The supervisor may have started more since: read again, and end what is left of it.
    if let Some(left) = State::read(&run_dir)? {
        process::end_recorded(&left.processes);
    }
    if run_dir.exists() {
        std::fs::remove_dir_all(&run_dir).with_context(|| format!("removing {}", run_dir.display()))?;
    }
    std::fs::remove_file(layout.runs().join(format!("{name}.log"))).ok();
    step.end();
    Ok(())
}

/// Ends all sandboxes of this checkout.
///
/// # Errors
/// When one cannot be ended.
pub fn down_all(layout: &Layout) -> Result<()> {
    all(layout)?.iter().try_for_each(|(_, state)| down(layout, &state.name))
}

/// Prints the exports of one sandbox for a POSIX shell.
///
/// # Errors
/// When it does not run.
pub fn env(layout: &Layout, name: &str) -> Result<()> {
    let state = State::read(&layout.run_dir(name))?.filter(|state| state.owner.alive());
    let Some(state) = state else {
        bail!("no sandbox named {name} runs; `cargo sandbox up --name {name}` starts one");
    };
    usable(&state)?;
    let tools = Tools::built(layout)?.context("the tools are not built; run `cargo sandbox up`")?;
    for (variable, value) in state.env.iter().chain(&test_variables(&state.env, &tools.bin, &layout.run_dir(name))) {
        println!("export {variable}={}", quoted(value));
    }
    println!("export PATH={}:\"$PATH\"", quoted(&tools.bin.display().to_string()));
    Ok(())
}

/// Refuses a sandbox that clients cannot use yet, or never can: its variables are not all known.
fn usable(state: &State) -> Result<()> {
    let name = &state.name;
    match &state.phase {
        Phase::Ready => Ok(()),
        Phase::Starting => bail!("the sandbox {name} is not ready yet; `cargo sandbox status` tells how far it is"),
        Phase::Failed(why) => {
            bail!("the sandbox {name} could not be started: {why}; end it with `cargo sandbox down --name {name}`")
        }
    }
}

/// Quotes for a POSIX shell.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_ready_sandbox_can_be_used() {
        let in_phase = |phase| State {
            name: "one".to_owned(),
            phase,
            owner: crate::state::Identity::of(std::process::id()),
            env: std::collections::BTreeMap::new(),
            processes: Vec::new(),
        };
        assert!(usable(&in_phase(Phase::Ready)).is_ok());
        let said = usable(&in_phase(Phase::Starting)).unwrap_err().to_string();
        assert!(said.contains("not ready yet"), "{said}");
        let said = usable(&in_phase(Phase::Failed("no port".to_owned()))).unwrap_err().to_string();
        assert!(said.contains("no port"), "{said}");
    }

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        for value in ["plain", "[\"a\",\"b\"]", "it's $HOME `x`"] {
            let script = format!("printf %s {}", quoted(value));
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), value);
        }
    }
}
