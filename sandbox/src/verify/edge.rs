//! Tests on sandboxes: lanes side by side, each with a sandbox of its own.

use std::{collections::BTreeMap, time::Instant};

use futures::future::join_all;

use super::{Verify, rights::Seen};
use crate::{
    audit, iam,
    lanes::Lane,
    moto::rights_log,
    record::{StepRecord, rounded},
    sandbox::{Options, Sandbox},
    tools::Tools,
};

/// What became of a lane, or of several.
#[derive(Default)]
pub(super) struct Driven {
    pub(super) steps: Vec<StepRecord>,
    /// What its controllers were granted and did.
    pub(super) seen: Seen,
}

impl Driven {
    fn note(&mut self, step: String, passed: bool, begin: Instant) {
        self.steps.push(StepRecord { step, passed, seconds: rounded(begin) });
    }
}

impl Verify {
    /// Runs all lanes.
    pub(super) async fn edge_tests(&self, tools: &Tools, lanes: &[Lane], env: &BTreeMap<String, String>) -> Driven {
        let each = join_all(lanes.iter().map(|lane| self.drive(tools, lane, env))).await;
        let mut all = Driven { steps: Vec::new(), seen: Seen::nothing() };
        for driven in each {
            all.steps.extend(driven.steps);
            all.seen.add(driven.seen);
        }
        all
    }

    /// Runs the parts of a lane on its sandbox. Nothing that goes wrong there stops the other lanes.
    async fn drive(&self, tools: &Tools, lane: &Lane, env: &BTreeMap<String, String>) -> Driven {
        let (mut driven, begin) = (Driven::default(), Instant::now());
        let name = format!("verify-{}-{}", std::process::id(), lane.name);
        let options = Options { emulators: lane.emulators, ..Options::named(name) };
        let sandbox = match Sandbox::start(&self.layout, tools, options).await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                eprintln!("error: {error:#}");
                driven.note(format!("sandbox-{}", lane.name), false, begin);
                return driven;
            }
        };
        driven.note(format!("sandbox-{}", lane.name), true, begin);
        let mut env = env.clone();
        env.extend(sandbox.test_env());
        for part in &lane.parts {
            let arguments: Vec<&str> = part.arguments.iter().map(String::as_str).collect();
            let (name, begin) = (format!("tests-{}", part.name), Instant::now());
            let played = self.play(&name, self.command_of_cargo(&arguments, &env)).await;
            match played {
                Ok(record) => driven.steps.push(record),
                Err(error) => {
                    eprintln!("error: {error:#}");
                    driven.note(name, false, begin);
                }
            }
        }
        let begin = Instant::now();
        let whole = sandbox.check();
        if let Err(error) = &whole {
            eprintln!("error: the sandbox broke under the tests: {error:#}");
        }
        driven.seen = seen_on(&sandbox, lane.emulators).await;
        let mut ended = whole.is_ok();
        if ended && driven.steps.iter().all(|step| step.passed) {
            if let Err(error) = sandbox.stop().await {
                eprintln!("error: {error:#}");
                ended = false;
            }
        } else {
            eprintln!("the sandbox's logs: {}", sandbox.stop_keeping_logs().await.display());
        }
        driven.note(format!("sandbox-end-{}", lane.name), ended, begin);
        driven
    }
}

async fn seen_on(sandbox: &Sandbox, emulators: usize) -> Seen {
    let cluster = audit::Rights::in_sandbox(&sandbox.client, &sandbox.run_dir).await;
    let aws = (1..=emulators).try_fold(iam::Rights::default(), |mut all, number| {
        all.add(iam::Rights::read(&rights_log(&sandbox.run_dir, number))?);
        Ok::<_, anyhow::Error>(all)
    });
    Seen {
        cluster: cluster.inspect_err(|error| eprintln!("error: {error:#}")).ok(),
        aws: aws.inspect_err(|error| eprintln!("error: {error:#}")).ok(),
    }
}
