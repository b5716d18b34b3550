//! `cargo verify`: everything that must hold, step by step, with the time that each took.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use comfy_table::Table;
use futures::future::join_all;
use serde_json::Value;

use crate::{
    audit::Rights,
    cargo, demo,
    group::Group,
    iam,
    lanes::{self, Lane},
    layout::Layout,
    lives,
    moto::rights_log,
    process,
    progress::Step,
    record::{self, Record, StepRecord, rounded},
    sandbox::{Options, Sandbox},
    second_opinion::SecondOpinion,
    tools::Tools,
};

/// Crates that the domain must not see: it is a function of its input.
const FOREIGN_TO_DOMAIN: [&str; 3] = ["tokio", "hyper", "aws"];
/// Tests of the engine, which need no sandbox. With `workspace-hack` they are in the builds that all tests share.
const PURE: [&str; 6] = ["test", "-p", "karp-domain", "-p", "workspace-hack", "--no-fail-fast"];
/// Lines of a failed step's log that are shown: a failing test's report, not a whole build.
const SHOWN_LINES: usize = 200;
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
/// Builds the provider as it is published, and one that does nothing beside it.
const BUILD_DIST: [&str; 7] = ["build", "--profile", "dist", "-p", "terraform-provider-karp", "--bins", "--examples"];
/// Holds both to what issue 7 promises.
const RELEASED_FIGURES: [&str; 7] =
    ["test", "-p", "terraform-provider-karp", "--test", "figures", "--", "--test-threads=1"];
/// Takes what a release publishes as its users would.
const RELEASED: [&str; 5] = ["test", "-p", "sandbox", "--test", "released"];
/// Names the folder of a release to it.
const RELEASE: &str = "KARP_RELEASE";
/// What `--deep` measures by tests that do nothing unless they are asked to, one after the other, since each wants the machine for itself: the
/// step, what asks for it, and cargo's arguments. docs/figures.md has what they came to.
const MEASURED: [(&str, (&str, &str), &[&str]); 4] = [
    (
        "disruption-figures",
        ("KARP_BENCH_DISRUPT", "2000"),
        &["test", "--release", "-p", "karp-domain", "--test", "life", "two_thousand", "--", "--nocapture"],
    ),
    ("scale", ("KARP_SCALE", "1"), &["test", "-p", "karp", "--test", "simulated", "thousands", "--", "--nocapture"]),
    ("large", ("KARP_SCALE", "2"), &["test", "-p", "karp", "--test", "simulated", "a_large", "--", "--nocapture"]),
    ("storm", ("KARP_STORM", "1"), &["test", "-p", "karp", "--test", "notices", "a_thousand", "--", "--nocapture"]),
];
/// What stands in a line before what a test has measured.
const FIGURE: &str = "figure: ";
/// Demos of `--deep` one after the other; two more run side by side.
const DEEP_DEMOS: usize = 2;
/// The longest that one step may take: a first build on two cores takes a third of it.
const STEP_LIMIT: Duration = Duration::from_secs(60 * 60);
/// The same with `--deep`.
const DEEP_STEP_LIMIT: Duration = Duration::from_secs(3 * 60 * 60);
/// Where `--deep` leaves its record, in the checkout.
const RECORD: &str = "target/deep/record.json";
/// Where the verdicts on what controllers asked of AWS are left, for another evaluator, among the logs.
const AWS_CASES: &str = "aws-rights.json";
/// How often a long step says that it still runs.
const TELL: Duration = Duration::from_secs(1);

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
    /// What the controllers under test were granted and did, once it is known.
    rights: Option<Rights>,
    /// The same at AWS.
    aws_rights: Option<iam::Rights>,
}

/// What became of a lane.
#[derive(Default)]
struct Driven {
    steps: Vec<StepRecord>,
    /// What its controllers were granted and did, unless that cannot be read.
    rights: Option<Rights>,
    /// The same at AWS.
    aws_rights: Option<iam::Rights>,
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
        Ok(Self { layout, deep, folder, program, target, record, rights: None, aws_rights: None })
    }

    async fn all(&mut self) -> Result<()> {
        self.cargo("format", &["fmt", "--all", "--check"], &BTreeMap::new()).await?;
        self.domain_is_pure()?;
        // where nothing is built yet, each leaves processors idle that the other uses: large crates are compiled by one thread
        let (builds, tools) = tokio::join!(self.builds(), self.tools());
        let (steps, built) = builds?;
        let tools = tools?;
        let passed = tools.passed;
        steps.into_iter().chain([tools]).for_each(|step| self.keep(step));
        let Some(tools) = Tools::built(&self.layout)? else {
            ensure!(!passed, "the step `tools` passed, and yet the cache has not all of them: nothing was tested");
            return Ok(());
        };
        self.emulator_tests(&tools).await?;
        if !built {
            return Ok(());
        }
        self.tests(&tools).await?;
        if !self.deep {
            self.demo("demo").await?;
            return self.rights().await;
        }
        self.figures().await?;
        self.promises(&tools).await?;
        self.release().await?;
        self.measured(&tools).await?;
        for number in 1..=DEEP_DEMOS {
            self.demo(&format!("demo-{number}")).await?;
            self.record.demo(&self.layout.root.join("target/demo/timeline.json"))?;
        }
        self.rights().await?;
        self.demos_together().await
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

    /// Builds the tools in a process of their own, which ends with everything under it when the run is interrupted.
    async fn tools(&self) -> Result<StepRecord> {
        let mut command = std::process::Command::new(&self.program);
        command.args(["tools", "--for-verify"]);
        self.play("tools", command).await
    }

    /// Unit, property, edge and documentation tests, in lanes with a sandbox for each, and the engine's beside them.
    async fn tests(&mut self, tools: &Tools) -> Result<()> {
        let seed = record::seed(&self.layout.root);
        let mut env = BTreeMap::new();
        // Thousands are worth a release build.
        let (lives, first, count) = match self.deep {
            true => (&lives::RELEASE[..], lives::first(&self.layout), DEEP_LIVES),
            false => (&lives::TEST[..], 1, LIVES),
        };
        println!("  simulated lives begin with {}={first}", lives::FIRST);
        if self.deep {
            println!("  deep property tests draw by {DEEP_SEED}={seed}");
            env.insert(DEEP_SEED.to_owned(), seed.to_string());
            env.extend(DEEP.map(|(name, value)| (name.to_owned(), value.to_owned())));
        } else {
            println!("  property tests draw by {SEED}={seed}");
            env.insert(SEED.to_owned(), seed.to_string());
        }
        // Edge tests wait more than they work: those that only work take what they leave of the processors.
        let (many, pure) =
            (self.command_of_cargo(lives, &lives::many(count, first)), self.command_of_cargo(&PURE, &env));
        let beside = async {
            let pure = self.play("pure-tests", cargo::gently(&pure)).await;
            (pure, self.play("lives", cargo::gently(&many)).await)
        };
        let lanes = lanes::all(&self.layout.root)?;
        let edge = join_all(lanes.iter().map(|lane| self.drive(tools, lane, &env)));
        let (edge, (pure, lives)) = tokio::join!(edge, beside);
        let (mut rights, mut aws_rights) = (Some(Rights::default()), Some(iam::Rights::default()));
        for driven in edge {
            driven.steps.into_iter().for_each(|step| self.keep(step));
            match (&mut rights, driven.rights) {
                (Some(all), Some(more)) => all.add(more),
                _ => rights = None,
            }
            match (&mut aws_rights, driven.aws_rights) {
                (Some(all), Some(more)) => all.add(more),
                _ => aws_rights = None,
            }
        }
        (self.rights, self.aws_rights) = (rights, aws_rights);
        self.keep(pure?);
        self.keep(lives?);
        Ok(())
    }

    /// Runs the parts of a lane on its sandbox. Nothing that goes wrong there stops the other lanes.
    async fn drive(&self, tools: &Tools, lane: &Lane, env: &BTreeMap<String, String>) -> Driven {
        let (mut driven, begin) = (Driven::default(), Instant::now());
        let note = |driven: &mut Driven, what: &str, passed: bool, begin: Instant| {
            let step = format!("{what}-{}", lane.name);
            driven.steps.push(StepRecord { step, passed, seconds: rounded(begin) });
        };
        let name = format!("verify-{}-{}", std::process::id(), lane.name);
        let options = Options { emulators: lane.emulators, ..Options::named(name) };
        let sandbox = match Sandbox::start(&self.layout, tools, options).await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                eprintln!("error: {error:#}");
                note(&mut driven, "sandbox", false, begin);
                return driven;
            }
        };
        note(&mut driven, "sandbox", true, begin);
        let mut env = env.clone();
        env.extend(sandbox.test_env());
        for part in &lane.parts {
            let arguments: Vec<&str> = part.arguments.iter().map(String::as_str).collect();
            let (name, begin) = (format!("tests-{}", part.name), Instant::now());
            let played = self.play(&name, self.command_of_cargo(&arguments, &env)).await;
            driven.steps.push(played.unwrap_or_else(|error| {
                eprintln!("error: {error:#}");
                StepRecord { step: name, passed: false, seconds: rounded(begin) }
            }));
        }
        let begin = Instant::now();
        let whole = sandbox.check();
        let rights = Rights::in_sandbox(&sandbox.client, &sandbox.run_dir).await;
        driven.rights = rights.inspect_err(|error| eprintln!("error: {error:#}")).ok();
        let aws_rights = (1..=lane.emulators).try_fold(iam::Rights::default(), |mut all, number| {
            all.add(iam::Rights::read(&rights_log(&sandbox.run_dir, number))?);
            Ok::<_, anyhow::Error>(all)
        });
        driven.aws_rights = aws_rights.inspect_err(|error| eprintln!("error: {error:#}")).ok();
        if let Err(error) = &whole {
            eprintln!("error: the sandbox broke under the tests: {error:#}");
        }
        let mut ended = whole.is_ok();
        if ended && driven.steps.iter().all(|step| step.passed) {
            if let Err(error) = sandbox.stop().await {
                eprintln!("error: {error:#}");
                ended = false;
            }
        } else {
            eprintln!("the sandbox's logs: {}", sandbox.stop_keeping_logs().await.display());
        }
        note(&mut driven, "sandbox-end", ended, begin);
        driven
    }

    async fn emulator_tests(&mut self, tools: &Tools) -> Result<()> {
        let mut command = std::process::Command::new(&tools.python);
        command.args(["-m", "unittest", "discover", "-t", ".", "-s", "tests"]).current_dir(self.layout.moto_source());
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        self.step("emulator-tests", command).await?;
        Ok(())
    }

    /// The demo as a newcomer runs it: by its own command.
    async fn demo(&mut self, name: &str) -> Result<()> {
        self.step(name, self.sandbox("demo")).await?;
        Ok(())
    }

    /// Under the roles that are installed, in the cluster and at AWS, the controllers of edge tests and demo were forbidden nothing, and used
    /// all that is granted.
    async fn rights(&mut self) -> Result<()> {
        let begin = Instant::now();
        let judged = self.judge_rights();
        self.judged("controller-rights", &judged, begin);
        let begin = Instant::now();
        let judged = self.judge_aws_rights();
        self.judged("aws-rights", &judged, begin);
        match judged {
            Ok(()) => self.ask_again().await,
            Err(_) => Ok(()),
        }
    }

    /// Another evaluator agrees with each verdict that was reached on rights at AWS.
    async fn ask_again(&mut self) -> Result<()> {
        let other =
            SecondOpinion::installed(&self.layout)?.context("the step `tools` did not install the other evaluator")?;
        let name = "aws-rights-again";
        self.step(name, other.on(&self.folder.join(AWS_CASES))).await?;
        println!("{}", process::last_lines(&self.folder.join(format!("{name}.log")), 1));
        Ok(())
    }

    fn judged(&mut self, step: &str, judged: &Result<()>, begin: Instant) {
        if let Err(error) = judged {
            eprintln!("error: {error:#}");
        }
        self.note(step, judged.is_ok(), begin);
    }

    fn judge_rights(&mut self) -> Result<()> {
        let mut rights = self.rights.take().context("the edge tests left no audit log")?;
        let path = self.layout.root.join(demo::RIGHTS);
        let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        rights.add(serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))?);
        rights.judge_forbidden()?;
        rights.judge_unused()
    }

    /// The controllers' policies at AWS allow all that was asked, and no more: see [`iam::Rights::prove`]. The verdicts are left for another
    /// evaluator (`ask_again`).
    fn judge_aws_rights(&mut self) -> Result<()> {
        let mut rights = self.aws_rights.take().context("the edge tests left no log of rights")?;
        let path = self.layout.root.join(demo::AWS_RIGHTS);
        let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        rights.add(serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))?);
        let proof = rights.prove()?;
        println!("{}", proof.summary());
        let cases = self.folder.join(AWS_CASES);
        std::fs::write(&cases, serde_json::to_vec(&proof)?).with_context(|| format!("writing {}", cases.display()))
    }

    /// Two demos at the same time: neither may meet the other.
    async fn demos_together(&mut self) -> Result<()> {
        let begin = Instant::now();
        let (left, right) = (self.sandbox("demo"), self.sandbox("demo"));
        let (left, right) = tokio::join!(self.play("demo-left", left), self.play("demo-right", right));
        let passed = left?.passed && right?.passed;
        self.note("demos-together", passed, begin);
        Ok(())
    }

    /// Measures what is promised; it stands in the record.
    async fn figures(&mut self) -> Result<()> {
        if self.step("figures", self.sandbox("figures")).await? {
            let printed = process::last_lines(&self.folder.join("figures.log"), 1);
            let figures: BTreeMap<String, Value> = serde_json::from_str(&printed).context("reading the figures")?;
            self.record.figures.extend(figures);
        }
        Ok(())
    }

    /// What is promised of optimised builds: the engine's figures, and the released provider's.
    async fn promises(&mut self, tools: &Tools) -> Result<()> {
        let none = BTreeMap::new();
        self.cargo("engine-figures", &["bench", "-p", "karp-domain", "--bench", "figures"], &none).await?;
        if !self.cargo("build-dist", &BUILD_DIST, &none).await? {
            return Ok(());
        }
        let target = self.target.clone().unwrap_or_else(|| self.layout.root.join("target"));
        let options = Options::named(format!("verify-{}-figures", std::process::id()));
        let sandbox = Sandbox::start(&self.layout, tools, options).await?;
        let mut env = sandbox.test_env();
        env.insert("KARP_FIGURES_BIN".to_owned(), target.join("dist").display().to_string());
        self.cargo("released-figures", &RELEASED_FIGURES, &env).await?;
        sandbox.stop().await
    }

    /// All that a release publishes is made, and taken as its users would.
    async fn release(&mut self) -> Result<()> {
        let folder = self.folder.join("release");
        let mut artifacts = self.sandbox("release-artifacts");
        artifacts.arg("--out").arg(&folder);
        if self.step("release-artifacts", artifacts).await? {
            let env = BTreeMap::from([(RELEASE.to_owned(), folder.display().to_string())]);
            self.cargo("released", &RELEASED, &env).await?;
        }
        Ok(())
    }

    /// Measures what wants the machine for itself, each on a sandbox where nothing has gone on before; what it came to stands in the record.
    async fn measured(&mut self, tools: &Tools) -> Result<()> {
        for (step, (asked, value), arguments) in MEASURED {
            let options = Options::named(format!("verify-{}-{step}", std::process::id()));
            let sandbox = Sandbox::start(&self.layout, tools, options).await?;
            let mut env = sandbox.test_env();
            env.insert(asked.to_owned(), value.to_owned());
            let begin = Instant::now();
            let passed = self.cargo(step, arguments, &env).await?;
            let log = self.folder.join(format!("{step}.log"));
            let log = std::fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))?;
            let figures = figures_in(&log);
            if passed && figures.is_empty() {
                // the test has another name by now, or was skipped
                eprintln!("error: the step {step} measured nothing");
                self.note(&format!("{step}-measured"), false, begin);
            }
            self.record.figures.insert(step.to_owned(), figures.into());
            sandbox.stop().await?;
        }
        Ok(())
    }

    /// A command of the built sandbox program.
    fn sandbox(&self, argument: &str) -> std::process::Command {
        let mut command = std::process::Command::new(self.layout.binaries.join("sandbox"));
        command.arg(argument).current_dir(&self.layout.root);
        self.in_target(&mut command);
        command
    }

    fn limit(&self) -> Duration {
        if self.deep { DEEP_STEP_LIMIT } else { STEP_LIMIT }
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

    async fn cargo(&mut self, name: &str, arguments: &[&str], env: &BTreeMap<String, String>) -> Result<bool> {
        let command = self.command_of_cargo(arguments, env);
        self.step(name, command).await
    }

    fn command_of_cargo(&self, arguments: &[&str], env: &BTreeMap<String, String>) -> std::process::Command {
        let mut command = cargo::command(&self.layout, arguments);
        self.in_target(&mut command);
        cargo::with_variables(command, env)
    }

    fn in_target(&self, command: &mut std::process::Command) {
        if let Some(target) = &self.target {
            command.env("CARGO_TARGET_DIR", target);
        }
    }

    async fn step(&mut self, name: &str, command: std::process::Command) -> Result<bool> {
        let record = self.play(name, command).await?;
        let passed = record.passed;
        self.keep(record);
        Ok(passed)
    }

    /// Runs a step; those that run side by side are kept when all have ended.
    async fn play(&self, name: &str, command: std::process::Command) -> Result<StepRecord> {
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

    fn note(&mut self, step: &str, passed: bool, begin: Instant) {
        self.keep(StepRecord { step: step.to_owned(), passed, seconds: rounded(begin) });
    }

    fn keep(&mut self, record: StepRecord) {
        self.record.steps.push(record);
        if self.deep
            && let Err(error) = self.record.write(&self.layout.root.join(RECORD))
        {
            eprintln!("error: {error:#}");
        }
    }

    fn summarise(&mut self) -> Result<()> {
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

/// With `CI` set, builds go to the cache, so that a later run of a fresh clone is fast.
fn target_of_ci(layout: &Layout) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match set("CARGO_TARGET_DIR") {
        Some(given) => Some(layout.root.join(given)),
        None => set("CI").map(|_| layout.cache.join("target")),
    }
}

/// Takes from a test's log what it measured.
fn figures_in(log: &str) -> Vec<String> {
    // a single thread's tests print what they measure behind their names
    log.lines().filter_map(|line| Some(line.split_once(FIGURE)?.1.to_owned())).collect()
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

/// Runs a command with its output in a log; one that is not done in time is ended, and has failed.
async fn run_logged(step: &mut Step, mut command: std::process::Command, log: &Path, limit: Duration) -> Result<bool> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_the_lines_that_say_so() {
        let log = "running 1 test\ntest a ... figure: 3 pods out in 1 s\nskipped\nfigure: 2 MiB\ntest result: ok.\n";
        assert_eq!(figures_in(log), ["3 pods out in 1 s", "2 MiB"]);
    }

    #[test]
    fn foreign_crates_are_found_by_name_and_by_family() {
        let tree = "karp-domain v0.1.0\nserde v1.0.0\ntokio v1.0.0\naws-sdk-ec2 v1.0.0\nhyper-util v0.1.0\nawsome v1.0.0\ntokio v1.0.0 (*)\n";
        assert_eq!(foreign_to_domain(tree), ["aws-sdk-ec2", "hyper-util", "tokio"]);
        assert!(foreign_to_domain("karp-domain v0.1.0\nkube-core v5.0.0\n").is_empty());
    }
}
