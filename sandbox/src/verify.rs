//! `cargo verify`: everything that must hold, step by step, with the time that each took.

mod deep;
mod edge;
mod rights;
mod steps;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Command, ExitCode},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    cargo,
    lanes::{self, Lane},
    layout::Layout,
    lives,
    record::{self, Record, StepRecord},
    tools::Tools,
};

use self::{edge::Driven, rights::Seen};

/// Crates that the domain must not see: it is a function of its input.
const FOREIGN_TO_DOMAIN: [&str; 3] = ["tokio", "hyper", "aws"];
/// Tests of the engine, which need no sandbox. With `workspace-hack` they are in the builds that all tests share.
const PURE: [&str; 6] = ["test", "-p", "karp-domain", "-p", "workspace-hack", "--no-fail-fast"];
/// What makes tests run at length: property test cases (256 otherwise), and whatever else a test does more of.
const DEEP: [(&str, &str); 2] = [("PROPTEST_CASES", "4096"), ("KARP_DEEP", "1")];
/// Lives that the simulator plays beside the other tests, always the same.
const LIVES: u64 = 300;
/// The same with `--deep`, from what is committed.
const DEEP_LIVES: u64 = 5000;
/// From what property tests draw their cases: from what is committed, so that the same files are judged alike each time and every change
/// draws others. `--deep` draws at random.
const SEED: &str = "PROPTEST_RNG_SEED";
/// The same for the engine's properties under `--deep`: otherwise they draw by a fixed seed.
const DEEP_SEED: &str = "KARP_SEED";

/// Runs all steps and answers with the exit code; later steps run even if an earlier one failed, unless they need it.
///
/// # Errors
/// When the steps cannot be run at all.
pub async fn run(layout: Layout, deep: bool) -> Result<ExitCode> {
    let mut verify = Verify::begin(layout, deep)?;
    let result = verify.all().await;
    verify.record.complete = result.is_ok() && verify.record.steps.iter().all(|step| step.passed);
    verify.summarise()?;
    result?;
    let failed: Vec<&str> = verify.record.steps.iter().filter(|step| !step.passed).map(|s| s.step.as_str()).collect();
    if failed.is_empty() {
        println!("verify: ok");
        return Ok(ExitCode::SUCCESS);
    }
    println!("verify: FAILED: {}; logs: {}", failed.join(", "), verify.folder.display());
    Ok(ExitCode::FAILURE)
}

struct Verify {
    layout: Layout,
    deep: bool,
    folder: PathBuf,
    /// This program, found before a build may replace it.
    program: PathBuf,
    target: Option<PathBuf>,
    record: Record,
}

impl Verify {
    fn begin(mut layout: Layout, deep: bool) -> Result<Self> {
        let folder = layout.root.join("target").join("verify");
        std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let target = target_of_ci(&layout);
        if let Some(target) = &target {
            layout.binaries = target.join("debug");
        }
        let program = std::env::current_exe().context("finding the running program")?;
        let record = Record::begin(&layout.root);
        Ok(Self { layout, deep, folder, program, target, record })
    }

    async fn all(&mut self) -> Result<()> {
        self.cargo("format", &["fmt", "--all", "--check"], &BTreeMap::new()).await?;
        self.domain_is_pure()?;
        // each leaves processors idle that the other uses: large crates are compiled by one thread, and the emulator works with one
        let (builds, tools) = tokio::join!(self.builds(), self.tools());
        let (steps, built) = builds?;
        self.keep_all(steps);
        let (steps, tools) = tools?;
        self.keep_all(steps);
        let Some(tools) = tools.filter(|_| built) else { return Ok(()) };
        match self.tests(&tools).await? {
            Some(seen) => self.at_length(&tools, seen).await,
            None => Ok(()),
        }
    }

    /// Lints and builds what is in the checkout; says whether all that tests need was built.
    async fn builds(&self) -> Result<(Vec<StepRecord>, bool)> {
        let none = BTreeMap::new();
        let play = async |name, arguments: &[&str], env| self.play(name, self.command_of_cargo(arguments, env)).await;
        let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
        let mut steps =
            vec![play("clippy", &clippy, &none).await?, play("build", &["build", "--workspace"], &none).await?];
        let mut built = steps[1].passed;
        if built {
            let tests = play("build-tests", &["test", "--workspace", "--no-run"], &none).await?;
            built = tests.passed;
            steps.push(tests);
        }
        let rustdoc = BTreeMap::from([("RUSTDOCFLAGS".to_owned(), "-D warnings".to_owned())]);
        steps.push(play("docs", &["doc", "--workspace", "--no-deps"], &rustdoc).await?);
        Ok((steps, built))
    }

    /// Builds the tools in a process of their own, which ends with everything under it when the run is interrupted, and tests the emulator,
    /// which needs nothing else. Answers with the tools if all of them are there.
    async fn tools(&self) -> Result<(Vec<StepRecord>, Option<Tools>)> {
        let mut command = Command::new(&self.program);
        command.args(["tools", "--for-verify"]);
        let built = self.play("tools", command).await?;
        let tools = Tools::built(&self.layout)?;
        let missing = tools.is_none() && built.passed;
        ensure!(!missing, "the step `tools` passed, and yet the cache has not all of them: nothing was tested");
        let mut steps = vec![built];
        if let Some(tools) = &tools {
            steps.push(self.emulator_tests(tools).await?);
        }
        Ok((steps, tools))
    }

    async fn emulator_tests(&self, tools: &Tools) -> Result<StepRecord> {
        let mut command = Command::new(&tools.python);
        command.args(["-m", "unittest", "discover", "-t", ".", "-s", "tests"]).current_dir(self.layout.moto_source());
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        self.play("emulator-tests", command).await
    }

    /// Unit, property, edge and documentation tests. What runs on sandboxes waits more than it works: what only works takes what it leaves of
    /// the processors. With `--deep`, what controllers did is answered, and judged after more of it.
    async fn tests(&mut self, tools: &Tools) -> Result<Option<Seen>> {
        let env = self.draws();
        let lanes = lanes::all(&self.layout.root)?;
        let ((steps, seen), (pure, lives)) = tokio::join!(self.on_sandboxes(tools, &lanes, &env), self.beside(&env));
        self.keep_all(steps);
        self.keep(pure?);
        self.keep(lives?);
        Ok(seen)
    }

    /// The lanes, and when they have ended the demo and the verdicts on rights, unless `--deep` comes to both by itself.
    async fn on_sandboxes(
        &self,
        tools: &Tools,
        lanes: &[Lane],
        env: &BTreeMap<String, String>,
    ) -> (Vec<StepRecord>, Option<Seen>) {
        let Driven { mut steps, seen } = self.edge_tests(tools, lanes, env).await;
        if self.deep {
            return (steps, Some(seen));
        }
        let begin = Instant::now();
        let demo = self.demo("demo").await;
        steps.push(demo.unwrap_or_else(|error| rights::record("demo", &Err(error), begin)));
        steps.extend(self.rights(seen).await);
        (steps, None)
    }

    /// The engine's tests and the simulator's lives, which need no sandbox: both at once, so that neither's slowest test leaves a processor idle.
    async fn beside(&self, env: &BTreeMap<String, String>) -> (Result<StepRecord>, Result<StepRecord>) {
        // Thousands are worth a release build.
        let (lives, count) = if self.deep { (&lives::RELEASE[..], DEEP_LIVES) } else { (&lives::TEST[..], LIVES) };
        let many = self.command_of_cargo(lives, &lives::many(count, self.first_life()));
        let pure = self.command_of_cargo(&PURE, env);
        tokio::join!(self.play("pure-tests", cargo::gently(&pure)), self.play("lives", cargo::gently(&many)))
    }

    /// Says by what tests draw their cases, and answers with the variables that tell them.
    fn draws(&self) -> BTreeMap<String, String> {
        let seed = record::seed(&self.layout.root);
        println!("  simulated lives begin with {}={}", lives::FIRST, self.first_life());
        if !self.deep {
            println!("  property tests draw by {SEED}={seed}");
            return BTreeMap::from([(SEED.to_owned(), seed.to_string())]);
        }
        println!("  deep property tests draw by {DEEP_SEED}={seed}");
        let deep = DEEP.map(|(name, value)| (name.to_owned(), value.to_owned()));
        deep.into_iter().chain([(DEEP_SEED.to_owned(), seed.to_string())]).collect()
    }

    fn first_life(&self) -> u64 {
        if self.deep { lives::first(&self.layout) } else { 1 }
    }

    /// The demo as a newcomer runs it: by its own command.
    async fn demo(&self, name: &str) -> Result<StepRecord> {
        self.play(name, self.sandbox("demo")).await
    }

    fn domain_is_pure(&mut self) -> Result<()> {
        let begin = Instant::now();
        let tree = cargo::command(&self.layout, &["tree", "-p", "karp-domain", "-e", "normal", "--prefix", "none"])
            .output()?;
        ensure!(tree.status.success(), "cargo tree: {}", String::from_utf8_lossy(&tree.stderr));
        let foreign = foreign_to_domain(&String::from_utf8_lossy(&tree.stdout));
        if !foreign.is_empty() {
            eprintln!("error: karp-domain depends on {}", foreign.join(", "));
        }
        self.note("domain-is-pure", foreign.is_empty(), begin);
        Ok(())
    }
}

/// With `CI` set, builds go to the cache, so that a later run of a fresh clone is fast.
fn target_of_ci(layout: &Layout) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match set("CARGO_TARGET_DIR") {
        Some(given) => Some(layout.root.join(given)),
        None => set("CI").map(|_| layout.cache.join("target")),
    }
}

/// Finds crates in the output of `cargo tree --prefix none` that the domain must not see.
fn foreign_to_domain(tree: &str) -> Vec<String> {
    let names = tree.lines().filter_map(|line| line.split_whitespace().next());
    let foreign = |name: &str| FOREIGN_TO_DOMAIN.iter().any(|f| name == *f || name.starts_with(&format!("{f}-")));
    let mut found: Vec<String> = names.filter(|name| foreign(name)).map(str::to_owned).collect();
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_crates_are_found_by_name_and_by_family() {
        let tree = "karp-domain v0.1.0\nserde v1.0.0\ntokio v1.0.0\naws-sdk-ec2 v1.0.0\nhyper-util v0.1.0\nawsome v1.0.0\ntokio v1.0.0 (*)\n";
        assert_eq!(foreign_to_domain(tree), ["aws-sdk-ec2", "hyper-util", "tokio"]);
        assert!(foreign_to_domain("karp-domain v0.1.0\nkube-core v5.0.0\n").is_empty());
    }
}
