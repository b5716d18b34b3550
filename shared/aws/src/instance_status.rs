//! What EC2 finds out about instances, and plans to do with them.

use std::collections::BTreeMap;

use aws_sdk_ec2::types as ec2;
use jiff::Timestamp;
use karp_domain::interruption::{Check, EVENT_CODES, Health, ScheduledEvent};

use crate::config::Clients;
use crate::error::Error;
use crate::selector::filter;

const DESCRIBE: &str = "ec2:DescribeInstanceStatus";
/// A page of DescribeInstanceStatus; EC2 allows up to 1,000.
const PAGE: i32 = 1000;
/// What is asked for: filters of one call hold together, so that each needs a call of its own.
const UNWELL: [(&str, &[&str]); 3] =
    [("instance-status.status", &["impaired"]), ("system-status.status", &["impaired"]), ("event.code", &EVENT_CODES)];

/// Lists the running instances of account and region, whoever's they are, that fail a status check or for which something is planned, by
/// id. EC2 takes no tags here; those that are well, nearly all, are left out.
///
/// # Errors
/// Any failure of a call.
pub async fn unwell(clients: &Clients) -> Result<Vec<Health>, Error> {
    let mut found = BTreeMap::new();
    for (name, values) in UNWELL {
        let asked = filter(name, values.iter().map(|value| (*value).to_owned()));
        let call = clients.ec2().describe_instance_status().filters(asked).max_results(PAGE);
        clients.pace().describe.take().await;
        let mut pages = call.into_paginator().send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| Error::from_sdk(DESCRIBE, error))?;
            let is_last = page.next_token.as_ref().is_none_or(String::is_empty);
            // An instance that two calls tell of is the same in both.
            let read = page.instance_statuses.unwrap_or_default().into_iter().filter_map(read);
            found.extend(read.map(|health| (health.instance_id.clone(), health)));
            if !is_last {
                clients.pace().describe.take().await;
            }
        }
    }
    Ok(found.into_values().collect())
}

fn read(status: ec2::InstanceStatus) -> Option<Health> {
    let checks = [(Check::Instance, status.instance_status), (Check::System, status.system_status)];
    let failed = checks.into_iter().filter_map(|(check, summary)| Some((check, impaired_since(&summary?)?))).collect();
    let events = status.events.unwrap_or_default().into_iter().filter_map(|event| {
        Some(ScheduledEvent {
            code: event.code?.as_str().to_owned(),
            description: event.description.unwrap_or_default(),
            not_before: event.not_before.as_ref().and_then(instant),
        })
    });
    Some(Health { instance_id: status.instance_id?.into(), failed, events: events.collect() })
}

/// Returns since when a check fails; EC2 says it of each detail. A failure without a time is not heeded: the next answer may have it.
fn impaired_since(summary: &ec2::InstanceStatusSummary) -> Option<Timestamp> {
    if summary.status != Some(ec2::SummaryStatus::Impaired) {
        return None;
    }
    let details = summary.details.iter().flatten();
    details.filter_map(|detail| detail.impaired_since.as_ref().and_then(instant)).min()
}

fn instant(time: &aws_sdk_ec2::primitives::DateTime) -> Option<Timestamp> {
    Timestamp::from_second(time.secs()).ok()
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::primitives::DateTime;

    use super::*;

    fn summary(status: ec2::SummaryStatus, since: &[Option<i64>]) -> ec2::InstanceStatusSummary {
        let detail = |since: &Option<i64>| {
            let detail = ec2::InstanceStatusDetails::builder().name(ec2::StatusName::Reachability);
            detail.set_impaired_since(since.map(DateTime::from_secs)).build()
        };
        let details = since.iter().map(detail).collect();
        ec2::InstanceStatusSummary::builder().status(status).set_details(Some(details)).build()
    }

    #[test]
    fn failed_checks_and_plans_are_read() {
        let event = ec2::InstanceStatusEvent::builder()
            .code(ec2::EventCode::InstanceRetirement)
            .description("The instance is running on degraded hardware")
            .not_before(DateTime::from_secs(500));
        let status = ec2::InstanceStatus::builder()
            .instance_id("i-1")
            .instance_status(summary(ec2::SummaryStatus::Ok, &[]))
            .system_status(summary(ec2::SummaryStatus::Impaired, &[Some(90), None, Some(30)]))
            .events(event.build());
        let at = |second| Timestamp::from_second(second).unwrap();
        let planned = ScheduledEvent {
            code: "instance-retirement".to_owned(),
            description: "The instance is running on degraded hardware".to_owned(),
            not_before: Some(at(500)),
        };
        let expected =
            Health { instance_id: "i-1".into(), failed: vec![(Check::System, at(30))], events: vec![planned] };
        assert_eq!(read(status.build()), Some(expected));
    }

    #[test]
    fn what_is_not_known_to_fail_does_not() {
        for summary in [
            summary(ec2::SummaryStatus::Impaired, &[None]),
            summary(ec2::SummaryStatus::Initializing, &[Some(30)]),
            summary(ec2::SummaryStatus::InsufficientData, &[Some(30)]),
        ] {
            let status = ec2::InstanceStatus::builder().instance_id("i-1").instance_status(summary).build();
            assert_eq!(read(status).map(|health| health.failed), Some(Vec::new()));
        }
        assert_eq!(read(ec2::InstanceStatus::builder().build()), None, "nobody's");
    }
}
