//! Whether the roles that are installed, in the cluster and at AWS, are enough for the controllers of edge tests and demo, and all of them used.

use std::{path::Path, time::Instant};

use anyhow::{Context as _, Result};
use serde::de::DeserializeOwned;

use super::Verify;
use crate::{
    audit, demo, iam, process,
    record::{StepRecord, rounded},
    second_opinion::SecondOpinion,
};

/// Where the verdicts on what controllers asked of AWS are left, for another evaluator, among the logs.
const AWS_CASES: &str = "aws-rights.json";

/// What the controllers under test were granted and did; nothing where that cannot be read.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) cluster: Option<audit::Rights>,
    pub(super) aws: Option<iam::Rights>,
}

impl Seen {
    /// Where no controller was seen yet.
    pub(super) fn nothing() -> Self {
        Self { cluster: Some(audit::Rights::default()), aws: Some(iam::Rights::default()) }
    }

    /// Adds what was seen elsewhere; where that cannot be read, the whole is not known.
    pub(super) fn add(&mut self, other: Self) {
        match (&mut self.cluster, other.cluster) {
            (Some(all), Some(more)) => all.add(more),
            _ => self.cluster = None,
        }
        match (&mut self.aws, other.aws) {
            (Some(all), Some(more)) => all.add(more),
            _ => self.aws = None,
        }
    }
}

impl Verify {
    /// Judges what was seen in the edge tests, with what the demo left: the controllers were forbidden nothing, and used all that is granted.
    pub(super) async fn rights(&self, seen: Seen) -> Vec<StepRecord> {
        let begin = Instant::now();
        let judged = self.judge_rights(seen.cluster);
        let mut steps = vec![record("controller-rights", &judged, begin)];
        let begin = Instant::now();
        let judged = self.judge_aws_rights(seen.aws);
        steps.push(record("aws-rights", &judged, begin));
        if judged.is_ok() {
            let (again, begin) = (self.ask_again().await, Instant::now());
            steps.push(again.unwrap_or_else(|error| record("aws-rights-again", &Err(error), begin)));
        }
        steps
    }

    fn judge_rights(&self, seen: Option<audit::Rights>) -> Result<()> {
        let mut rights = seen.context("the edge tests left no audit log")?;
        rights.add(read(&self.layout.root.join(demo::RIGHTS))?);
        rights.judge_forbidden()?;
        rights.judge_unused()
    }

    /// The controllers' policies at AWS allow all that was asked, and no more: see [`iam::Rights::prove`]. The verdicts are left for another
    /// evaluator (`ask_again`).
    fn judge_aws_rights(&self, seen: Option<iam::Rights>) -> Result<()> {
        let mut rights = seen.context("the edge tests left no log of rights")?;
        rights.add(read(&self.layout.root.join(demo::AWS_RIGHTS))?);
        let proof = rights.prove()?;
        println!("{}", proof.summary());
        let cases = self.folder.join(AWS_CASES);
        std::fs::write(&cases, serde_json::to_vec(&proof)?).with_context(|| format!("writing {}", cases.display()))
    }

    /// Another evaluator agrees with each verdict that was reached on rights at AWS.
    async fn ask_again(&self) -> Result<StepRecord> {
        let other =
            SecondOpinion::installed(&self.layout)?.context("the step `tools` did not install the other evaluator")?;
        let name = "aws-rights-again";
        let step = self.play(name, other.on(&self.folder.join(AWS_CASES))).await?;
        println!("{}", process::last_lines(&self.folder.join(format!("{name}.log")), 1));
        Ok(step)
    }
}

/// Makes the record of what was judged here.
pub(super) fn record(step: &str, judged: &Result<()>, begin: Instant) -> StepRecord {
    if let Err(error) = judged {
        eprintln!("error: {error:#}");
    }
    StepRecord { step: step.to_owned(), passed: judged.is_ok(), seconds: rounded(begin) }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_of_one_lane_is_not_known_of_all() {
        let mut all = Seen::nothing();
        all.add(Seen::nothing());
        assert!(all.cluster.is_some() && all.aws.is_some());
        all.add(Seen { cluster: None, ..Seen::nothing() });
        all.add(Seen::nothing());
        assert!(all.cluster.is_none() && all.aws.is_some());
        all.add(Seen::default());
        assert!(all.aws.is_none(), "a lane without a sandbox shows nothing");
    }
}
