//! How one step is run: its command, its log, how long it may take, and what is kept of it.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Write as _,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use comfy_table::Table;

use super::Verify;
use crate::{
    cargo,
    group::Group,
    process,
    progress::Step,
    record::{StepRecord, rounded},
};

/// Lines of a failed step's log that are shown: a failing test's report, not a whole build.
const SHOWN_LINES: usize = 200;
/// The longest that one step may take: a first build on two cores takes a third of it.
const STEP_LIMIT: Duration = Duration::from_secs(60 * 60);
/// The same with `--deep`.
const DEEP_STEP_LIMIT: Duration = Duration::from_secs(3 * 60 * 60);
/// Where `--deep` leaves its record, in the checkout.
const RECORD: &str = "target/deep/record.json";
/// How often a long step says that it still runs.
const TELL: Duration = Duration::from_secs(1);

impl Verify {
    /// A command of the built sandbox program.
    pub(super) fn sandbox(&self, argument: &str) -> Command {
        let mut command = Command::new(self.layout.binaries.join("sandbox"));
        command.arg(argument).current_dir(&self.layout.root);
        self.in_target(&mut command);
        command
    }

    pub(super) fn command_of_cargo(&self, arguments: &[&str], env: &BTreeMap<String, String>) -> Command {
        let mut command = cargo::command(&self.layout, arguments);
        self.in_target(&mut command);
        cargo::with_variables(command, env)
    }

    fn in_target(&self, command: &mut Command) {
        if let Some(target) = &self.target {
            command.env("CARGO_TARGET_DIR", target);
        }
    }

    pub(super) async fn cargo(
        &mut self,
        name: &str,
        arguments: &[&str],
        env: &BTreeMap<String, String>,
    ) -> Result<bool> {
        let command = self.command_of_cargo(arguments, env);
        self.step(name, command).await
    }

    pub(super) async fn step(&mut self, name: &str, command: Command) -> Result<bool> {
        let record = self.play(name, command).await?;
        let passed = record.passed;
        self.keep(record);
        Ok(passed)
    }

    /// Runs a step; those that run side by side are kept when all have ended.
    pub(super) async fn play(&self, name: &str, command: Command) -> Result<StepRecord> {
        let (begin, log) = (Instant::now(), self.folder.join(format!("{name}.log")));
        let mut step = Step::begin(name);
        let passed = run_logged(&mut step, command, &log, self.limit()).await;
        let passed = passed.with_context(|| format!("running the step {name}"))?;
        if passed {
            step.end();
        } else {
            drop(step);
            eprintln!("{}", process::last_lines(&log, SHOWN_LINES));
        }
        Ok(StepRecord { step: name.to_owned(), passed, seconds: rounded(begin) })
    }

    fn limit(&self) -> Duration {
        if self.deep { DEEP_STEP_LIMIT } else { STEP_LIMIT }
    }

    pub(super) fn note(&mut self, step: &str, passed: bool, begin: Instant) {
        self.keep(StepRecord { step: step.to_owned(), passed, seconds: rounded(begin) });
    }

    pub(super) fn keep_all(&mut self, records: Vec<StepRecord>) {
        records.into_iter().for_each(|record| self.keep(record));
    }

    pub(super) fn keep(&mut self, record: StepRecord) {
        self.record.steps.push(record);
        if self.deep
            && let Err(error) = self.record.write(&self.layout.root.join(RECORD))
        {
            eprintln!("error: {error:#}");
        }
    }

    pub(super) fn summarise(&mut self) -> Result<()> {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING).set_header(["step", "", "seconds"]);
        for record in &self.record.steps {
            let how = if record.passed { "ok" } else { "FAILED" };
            table.add_row([record.step.clone(), how.to_owned(), format!("{:.1}", record.seconds)]);
        }
        println!("{table}");
        if self.deep {
            let path = self.layout.root.join(RECORD);
            self.record.write(&path)?;
            println!("record: {}", path.display());
        }
        Ok(())
    }
}

/// Runs a command with its output in a log; one that is not done in time is ended, and has failed.
async fn run_logged(step: &mut Step, mut command: Command, log: &Path, limit: Duration) -> Result<bool> {
    let output = File::create(log).with_context(|| format!("making {}", log.display()))?;
    command.stdout(output.try_clone()?).stderr(output.try_clone()?);
    let mut group = Group::start(command)?;
    let end = tokio::time::Instant::now() + limit;
    loop {
        tokio::select! {
            status = group.wait() => return Ok(status?.success()),
            () = tokio::time::sleep_until(end) => {
                writeln!(&output, "ended: it took longer than {} minutes", limit.as_secs() / 60)?;
                return Ok(false);
            }
            () = tokio::time::sleep(TELL) => step.tell(&process::last_lines(log, 1)),
        }
    }
}
