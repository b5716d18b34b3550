//! What `--deep` does beyond the tests: it measures what is promised, makes a release, and plays the demo again and again.

use std::{collections::BTreeMap, path::PathBuf, time::Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{Verify, rights::Seen};
use crate::{
    process,
    sandbox::{Options, Sandbox},
    tools::Tools,
};

/// Builds controller and provider as they are published, and a provider that does nothing beside it.
const BUILD_DIST: [&str; 9] =
    ["build", "--profile", "dist", "-p", "karp", "-p", "terraform-provider-karp", "--bins", "--examples"];
/// Names the folder of these builds to tests that measure them.
const BUILT_DIST: &str = "KARP_FIGURES_BIN";
/// Holds both providers to what issue 7 promises.
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

impl Verify {
    /// Goes on after the tests, in which controllers did what was seen.
    pub(super) async fn at_length(&mut self, tools: &Tools, seen: Seen) -> Result<()> {
        self.figures().await?;
        self.promises(tools).await?;
        self.release().await?;
        self.measured(tools).await?;
        for number in 1..=DEEP_DEMOS {
            let demo = self.demo(&format!("demo-{number}")).await?;
            self.keep(demo);
            self.record.demo(&self.layout.root.join("target/demo/timeline.json"))?;
        }
        let judged = self.rights(seen).await;
        self.keep_all(judged);
        self.demos_together().await
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
        let options = Options::named(format!("verify-{}-figures", std::process::id()));
        let sandbox = Sandbox::start(&self.layout, tools, options).await?;
        let mut env = sandbox.test_env();
        env.insert(BUILT_DIST.to_owned(), self.dist().display().to_string());
        self.cargo("released-figures", &RELEASED_FIGURES, &env).await?;
        sandbox.stop().await
    }

    fn dist(&self) -> PathBuf {
        self.target.clone().unwrap_or_else(|| self.layout.root.join("target")).join("dist")
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
            if self.dist().join("karp").is_file() {
                env.insert(BUILT_DIST.to_owned(), self.dist().display().to_string());
            }
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

    /// Two demos at the same time: neither may meet the other.
    async fn demos_together(&mut self) -> Result<()> {
        let begin = Instant::now();
        let (left, right) = (self.sandbox("demo"), self.sandbox("demo"));
        let (left, right) = tokio::join!(self.play("demo-left", left), self.play("demo-right", right));
        let passed = left?.passed && right?.passed;
        self.note("demos-together", passed, begin);
        Ok(())
    }
}

/// Takes from a test's log what it measured.
fn figures_in(log: &str) -> Vec<String> {
    // a single thread's tests print what they measure behind their names
    log.lines().filter_map(|line| Some(line.split_once(FIGURE)?.1.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_the_lines_that_say_so() {
        let log = "running 1 test\ntest a ... figure: 3 pods out in 1 s\nskipped\nfigure: 2 MiB\ntest result: ok.\n";
        assert_eq!(figures_in(log), ["3 pods out in 1 s", "2 MiB"]);
    }
}
