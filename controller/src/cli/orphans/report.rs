//! The orphans of a cluster, for programs and for people.

use std::fmt::{self, Write};

use jiff::{SignedDuration, Timestamp};
use karp_domain::orphans::{Left, What, Why};
use serde::Serialize;

use crate::cli::text::{BAD, BOLD, age, align, counted, table, written};

/// Holds what was found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    cluster_name: String,
    region: String,
    orphans: Vec<Orphan>,
}

/// One thing, why it is thought an orphan, and what ends it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    kind: String,
    id: String,
    created_at: Option<Timestamp>,
    /// None where its creation is not known.
    age_seconds: Option<i64>,
    reason: String,
    /// The same as data.
    why: Why,
    command: String,
}

impl Report {
    /// Begins a report about a cluster.
    pub fn new(cluster: &str, region: &str) -> Self {
        Self { cluster_name: cluster.to_owned(), region: region.to_owned(), orphans: Vec::new() }
    }

    /// Adds an orphan.
    pub fn add(&mut self, orphan: Orphan) {
        self.orphans.push(orphan);
    }

    /// Says whether there are none.
    pub fn is_empty(&self) -> bool {
        self.orphans.is_empty()
    }

    /// Counts them.
    pub fn len(&self) -> usize {
        self.orphans.len()
    }

    /// Writes the report with colours, which the stream takes out where they are not wanted.
    pub fn render(&self) -> String {
        written(|out| self.write(out))
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let (cluster, region) = (&self.cluster_name, &self.region);
        if self.is_empty() {
            return writeln!(out, "Nothing of cluster {cluster} is left over in {region}.");
        }
        let count = counted(self.len(), "orphan");
        writeln!(out, "{BAD}{count}{BAD:#} of cluster {cluster} in {region}:\n")?;
        let mut table = table(&["kind", "id", "age", "why"]);
        for one in &self.orphans {
            let age = one.age_seconds.map_or_else(|| "?".to_owned(), |age_| age(SignedDuration::from_secs(age_)));
            table.add_row([&one.kind, &one.id, &age, &one.reason]);
        }
        align(&mut table, &[2]);
        for line in table.to_string().lines() {
            writeln!(out, " {}", line.trim_end())?;
        }
        writeln!(out, "\n{BOLD}What ends them:{BOLD:#}")?;
        self.orphans.iter().try_for_each(|one| writeln!(out, "  {}", one.command))
    }
}

impl Orphan {
    /// Describes an orphan; `role` is the role in an instance profile.
    pub fn new(left: &Left, why: Why, role: Option<&str>, region: &str, now: Timestamp) -> Self {
        Self {
            kind: left.what.to_string(),
            id: left.id.clone(),
            created_at: left.made,
            age_seconds: left.made.map(|made| now.duration_since(made).as_secs().max(0)),
            reason: why.to_string(),
            why,
            command: command(left.what, &left.id, role, region),
        }
    }
}

fn command(what: What, id: &str, role: Option<&str>, region: &str) -> String {
    let ec2 = |call: &str, option: &str| format!("aws ec2 {call} --region {region} {option} {id}");
    match what {
        What::Instances => ec2("terminate-instances", "--instance-ids"),
        What::NetworkInterfaces => ec2("delete-network-interface", "--network-interface-id"),
        What::Volumes => ec2("delete-volume", "--volume-id"),
        What::LaunchTemplates => ec2("delete-launch-template", "--launch-template-id"),
        What::InstanceProfiles => {
            let profile = format!("--instance-profile-name {id}");
            // IAM deletes no profile with a role in it
            let role =
                role.map(|role| format!("aws iam remove-role-from-instance-profile {profile} --role-name {role} && "));
            format!("{}aws iam delete-instance-profile {profile}", role.unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> Report {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().expect("a time");
        let mut report = Report::new("prod", "eu-west-1");
        let claim = Left {
            claim: Some("default-x7f2k".to_owned()),
            made: Some(now - SignedDuration::from_hours(3)),
            ..Left::new(What::Instances, "i-1")
        };
        let profile = Left { node_class: Some("uid-1".to_owned()), ..Left::new(What::InstanceProfiles, "prod_1") };
        for (left, role) in [(claim, None), (profile, Some("nodes"))] {
            let why = left.orphaned(Some(&Default::default())).expect("an orphan");
            report.add(Orphan::new(&left, why, role, "eu-west-1", now));
        }
        report
    }

    #[test]
    fn people_read_what_why_how_old_and_what_ends_it() {
        let told = anstream::adapter::strip_str(&report().render()).to_string();
        let lines: Vec<String> =
            told.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let profile = "--instance-profile-name prod_1";
        let ends = format!(
            "aws iam remove-role-from-instance-profile {profile} --role-name nodes && aws iam delete-instance-profile {profile}"
        );
        assert_eq!(
            lines,
            [
                "2 orphans of cluster prod in eu-west-1:",
                "",
                "KIND ID AGE WHY",
                "instance i-1 3h launched for NodeClaim default-x7f2k, which is gone",
                "instance-profile prod_1 ? made for EC2NodeClass uid-1, which is gone",
                "",
                "What ends them:",
                "aws ec2 terminate-instances --region eu-west-1 --instance-ids i-1",
                &ends,
            ]
        );
        assert_eq!(Report::new("prod", "eu-west-1").render(), "Nothing of cluster prod is left over in eu-west-1.\n");
    }

    #[test]
    fn programs_read_the_same() {
        let told = serde_json::to_value(report()).expect("JSON");
        assert_eq!((&told["clusterName"], &told["region"]), (&json!("prod"), &json!("eu-west-1")));
        let first = json!({
            "kind": "instance", "id": "i-1", "createdAt": "2026-11-21T09:00:00Z", "ageSeconds": 10800,
            "reason": "launched for NodeClaim default-x7f2k, which is gone",
            "why": { "kind": "unclaimed", "nodeClaim": "default-x7f2k" },
            "command": "aws ec2 terminate-instances --region eu-west-1 --instance-ids i-1",
        });
        assert_eq!(told["orphans"][0], first);
        assert_eq!(told["orphans"][1]["ageSeconds"], json!(null));
    }
}
